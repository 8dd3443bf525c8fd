use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_core::error::PathError;
use rustix::fs::{Mode, OFlags, openat, syncfs};

use super::*;
use crate::loopdev::{self, AttachOptions, LoopError, LoopInfo};
use crate::mount::{self, MountFlags};
use crate::roots::Roots;
use crate::tool::{Tool, find_program};

const MIB: u64 = 1 << 20;

#[test]
fn the_error_of_an_unsupported_file_system_names_its_path() {
    let error = trim(Path::new("/proc"), Bytes(0), Bytes::mib(1)).unwrap_err().to_string();
    assert_eq!(error, "cannot trim the file system at /proc");
    let missing = trim(Path::new("/nonexistent"), Bytes(0), Bytes::mib(1));
    assert!(matches!(missing, Err(TrimError::File(error)) if error.is_not_found()));
}

/// A loop device, detached on drop.
struct Attached(LoopInfo);

impl Drop for Attached {
    fn drop(&mut self) {
        loopdev::detach(&Roots::host(), &self.0).unwrap();
    }
}

fn attached(image: &Path) -> Option<Attached> {
    match loopdev::attach(&Roots::host(), image, AttachOptions::default()) {
        Ok(info) => Some(Attached(info)),
        Err(LoopError::Unavailable { source, .. } | LoopError::Device(PathError { source, .. })) => {
            eprintln!("skipped: no loop devices here ({source})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Blocks of removed files are deallocated in the image, part by part of the range; blocks in use are kept.
#[test]
fn root_trimming_deallocates_blocks_of_removed_files_in_the_image() {
    if find_program("mkfs.ext4").is_none() {
        eprintln!("skipped: e2fsprogs is not installed");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(256 * MIB).unwrap();
    let Some(device) = attached(&image) else { return };
    let options = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    Tool::new("mkfs.ext4").args(["-q", "-b", "4096", "-E", options]).arg(&device.0.dev_path).run().unwrap();
    let mounted = match mount::mount_detached(&device.0.dev_path, "ext4", MountFlags::default(), &[]) {
        Ok(mounted) => mounted,
        Err(error) => {
            eprintln!("skipped: nothing can be mounted here ({error})");
            return;
        }
    };
    let root = openat(&mounted, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let at = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let taken = || fs::metadata(&image).unwrap().blocks() * 512;
    let write = || {
        let mut file = fs::File::create(at.join("data")).unwrap();
        let block = vec![7; 1 << 20];
        (0..64).for_each(|_| file.write_all(&block).unwrap());
        file.sync_all().unwrap();
    };
    write();
    let full = taken();
    assert!(full >= 64 * MIB, "{full}");
    // Emptied before: a program that another thread is starting has this one's open files until it is executed, and a removed file keeps
    // its blocks while it is open.
    fs::File::create(at.join("data")).unwrap();
    fs::remove_file(at.join("data")).unwrap();
    syncfs(&root).unwrap();
    // A waiter for a commit may continue before jbd2 has freed its blocks (`j_commit_callback`); the next commit comes after that.
    fs::File::create(at.join("next")).unwrap();
    syncfs(&root).unwrap();
    assert!(taken() >= 64 * MIB, "it was deallocated before");
    let halves = [0, 128 * MIB].map(|start| trim(&at, Bytes(start), Bytes(128 * MIB)).unwrap().0);
    assert!(halves.iter().all(|trimmed| *trimmed > 0 && *trimmed <= 128 * MIB), "{halves:?}");
    assert!(taken() < full - 60 * MIB, "{} of {full}", taken());
    assert_eq!(trim(&at, Bytes(1 << 40), Bytes::mib(1)).unwrap(), Bytes(0));
    write();
    trim(&at, Bytes(0), Bytes(u64::MAX)).unwrap();
    assert!(taken() >= 64 * MIB);
    assert!(fs::read(at.join("data")).unwrap().iter().all(|byte| *byte == 7));
}
