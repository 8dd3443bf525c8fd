//! Sets the metadata of files: owner, mode, attributes, times.

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
use crate::attributes::{self, Notes, Reason, Sorted};
use crate::beneath;
use crate::error::ImportError;

/// How much is free where it is an attribute that there is no room for, and not a file: file systems say the same of both.
const HAS_ROOM_BYTES: u64 = 1 << 20;

/// Gives an entry that was just made its owner, mode, attributes and time, in the order in which none of these takes another back.
/// Attributes that it cannot have are noted.
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
        // What is there is no link, and nobody else can come to it.
        let mode = Mode::from_raw_mode(member.mode);
        chmodat(directory, name, mode, AtFlags::empty()).map_err(entry.failed("set the mode of"))?;
    }
    let path = beneath::by_descriptor(directory, name);
    let Sorted { kept, left_out } = attributes::sort(member);
    left_out.into_iter().for_each(|(attribute, reason)| notes.add(attribute, reason, &member.path));
    if !is_link {
        // A directory may have been there before, with others, and any file inherits the default access list of its directory.
        for attribute in attributes(&path).map_err(entry.failed("list the attributes of"))? {
            // Labels are the host's.
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
    utimensat(directory, name, &at(member.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(entry.failed("set the time of"))
}

/// Whether a file system does not take an attribute, rather than fail.
fn is_refusal(errno: Errno, directory: &OwnedFd) -> bool {
    match errno {
        Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS | Errno::INVAL | Errno::RANGE | Errno::TOOBIG => true,
        Errno::NOSPC => {
            fstatvfs(directory).is_ok_and(|found| found.f_bavail.saturating_mul(found.f_frsize) >= HAS_ROOM_BYTES)
        }
        _ => false,
    }
}

/// The names of the extended attributes of a file.
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

/// Both times of a file, as an archive has them.
pub(super) fn at(mtime: i64) -> Timestamps {
    let time = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Archive;
    use crate::testing::Tar;
    use crate::unpack::{Meter, Unpacked};
    use std::os::unix::fs::MetadataExt as _;
    use tar::EntryType;

    #[test]
    fn attributes_that_no_file_can_have_are_left_out_and_noted() {
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
        let mut unpacked = Unpacked::create(&dir.path().join("tree")).unwrap();
        unpacked.unpack(&mut Archive::new(&bytes[..], "it", false), "it", false, &mut Meter::new(&mut report)).unwrap();
        let finished = unpacked.finish().unwrap();
        let noted: Vec<String> = finished.left_out.iter().map(ToString::to_string).collect();
        let expected = [
            r#"SCHILY.acl.access of 1 entry such as "link": not an access list with numeric users and groups"#,
            r#"com.apple.quarantine of 2 entries such as "file": Linux has no such attribute"#,
            r#"user.large of 1 entry such as "file": the attributes of a file must fit into one block of 4 KiB"#,
            r#"user.note of 1 entry such as "link": files of that kind cannot have it"#,
        ];
        // Where this runs, attributes of users may be refused.
        assert_eq!(
            noted.iter().filter(|note| !note.contains("staging")).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        assert_eq!(std::fs::metadata(finished.path.join("directory")).unwrap().mode() & 0o777, 0o744);
        let has_note = attributes(&finished.path.join("file")).unwrap().contains(&b"user.note".to_vec());
        assert!(has_note || noted.len() == 5, "{noted:?}");
    }
}
