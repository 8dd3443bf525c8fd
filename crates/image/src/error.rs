//! Errors of image sources, with hints.

use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_core::error::{Code, Fault, PathError, chain};
use bulkhead_core::reason::Reason;

mod image;

pub use image::ImageError;

/// Longest part of a hostile name that is shown, in characters.
const SHOWN: usize = 200;

/// Why a source cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Owners and device nodes are root's to set.
    #[error("only root can set the owners of the source and make its device nodes")]
    NotRoot,
    /// A file or directory cannot be used.
    #[error(transparent)]
    Io(#[from] PathError),
    /// A directory cannot be imported as it is.
    #[error("{path}: {reason}", path = path.display())]
    Directory {
        /// The directory, or what is in it.
        path: PathBuf,
        /// Why not.
        reason: DirectoryError,
    },
    /// An archive cannot be read.
    #[error("{archive}: {reason}")]
    Archive {
        /// Its path, or the layer that it is.
        archive: String,
        /// Why not.
        reason: ArchiveError,
    },
    /// The input of an archive failed.
    #[error("cannot read {archive}")]
    Input {
        /// Its path, or the layer that it is.
        archive: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// What is packed cannot be written.
    #[error("cannot write the archive")]
    Output(#[source] io::Error),
    /// An entry of an archive cannot be had.
    #[error("{archive}: entry \"{entry}\" {reason}")]
    Entry {
        /// The archive's path, or the layer that it is.
        archive: String,
        /// The entry's name, made harmless.
        entry: String,
        /// Why not.
        reason: EntryError,
    },
    /// An entry of an archive cannot be made.
    #[error("{archive}: cannot {operation} \"{entry}\"")]
    Make {
        /// The archive's path, or the layer that it is.
        archive: String,
        /// What was tried.
        operation: &'static str,
        /// The entry's name, made harmless.
        entry: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Attributes cannot be kept, and were to be.
    #[error("{archive}: not all attributes can be kept: {left_out}")]
    LeftOut {
        /// The archive's path.
        archive: String,
        /// Which, of how many entries, and why.
        left_out: String,
    },
    /// An image of an OCI layout, or of what `docker save` wrote, cannot be used.
    #[error("{layout}: {reason}", layout = layout.display())]
    Image {
        /// The layout or archive.
        layout: PathBuf,
        /// Why not.
        reason: ImageError,
    },
}

/// What is wrong with a directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// What is mounted there would come along.
    #[error("another file system is mounted there")]
    OtherMount,
    /// It would be imported into itself.
    #[error("the staging directory lies in it")]
    HasStaging,
    /// A file became shorter while it was read, or something else.
    #[error("it was changed while it was read")]
    Changed,
    /// It has what an archive cannot say.
    #[error("it has {0}, which cannot be archived")]
    Unpackable(&'static str),
}

/// What is wrong with an archive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    /// It is something else.
    #[error("it is not a directory, tar archive or OCI image")]
    Unknown,
    /// It is compressed in a way that is not read.
    #[error("it is compressed with {0}, which is not supported")]
    Compression(&'static str),
    /// It ends too soon.
    #[error("it is cut off")]
    CutOff,
    /// It is not as it was written.
    #[error("it is damaged: {0}")]
    Damaged(String),
}

/// What is wrong with an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Its name has `..`.
    #[error("has a name that leads out of the archive")]
    Outside,
    /// Its name cannot be had.
    #[error("has a name that {0}")]
    Name(&'static str),
    /// Its name leads through symbolic links without an end.
    #[error("is behind the symbolic link \"{0}\", which is part of a loop")]
    LinkLoop(String),
    /// Its name leads through what is no directory.
    #[error("is in something that is not a directory")]
    NotInDirectory,
    /// It is a hard link that leads nowhere.
    #[error("is a hard link to \"{0}\", which does not exist")]
    NoTarget(String),
    /// It is a hard link whose target cannot be one.
    #[error("is a hard link to \"{target}\", which {reason}")]
    BadTarget {
        /// The target's name.
        target: String,
        /// What is wrong with it.
        reason: Box<EntryError>,
    },
    /// It is of no kind that a file system has.
    #[error("is of type '{0}', which is not supported")]
    Type(char),
    /// It is stored without its holes, and where these are is not to be found out.
    #[error("is a sparse file whose map cannot be read")]
    Sparse,
    /// A number in it cannot be had.
    #[error("has {0} that no file can have")]
    Number(&'static str),
    /// The root of the tree is to be something else than a directory.
    #[error("is the root of the tree, but not a directory")]
    Root,
}

impl ImportError {
    /// What kind of error it is.
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

    /// As a fault about `object`, with what to do about it.
    #[must_use]
    pub fn fault(&self, object: impl Display) -> Fault {
        let fault = Fault::new(self.code(), object, chain(self));
        match self.reason() {
            Some(reason) => fault.reason(reason),
            None => fault.hint(self.hint()),
        }
    }

    /// The situation, where front ends word the remedy in their own way.
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

    /// What to do about one that has no reason; empty for those that have one.
    fn hint(&self) -> &'static str {
        match self {
            Self::Directory { reason: DirectoryError::HasStaging, .. }
            | Self::Archive { reason: ArchiveError::Compression(_), .. } => "",
            Self::NotRoot => "run it as root, outside of containers",
            Self::Directory { reason: DirectoryError::OtherMount, .. } => {
                "unmount it, or import an archive of the directory"
            }
            Self::Directory { reason: DirectoryError::Changed, .. } => "import it while it does not change",
            Self::Directory { reason: DirectoryError::Unpackable(_), .. } => "rename or remove it, and import again",
            Self::Archive { reason: ArchiveError::Unknown, .. } => {
                "give a directory, a tar archive (plain, gzip or zstd), an OCI layout, or what `docker save` writes"
            }
            Self::Archive { .. } => "get or create the archive again",
            Self::Entry { reason: EntryError::Sparse, .. } => "get the archive again, or create it without `--sparse`",
            Self::Entry { reason: EntryError::LinkLoop(_), .. } => {
                "create the archive without links that lead to each other"
            }
            Self::LeftOut { .. } => "remove them from the source, or import it without `strict`",
            Self::Entry { .. } => "do not trust this archive; import one whose entries all stay within it",
            Self::Image { reason, .. } => reason.hint(),
            Self::Io(_) | Self::Input { .. } | Self::Output(_) | Self::Make { .. } => match self.code() {
                Code::NotFound => "look for the path",
                Code::PermissionDenied => "run it as root, outside of containers",
                Code::NoSpace | Code::Unsupported => "",
                _ => "check the kernel log, and import again",
            },
        }
    }
}

/// A name out of an archive as text that does nothing to a terminal.
pub(crate) fn shown(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// A failure of the operating system at a path.
pub(crate) fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> ImportError {
    let path = path.to_owned();
    move |source| PathError::new(operation, &path, source).into()
}

/// What a failure to read an archive means: it may be the archive, or the disk that it is on.
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
