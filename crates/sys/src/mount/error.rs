//! Errors of mounts.

use std::io;
use std::path::PathBuf;

use super::said;

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
    #[error("{path} is a symbolic link: nothing is mounted through one")]
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
        /// What was to be mounted.
        device: PathBuf,
        /// Type of the file system.
        fs_type: String,
        /// Where.
        target: PathBuf,
        /// The step that failed, for example `option data=journal`, and what the kernel wrote about it to the file system
        /// context (often nothing: ext4 and XFS say more in the kernel log).
        detail: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A directory or file could not be bind-mounted.
    #[error("cannot bind {from} to {target} ({step})")]
    Bind {
        /// What was to be seen there.
        from: PathBuf,
        /// Where.
        target: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Something still uses the mount: an open file, a working directory, or a mount below it.
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
    #[error("cannot make {target} {what}{}", said(.message))]
    Change {
        /// The mount point.
        target: PathBuf,
        /// What it was to become, for example `private`.
        what: &'static str,
        /// What the kernel wrote to the file system context.
        message: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A list of mounts cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A list of mounts has a line that cannot be understood.
    #[error("{path} has a line that cannot be read: {line:?}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line.
        line: String,
    },
}
