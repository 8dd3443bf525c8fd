//! Sets the metadata of files: owner, mode, extended attributes, times.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fstatvfs, lsetxattr, utimensat,
};
use rustix::io::Errno;

use super::Entry;
use crate::archive::Kind;
use crate::attributes::{self, Classified, Notes, Reason};
use crate::beneath;
use crate::error::ImportError;

/// With more free space than this, `ENOSPC` means that the attribute does not fit, not that the file system is full.
const HAS_ROOM_BYTES: u64 = 1 << 20;

/// Sets owner, mode, attributes and times of a new entry, in an order in which none resets another. Notes omitted attributes.
pub(super) fn set_metadata(
    entry: &Entry<'_>,
    directory: &OwnedFd,
    name: &OsStr,
    notes: &mut Notes,
) -> Result<(), ImportError> {
    let member = entry.member;
    let is_link = matches!(member.kind, Kind::Symlink(_));
    let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
    chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(entry.failed("set the owner of"))?;
    if !is_link {
        // It is not a link, and no other process can access it.
        let mode = Mode::from_raw_mode(member.mode);
        chmodat(directory, name, mode, AtFlags::empty()).map_err(entry.failed("set the mode of"))?;
    }
    let path = beneath::proc_path(directory, name);
    let Classified { kept, left_out } = attributes::classify(member);
    left_out.into_iter().for_each(|(attribute, reason)| notes.add(attribute, reason, &member.path));
    if !is_link {
        // A directory may have existed with other attributes, and every file inherits the default ACL of its directory.
        for attribute in attributes(&path).map_err(entry.failed("list the attributes of"))? {
            // Security labels belong to the host.
            let is_ours = !attribute.starts_with(b"security.") || attribute == b"security.capability";
            if is_ours && !kept.contains(&&attribute[..]) {
                let removed = rustix::fs::lremovexattr(&path, &attribute[..]);
                removed.map_err(entry.failed("remove an attribute of"))?;
            }
        }
    }
    for attribute in kept {
        let value = member.xattrs.get(attribute).map_or(&[][..], |value| &value[..]);
        match lsetxattr(&path, attribute, value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(errno) if is_refusal(errno, directory) => notes.add(attribute, Reason::Staging, &member.path),
            Err(errno) => return Err(entry.failed("set an attribute of")(errno)),
        }
    }
    utimensat(directory, name, &timestamps(member.mtime), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(entry.failed("set the time of"))
}

/// Whether an error means that the file system refuses the attribute.
fn is_refusal(errno: Errno, directory: &OwnedFd) -> bool {
    match errno {
        Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::RANGE | Errno::TOOBIG => true,
        Errno::NOSPC => {
            fstatvfs(directory).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= HAS_ROOM_BYTES)
        }
        _ => false,
    }
}

/// The names of a file's extended attributes.
pub(crate) fn attributes(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut names = vec![0; 1 << 16];
    match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(len) => {
            Ok(names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
        }
        Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
        Err(errno) => Err(errno.into()),
    }
}

/// Both timestamps of a file, from the time in an archive.
pub(super) fn timestamps(mtime: i64) -> Timestamps {
    let time = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;
    use crate::testing::Tar;
    use crate::unpack::{Meter, Unpacker};
    use std::os::unix::fs::MetadataExt as _;
    use tar::EntryType;

    #[test]
    fn unsupported_attributes_are_omitted_and_noted() {
        let large = vec![b'x'; 5000];
        let quarantine: (&str, &[u8]) = ("SCHILY.xattr.com.apple.quarantine", b"0081");
        let archive = Tar::new()
            .records(
                EntryType::XHeader,
                &[quarantine, ("SCHILY.xattr.user.note", b""), ("SCHILY.xattr.user.large", &large)],
            )
            .file("file", "")
            .records(EntryType::XHeader, &[quarantine, ("SCHILY.acl.access", b"user::rwx,group::r--,other::r--")])
            .dir("directory", 0o755, 1)
            .records(
                EntryType::XHeader,
                &[("SCHILY.xattr.user.note", b"x"), ("SCHILY.acl.access", b"user::rw-,user:joe:r--")],
            )
            .link(EntryType::Symlink, "link", "file");
        let dir = tempfile::tempdir().unwrap();
        let (bytes, mut report) = (archive.end(), |_| ());
        let mut unpacked = Unpacker::create(&dir.path().join("tree")).unwrap();
        unpacked.unpack(&mut Archive::new(&bytes[..], "it", false), "it", false, &mut Meter::new(&mut report)).unwrap();
        let finished = unpacked.finish().unwrap();
        let noted: Vec<String> = finished.left_out.iter().map(ToString::to_string).collect();
        let expected = [
            r#"SCHILY.acl.access of 1 entry such as "link": not an access list with numeric users and groups"#,
            r#"com.apple.quarantine of 2 entries such as "file": Linux has no such attribute"#,
            r#"user.large of 1 entry such as "file": the attributes of a file must fit into one block of 4 KiB"#,
            r#"user.note of 1 entry such as "link": files of that kind cannot have it"#,
        ];
        // The file system of the test may refuse user attributes.
        assert_eq!(
            noted.iter().filter(|note| !note.contains("staging")).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        assert_eq!(std::fs::metadata(finished.path.join("directory")).unwrap().mode() & 0o777, 0o744);
        let has_note = attributes(&finished.path.join("file")).unwrap().contains(&b"user.note".to_vec());
        assert!(has_note || noted.len() == 5, "{noted:?}");
    }
}
