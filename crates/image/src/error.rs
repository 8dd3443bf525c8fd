//! Errors of image sources, with hints.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_core::error::{Code, Fault, PathError, chain};
use bulkhead_core::reason::Reason;

mod image;

pub use image::ImageError;

/// Limit of an untrusted name in an error, in characters.
const SHOWN: usize = 200;

/// Why a source cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Only root can set owners and create device nodes.
    #[error("only root can set the owners of the source and create its device nodes")]
    NotRoot,
    /// An operation on a file or directory failed.
    #[error(transparent)]
    Io(#[from] PathError),
    /// A directory cannot be imported as it is.
    #[error("{path}: {reason}", path = path.display())]
    Directory {
        /// The directory, or an entry in it.
        path: PathBuf,
        /// The reason.
        reason: DirectoryError,
    },
    /// An archive cannot be read.
    #[error("{archive}: {reason}")]
    Archive {
        /// Its path, or the name of the layer.
        archive: String,
        /// The reason.
        reason: ArchiveError,
    },
    /// The input of an archive failed.
    #[error("cannot read {archive}")]
    Input {
        /// Its path, or the name of the layer.
        archive: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Writing the packed archive failed.
    #[error("cannot write the archive")]
    Output(#[source] io::Error),
    /// An entry of an archive is refused.
    #[error("{archive}: entry \"{entry}\" {reason}")]
    Entry {
        /// Path of the archive, or the name of the layer.
        archive: String,
        /// Name of the entry, with control characters escaped.
        entry: String,
        /// The reason.
        reason: EntryError,
    },
    /// Creating an entry of an archive failed.
    #[error("{archive}: cannot {operation} \"{entry}\"")]
    Make {
        /// Path of the archive, or the name of the layer.
        archive: String,
        /// The operation.
        operation: &'static str,
        /// Name of the entry, with control characters escaped.
        entry: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Attributes cannot be kept, although `strict` was requested.
    #[error("{archive}: not all attributes can be kept: {left_out}")]
    LeftOut {
        /// Path of the archive.
        archive: String,
        /// The attributes, with the number of entries and the reason.
        left_out: String,
    },
    /// An image in an OCI layout or in an archive of `docker save` cannot be used.
    #[error("{layout}: {reason}", layout = layout.display())]
    Image {
        /// The layout or archive.
        layout: PathBuf,
        /// The reason.
        reason: ImageError,
    },
}

/// Why a directory is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Another file system is mounted in it, and would be imported as well.
    #[error("another file system is mounted there")]
    OtherMount,
    /// It contains the staging directory, so that it would be unpacked into itself.
    #[error("it contains the staging directory")]
    HasStaging,
    /// A file became shorter or was replaced while it was read.
    #[error("it was changed while it was read")]
    Changed,
    /// It contains something that an archive cannot represent.
    #[error("it has {0}, which cannot be archived")]
    Unpackable(&'static str),
}

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// The format is unknown.
    #[error("it is not a directory, tar archive or OCI image")]
    Unknown,
    /// The compression is not supported.
    #[error("it is compressed with {0}, which is not supported")]
    Compression(&'static str),
    /// It is truncated.
    #[error("it is cut off")]
    CutOff,
    /// Its content is invalid.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// Why an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Its name contains `..`.
    #[error("has a name that leads out of the archive")]
    Outside,
    /// Its name is invalid.
    #[error("has a name that {0}")]
    Name(&'static str),
    /// Its name leads through a loop of symbolic links.
    #[error("is behind the symbolic link \"{0}\", which is part of a loop")]
    LinkLoop(String),
    /// Its name leads through a file that is not a directory.
    #[error("is in something that is not a directory")]
    NotInDirectory,
    /// It is a hard link whose target does not exist.
    #[error("is a hard link to \"{0}\", which does not exist")]
    NoTarget(String),
    /// It is a hard link whose target is invalid.
    #[error("is a hard link to \"{target}\", which {reason}")]
    BadTarget {
        /// Name of the target.
        target: String,
        /// Why the target is invalid.
        reason: Box<EntryError>,
    },
    /// Its type is not supported.
    #[error("is of type '{0}', which is not supported")]
    Type(char),
    /// It is a sparse file with an invalid map.
    #[error("is a sparse file whose map cannot be read")]
    Sparse,
    /// A number in its header is out of range.
    #[error("has {0} out of range")]
    Number(&'static str),
    /// It would replace the root of the tree with something other than a directory.
    #[error("is the root of the tree, but not a directory")]
    Root,
}

impl EntryError {
    /// Whether the entry, or the target of its hard link, is outside of the archive.
    fn leads_outside(&self) -> bool {
        match self {
            Self::Outside => true,
            Self::BadTarget { reason, .. } => reason.leads_outside(),
            _ => false,
        }
    }
}

impl ImportError {
    /// The code of the error.
    #[must_use]
    pub fn code(&self) -> Code {
        use std::io::ErrorKind as K;
        match self {
            Self::NotRoot => Code::PermissionDenied,
            Self::Io(PathError { source, .. })
            | Self::Input { source, .. }
            | Self::Output(source)
            | Self::Make { source, .. } => match source.kind() {
                K::StorageFull | K::QuotaExceeded => Code::NoSpace,
                K::NotFound => Code::NotFound,
                K::PermissionDenied => Code::PermissionDenied,
                K::Unsupported => Code::Unsupported,
                K::NotADirectory | K::InvalidFilename => Code::InvalidArgument,
                _ => Code::Internal,
            },
            Self::Archive { reason: ArchiveError::CutOff | ArchiveError::Damaged(_), .. } => Code::Corrupt,
            Self::Archive { reason: ArchiveError::Compression(_), .. } => Code::Unsupported,
            Self::Entry { reason: EntryError::Type(_), .. } | Self::LeftOut { .. } => Code::Unsupported,
            Self::Entry { reason: EntryError::Sparse, .. } => Code::Corrupt,
            Self::Directory { reason: DirectoryError::Changed, .. } => Code::InUse,
            Self::Directory { .. } | Self::Archive { .. } | Self::Entry { .. } => Code::InvalidArgument,
            Self::Image { reason, .. } => reason.code(),
        }
    }

    /// Converts the error to a fault about `object`, with a hint.
    #[must_use]
    pub fn fault(&self, object: impl Display) -> Fault {
        let (object, cause) = (object.to_string(), chain(self));
        // An error of the whole source names it as well.
        let cause = match cause.split_once(": ") {
            Some((name, rest)) if object.ends_with(&format!(" {name}")) => rest.to_owned(),
            _ => cause,
        };
        let fault = Fault::new(self.code(), object, cause);
        match self.reason() {
            Some(reason) => fault.reason(reason),
            None => fault.hint(self.hint()),
        }
    }

    /// The reason, for which each front end words its own hint.
    fn reason(&self) -> Option<Reason> {
        match self {
            Self::Directory { reason: DirectoryError::HasStaging, .. } => Some(Reason::StagingInSource),
            Self::Archive { reason: ArchiveError::Compression(_), .. } => Some(Reason::ArchiveCompression),
            Self::Image { reason, .. } => reason.reason(),
            Self::Io(_) | Self::Input { .. } | Self::Output(_) | Self::Make { .. } => match self.code() {
                Code::NoSpace => Some(Reason::StagingFull),
                Code::Unsupported => Some(Reason::StagingUnsuitable),
                _ => None,
            },
            _ => None,
        }
    }

    /// The hint of an error without a reason; empty for those with one.
    fn hint(&self) -> &'static str {
        match self {
            Self::Directory { reason: DirectoryError::HasStaging, .. }
            | Self::Archive { reason: ArchiveError::Compression(_), .. } => "",
            Self::NotRoot => "run it as root, outside of containers",
            Self::Directory { reason: DirectoryError::OtherMount, .. } => {
                "unmount it, or import an archive of the directory"
            }
            Self::Directory { reason: DirectoryError::Changed, .. } => "stop what writes to it, and import it again",
            Self::Directory { reason: DirectoryError::Unpackable(_), .. } => "rename or remove it, and import again",
            Self::Archive { reason: ArchiveError::Unknown, .. } => {
                "specify a directory, a tar archive (plain, gzip or zstd), an OCI layout, or the output of `docker save`"
            }
            Self::Archive { .. } => "get or create the archive again",
            Self::Entry { reason: EntryError::Sparse, .. } => "get the archive again, or create it without `--sparse`",
            Self::Entry { reason: EntryError::LinkLoop(_), .. } => "create the archive without loops of symbolic links",
            Self::LeftOut { .. } => "remove these attributes from the source, or allow them to be omitted",
            Self::Entry { reason, .. } if reason.leads_outside() => {
                "do not trust this archive; import one whose entries all stay within it"
            }
            Self::Entry { .. } => "create the archive again without that entry",
            Self::Image { reason, .. } => reason.hint(),
            Self::Io(_) | Self::Input { .. } | Self::Output(_) | Self::Make { .. } => match self.code() {
                Code::NotFound => "check the path",
                Code::PermissionDenied => "run it as root, outside of containers",
                Code::NoSpace | Code::Unsupported => "",
                _ => "check the kernel log, and import again",
            },
        }
    }
}

/// A name from an archive as text, with control characters escaped.
pub(crate) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// An error of the operating system on a path.
pub(crate) fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> ImportError {
    let path = path.to_owned();
    move |source| PathError::new(operation, &path, source).into()
}

/// Classifies a failed read of an archive: the archive is damaged, or its disk failed.
pub(crate) fn reading(archive: &str, error: io::Error) -> ImportError {
    let archive = archive.to_owned();
    let mut next: Option<&(dyn Error + 'static)> = Some(&error);
    let kinds = std::iter::from_fn(|| {
        let error = next?;
        next = error.source();
        Some(error)
    });
    let kinds = kinds.filter_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()));
    // A decoder wraps the error of its input.
    let reason = match kinds.last() {
        Some(io::ErrorKind::UnexpectedEof) => ArchiveError::CutOff,
        Some(io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) => ArchiveError::Damaged(error.to_string()),
        _ => return ImportError::Input { archive, source: error },
    };
    ImportError::Archive { archive, reason }
}
