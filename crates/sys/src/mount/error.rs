//! Errors of mounts.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use super::message_suffix;

/// A failed operation on a mount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The target, or the source of a bind mount, cannot be opened.
    #[error("cannot open {path} to mount on or from it")]
    Open {
        /// The path.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The target is a symbolic link.
    #[error("{path} is a symbolic link: mount points must not be symbolic links")]
    Symlink {
        /// The target.
        path: PathBuf,
    },
    /// The kernel does not know the file system.
    #[error("the kernel does not support file system {fs_type}")]
    UnknownFs {
        /// Type of the file system.
        fs_type: String,
    },
    /// The file system could not be mounted.
    #[error("cannot mount {device} as {fs_type} on {target} ({detail})")]
    Mount {
        /// The device.
        device: PathBuf,
        /// Type of the file system.
        fs_type: String,
        /// The target.
        target: PathBuf,
        /// The failed step, for example `reading the file system`, and the kernel's message from the file system context (often empty: ext4
        /// and XFS write more to the kernel log).
        detail: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses an option of the file system.
    #[error("cannot mount {device} with option {option}{}", message_suffix(.message))]
    Option {
        /// The device.
        device: PathBuf,
        /// The option, with its value, such as `data=journal`.
        option: String,
        /// The kernel's message from the file system context; empty: none.
        message: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A directory or file could not be bind-mounted.
    #[error("cannot bind {from} to {target} ({step})")]
    Bind {
        /// The source.
        from: PathBuf,
        /// The target.
        target: PathBuf,
        /// The failed step.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A path is not what it has to be for a node to be bound there.
    #[error("cannot bind a device node at {path}: {reason}")]
    Place {
        /// The path.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },
    /// The mount is in use: by an open file, a working directory, or a mount below it.
    #[error("{target} is in use")]
    Busy {
        /// The mount point.
        target: PathBuf,
    },
    /// Nothing is mounted there.
    #[error("nothing is mounted on {target}")]
    NotMounted {
        /// The path.
        target: PathBuf,
    },
    /// The unmount failed for another reason.
    #[error("cannot unmount {target}")]
    Unmount {
        /// The mount point.
        target: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The properties of a mount could not be changed.
    #[error("cannot make {target} {what}{}", message_suffix(.message))]
    Change {
        /// The mount point.
        target: PathBuf,
        /// The new property, for example `private`.
        what: &'static str,
        /// The kernel's message from the file system context.
        message: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A mount table cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A mount table has a malformed line.
    #[error("{path} has a malformed line: {line:?}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
}

impl MountError {
    /// Whether the kernel finds this option invalid, or its value (`EINVAL`).
    #[must_use]
    pub fn is_invalid_option(&self, key: &str) -> bool {
        matches!(self, Self::Option { option, source, .. }
            if option.split('=').next() == Some(key) && source.raw_os_error() == Some(Errno::INVAL.raw_os_error()))
    }
}
