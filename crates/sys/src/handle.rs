//! File handles (`name_to_handle_at(2)`, `open_by_handle_at(2)`): access to a file by its inode, independent of paths, which can be
//! renamed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// The longest handle, in bytes (`MAX_HANDLE_SZ`).
const MAX_BYTES: usize = MAX_LEN as usize;

/// The same in the kernel's type.
const MAX_LEN: libc::c_uint = 128;

/// `struct file_handle` with space for the longest handle.
#[repr(C)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; MAX_BYTES],
}

/// A file's handle: its type (`enum fid_type`) and its bytes.
///
/// # Errors
/// The operating system's: `EOPNOTSUPP` if the file system does not support handles.
pub fn from_file(file: impl AsFd) -> io::Result<(u32, Vec<u8>)> {
    let mut handle = Handle { bytes: MAX_LEN, kind: 0, handle: [0; MAX_BYTES] };
    let mut mount: libc::c_int = 0;
    let fd = file.as_fd().as_raw_fd();
    let pointer: *mut Handle = &raw mut handle;
    // SAFETY: the path is an empty C string; the kernel writes at most `bytes` bytes after the two numbers of the handle, which has
    // space for them, and one `int` to `mount`; the descriptor is borrowed for the call.
    let done =
        unsafe { libc::name_to_handle_at(fd, c"".as_ptr(), pointer.cast(), &raw mut mount, libc::AT_EMPTY_PATH) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let len = usize::try_from(handle.bytes).unwrap_or(MAX_BYTES).min(MAX_BYTES);
    let kind = u32::try_from(handle.kind).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok((kind, handle.handle[..len].to_vec()))
}

/// Opens a regular file, in the file system of `mount`, for reading without updating atime (`O_NOATIME`).
///
/// # Errors
/// The operating system's: `ESTALE` if there is no such file, `EPERM` without `CAP_DAC_READ_SEARCH`. `InvalidInput` if the handle is
/// too long.
pub fn open(mount: impl AsFd, kind: u32, handle: &[u8]) -> io::Result<File> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let mut wanted = Handle {
        bytes: libc::c_uint::try_from(handle.len()).map_err(|_| invalid())?,
        kind: libc::c_int::try_from(kind).map_err(|_| invalid())?,
        handle: [0; MAX_BYTES],
    };
    wanted.handle.get_mut(..handle.len()).ok_or_else(invalid)?.copy_from_slice(handle);
    let flags = libc::O_RDONLY | libc::O_NOATIME | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let pointer: *mut Handle = &raw mut wanted;
    // SAFETY: the handle has as many bytes as its first number says; the kernel only reads it.
    let fd = unsafe { libc::open_by_handle_at(mount.as_fd().as_raw_fd(), pointer.cast(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn root_a_file_can_be_opened_by_its_handle_until_it_is_removed() {
        if !rustix::process::geteuid().is_root() {
            println!("Skipped: needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let mount = File::open(dir.path()).unwrap();
        let (kind, handle) = match from_file(File::open(&path).unwrap()) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                println!("Skipped: the file system of {} has no handles", dir.path().display());
                return;
            }
            found => found.unwrap(),
        };
        let mut text = String::new();
        open(&mount, kind, &handle).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        assert!(open(&mount, kind, &handle).is_ok());
        std::fs::remove_file(dir.path().join("other")).unwrap();
        assert_eq!(open(&mount, kind, &handle).unwrap_err().raw_os_error(), Some(libc::ESTALE));
        assert_eq!(open(&mount, kind, &[0; 200]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
