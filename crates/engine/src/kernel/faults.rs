//! Errors of `bulkhead-sys` and `bulkhead-formats` as faults: which code each has, and what an operator can do about it.

use std::error::Error;
use std::io;
use std::path::Path;

use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::reason::Reason;
use bulkhead_formats::layer::LayerError;
use bulkhead_formats::servers::RemovalError;
use bulkhead_sys::block::BlockError;
use bulkhead_sys::cgroup::CgroupError;
use bulkhead_sys::file::FileError;
use bulkhead_sys::fsutil::FsError;
use bulkhead_sys::iocost::IocostError;
use bulkhead_sys::iosched::IoschedError;
use bulkhead_sys::jbd2::Jbd2Error;
use bulkhead_sys::loopdev::LoopError;
use bulkhead_sys::lvm::LvmError;
use bulkhead_sys::mount::MountError;
use bulkhead_sys::selinux::CONTEXT_OPTION;
use bulkhead_sys::systemd::SystemdError;
use bulkhead_sys::tool::ToolError;
use bulkhead_sys::trim::TrimError;
use bulkhead_sys::ublk::UblkError;

use super::layer_errors;

/// An error of the kernel fence that knows its code, and its reason or hint.
pub(crate) trait Classify: Error + Sized + 'static {
    /// Its code and, where there is one, its hint.
    fn classify(&self) -> (Code, &'static str);

    /// Its reason, in place of a hint, where front ends word the remedy in their own way.
    fn reason(&self) -> Option<Reason> {
        None
    }

    /// As a fault about `object`.
    fn fault(self, object: impl std::fmt::Display) -> Fault {
        let cause = chain(&self);
        if let Some(ToolError::Missing { package, .. }) = missing_program(&self) {
            return Fault::new(Code::Unsupported, object, cause).hint(format!("apt-get install {package}"));
        }
        let (code, hint) = self.classify();
        let fault = Fault::new(code, object, cause);
        match self.reason() {
            Some(reason) => fault.reason(reason),
            None => fault.hint(hint),
        }
    }
}

fn missing_program<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a ToolError> {
    let mut next = Some(error);
    while let Some(error) = next {
        // The source of an error that keeps it in a box is that box.
        let boxed = || error.downcast_ref::<Box<ToolError>>().map(AsRef::as_ref);
        if let Some(tool) = error.downcast_ref::<ToolError>().or_else(boxed) {
            return Some(tool).filter(|tool| matches!(tool, ToolError::Missing { .. }));
        }
        next = error.source();
    }
    None
}

fn of_io(error: &io::Error) -> (Code, &'static str) {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Code::NoSpace, "free up space on that file system, or use another one")
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            (Code::Unsupported, "the file system is read-only: remount it read-write, or use another one")
        }
        io::ErrorKind::PermissionDenied => (Code::PermissionDenied, "the daemon must run as root"),
        io::ErrorKind::NotFound => (Code::NotFound, ""),
        io::ErrorKind::ResourceBusy => (Code::InUse, ""),
        _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
    }
}

impl Classify for FileError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            FileError::Io(error) => of_io(&error.source),
            FileError::NoName { .. } => (Code::InvalidArgument, ""),
            FileError::Exists { .. } => (Code::AlreadyExists, "move it away, or choose another name"),
            FileError::TooLarge { .. } => (Code::Corrupt, "it is not a Bulkhead state file: move it away"),
            FileError::NoSpace { .. } => (Code::NoSpace, "request less, free up space, or provision on demand"),
            FileError::AlreadyLocked { .. } => (Code::InUse, "another daemon is running: stop it first"),
        }
    }
}

impl Classify for LayerError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            LayerError::File(error) => error.classify(),
            other => layer_errors::code_and_hint(other),
        }
    }

    fn reason(&self) -> Option<Reason> {
        layer_errors::reason(self)
    }
}

impl Classify for LoopError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            LoopError::Image { source, .. } => of_io(source),
            LoopError::Unsuitable { .. } => {
                (Code::Corrupt, "the file is not the image of a volume: restore the image from a backup")
            }
            LoopError::Unavailable { .. } => (Code::Unsupported, "`modprobe loop`, or use an LVM pool"),
            LoopError::Conflict { .. } | LoopError::Busy { .. } | LoopError::Locked { .. } => {
                (Code::InUse, "stop what uses the loop device (`losetup -l`, `findmnt`)")
            }
            LoopError::NoneFree { .. } => {
                (Code::Unsupported, "raise the number of loop devices (`modprobe loop max_loop=N`)")
            }
            LoopError::Device(_) | LoopError::Malformed { .. } | LoopError::Usage { .. } => {
                (Code::Internal, "the daemon's log and `dmesg` say more")
            }
        }
    }
}

impl Classify for UblkError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            UblkError::Unavailable { .. } | UblkError::Lacks { .. } => (Code::Unsupported, ""),
            UblkError::TooMany { .. } => (
                Code::NoSpace,
                "boot with `ublk_drv.ublks_max=1000000`, or write that value to the module parameter as root on the host",
            ),
            UblkError::Busy { .. } => (Code::InUse, "stop what uses the device (`lsblk`, `findmnt`)"),
            _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }

    fn reason(&self) -> Option<Reason> {
        matches!(self, UblkError::Unavailable { .. } | UblkError::Lacks { .. }).then_some(Reason::UblkMissing)
    }
}

impl Classify for RemovalError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            RemovalError::Ublk(error) => error.classify(),
            RemovalError::File(_) => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }

    fn reason(&self) -> Option<Reason> {
        match self {
            RemovalError::Ublk(error) => error.reason(),
            RemovalError::File(_) => None,
        }
    }
}

impl Classify for LvmError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            LvmError::BadName { .. } | LvmError::BadTag(_) | LvmError::ZeroSize { .. } => (Code::InvalidArgument, ""),
            LvmError::NotFound { .. } => (Code::NotFound, "`vgs` and `lvs` list what exists"),
            LvmError::AlreadyExists { .. } => (Code::AlreadyExists, "choose another name"),
            LvmError::NoSpace { .. } => (Code::NoSpace, "request less, remove volumes, or `vgextend` the group"),
            LvmError::InUse { .. } => (Code::InUse, "stop what uses it (`lsblk`, `findmnt`)"),
            LvmError::HasSignature { .. } => (Code::HasData, "nothing is overwritten: use an empty device"),
            LvmError::WouldShrink { .. } => (Code::InvalidArgument, ""),
            LvmError::Device { .. } | LvmError::Report { .. } | LvmError::Other { .. } => {
                (Code::Internal, "the daemon's log and `dmesg` say more")
            }
        }
    }
}

impl Classify for BlockError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            BlockError::NotFound { .. } => (Code::NotFound, "`lsblk` lists the block devices"),
            BlockError::NotABlockDevice { .. } => (Code::InvalidArgument, "name a block device: `lsblk` lists them"),
            BlockError::Read { source, .. } => of_io(source),
            BlockError::SchedulerUnavailable { .. } => {
                (Code::Unsupported, "load the scheduler's module (`modprobe bfq`), or choose another policy")
            }
            _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }
}

impl Classify for MountError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            MountError::Open { source, .. } | MountError::Read { source, .. } => of_io(source),
            MountError::Symlink { .. } => (Code::InvalidArgument, "name the directory itself"),
            MountError::UnknownFs { .. } => {
                (Code::Unsupported, "load the file system's module, or use another file system")
            }
            error if finds_errors(error) => (Code::Corrupt, ""),
            error if error.is_invalid_option(CONTEXT_OPTION) => {
                (Code::InvalidArgument, "the host's SELinux policy does not know this context, or none is loaded")
            }
            MountError::Place { .. } => (Code::InUse, "remove what is there: only the volume's device belongs there"),
            MountError::Busy { .. } => (Code::InUse, "stop the processes that use it (`fuser -vm PATH`)"),
            _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }

    fn reason(&self) -> Option<Reason> {
        finds_errors(self).then_some(Reason::FileSystemErrors)
    }
}

/// Whether a mount failed on the errors of the file system: `EUCLEAN`.
fn finds_errors(error: &MountError) -> bool {
    matches!(error, MountError::Mount { source, .. } if source.raw_os_error() == Some(117))
}

impl Classify for CgroupError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            CgroupError::NotFound { .. } | CgroupError::NoProcess { .. } => (Code::NotFound, ""),
            CgroupError::NoFile { .. } | CgroupError::MissingController { .. } => (
                Code::Unsupported,
                "the kernel or the host's cgroup setup lacks the controller (`cat /sys/fs/cgroup/cgroup.controllers`): \
                 boot without cgroup v1 (`systemd.unified_cgroup_hierarchy=1`) if that has taken it",
            ),
            CgroupError::Occupied { .. } | CgroupError::Busy { .. } | CgroupError::TimedOut { .. } => {
                (Code::InUse, "stop these processes first")
            }
            CgroupError::Refused { .. } => (
                Code::Unsupported,
                "`ps -eo pid,cls,cgroup,comm | grep -w -e FF -e RR` lists realtime processes: move them to the root cgroup, or use \
                 a kernel without CONFIG_RT_GROUP_SCHED",
            ),
            CgroupError::NotUnified { .. } => (Code::Unsupported, "boot with systemd.unified_cgroup_hierarchy=1"),
            _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }
}

impl Classify for SystemdError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            SystemdError::Unreachable(_) => {
                (Code::Unavailable, "`systemctl status dbus` says whether the system bus runs")
            }
            SystemdError::Refused { .. } | SystemdError::Late { .. } => {
                (Code::Internal, "`systemctl status UNIT` and `journalctl -u UNIT` say more")
            }
        }
    }
}

impl Classify for Jbd2Error {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            Jbd2Error::Move { source, .. } => source.classify(),
            _ => (Code::Internal, "the daemon tries again every few seconds"),
        }
    }
}

impl Classify for IocostError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            IocostError::Unsupported { .. } => (Code::Unsupported, ""),
            _ => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }

    fn reason(&self) -> Option<Reason> {
        matches!(self, IocostError::Unsupported { .. }).then_some(Reason::IocostMissing)
    }
}

impl Classify for FsError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            FsError::HasSignature { .. } => {
                (Code::HasData, "nothing is overwritten: remove the volume, or use another device")
            }
            FsError::Device { source, .. } => source.classify(),
            FsError::InUse { .. } => (Code::InUse, "unmount it first"),
            FsError::BadOption { .. } => (Code::InvalidArgument, ""),
            FsError::UnknownFs { .. } => {
                (Code::Corrupt, "if its superblock is damaged, `e2fsck -b` or `xfs_repair` can restore it")
            }
            FsError::LogDirty { .. } => (Code::InUse, "mount it once, so that the log is replayed"),
            FsError::HasErrors { .. } => (Code::Corrupt, ""),
            FsError::TooSmall { .. } => (Code::NoSpace, "remove files, or request a larger size"),
            FsError::TreeTooLarge { .. } => (Code::NoSpace, "request a larger size, or free up space in the pool"),
            FsError::NoRoom { .. } => {
                (Code::NoSpace, "remove files, make the volume larger, or request a smaller journal")
            }
            FsError::NotSmaller { .. } => (Code::InvalidArgument, ""),
            FsError::Unsupported { .. } => (Code::Unsupported, ""),
            FsError::Newer { .. } => {
                (Code::Unsupported, "install newer e2fsprogs or xfsprogs: the file system is not damaged")
            }
            FsError::Write { source, .. } | FsError::Tree { source, .. } => of_io(source),
            FsError::Report { .. } | FsError::Tool { .. } => (Code::Internal, "the daemon's log and `dmesg` say more"),
        }
    }

    fn reason(&self) -> Option<Reason> {
        matches!(self, FsError::HasErrors { .. }).then_some(Reason::FileSystemErrors)
    }
}

impl Classify for TrimError {
    fn classify(&self) -> (Code, &'static str) {
        match self {
            TrimError::NoDiscards { .. } => (
                Code::Unsupported,
                "`lvs -o lv_name,discards` shows whether the thin pool ignores discards; `lvchange --discards passdown VG/POOL` makes it accept them",
            ),
            TrimError::File(error) => error.classify(),
        }
    }
}

impl Classify for IoschedError {
    fn classify(&self) -> (Code, &'static str) {
        of_io(&self.source)
    }
}

impl Classify for ToolError {
    fn classify(&self) -> (Code, &'static str) {
        (Code::Internal, "the daemon's log says more")
    }
}

/// The name of a path's object in an error.
pub(crate) fn file(path: &Path) -> String {
    format!("file {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_found_below_other_errors() {
        let missing = || ToolError::Missing { program: "lvm".to_owned(), package: "lvm2" };
        let below = LvmError::Other { operation: "list", object: "vg".to_owned(), source: Box::new(missing()) };
        for fault in [below.fault("vg"), missing().fault("vg")] {
            assert_eq!((fault.code, fault.hint.as_str()), (Code::Unsupported, "apt-get install lvm2"));
        }
    }
}
