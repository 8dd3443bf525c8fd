//! Image sources as archives. A file is sent unchanged; a directory is packed as POSIX tar with extended headers: owners, modes, times in
//! seconds, extended attributes, ACLs as text, hard links, devices and holes (GNU's sparse format 1.0). Sockets are omitted. The directory is
//! read with the caller's permissions.
//!
//! Names are sorted, so that packing is deterministic.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, StatxFlags, major, minor, statx};
use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::acl::Acl;
use crate::archive::{XATTR, escape_name, sparse_keyword};
use crate::attributes::acl_keyword;
use crate::error::{DirectoryError, ImportError, failed};
use crate::unpack::attributes;

mod holes;
#[cfg(test)]
mod tests;

/// Size of a block, bytes.
const BLOCK: usize = 512;

/// Limit of a device number in a header.
const MAX_DEVICE: u32 = 0o777_7777;

/// Limit of the value of an extended attribute, bytes (`XATTR_SIZE_MAX`).
const MAX_XATTR: usize = 64 << 10;

/// A source to import.
#[derive(Debug)]
pub enum Source {
    /// An archive, or a pipe that delivers one.
    Archive(PathBuf, File),
    /// A directory.
    Directory(PathBuf),
}

impl Source {
    /// Opens a source, which must not contain the staging directory.
    ///
    /// # Errors
    /// [`ImportError`].
    pub fn open(source: &Path, staging: &Path) -> Result<Self, ImportError> {
        let found = fs::metadata(source).map_err(failed("find", source))?;
        if !found.is_dir() {
            let file = File::open(source).map_err(failed("open", source))?;
            return Ok(Self::Archive(source.to_owned(), file));
        }
        let directory = fs::canonicalize(source).map_err(failed("find", source))?;
        // If it does not exist, unpacking reports that.
        if fs::canonicalize(staging).is_ok_and(|staging| staging.starts_with(&directory)) {
            return Err(ImportError::Directory { path: directory, reason: DirectoryError::HasStaging });
        }
        Ok(Self::Directory(directory))
    }

    /// Writes the source as an archive.
    ///
    /// # Errors
    /// [`ImportError`]; [`ImportError::Output`] if writing fails.
    pub fn write_to(self, out: &mut impl Write) -> Result<(), ImportError> {
        match self {
            Self::Archive(path, mut file) => copy(&mut file, &path, u64::MAX, out).map(drop),
            Self::Directory(path) => {
                let mount = mount_id(&path)?;
                let mut packer = Packer { root: &path, mount, linked: HashMap::new(), out };
                packer.directory(Path::new(""))?;
                packer.write(&[0; 2 * BLOCK])
            }
        }
    }
}

/// Packs a directory into an archive.
struct Packer<'a, W> {
    root: &'a Path,
    mount: u64,
    /// First names of files with several, by device and inode.
    linked: HashMap<(u64, u64), Vec<u8>>,
    out: &'a mut W,
}

/// An entry, without its metadata.
struct Entry<'a> {
    name: Vec<u8>,
    kind: EntryType,
    link: &'a [u8],
    size: u64,
    /// The length of a file that is packed without its holes.
    sparse: Option<u64>,
}

impl<W: Write> Packer<'_, W> {
    /// Packs a directory and its contents.
    fn directory(&mut self, at: &Path) -> Result<(), ImportError> {
        let path = self.root.join(at);
        let wrong = |reason| ImportError::Directory { path: path.clone(), reason };
        if mount_id(&path)? != self.mount {
            return Err(wrong(DirectoryError::OtherMount));
        }
        let found = fs::symlink_metadata(&path).map_err(failed("examine", &path))?;
        let end: &[u8] = if at.as_os_str().is_empty() { b"" } else { b"/" };
        let name = [&b"./"[..], at.as_os_str().as_bytes(), end].concat();
        self.write_header(
            &path,
            &found,
            &Entry { name, kind: EntryType::Directory, link: b"", size: 0, sparse: None },
        )?;
        let entries = fs::read_dir(&path).map_err(failed("list", &path))?;
        let names: io::Result<Vec<_>> = entries.map(|entry| Ok(entry?.file_name())).collect();
        let mut names = names.map_err(failed("list", &path))?;
        names.sort();
        for name in names {
            let below = at.join(name);
            let path = self.root.join(&below);
            let found = fs::symlink_metadata(&path).map_err(failed("examine", &path))?;
            if found.is_dir() {
                self.directory(&below)?;
            } else {
                self.non_directory(&below, &path, &found)?;
            }
        }
        Ok(())
    }

    /// Packs an entry that is not a directory.
    fn non_directory(&mut self, at: &Path, path: &Path, found: &Metadata) -> Result<(), ImportError> {
        let name = [&b"./"[..], at.as_os_str().as_bytes()].concat();
        let kind = found.file_type();
        if kind.is_socket() {
            return Ok(());
        }
        if found.nlink() > 1 {
            let first = self.linked.entry((found.dev(), found.ino())).or_insert_with(|| name.clone()).clone();
            if first != name {
                return self.write_header(
                    path,
                    found,
                    &Entry { name, kind: EntryType::Link, link: &first, size: 0, sparse: None },
                );
            }
        }
        if kind.is_file() {
            return self.file(name, path, found);
        }
        let mut link = Vec::new();
        let kind = if kind.is_symlink() {
            link = fs::read_link(path).map_err(failed("read", path))?.as_os_str().as_bytes().to_vec();
            EntryType::Symlink
        } else if kind.is_char_device() {
            EntryType::Char
        } else if kind.is_block_device() {
            EntryType::Block
        } else {
            EntryType::Fifo
        };
        self.write_header(path, found, &Entry { name, kind, link: &link, size: 0, sparse: None })
    }

    fn file(&mut self, name: Vec<u8>, path: &Path, found: &Metadata) -> Result<(), ImportError> {
        let changed = || ImportError::Directory { path: path.to_owned(), reason: DirectoryError::Changed };
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(failed("open", path))?;
        let opened = file.metadata().map_err(failed("examine", path))?;
        if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
            return Err(changed());
        }
        let len = opened.len();
        let kind = EntryType::Regular;
        let Some(segments) = holes::segments(&file, &opened).map_err(|errno| failed("read", path)(errno.into()))?
        else {
            self.write_header(path, &opened, &Entry { name, kind, link: b"", size: len, sparse: None })?;
            if copy(&mut file, path, len, self.out)? != len {
                return Err(changed());
            }
            return self.pad(len);
        };
        let map = holes::map(&segments);
        let size = map.len() as u64 + segments.iter().map(|segment| segment.len).sum::<u64>();
        self.write_header(path, &opened, &Entry { name, kind, link: b"", size, sparse: Some(len) })?;
        self.write(&map)?;
        for segment in &segments {
            file.seek(SeekFrom::Start(segment.offset)).map_err(failed("read", path))?;
            if copy(&mut file, path, segment.len, self.out)? != segment.len {
                return Err(changed());
            }
        }
        self.pad(size)
    }

    /// Writes the headers of an entry.
    fn write_header(&mut self, path: &Path, found: &Metadata, entry: &Entry<'_>) -> Result<(), ImportError> {
        let wrong = |what| ImportError::Directory { path: path.to_owned(), reason: DirectoryError::Unpackable(what) };
        let mut header = Header::new_ustar();
        header.set_entry_type(entry.kind);
        header.set_mode(found.mode() & 0o7777);
        header.set_uid(found.uid().into());
        header.set_gid(found.gid().into());
        header.set_size(entry.size);
        let mut records = Vec::new();
        let mut text = |keyword: &[u8], value: &[u8], place: &mut [u8]| match place.get_mut(..value.len()) {
            Some(place) => place.copy_from_slice(value),
            None => records.push((keyword.to_vec(), value.to_vec())),
        };
        text(b"path", &entry.name, &mut header.as_old_mut().name);
        text(b"linkpath", entry.link, &mut header.as_old_mut().linkname);
        if let Some(len) = entry.sparse {
            let version = [("major", "1"), ("minor", "0")];
            records.extend(version.map(|(keyword, value)| (sparse_keyword(keyword), value.as_bytes().to_vec())));
            records.push((sparse_keyword("name"), entry.name.clone()));
            records.push((sparse_keyword("realsize"), len.to_string().into_bytes()));
        }
        match u64::try_from(found.mtime()) {
            Ok(mtime) => header.set_mtime(mtime),
            Err(_) => records.push((b"mtime".to_vec(), found.mtime().to_string().into_bytes())),
        }
        if matches!(entry.kind, EntryType::Char | EntryType::Block) {
            let (major, minor) = (major(found.rdev()), minor(found.rdev()));
            if major.max(minor) > MAX_DEVICE {
                return Err(wrong("a device with a number above 2097151"));
            }
            let set = header.set_device_major(major).and_then(|()| header.set_device_minor(minor));
            set.map_err(|_| wrong("a device"))?;
        }
        // A hard link has the attributes of its target.
        if entry.kind != EntryType::Link {
            for name in attributes(path).map_err(failed("list the attributes of", path))? {
                if let Some(value) = attribute(path, &name).map_err(failed("read an attribute of", path))? {
                    let acl = acl_keyword(&name)
                        .and_then(|keyword| Some((keyword, Acl::decode(&value)?.to_text().into_bytes())));
                    records.push(acl.unwrap_or_else(|| ([XATTR, &escape_name(&name)].concat(), value)));
                }
            }
        }
        if !records.is_empty() {
            let text: Vec<u8> = records.iter().flat_map(|(keyword, value)| record(keyword, value)).collect();
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.as_old_mut().name[..10].copy_from_slice(b"attributes");
            extended.set_mode(0o644);
            extended.set_size(text.len() as u64);
            extended.set_cksum();
            self.write(extended.as_bytes())?;
            self.write(&text)?;
            self.pad(text.len() as u64)?;
        }
        header.set_cksum();
        self.write(header.as_bytes())
    }

    /// Pads to the end of a block.
    fn pad(&mut self, size: u64) -> Result<(), ImportError> {
        let over = usize::try_from(size % BLOCK as u64).unwrap_or_default();
        self.write(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.out.write_all(bytes).map_err(ImportError::Output)
    }
}

/// A record of an extended header: its length, including the length field itself, a keyword and a value.
fn record(keyword: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = [&b" "[..], keyword, b"=", value, b"\n"].concat();
    let mut len = rest.len();
    while len != rest.len() + len.to_string().len() {
        len = rest.len() + len.to_string().len();
    }
    [len.to_string().as_bytes(), &rest[..]].concat()
}

/// The value of an extended attribute; `None` if it has been removed.
fn attribute(path: &Path, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; MAX_XATTR];
    match rustix::fs::lgetxattr(path, name, &mut value[..]) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies up to `at_most` bytes; returns the number copied.
fn copy(input: &mut File, path: &Path, at_most: u64, out: &mut impl Write) -> Result<u64, ImportError> {
    let (mut input, mut buffer, mut copied) = (input.take(at_most), vec![0; 256 << 10], 0);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(copied),
            Ok(n) => {
                out.write_all(&buffer[..n]).map_err(ImportError::Output)?;
                copied += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed("read", path)(error)),
        }
    }
}

/// The ID of the mount that a directory is in.
fn mount_id(path: &Path) -> Result<u64, ImportError> {
    let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID);
    Ok(found.map_err(|errno| failed("examine", path)(errno.into()))?.stx_mnt_id)
}
