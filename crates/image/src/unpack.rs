//! Unpacks archives into a directory, one over the other, as the layers of an image: the last entry of a name counts. Names, links and
//! whiteouts are resolved with that directory as the root, also through symbolic links of a lower image layer.
//!
//! Owns: the file that an entry becomes. Does not: resolve names (`beneath`).

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
use metadata::{at, set_metadata};

/// The prefix of a whiteout, which removes a name of the layers below.
const WHITEOUT: &[u8] = b".wh.";

/// The whiteout that removes everything in a directory from the layers below.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Bytes in the blocks of files with holes, by device and inode.
pub(crate) type Held = HashMap<(u64, u64), Bytes>;

/// A directory into which archives are unpacked.
pub(crate) struct Unpacked {
    root: OwnedFd,
    path: PathBuf,
    /// When each directory was changed, by its real path, to be set when nothing is put into it any more.
    times: BTreeMap<PathBuf, i64>,
    /// The directory of the last entry, as the archive has it: the next one is likely to be in it.
    last: Option<(PathBuf, Directory)>,
    held: Held,
    notes: Notes,
}

/// A directory into which all was unpacked.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) path: PathBuf,
    pub(crate) held: Held,
    /// The attributes that its files have not.
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
        beneath::path_of(&self.member.path).map_err(|reason| self.refused(reason))
    }
}

impl Unpacked {
    /// Makes an empty directory.
    pub(crate) fn create(path: &Path) -> Result<Self, ImportError> {
        fs::create_dir(path).map_err(failed("make", path))?;
        let root = File::open(path).map_err(failed("open", path))?.into();
        // What an archive that has no entry for its root means.
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755)).map_err(|errno| failed("protect", path)(errno.into()))?;
        let times = BTreeMap::from([(PathBuf::new(), 0)]);
        Ok(Self { root, path: path.to_owned(), times, last: None, held: Held::new(), notes: Notes::default() })
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
                self.make(&entry, &path, archive, meter)?;
            }
        }
        Ok(())
    }

    /// Removes what the whiteouts of an image layer name from those below; nothing else of the layer is unpacked.
    pub(crate) fn apply_whiteouts(&mut self, archive: &mut Archive<impl Read>, name: &str) -> Result<(), ImportError> {
        self.last = None;
        let mut made = BTreeSet::new();
        while let Some(member) = archive.next()? {
            let entry = Entry { archive: name, member: &member };
            let path = entry.path()?;
            let Some((parent, last)) = beneath::split(&path) else { continue };
            let Some(hidden) = last.as_bytes().strip_prefix(WHITEOUT) else {
                if member.kind == Kind::Directory && self.is_no_directory(&parent, &last) {
                    made.insert(path);
                }
                continue;
            };
            // The layer makes a directory of what is a file or a link below: nothing of theirs is in it.
            if parent.ancestors().any(|above| made.contains(above)) {
                continue;
            }
            let directory = match beneath::directory(&self.root, &parent) {
                Ok(directory) => directory,
                Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(unreachable) => return Err(entry.unreachable(unreachable)),
            };
            let removed = match hidden {
                _ if last.as_bytes() == OPAQUE => {
                    self.forget_times(&directory.path, false);
                    beneath::empty(&directory)
                }
                // What some programs keep for themselves.
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

    /// Whether there is something of that name that is no directory.
    fn is_no_directory(&self, parent: &Path, name: &OsStr) -> bool {
        let directory = beneath::directory(&self.root, parent).ok();
        let found = directory.and_then(|directory| beneath::stat(directory, name).ok().flatten());
        found.is_some_and(|found| !FileType::from_raw_mode(found.st_mode).is_dir())
    }

    /// Forgets the times of all directories below one that is removed, and its own when it goes as well.
    fn forget_times(&mut self, removed: &Path, itself: bool) {
        let below = self.times.range(removed.to_owned()..).map(|(path, _)| path);
        let below = below.take_while(|path| path.starts_with(removed)).filter(|path| itself || *path != removed);
        for path in below.cloned().collect::<Vec<PathBuf>>() {
            self.times.remove(&path);
        }
    }

    /// Gives the directories their times. Nothing can be unpacked afterwards.
    pub(crate) fn finish(self) -> Result<Finished, ImportError> {
        for (path, mtime) in &self.times {
            // What was removed, or is something else now, has its own.
            if let Ok(directory) = beneath::open(&self.root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
                let set = rustix::fs::futimens(&directory, &at(*mtime));
                set.map_err(|errno| failed("set the time of", &self.path.join(path))(errno.into()))?;
            }
        }
        Ok(Finished { path: self.path, held: self.held, left_out: self.notes.finish() })
    }

    fn make(
        &mut self,
        entry: &Entry<'_>,
        path: &Path,
        archive: &mut Archive<impl Read>,
        meter: &mut Meter<'_>,
    ) -> Result<(), ImportError> {
        let member = entry.member;
        let Some((parent, name)) = beneath::split(path) else {
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
        let directory = self.take_parent(entry, &parent)?;
        let path = directory.path.join(&name);
        let found = beneath::stat(&directory, &name).map_err(entry.failed("look at"))?;
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
            // Made above.
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
        let held = data::copy(entry, archive, &file, meter)?;
        self.note_holes(&file, held, entry.member.content.len).map_err(entry.failed("look at"))?;
        drop(file);
        set_metadata(entry, &directory.fd, name, &mut self.notes)?;
        self.last = Some((parent, directory));
        Ok(())
    }

    /// Remembers what a file holds of its length, where that differs. A file that was removed may have had the same inode.
    fn note_holes(&mut self, file: &File, held: Bytes, len: u64) -> io::Result<()> {
        let has_holes = held < whole_blocks(len);
        if has_holes || !self.held.is_empty() {
            let found = file.metadata()?;
            let inode = (found.dev(), found.ino());
            if has_holes {
                self.held.insert(inode, held)
            } else {
                self.held.remove(&inode)
            };
        }
        Ok(())
    }

    fn link(&mut self, entry: &Entry<'_>, (parent, name): (PathBuf, &OsStr), target: &[u8]) -> Result<(), ImportError> {
        let bad = |reason| entry.refused(EntryError::BadTarget { target: shown(target), reason: Box::new(reason) });
        let missing = || entry.refused(EntryError::NoTarget(shown(target)));
        let target = beneath::path_of(target).map_err(bad)?;
        let (above, last) = beneath::split(&target).ok_or_else(|| bad(EntryError::Root))?;
        let from = match beneath::directory(&self.root, &above) {
            Err(Unreachable::Entry(reason)) => return Err(bad(reason)),
            Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            opened => opened.map_err(|unreachable| entry.unreachable(unreachable))?,
        };
        match beneath::stat(&from, &last).map_err(entry.failed("look at the target of"))? {
            None => return Err(missing()),
            Some(found) if FileType::from_raw_mode(found.st_mode).is_dir() => {
                return Err(bad(EntryError::Name("is one of a directory")));
            }
            Some(_) => {}
        }
        let directory = self.take_parent(entry, &parent)?;
        let path = directory.path.join(name);
        if from.path.join(&last) == path {
            return Ok(());
        }
        if beneath::remove(&directory, name).map_err(entry.failed("replace"))? {
            self.forget_times(&path, true);
            self.last = None;
        }
        match linkat(&from, &last, &directory, name, AtFlags::empty()) {
            // It was in what the link replaced.
            Err(Errno::NOENT) => Err(missing()),
            linked => linked.map_err(entry.failed("link")),
        }
    }

    /// The directory that an entry is made in; with those above it made, if need be.
    fn take_parent(&mut self, entry: &Entry<'_>, parent: &Path) -> Result<Directory, ImportError> {
        match self.last.take() {
            Some((path, directory)) if path == parent => Ok(directory),
            _ => {
                let made = |path: &Path| {
                    self.times.insert(path.to_owned(), 0);
                };
                beneath::make_directory(&self.root, parent, made).map_err(|unreachable| entry.unreachable(unreachable))
            }
        }
    }
}
