//! Access to files below one directory by untrusted names, as if that directory were the root: absolute names and links start there, and `..`
//! in a link leads no higher.
//!
//! The kernel follows no symbolic link here (`RESOLVE_NO_SYMLINKS`). Links are resolved name by name ([`resolve`]) and opened by their real path,
//! because directories that are missing behind a link have to be created, which `RESOLVE_IN_ROOT` cannot do.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, mkdirat, openat2, readlinkat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::attributes::{ACCESS, DEFAULT};
use crate::error::{EntryError, shown};

/// Limits of a component of a name, and of a name, in bytes (`NAME_MAX`, and below `PATH_MAX`).
const MAX_PART: usize = 255;
const MAX_NAME: usize = 4000;

/// Limit of the depth of a tree: removing it keeps one file open per level.
const MAX_DEPTH: usize = 256;

/// Limit of symbolic links followed for one name (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// Flags for opening a directory.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// Parses a name from an archive to a path relative to the root; absolute names are relative to it, too. An empty path is the root.
pub(crate) fn parse_name(name: &[u8]) -> Result<PathBuf, EntryError> {
    match name {
        [] => return Err(EntryError::Name("is empty")),
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
    check_depth(&path)?;
    Ok(path)
}

fn check_depth(path: &Path) -> Result<(), EntryError> {
    if path.components().count() > MAX_DEPTH {
        return Err(EntryError::Name("leads through more than 256 directories"));
    }
    Ok(())
}

/// Why a directory cannot be opened.
#[derive(Debug)]
pub(crate) enum Unreachable {
    /// The name is at fault.
    Entry(EntryError),
    /// The operating system failed.
    Io(io::Error),
}

impl From<Errno> for Unreachable {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::LOOP | Errno::NOTDIR => Self::Entry(EntryError::NotInDirectory),
            errno => Self::Io(errno.into()),
        }
    }
}

/// An open directory, and its path below the root, without symbolic links.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a directory below `root`, following symbolic links within `root`.
pub(crate) fn open_directory(root: impl AsFd, path: &Path) -> Result<Directory, Unreachable> {
    let path = match open(&root, path, DIRECTORY) {
        Ok(fd) => return Ok(Directory { path: path.to_owned(), fd }),
        Err(Errno::LOOP | Errno::NOTDIR) => resolve(&root, path)?,
        Err(errno) => return Err(errno.into()),
    };
    let fd = open(&root, &path, DIRECTORY)?;
    Ok(Directory { path, fd })
}

/// Opens a directory below `root`, and creates missing ones. Calls `made` with the real path of each that it creates.
pub(crate) fn create_directory(
    root: impl AsFd,
    path: &Path,
    mut made: impl FnMut(&Path),
) -> Result<Directory, Unreachable> {
    let path = match open_directory(&root, path) {
        Err(Unreachable::Io(error)) if error.kind() == io::ErrorKind::NotFound => resolve(&root, path)?,
        opened => return opened,
    };
    let mut at = PathBuf::new();
    let mut above = open(&root, Path::new("."), DIRECTORY)?;
    for part in &path {
        at.push(part);
        match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                made(&at);
                above = open(&root, &at, DIRECTORY)?;
                // Whatever the mask of this process is, and whatever it inherits of the directory that it is in: a group, an access list.
                rustix::fs::fchown(&above, Some(geteuid()), Some(getegid()))?;
                for attribute in [ACCESS, DEFAULT] {
                    match rustix::fs::fremovexattr(&above, attribute) {
                        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                rustix::fs::fchmod(&above, Mode::from_raw_mode(0o755))?;
            }
            Err(Errno::EXIST) => above = open(&root, &at, DIRECTORY)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(Directory { path, fd: above })
}

/// Resolves the symbolic links in `path` below `root`. Missing components are kept.
fn resolve(root: impl AsFd, path: &Path) -> Result<PathBuf, Unreachable> {
    let mut left: Vec<OsString> = path.iter().rev().map(OsStr::to_owned).collect();
    let (mut at, mut n_links) = (PathBuf::new(), 0);
    while let Some(part) = left.pop() {
        if part == ".." {
            // Has no effect at the root.
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let found = match open(&root, &next, OFlags::PATH | OFlags::NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => {
                at = next;
                continue;
            }
            Err(errno) => return Err(errno.into()),
        };
        if !FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode).is_symlink() {
            at = next;
            continue;
        }
        n_links += 1;
        if n_links > MAX_LINKS {
            return Err(Unreachable::Entry(EntryError::LinkLoop(shown(next.as_os_str().as_bytes()))));
        }
        let target = readlinkat(&found, "", Vec::new())?;
        if target.as_bytes().starts_with(b"/") {
            at = PathBuf::new();
        }
        let parts = target.as_bytes().split(|byte| *byte == b'/').rev();
        left.extend(parts.filter(|part| !matches!(*part, b"" | b".")).map(|part| OsStr::from_bytes(part).to_owned()));
    }
    check_depth(&at).map_err(Unreachable::Entry)?;
    Ok(at)
}

/// Opens a path below `root` without following symbolic links.
pub(crate) fn open(root: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// The metadata of a name in a directory, without following symbolic links.
pub(crate) fn stat(directory: impl AsFd, name: &OsStr) -> Result<Option<Stat>, Errno> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Removes a name in a directory, recursively. Returns whether it existed.
pub(crate) fn remove(directory: impl AsFd, name: &OsStr) -> io::Result<bool> {
    match unlinkat(&directory, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(Errno::ISDIR | Errno::PERM) => {
            let within = open(&directory, Path::new(name), DIRECTORY)?;
            remove_contents(&within)?;
            unlinkat(&directory, name, AtFlags::REMOVEDIR)?;
            Ok(true)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Removes the contents of a directory.
pub(crate) fn remove_contents(directory: impl AsFd) -> io::Result<()> {
    // Read to the end first: removing entries while reading can skip others.
    let names: Vec<CString> =
        Dir::read_from(&directory)?.map(|entry| Ok(entry?.file_name().to_owned())).collect::<Result<_, Errno>>()?;
    for name in names.iter().filter(|name| !matches!(name.as_bytes(), b"." | b"..")) {
        remove(&directory, OsStr::from_bytes(name.as_bytes()))?;
    }
    Ok(())
}

/// A path to a name in an open directory, for system calls that take only paths; renames cannot redirect it.
pub(crate) fn proc_path(directory: impl AsFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_fd().as_raw_fd().to_string()).join(name)
}

/// The parent directory of a path, and its last component; `None` for the root.
pub(crate) fn split_parent(path: &Path) -> Option<(PathBuf, OsString)> {
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
    fn names_are_parsed_or_refused() {
        for (name, path) in [("./a//b/./c/", "a/b/c"), (".", ""), ("./", ""), ("..a/b..", "..a/b.."), ("a\n", "a\n")] {
            assert_eq!(parse_name(name.as_bytes()).unwrap(), Path::new(path), "{name:?}");
        }
        for (name, path) in [("/etc/passwd", "etc/passwd"), ("/", ""), ("//a/", "a")] {
            assert_eq!(parse_name(name.as_bytes()).unwrap(), Path::new(path), "{name:?}");
        }
        for name in ["../a", "a/../b", "a/..", "..", "/..", "/../a"] {
            assert_eq!(parse_name(name.as_bytes()), Err(EntryError::Outside), "{name:?}");
        }
        let deep = "a/".repeat(257);
        for name in [&b""[..], b"a\0b", &[b'x'; 256], &[b'/'; 1][..0], deep.as_bytes(), &b"ab/".repeat(2000)] {
            assert!(matches!(parse_name(name), Err(EntryError::Name(_))), "{name:?}");
        }
    }

    #[test]
    fn links_are_resolved_within_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "precious").unwrap();
        fs::write(root.join("file"), "").unwrap();
        let deep = "d/".repeat(257);
        for (link, target) in [
            ("a/link", outside.to_str().unwrap()),
            ("a/near", "b"),
            ("a/absolute", "/a/b"),
            ("up", "../../../../a"),
            ("chain", "a/absolute/../near"),
            ("dangling", "/x/./y"),
            ("self", "self"),
            ("one", "two"),
            ("two", "one"),
            ("of-file", "file"),
            ("magic", "/proc/self/root"),
            ("deep", deep.as_str()),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let fd = open(fs::File::open(&root).unwrap(), Path::new(""), OFlags::RDONLY).unwrap();
        let found = |path: &str| open_directory(&fd, Path::new(path)).map(|found| found.path);
        for (path, leads) in
            [("a/b", "a/b"), ("a/near/c", "a/b/c"), ("a/absolute", "a/b"), ("up/b", "a/b"), ("chain/c", "a/b/c")]
        {
            assert_eq!(found(path).unwrap(), Path::new(leads), "{path}");
        }
        for path in ["self", "self/x", "one/x", "two"] {
            assert!(matches!(found(path), Err(Unreachable::Entry(EntryError::LinkLoop(_)))), "{path}");
        }
        for path in ["file", "file/x", "of-file", "of-file/x"] {
            assert!(matches!(found(path), Err(Unreachable::Entry(EntryError::NotInDirectory))), "{path}");
        }
        assert!(matches!(found("deep"), Err(Unreachable::Entry(EntryError::Name(_)))));
        for path in ["a/link", "a/link/more", "a/near/more", "dangling", "magic", "magic/etc"] {
            match found(path) {
                Err(Unreachable::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{path}"),
                other => panic!("{path}: {other:?}"),
            }
        }
        let mut made = Vec::new();
        create_directory(&fd, Path::new("a/x/y"), |path| made.push(path.to_owned())).unwrap();
        assert_eq!(made, [Path::new("a/x"), Path::new("a/x/y")]);
        made.clear();
        let behind = create_directory(&fd, Path::new("dangling/z"), |path| made.push(path.to_owned())).unwrap();
        assert_eq!((behind.path.as_path(), made.len()), (Path::new("x/y/z"), 3));
        assert!(root.join("x/y/z").is_dir());
        create_directory(&fd, Path::new("a/link/y"), |_| ()).unwrap();
        assert!(root.join(outside.strip_prefix("/").unwrap()).join("y").is_dir());
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
        assert!(remove(&fd, OsStr::new("a")).unwrap() && !remove(&fd, OsStr::new("a")).unwrap());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "precious");
    }
}
