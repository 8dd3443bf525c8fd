//! Makes changes of settings ([`bulkhead_core::fix`]), and reads each back.
//!
//! Owns: how each setting is read and written. A change is refused if its object is another one by then, or its setting has another value
//! than the change begins with. Does not: choose changes, or remember them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_core::fix::{Change, Setting};
use bulkhead_core::units::DevNo;
use rustix::mount::{
    FsPickFlags, MountAttrFlags, fsconfig_reconfigure, fsconfig_set_flag, fsconfig_set_string, fspick,
};

use crate::block::{self, BlockError};
use crate::loopdev;
use crate::mount;
use crate::roots::Roots;
use crate::tool::{Tool, ToolError};

/// A change could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FixError {
    /// The object does not exist any more, or its name is that of another one.
    #[error("it is gone, or is another one")]
    Gone,
    /// The setting has been changed by somebody else.
    #[error("it is {found}, not {expected}")]
    Changed {
        /// The present value.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// The kernel accepted the change, and the setting has another value.
    #[error("the kernel has not changed it: it is {found}")]
    NotChanged {
        /// The present value.
        found: String,
    },
    /// The change is not one that is known.
    #[error("{value} is not a value of it")]
    Invalid {
        /// The value.
        value: String,
    },
    /// A file of the kernel cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A device cannot be examined, or its scheduler cannot be set.
    #[error(transparent)]
    Block(#[from] Box<BlockError>),
    /// A program failed.
    #[error(transparent)]
    Tool(#[from] Box<ToolError>),
}

/// Makes a change, and reads the setting back. Returns `false` if it has the value already.
///
/// # Errors
/// [`FixError`]; nothing is changed then, unless it is [`FixError::NotChanged`].
pub fn apply(roots: &Roots, change: &Change) -> Result<bool, FixError> {
    let found = current(roots, change)?;
    if found == change.to {
        return Ok(false);
    }
    if found != change.from {
        return Err(FixError::Changed { found, expected: change.from.clone() });
    }
    set(roots, &change.setting, &change.to)?;
    match current(roots, change)? {
        found if found == change.to => Ok(true),
        found => Err(FixError::NotChanged { found }),
    }
}

/// The present value of a setting. The change says which options of a file system exclude each other.
fn current(roots: &Roots, change: &Change) -> Result<String, FixError> {
    match &change.setting {
        Setting::Scheduler { device, dev } => {
            identify(roots, device, *dev)?;
            let device = block::inspect(roots, *dev).map_err(Box::new)?;
            Ok(device.scheduler.ok_or(FixError::Gone)?.active)
        }
        Setting::Readahead { device, dev } => {
            identify(roots, device, *dev)?;
            read(&readahead(roots, *dev))
        }
        Setting::DirectIo { device, dev } => {
            identify(roots, device, *dev)?;
            let flag = read(&directory_of(roots, *dev).join("loop/dio"))?;
            Ok(if flag == "1" { "on" } else { "off" }.to_owned())
        }
        Setting::FileSystemOption { at, dev } => {
            let shown = shown(roots, at, *dev)?.1;
            let has = |option: &str| shown.split(',').any(|shown| shown == option);
            Ok(match change.to.as_str() {
                "barrier" | "nobarrier" if has("nobarrier") || has("barrier=0") => "nobarrier".to_owned(),
                "barrier" | "nobarrier" => "barrier".to_owned(),
                "sync" | "async" => if has("sync") { "sync" } else { "async" }.to_owned(),
                // The default is not shown.
                _ => shown.split(',').find(|option| option.starts_with("commit=")).unwrap_or("commit=5").to_owned(),
            })
        }
        Setting::AccessTimes { at, dev } => {
            let shown = shown(roots, at, *dev)?.0;
            let has = |option: &&str| shown.split(',').any(|shown| shown == *option);
            Ok(["noatime", "relatime"].into_iter().find(has).unwrap_or("strictatime").to_owned())
        }
        Setting::RootController { controller } => {
            let enabled = read(&subtree_control(roots))?;
            let is_on = enabled.split_whitespace().any(|enabled| enabled == controller);
            Ok(if is_on { "on" } else { "off" }.to_owned())
        }
        Setting::Timer { unit } => {
            // It fails for units that are not enabled, and for those that do not exist, without a word on them.
            let states = Tool::new("systemctl").args(["is-enabled", "--", unit]).ok_codes(&[0, 1, 4]);
            let found = states.run().map_err(Box::new)?.stdout.trim().to_owned();
            if ["", "not-found"].contains(&found.as_str()) { Err(FixError::Gone) } else { Ok(found) }
        }
    }
}

fn set(roots: &Roots, setting: &Setting, to: &str) -> Result<(), FixError> {
    let invalid = || FixError::Invalid { value: to.to_owned() };
    match setting {
        Setting::Scheduler { dev, .. } => {
            block::set_scheduler(roots, *dev, to).map_err(Box::new)?;
            Ok(())
        }
        Setting::Readahead { dev, .. } => {
            let _: u64 = to.parse().map_err(|_| invalid())?;
            write(&readahead(roots, *dev), to)
        }
        Setting::DirectIo { device, dev } => {
            let on = switch(to).ok_or_else(invalid)?;
            let path = roots.dev.join(device);
            if block::devno_of(&path).map_err(Box::new)? != *dev {
                return Err(FixError::Gone);
            }
            loopdev::switch_direct_io(&path, on).map_err(|source| FixError::File { path, source })
        }
        Setting::FileSystemOption { at, .. } => set_option(Path::new(at), to).ok_or_else(invalid)?,
        Setting::AccessTimes { at, .. } => {
            let times = match to {
                "relatime" => MountAttrFlags::empty(),
                "noatime" => MountAttrFlags::MOUNT_ATTR_NOATIME,
                "strictatime" => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
                _ => return Err(invalid()),
            };
            let path = Path::new(at);
            mount::set_access_times(path, times).map_err(|source| FixError::File { path: path.to_owned(), source })
        }
        Setting::RootController { controller } => {
            let sign = if switch(to).ok_or_else(invalid)? { '+' } else { '-' };
            write(&subtree_control(roots), &format!("{sign}{controller}"))
        }
        Setting::Timer { unit } => {
            let verb = match to {
                "enabled" => "enable",
                "disabled" => "disable",
                _ => return Err(invalid()),
            };
            Tool::new("systemctl").args(["--quiet", verb, "--now", "--", unit]).run().map_err(Box::new)?;
            Ok(())
        }
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Sets an option of a mounted file system; all others stay as they are. `None` for an option that is not one of ours.
fn set_option(at: &Path, option: &str) -> Option<Result<(), FixError>> {
    let (key, value) = option.split_once('=').map_or((option, None), |(key, value)| (key, Some(value)));
    let is_known = match (key, value) {
        ("barrier" | "nobarrier" | "sync" | "async", None) => true,
        ("commit", Some(seconds)) => seconds.parse::<u32>().is_ok(),
        _ => false,
    };
    let failed = |errno: rustix::io::Errno| FixError::File { path: at.to_owned(), source: errno.into() };
    let set = || {
        let flags =
            FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_NO_AUTOMOUNT | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW;
        let context = fspick(rustix::fs::CWD, at, flags)?;
        match value {
            Some(value) => fsconfig_set_string(&context, key, value)?,
            None => fsconfig_set_flag(&context, key)?,
        }
        fsconfig_reconfigure(&context)
    };
    is_known.then(|| set().map_err(failed))
}

/// Whether a device's name is still that of the device.
fn identify(roots: &Roots, name: &str, dev: DevNo) -> Result<(), FixError> {
    match block::name_of(roots, dev) {
        Ok(found) if found == name => Ok(()),
        _ => Err(FixError::Gone),
    }
}

/// The options of a mount and of its file system.
fn shown(roots: &Roots, at: &str, dev: DevNo) -> Result<(String, String), FixError> {
    let table = mount::mountinfo(roots)
        .map_err(|error| FixError::File { path: roots.proc.join("self/mountinfo"), source: io::Error::other(error) })?;
    // The last one hides those below it. The number of btrfs' files is not that of its device.
    let mount = table.into_iter().rfind(|mount| mount.mount_point == Path::new(at)).ok_or(FixError::Gone)?;
    let is_it =
        mount.dev == dev || mount.dev.major == 0 && block::devno_of(&mount.source).is_ok_and(|found| found == dev);
    if is_it { Ok((mount.options, mount.super_options)) } else { Err(FixError::Gone) }
}

/// The directory of a device in sysfs.
fn directory_of(roots: &Roots, dev: DevNo) -> PathBuf {
    roots.sys.join("dev/block").join(dev.to_string())
}

/// The file of a device's readahead; that of its disk, for a partition.
fn readahead(roots: &Roots, dev: DevNo) -> PathBuf {
    let directory = directory_of(roots, dev);
    let queue = if directory.join("partition").exists() { directory.join("../queue") } else { directory.join("queue") };
    queue.join("read_ahead_kb")
}

fn subtree_control(roots: &Roots) -> PathBuf {
    crate::cgroup::v2_root(roots).join("cgroup.subtree_control")
}

fn read(path: &Path) -> Result<String, FixError> {
    let text = fs::read_to_string(path).map_err(|source| FixError::File { path: path.to_owned(), source })?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, value: &str) -> Result<(), FixError> {
    fs::write(path, value).map_err(|source| FixError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: DevNo = DevNo::new(8, 0);

    fn host(base: &Path) -> Roots {
        let roots = Roots::under(base);
        let queue = roots.sys.join("devices/sda/queue");
        fs::create_dir_all(&queue).unwrap();
        fs::create_dir_all(roots.sys.join("dev/block")).unwrap();
        fs::write(queue.join("read_ahead_kb"), "4096\n").unwrap();
        std::os::unix::fs::symlink(base.join("sys/devices/sda"), roots.sys.join("dev/block/8:0")).unwrap();
        fs::create_dir_all(&roots.cgroup).unwrap();
        fs::write(roots.cgroup.join("cgroup.controllers"), "io memory\n").unwrap();
        fs::write(roots.cgroup.join("cgroup.subtree_control"), "io\n").unwrap();
        roots
    }

    fn readahead_of(device: &str, from: &str) -> Change {
        Change::new(Setting::Readahead { device: device.to_owned(), dev: DEV }, from, "128")
    }

    #[test]
    fn a_setting_is_changed_once_and_back() {
        let base = tempfile::tempdir().unwrap();
        let roots = host(base.path());
        let change = readahead_of("sda", "4096");
        assert!(apply(&roots, &change).unwrap());
        assert!(!apply(&roots, &change).unwrap(), "it has that value already");
        assert!(apply(&roots, &change.reversed()).unwrap());
        assert_eq!(read(&readahead(&roots, DEV)).unwrap(), "4096");
    }

    #[test]
    fn what_is_not_as_it_was_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let roots = host(base.path());
        let refused = |change: &Change| apply(&roots, change).unwrap_err().to_string();
        assert_eq!(refused(&readahead_of("sda", "512")), "it is 4096, not 512");
        assert_eq!(refused(&readahead_of("sdb", "4096")), "it is gone, or is another one");
        let mut invalid = readahead_of("sda", "4096");
        invalid.to = "1 2".to_owned();
        assert_eq!(refused(&invalid), "1 2 is not a value of it");
        let memory = Setting::RootController { controller: "memory".to_owned() };
        let refusal = apply(&roots, &Change::new(memory, "off", "on"));
        // A file that is not the kernel's has what was written to it.
        assert!(matches!(refusal, Err(FixError::NotChanged { found }) if found == "off"));
    }

    #[test]
    fn options_of_file_systems_are_those_that_are_known() {
        for option in ["ro", "data=journal", "commit=x", "commit", "barrier=0", ""] {
            assert!(set_option(Path::new("/nowhere"), option).is_none(), "{option}");
        }
        for option in ["barrier", "nobarrier", "sync", "async", "commit=300"] {
            assert!(set_option(Path::new("/nowhere"), option).is_some_and(|result| result.is_err()), "{option}");
        }
    }

    #[test]
    fn options_are_read_as_the_kernel_shows_them() {
        let base = tempfile::tempdir().unwrap();
        let roots = host(base.path());
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        let table = "22 1 8:0 / /a rw,noatime - ext4 /dev/sda rw,sync,nobarrier,commit=300\n23 1 8:0 / /b rw - ext4 /dev/sda rw\n";
        fs::write(roots.proc.join("self/mountinfo"), table).unwrap();
        let option = |at: &str, to: &str| {
            let setting = Setting::FileSystemOption { at: at.to_owned(), dev: DEV };
            current(&roots, &Change::new(setting, "", to)).map_err(|error| error.to_string())
        };
        assert_eq!(
            ["barrier", "async", "commit=5"].map(|to| option("/a", to).unwrap()),
            ["nobarrier", "sync", "commit=300"]
        );
        assert_eq!(
            ["barrier", "async", "commit=5"].map(|to| option("/b", to).unwrap()),
            ["barrier", "async", "commit=5"]
        );
        assert!(option("/c", "barrier").is_err());
        let times = |at: &str| {
            let setting = Setting::AccessTimes { at: at.to_owned(), dev: DEV };
            current(&roots, &Change::new(setting, "", "")).unwrap()
        };
        assert_eq!((times("/a"), times("/b")), ("noatime".to_owned(), "strictatime".to_owned()));
        let other = Setting::AccessTimes { at: "/a".to_owned(), dev: DevNo::new(8, 16) };
        assert!(matches!(current(&roots, &Change::new(other, "", "")), Err(FixError::Gone)));
    }
}
