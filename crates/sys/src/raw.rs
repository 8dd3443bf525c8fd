//! C library calls that `rustix` lacks: `mount_setattr(2)`, signal masks, `signalfd(2)`, `sched_setscheduler(2)`, and the process group and
//! session of a process whose leader is outside our PID namespace (`rustix` assumes that the kernel never returns 0).
//!
//! Owns their declarations and structures. Provides safe functions to the other modules of this crate; not public.

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong};
use std::fmt;
use std::io;
use std::mem::{align_of, offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, Signal};

/// `mount_setattr` has this number on every architecture but alpha (`scripts/syscall.tbl` of the kernel).
const SYS_MOUNT_SETATTR: c_long = 442;
/// `SIG_SETMASK` and `SIG_BLOCK` of `<signal.h>`, everywhere but on mips, sparc and alpha.
const SIG_SETMASK: c_int = 2;
const SIG_BLOCK: c_int = 0;
/// `SIG_DFL` of `<signal.h>`.
const SIG_DFL: usize = 0;
/// `SIG_IGN` of `<signal.h>`.
const SIG_IGN: usize = 1;
/// `SCHED_FIFO` of `<linux/sched.h>`.
const SCHED_FIFO: c_int = 1;
/// `SFD_CLOEXEC | SFD_NONBLOCK` (equal to `O_CLOEXEC | O_NONBLOCK`) of `<sys/signalfd.h>`.
const SFD_FLAGS: c_int = 0o2_000_000 | 0o4_000;

#[cfg(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc64"))]
compile_error!("the constants of this module are those of x86, arm, riscv, powerpc, s390x and loongarch");

/// `struct mount_attr` of `<linux/mount.h>`, version 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountAttr {
    /// `MOUNT_ATTR_*` to set.
    pub(crate) attr_set: u64,
    /// `MOUNT_ATTR_*` to clear.
    pub(crate) attr_clr: u64,
    /// One of `MS_PRIVATE`, `MS_SLAVE` …, or 0 to keep the propagation.
    pub(crate) propagation: u64,
    /// Only for id-mapped mounts.
    pub(crate) userns_fd: u64,
}

// MOUNT_ATTR_SIZE_VER0 of <linux/mount.h>.
const _: () = assert!(size_of::<MountAttr>() == 32);
const _: () = assert!(offset_of!(MountAttr, propagation) == 16 && offset_of!(MountAttr, userns_fd) == 24);

/// `sigset_t` of glibc and musl: 1024 bits.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SignalSet([c_ulong; 1024 / c_ulong::BITS as usize]);

const _: () = assert!(size_of::<SignalSet>() == 128 && align_of::<SignalSet>() == align_of::<c_ulong>());

/// Size of `struct signalfd_siginfo` (`<linux/signalfd.h>`).
pub(crate) const SIGNALFD_SIGINFO_BYTES: usize = 128;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn sigemptyset(set: *mut SignalSet) -> c_int;
    fn sigaddset(set: *mut SignalSet, signal: c_int) -> c_int;
    fn pthread_sigmask(how: c_int, set: *const SignalSet, old: *mut SignalSet) -> c_int;
    fn signalfd(fd: c_int, mask: *const SignalSet, flags: c_int) -> c_int;
    fn signal(signal: c_int, handler: usize) -> usize;
    fn getpgid(pid: c_int) -> c_int;
    fn getsid(pid: c_int) -> c_int;
    fn sched_setscheduler(pid: c_int, policy: c_int, param: *const c_int) -> c_int;
}

impl fmt::Debug for SignalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignalSet({:#x})", self.0[0])
    }
}

impl SignalSet {
    /// The set of these signals.
    pub(crate) fn from_signals(signals: &[Signal]) -> io::Result<Self> {
        let mut set = Self([0; _]);
        // SAFETY: `set` is a live, writable sigset_t: its size is asserted above and the reference outlives the call.
        check(unsafe { sigemptyset(&raw mut set) })?;
        for signal in signals {
            // SAFETY: as above; sigaddset checks the number of the signal itself.
            check(unsafe { sigaddset(&raw mut set, signal.as_raw()) })?;
        }
        Ok(set)
    }

    /// Blocks these signals in the calling thread; returns the previous mask.
    pub(crate) fn block(&self) -> io::Result<SignalSet> {
        self.set_mask(SIG_BLOCK)
    }

    /// Makes this the mask of the calling thread. Safe to call between fork and exec: it neither allocates nor locks.
    pub(crate) fn install(&self) -> io::Result<()> {
        self.set_mask(SIG_SETMASK).map(drop)
    }

    /// A descriptor from which blocked signals of this set are read (close-on-exec, non-blocking).
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: `self` is an initialised sigset_t that outlives the call; -1 asks for a new descriptor.
        let fd = unsafe { signalfd(-1, &raw const *self, SFD_FLAGS) };
        check(fd)?;
        // SAFETY: the kernel has just returned this descriptor, so it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn set_mask(&self, how: c_int) -> io::Result<SignalSet> {
        let mut old = Self([0; _]);
        // SAFETY: both sets are live for the whole call, `self` is initialised, `old` is writable; no memory is kept.
        match unsafe { pthread_sigmask(how, &raw const *self, &raw mut old) } {
            0 => Ok(old),
            // It returns the error instead of setting errno.
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Resets a signal to its default disposition in the whole process.
pub(crate) fn reset_disposition(which: Signal) -> io::Result<()> {
    // SAFETY: SIG_DFL installs no handler, so no code of ours can run in signal context.
    match unsafe { signal(which.as_raw(), SIG_DFL) } {
        usize::MAX => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Ignores a signal in the whole process.
pub(crate) fn ignore(which: Signal) -> io::Result<()> {
    // SAFETY: SIG_IGN installs no handler, so no code of ours can run in signal context.
    match unsafe { signal(which.as_raw(), SIG_IGN) } {
        usize::MAX => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Process group of a process, or our own; 0 if its leader is outside our PID namespace.
pub(crate) fn process_group(pid: Option<Pid>) -> io::Result<i32> {
    // SAFETY: takes and returns plain numbers; 0 means the caller.
    checked(unsafe { getpgid(Pid::as_raw(pid)) })
}

/// Our session; 0 if its leader is outside our PID namespace.
pub(crate) fn session() -> io::Result<i32> {
    // SAFETY: takes and returns plain numbers; 0 means the caller.
    checked(unsafe { getsid(0) })
}

/// `mount_setattr(2)` on the mount of the descriptor `mount`; `flags` are `AT_RECURSIVE` or 0, `AT_EMPTY_PATH` is added.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, flags: u32, attr: &MountAttr) -> io::Result<()> {
    const AT_EMPTY_PATH: c_uint = 0x1000;
    let path: *const c_char = c"".as_ptr();
    let attr: *const MountAttr = attr;
    let (fd, flags, size) = (mount.as_raw_fd(), flags | AT_EMPTY_PATH, size_of::<MountAttr>());
    // SAFETY: the arguments are those of mount_setattr(2) in type and order: the descriptor is borrowed for the call, the
    // path is a static C string, `attr` points to a live structure of exactly `size` bytes, which the kernel only reads.
    match unsafe { syscall(SYS_MOUNT_SETATTR, fd, path, flags, attr, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the real-time priority of the calling thread (`SCHED_FIFO`, 1 to 99).
pub(crate) fn set_realtime(priority: c_int) -> io::Result<()> {
    // SAFETY: 0 means the caller; `struct sched_param` is one int, which is live for the call and only read.
    check(unsafe { sched_setscheduler(0, SCHED_FIFO, &raw const priority) })
}

fn check(result: c_int) -> io::Result<()> {
    checked(result).map(drop)
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
