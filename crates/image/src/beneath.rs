//! Files below one directory, by names that somebody else chose: no name leads out of it, and no symbolic link is followed.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, mkdirat, openat2, statat, unlinkat};
use rustix::io::Errno;

use crate::error::EntryError;

/// The longest part of a name, and the longest name, in bytes (`NAME_MAX`, and less than `PATH_MAX`).
const MAX_PART: usize = 255;
const MAX_NAME: usize = 4000;

/// How deep a tree may be: who removes it has a file open for each directory on the way.
const MAX_DEPTH: usize = 256;

/// A name out of an archive as a path; an empty one is the root.
pub(crate) fn path_of(name: &[u8]) -> Result<PathBuf, EntryError> {
    match name {
        [] => return Err(EntryError::Name("is empty")),
        [b'/', ..] => return Err(EntryError::Absolute),
        _ if name.contains(&0) => return Err(EntryError::Name("has a zero byte")),
        _ if name.len() > MAX_NAME => return Err(EntryError::Name("is too long")),
        _ => {}
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(EntryError::Outside),
            part if part.len() > MAX_PART => return Err(EntryError::Name("has a part longer than 255 bytes")),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    if path.components().count() > MAX_DEPTH {
        return Err(EntryError::Name("leads through more than 256 directories"));
    }
    Ok(path)
}

/// Why a directory cannot be come to.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// What the names are to blame for.
    Entry(EntryError),
    /// What the operating system is.
    Io(io::Error),
}

impl From<Errno> for Unreachable {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// Opens a directory below `root`, of which `path` is the name.
pub(crate) fn directory(root: impl AsFd, path: &Path) -> Result<OwnedFd, Unreachable> {
    open(&root, path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(|errno| match errno {
        Errno::LOOP | Errno::NOTDIR => match link_on(&root, path) {
            Some(link) => Unreachable::Entry(EntryError::BehindLink(crate::error::shown(link.as_os_str().as_bytes()))),
            None => Unreachable::Entry(EntryError::NotInDirectory),
        },
        errno => errno.into(),
    })
}

/// Opens a directory below `root`, after all that is missing of it was made, and tells what was made.
pub(crate) fn make_directory(
    root: impl AsFd,
    path: &Path,
    mut made: impl FnMut(&Path),
) -> Result<OwnedFd, Unreachable> {
    match directory(&root, path) {
        Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    let mut at = PathBuf::new();
    let mut above = open(&root, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY)?;
    for part in path {
        at.push(part);
        match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                made(&at);
                above = directory(&root, &at)?;
                // Whatever the mask of this process is.
                rustix::fs::fchmod(&above, Mode::from_raw_mode(0o755))?;
            }
            Err(Errno::EXIST) => above = directory(&root, &at)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(above)
}

/// The first symbolic link on the way.
fn link_on(root: impl AsFd, path: &Path) -> Option<PathBuf> {
    let mut at = PathBuf::new();
    path.components().find_map(|part| {
        at.push(part);
        let link = open(&root, &at, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let is_link = FileType::from_raw_mode(rustix::fs::fstat(link).ok()?.st_mode).is_symlink();
        is_link.then(|| at.clone())
    })
}

/// Opens what is below `root`, whatever it is called, and not through any symbolic link.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// What has a name in a directory, not followed.
pub(crate) fn stat(directory: impl AsFd, name: &OsStr) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Removes what has a name in a directory, and all below. Returns whether there was any.
pub(crate) fn remove(directory: impl AsFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR | Errno::PERM) => {
            let within = open(&directory, Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY)?;
            empty(&within)?;
            unlinkat(&directory, name, AtFlags::REMOVEDIR)?;
            Ok(true)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes all that is in a directory.
pub(crate) fn empty(directory: impl AsFd) -> io::Result<()> {
    // Read to the end first: what is removed on the way may hide what follows.
    let names: Vec<CString> =
        Dir::read_from(&directory)?.map(|entry| Ok(entry?.file_name().to_owned())).collect::<Result<_, Errno>>()?;
    for name in names.iter().filter(|name| !matches!(name.as_bytes(), b"." | b"..")) {
        remove(&directory, OsStr::from_bytes(name.as_bytes()))?;
    }
    Ok(())
}

/// A path to what has a name in a directory, for calls that take only paths; nothing on it can be moved away.
pub(crate) fn by_descriptor(directory: impl AsFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_fd().as_raw_fd().to_string()).join(name)
}

/// The directory that a path is in, and its last part; `None` for the root.
pub(crate) fn split(path: &Path) -> Option<(PathBuf, OsString)> {
    match path.components().next_back()? {
        Component::Normal(name) => Some((path.parent().unwrap_or(Path::new("")).to_owned(), name.to_owned())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn names_become_paths_or_are_refused() {
        for (name, path) in [("./a//b/./c/", "a/b/c"), (".", ""), ("./", ""), ("..a/b..", "..a/b.."), ("a\n", "a\n")] {
            assert_eq!(path_of(name.as_bytes()).unwrap(), Path::new(path), "{name:?}");
        }
        for name in ["../a", "a/../b", "a/..", ".."] {
            assert_eq!(path_of(name.as_bytes()), Err(EntryError::Outside), "{name:?}");
        }
        assert_eq!(path_of(b"/etc/passwd"), Err(EntryError::Absolute));
        let deep = "a/".repeat(257);
        for name in [&b""[..], b"a\0b", &[b'x'; 256], &[b'/'; 1][..0], deep.as_bytes(), &b"ab/".repeat(2000)] {
            assert!(matches!(path_of(name), Err(EntryError::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn links_are_not_followed_and_what_is_behind_them_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "precious").unwrap();
        symlink(&outside, root.join("a/link")).unwrap();
        symlink("b", root.join("a/near")).unwrap();
        let fd = open(fs::File::open(&root).unwrap(), Path::new(""), OFlags::RDONLY).unwrap();
        assert!(directory(&fd, Path::new("a/b")).is_ok());
        for link in ["a/link", "a/near"] {
            match directory(&fd, &Path::new(link).join("more")) {
                Err(Unreachable::Entry(EntryError::BehindLink(found))) => assert_eq!(found, link),
                other => panic!("{other:?}"),
            }
        }
        let mut made = Vec::new();
        make_directory(&fd, Path::new("a/x/y"), |path| made.push(path.to_owned())).unwrap();
        assert_eq!(made, [Path::new("a/x"), Path::new("a/x/y")]);
        assert!(make_directory(&fd, Path::new("a/link/y"), |_| panic!("made")).is_err());
        assert!(remove(&fd, OsStr::new("a")).unwrap() && !remove(&fd, OsStr::new("a")).unwrap());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "precious");
    }
}
