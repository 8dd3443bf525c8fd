//! Unpacks archives into one directory, each over the previous one, as layers of an image: the last entry of a name wins. Names, links and
//! whiteouts are resolved with that directory as the root, also through symbolic links of a lower image layer.
//!
//! Owns: creating the file of each entry. Does not: resolve names (`beneath` does).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bulkhead_core::base::LeftOut;
use bulkhead_core::units::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, symlinkat};
use rustix::io::Errno;

use crate::archive::{Archive, Kind, Member};
use crate::attributes::Notes;
use crate::beneath::{self, Directory, Unreachable};
use crate::error::{EntryError, ImportError, failed, shown};

mod data;
mod metadata;
#[cfg(test)]
mod tests;

pub(crate) use data::{Meter, whole_blocks};
pub(crate) use metadata::attributes;
use metadata::{set_metadata, timestamps};

/// Prefix of a whiteout, which hides a name of lower layers.
const WHITEOUT: &[u8] = b".wh.";

/// The whiteout that hides all contents of a directory in lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Allocated bytes of files with holes, by device and inode.
pub(crate) type AllocatedBytes = HashMap<(u64, u64), Bytes>;

/// A directory into which archives are unpacked.
pub(crate) struct Unpacker {
    root: OwnedFd,
    path: PathBuf,
    /// Modification times of directories by real path, which are set at the end, when no more entries are created in them.
    times: BTreeMap<PathBuf, i64>,
    /// The directory of the last entry, by its name in the archive: the next entry is likely to be in it.
    last: Option<(PathBuf, Directory)>,
    allocated: AllocatedBytes,
    notes: Notes,
}

/// A completely unpacked tree.
#[derive(Debug)]
pub(crate) struct UnpackedTree {
    pub(crate) path: PathBuf,
    pub(crate) allocated: AllocatedBytes,
    /// The omitted attributes.
    pub(crate) left_out: Vec<LeftOut>,
}

/// An entry that is being unpacked.
struct Entry<'a> {
    archive: &'a str,
    member: &'a Member,
}

impl Entry<'_> {
    fn refused(&self, reason: EntryError) -> ImportError {
        ImportError::Entry { archive: self.archive.to_owned(), entry: shown(&self.member.path), reason }
    }

    fn failed<E: Into<io::Error>>(&self, operation: &'static str) -> impl Fn(E) -> ImportError {
        let (archive, entry) = (self.archive.to_owned(), shown(&self.member.path));
        move |error| {
            let (archive, entry) = (archive.clone(), entry.clone());
            ImportError::Make { archive, operation, entry, source: error.into() }
        }
    }

    fn unreachable(&self, unreachable: Unreachable) -> ImportError {
        match unreachable {
            Unreachable::Entry(reason) => self.refused(reason),
            Unreachable::Io(error) => self.failed("make the directory of")(error),
        }
    }

    fn path(&self) -> Result<PathBuf, ImportError> {
        beneath::parse_name(&self.member.path).map_err(|reason| self.refused(reason))
    }
}

impl Unpacker {
    /// Creates an empty directory to unpack into.
    pub(crate) fn create(path: &Path) -> Result<Self, ImportError> {
        fs::create_dir(path).map_err(failed("make", path))?;
        let root = File::open(path).map_err(failed("open", path))?.into();
        // The default for archives without an entry for the root.
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755)).map_err(|errno| failed("protect", path)(errno.into()))?;
        let times = BTreeMap::from([(PathBuf::new(), 0)]);
        Ok(Self {
            root,
            path: path.to_owned(),
            times,
            last: None,
            allocated: AllocatedBytes::new(),
            notes: Notes::default(),
        })
    }

    /// Unpacks an archive; whiteouts of an image layer are skipped.
    pub(crate) fn unpack(
        &mut self,
        archive: &mut Archive<impl Read>,
        name: &str,
        is_layer: bool,
        meter: &mut Meter<'_>,
    ) -> Result<(), ImportError> {
        while let Some(member) = archive.next()? {
            let entry = Entry { archive: name, member: &member };
            let path = entry.path()?;
            let is_whiteout = || path.file_name().is_some_and(|name| name.as_bytes().starts_with(WHITEOUT));
            if !is_layer || !is_whiteout() {
                self.unpack_entry(&entry, &path, archive, meter)?;
            }
        }
        Ok(())
    }

    /// Applies the whiteouts of an image layer to the lower ones; unpacks nothing.
    pub(crate) fn apply_whiteouts(&mut self, archive: &mut Archive<impl Read>, name: &str) -> Result<(), ImportError> {
        self.last = None;
        let mut made = BTreeSet::new();
        while let Some(member) = archive.next()? {
            let entry = Entry { archive: name, member: &member };
            let path = entry.path()?;
            let Some((parent, last)) = beneath::split_parent(&path) else { continue };
            let Some(hidden) = last.as_bytes().strip_prefix(WHITEOUT) else {
                if member.kind == Kind::Directory && self.is_no_directory(&parent, &last) {
                    made.insert(path);
                }
                continue;
            };
            // The layer replaces a file or link with this directory: nothing of lower layers is in it.
            if parent.ancestors().any(|above| made.contains(above)) {
                continue;
            }
            let directory = match beneath::open_directory(&self.root, &parent) {
                Ok(directory) => directory,
                Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(unreachable) => return Err(entry.unreachable(unreachable)),
            };
            let removed = match hidden {
                _ if last.as_bytes() == OPAQUE => {
                    self.forget_times(&directory.path, false);
                    beneath::remove_contents(&directory)
                }
                // Reserved names (AUFS).
                hidden if hidden.starts_with(WHITEOUT) => Ok(()),
                b"" | b"." | b".." => return Err(entry.refused(EntryError::Outside)),
                hidden => {
                    let hidden = OsStr::from_bytes(hidden);
                    self.forget_times(&directory.path.join(hidden), true);
                    beneath::remove(&directory, hidden).map(drop)
                }
            };
            removed.map_err(entry.failed("remove what is hidden by"))?;
        }
        Ok(())
    }

    /// Whether a name exists and is not a directory.
    fn is_no_directory(&self, parent: &Path, name: &OsStr) -> bool {
        let directory = beneath::open_directory(&self.root, parent).ok();
        let found = directory.and_then(|directory| beneath::stat(directory, name).ok().flatten());
        found.is_some_and(|found| !FileType::from_raw_mode(found.st_mode).is_dir())
    }

    /// Drops the times of all directories below a removed one, and its own if it is removed itself.
    fn forget_times(&mut self, removed: &Path, itself: bool) {
        let below = self.times.range(removed.to_owned()..).map(|(path, _)| path);
        let below = below.take_while(|path| path.starts_with(removed)).filter(|path| itself || *path != removed);
        for path in below.cloned().collect::<Vec<PathBuf>>() {
            self.times.remove(&path);
        }
    }

    /// Sets the times of the directories. Nothing can be unpacked afterwards.
    pub(crate) fn finish(self) -> Result<UnpackedTree, ImportError> {
        for (path, mtime) in &self.times {
            // A directory that was removed or replaced has no time to set.
            if let Ok(directory) = beneath::open(&self.root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                let set = rustix::fs::futimens(&directory, &timestamps(*mtime));
                set.map_err(|errno| failed("set the time of", &self.path.join(path))(errno.into()))?;
            }
        }
        Ok(UnpackedTree { path: self.path, allocated: self.allocated, left_out: self.notes.finish() })
    }

    fn unpack_entry(
        &mut self,
        entry: &Entry<'_>,
        path: &Path,
        archive: &mut Archive<impl Read>,
        meter: &mut Meter<'_>,
    ) -> Result<(), ImportError> {
        let member = entry.member;
        let Some((parent, name)) = beneath::split_parent(path) else {
            return match member.kind {
                Kind::Directory => {
                    self.times.insert(PathBuf::new(), member.mtime);
                    set_metadata(entry, &self.root, OsStr::new("."), &mut self.notes)
                }
                _ => Err(entry.refused(EntryError::Root)),
            };
        };
        if let Kind::HardLink(target) = &member.kind {
            return self.link(entry, (parent, &name), target);
        }
        let directory = self.open_parent(entry, &parent)?;
        let path = directory.path.join(&name);
        let found = beneath::stat(&directory, &name).map_err(entry.failed("examine"))?;
        let is_directory = found.is_some_and(|found| FileType::from_raw_mode(found.st_mode).is_dir());
        if found.is_some() && !(is_directory && member.kind == Kind::Directory) {
            self.last = None;
            self.forget_times(&path, true);
            beneath::remove(&directory, &name).map_err(entry.failed("replace"))?;
        }
        let private = Mode::from_raw_mode(0o600);
        let node = |kind, device| mknodat(&directory, &name, kind, private, device);
        match &member.kind {
            Kind::File => return self.file(entry, (parent, directory), &name, archive, meter),
            Kind::Directory if is_directory => Ok(()),
            Kind::Directory => mkdirat(&directory, &name, Mode::from_raw_mode(0o700)),
            Kind::Symlink(target) => symlinkat(OsStr::from_bytes(target), &directory, &name),
            Kind::Char(major, minor) => node(FileType::CharacterDevice, makedev(*major, *minor)),
            Kind::Block(major, minor) => node(FileType::BlockDevice, makedev(*major, *minor)),
            Kind::Fifo => node(FileType::Fifo, 0),
            // Handled above.
            Kind::HardLink(_) => Ok(()),
        }
        .map_err(entry.failed("make"))?;
        if member.kind == Kind::Directory {
            self.times.insert(path, member.mtime);
        }
        set_metadata(entry, &directory.fd, &name, &mut self.notes)?;
        self.last = Some((parent, directory));
        Ok(())
    }

    fn file(
        &mut self,
        entry: &Entry<'_>,
        (parent, directory): (PathBuf, Directory),
        name: &OsStr,
        archive: &mut Archive<impl Read>,
        meter: &mut Meter<'_>,
    ) -> Result<(), ImportError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&directory, name, flags, Mode::from_raw_mode(0o600));
        let file = File::from(opened.map_err(entry.failed("make"))?);
        let allocated = data::copy(entry, archive, &file, meter)?;
        self.record_allocated(&file, allocated, entry.member.content.len).map_err(entry.failed("examine"))?;
        drop(file);
        set_metadata(entry, &directory.fd, name, &mut self.notes)?;
        self.last = Some((parent, directory));
        Ok(())
    }

    /// Records the allocated bytes of a file with holes. A removed file may have had the same inode.
    fn record_allocated(&mut self, file: &File, allocated: Bytes, len: u64) -> io::Result<()> {
        let has_holes = allocated < whole_blocks(len);
        if has_holes || !self.allocated.is_empty() {
            let found = file.metadata()?;
            let inode = (found.dev(), found.ino());
            if has_holes {
                self.allocated.insert(inode, allocated)
            } else {
                self.allocated.remove(&inode)
            };
        }
        Ok(())
    }

    fn link(&mut self, entry: &Entry<'_>, (parent, name): (PathBuf, &OsStr), target: &[u8]) -> Result<(), ImportError> {
        let bad = |reason| entry.refused(EntryError::BadTarget { target: shown(target), reason: Box::new(reason) });
        let missing = || entry.refused(EntryError::NoTarget(shown(target)));
        let target = beneath::parse_name(target).map_err(bad)?;
        let (above, last) = beneath::split_parent(&target).ok_or_else(|| bad(EntryError::Root))?;
        let from = match beneath::open_directory(&self.root, &above) {
            Err(Unreachable::Entry(reason)) => return Err(bad(reason)),
            Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            opened => opened.map_err(|unreachable| entry.unreachable(unreachable))?,
        };
        match beneath::stat(&from, &last).map_err(entry.failed("examine the target of"))? {
            None => return Err(missing()),
            Some(found) if FileType::from_raw_mode(found.st_mode).is_dir() => {
                return Err(bad(EntryError::Name("is that of a directory")));
            }
            Some(_) => {}
        }
        let directory = self.open_parent(entry, &parent)?;
        let path = directory.path.join(name);
        if from.path.join(&last) == path {
            return Ok(());
        }
        if beneath::remove(&directory, name).map_err(entry.failed("replace"))? {
            self.forget_times(&path, true);
            self.last = None;
        }
        match linkat(&from, &last, &directory, name, AtFlags::empty()) {
            // The target was inside the directory that the link replaced.
            Err(Errno::NOENT) => Err(missing()),
            linked => linked.map_err(entry.failed("link")),
        }
    }

    /// Opens the parent directory of an entry; creates missing directories.
    fn open_parent(&mut self, entry: &Entry<'_>, parent: &Path) -> Result<Directory, ImportError> {
        match self.last.take() {
            Some((path, directory)) if path == parent => Ok(directory),
            _ => {
                let made = |path: &Path| {
                    self.times.insert(path.to_owned(), 0);
                };
                beneath::create_directory(&self.root, parent, made)
                    .map_err(|unreachable| entry.unreachable(unreachable))
            }
        }
    }
}
