//! ublk: block devices served by a process (kernel `drivers/block/ublk_drv.c`, `Documentation/block/ublk.rst`).
//!
//! Owns: the commands of `/dev/ublk-control` ([`Control`]), and the requests of a device that this process serves ([`queue::Queue`]). A
//! device outlives its server: with user recovery, which all devices of ours have, its requests wait until another server takes over,
//! and requests that were in flight are reissued. Does not: interpret an image, or decide when a device is created or removed.

mod device;
mod error;
mod owners;
pub mod queue;
pub mod sized;
mod uapi;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirEntryExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bulkhead_core::units::Bytes;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::getpid;

use self::device::device_info;
pub use self::device::{DeviceInfo, Features, Params, Spec, State};
pub use self::error::UblkError;
pub use self::owners::Owners;
use self::uapi::Command;
use crate::process::{self, Handle};
use crate::roots::Roots;

/// Time limit of a command: starting a device reads from it, stopping one waits for requests in flight.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Time limit for the exit of a removed device's server.
const SERVER_END_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for udev to create the node of a new device.
const NODE_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for udev to finish probing a device that is being removed.
const UDEV_LIMIT: Duration = Duration::from_secs(5);

/// Poll interval.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// The driver's control node.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// Number of commands sent; the user data of the last one.
    sent: u64,
    /// The driver's parameter for the maximum number of devices.
    ublks_max: PathBuf,
}

/// Maximum number of devices in the driver (kernel `UBLK_MAX_UBLKS`).
const MAX_DEVICES: u32 = (1 << 20) - 1;

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the control node.
    ///
    /// # Errors
    /// [`UblkError::Unavailable`], [`UblkError::Lacks`] if `io_uring` is not permitted, [`UblkError::Node`], [`UblkError::Ring`].
    pub fn open(roots: &Roots) -> Result<Self, UblkError> {
        let path = roots.dev.join("ublk-control");
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => UblkError::Unavailable { path, source },
            _ => UblkError::node("open", path, source),
        })?;
        let ring = IoUring::builder().build(4).map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::NOSYS) => UblkError::Lacks { feature: "io_uring, or it is disabled" },
            _ => UblkError::Ring { operation: "create", source },
        })?;
        let ublks_max = roots.sys.join("module/ublk_drv/parameters/ublks_max");
        Ok(Self { file, ring, sent: 0, ublks_max })
    }

    /// The driver's features.
    ///
    /// # Errors
    /// [`UblkError::Lacks`] if it lacks a feature that all devices of ours need (a kernel before 6.5).
    pub fn features(&mut self) -> Result<Features, UblkError> {
        let lacks = |feature| UblkError::Lacks { feature };
        let (answer, bytes) = self.exchange(uapi::GET_FEATURES, u32::MAX, 0u64.to_ne_bytes(), 0)?;
        answer.map_err(|_| lacks(uapi::GET_FEATURES.name))?;
        let flags = u64::from_ne_bytes(bytes);
        for (flag, name) in [
            (uapi::F_USER_RECOVERY, "UBLK_F_USER_RECOVERY"),
            (uapi::F_USER_RECOVERY_REISSUE, "UBLK_F_USER_RECOVERY_REISSUE"),
            (uapi::F_CMD_IOCTL_ENCODE, "UBLK_F_CMD_IOCTL_ENCODE"),
        ] {
            if flags & flag == 0 {
                return Err(lacks(name));
            }
        }
        Ok(Features(flags))
    }

    /// A device; `None` if there is none of that number.
    ///
    /// # Errors
    /// [`UblkError::Command`].
    pub fn info(&mut self, id: u32) -> Result<Option<DeviceInfo>, UblkError> {
        let (answer, bytes) = self.exchange(uapi::GET_DEV_INFO, id, [0; _], 0)?;
        match answer {
            Err(Errno::NODEV) => Ok(None),
            Err(errno) => Err(refused(uapi::GET_DEV_INFO, id, errno)),
            Ok(_) => Ok(Some(device_info(uapi::Info::decode(&bytes)))),
        }
    }

    /// The device of `owner`; `None` if there is none. Devices that are known to belong to another owner are not queried; the owners of
    /// queried devices are added to `known`.
    ///
    /// # Errors
    /// [`UblkError::Command`]; [`UblkError::Node`] if `/sys/class/ublk-char` cannot be read.
    pub fn find(&mut self, roots: &Roots, owner: u64, known: &Owners) -> Result<Option<DeviceInfo>, UblkError> {
        let path = roots.sys.join("class/ublk-char");
        let unreadable = |source| UblkError::node("list", &path, source);
        let listed = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            listed => listed.map_err(unreadable)?,
        };
        let mut devices = Vec::new();
        for entry in listed {
            let entry = entry.map_err(unreadable)?;
            let id = entry.file_name().to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok());
            devices.extend(id.map(|id| (entry.ino(), id)));
        }
        known.find(&devices, owner, |id| self.info(id))
    }

    /// Creates a device, which is not started yet. The calling process becomes its server.
    ///
    /// # Errors
    /// [`UblkError::Command`].
    pub fn add(&mut self, spec: &Spec, features: Features) -> Result<DeviceInfo, UblkError> {
        let wanted = uapi::Info {
            queues: spec.queues,
            depth: spec.depth,
            max_io_bytes: spec.max_io_bytes,
            // The driver chooses.
            id: u32::MAX,
            pid: getpid().as_raw_pid(),
            flags: uapi::F_USER_RECOVERY
                | uapi::F_USER_RECOVERY_REISSUE
                | uapi::F_CMD_IOCTL_ENCODE
                | features.0 & uapi::F_NO_AUTO_PART_SCAN,
            owner: spec.owner,
            state: 0,
        };
        let (mut answer, mut bytes) = self.exchange(uapi::ADD_DEV, u32::MAX, wanted.encode(), 0)?;
        if answer == Err(Errno::ACCESS) {
            // Kernels before 6.15 count all devices against a limit intended for unprivileged users.
            std::fs::write(&self.ublks_max, MAX_DEVICES.to_string())
                .map_err(|source| UblkError::TooMany { parameter: self.ublks_max.clone(), source })?;
            (answer, bytes) = self.exchange(uapi::ADD_DEV, u32::MAX, wanted.encode(), 0)?;
        }
        answer.map_err(|errno| refused(uapi::ADD_DEV, u32::MAX, errno))?;
        Ok(device_info(uapi::Info::decode(&bytes)))
    }

    /// Sets the parameters of a device, before it is started.
    ///
    /// # Errors
    /// [`UblkError::Command`].
    pub fn set_params(&mut self, device: &DeviceInfo, params: &Params) -> Result<(), UblkError> {
        let bytes = uapi::params(params, device.max_io_bytes);
        let (answer, _) = self.exchange(uapi::SET_PARAMS, device.id, bytes, 0)?;
        answer.map(drop).map_err(|errno| refused(uapi::SET_PARAMS, device.id, errno))
    }

    /// Starts a device, which creates its block device. Waits until all queues' threads have fetched.
    ///
    /// # Errors
    /// [`UblkError::Command`], [`UblkError::Timeout`].
    pub fn start(&mut self, id: u32) -> Result<(), UblkError> {
        self.command(uapi::START_DEV, id, own_pid())
    }

    /// Begins to take over a device without a server; another process may have begun already. The first process that opens the device
    /// then is its server.
    ///
    /// # Errors
    /// [`UblkError::Command`]: `EBUSY` while a server is alive, or while its requests in flight are not finished.
    pub fn start_recovery(&mut self, id: u32) -> Result<(), UblkError> {
        match self.command(uapi::START_USER_RECOVERY, id, 0) {
            // The driver refuses if no queue is ready, as after an earlier call (`ublk_ctrl_start_recovery`).
            Err(UblkError::Command { source, .. }) if is(&source, Errno::INVAL) => Ok(()),
            done => done,
        }
    }

    /// Completes a takeover, so that waiting requests are served. Waits until all queues' threads have fetched.
    ///
    /// # Errors
    /// [`UblkError::Command`], [`UblkError::Timeout`].
    pub fn end_recovery(&mut self, id: u32) -> Result<(), UblkError> {
        self.command(uapi::END_USER_RECOVERY, id, own_pid())
    }

    /// Changes the size of a live device ([`Features::can_resize`]).
    ///
    /// # Errors
    /// [`UblkError::Command`].
    pub fn resize(&mut self, id: u32, size: Bytes) -> Result<(), UblkError> {
        self.command(uapi::UPDATE_SIZE, id, size.0 / 512)
    }

    /// Stops a device that is not in use, before it is [deleted](Self::delete). Idempotent.
    ///
    /// # Errors
    /// [`UblkError::Busy`] while it is mounted or held, [`UblkError::Command`], [`UblkError::Timeout`], [`UblkError::Node`].
    pub fn stop(&mut self, roots: &Roots, device: &DeviceInfo) -> Result<Stopped, UblkError> {
        let node = device.node(roots);
        // The driver would remove a device even under a mounted file system. An exclusive open fails then, as a mount is an exclusive
        // opener. It is closed only after the device is stopped, as the close could wait for a dead server before.
        let exclusive = match rustix::fs::open(&node, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => Some(fd),
            Err(Errno::BUSY) => return Err(UblkError::Busy { device: node }),
            // Never started, or stopped already.
            Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) => None,
            Err(errno) => return Err(UblkError::node("open", node, errno)),
        };
        // udev probes for signatures under a lock on the disk. Without the server its reads would fail, with errors in the kernel log.
        let give_up = Instant::now() + UDEV_LIMIT;
        while let Some(disk) = &exclusive
            && flock(disk, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN)
            && Instant::now() < give_up
        {
            process::pause(POLL_PAUSE);
        }
        let failed = |source| UblkError::node("wait for the server of", &node, source);
        let server = device.server().map_err(failed)?;
        let stopped = self.command(uapi::STOP_DEV, device.id, 0);
        drop(exclusive);
        unless_gone(stopped)?;
        Ok(Stopped { id: device.id, node, server })
    }

    /// Deletes a stopped device. Afterwards the driver may reuse its number.
    ///
    /// # Errors
    /// [`UblkError::Command`], [`UblkError::Timeout`].
    pub fn delete(&mut self, device: &Stopped) -> Result<(), UblkError> {
        unless_gone(self.command(uapi::DEL_DEV_ASYNC, device.id, 0))
    }

    fn command(&mut self, command: Command, id: u32, data: u64) -> Result<(), UblkError> {
        let (answer, _) = self.exchange(command, id, [], data)?;
        answer.map(drop).map_err(|errno| refused(command, id, errno))
    }

    /// Sends a command with a buffer; returns the driver's result and the buffer.
    fn exchange<const N: usize>(
        &mut self,
        command: Command,
        id: u32,
        buffer: [u8; N],
        data: u64,
    ) -> Result<(Result<i32, Errno>, [u8; N]), UblkError> {
        let failed = |source| UblkError::Ring { operation: "use", source };
        let mut buffer = Box::new(buffer);
        // Lengths are those in `uapi`, at most 64.
        let described =
            if N == 0 { (0, 0) } else { (buffer.as_mut_ptr() as u64, u16::try_from(N).unwrap_or(u16::MAX)) };
        self.sent += 1;
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command.opcode)
            .cmd(uapi::ctrl_cmd(id, described, data))
            .build()
            .user_data(self.sent);
        // SAFETY: the command's buffer is on the heap and is freed only after the command has completed; otherwise it is leaked. The
        // descriptor is that of `self.file`, which outlives the ring's requests.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| failed(io::ErrorKind::QuotaExceeded.into()))?;
        let give_up = Instant::now() + COMMAND_LIMIT;
        loop {
            let left = types::Timespec::from(give_up.saturating_duration_since(Instant::now()));
            let waited = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&left));
            // The completion of a command that timed out may arrive late.
            if let Some(entry) = self.ring.completion().find(|entry| entry.user_data() == self.sent) {
                let answer = entry.result();
                let answer = if answer < 0 { Err(Errno::from_raw_os_error(-answer)) } else { Ok(answer) };
                return Ok((answer, *buffer));
            }
            match waited {
                Err(error) if is(&error, Errno::INTR) => {}
                Err(error) if !is(&error, Errno::TIME) => {
                    Box::leak(buffer);
                    return Err(failed(error));
                }
                _ if Instant::now() >= give_up => {
                    Box::leak(buffer);
                    return Err(UblkError::Timeout { command: command.name, id, seconds: COMMAND_LIMIT.as_secs() });
                }
                _ => {}
            }
        }
    }
}

/// A stopped device, whose server is about to exit.
#[derive(Debug)]
#[must_use]
pub struct Stopped {
    id: u32,
    node: PathBuf,
    server: Option<Handle>,
}

impl Stopped {
    /// Waits until the server has exited.
    ///
    /// # Errors
    /// [`UblkError::Timeout`], [`UblkError::Node`].
    pub fn wait_for_server(self) -> Result<(), UblkError> {
        let Self { id, node, server } = self;
        match server.map_or(Ok(true), |server| server.wait_until_ended(SERVER_END_LIMIT)) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let seconds = SERVER_END_LIMIT.as_secs();
                Err(UblkError::Timeout { command: "the exit of the server", id, seconds })
            }
            Err(source) => Err(UblkError::node("wait for the server of", node, source)),
        }
    }
}

/// Opens a device's character node, through which its requests are served.
///
/// # Errors
/// [`UblkError::Node`].
pub fn open_device(roots: &Roots, id: u32) -> Result<File, UblkError> {
    let path = roots.dev.join(format!("ublkc{id}"));
    let give_up = Instant::now() + NODE_LIMIT;
    loop {
        match OpenOptions::new().read(true).write(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < give_up => {
                process::pause(POLL_PAUSE);
            }
            opened => return opened.map_err(|source| UblkError::node("open", path, source)),
        }
    }
}

fn own_pid() -> u64 {
    u64::from(getpid().as_raw_pid().unsigned_abs())
}

/// Treats a missing device as stopped or removed.
fn unless_gone(done: Result<(), UblkError>) -> Result<(), UblkError> {
    match done {
        Err(UblkError::Command { source, .. }) if is(&source, Errno::NODEV) => Ok(()),
        other => other,
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}

fn refused(command: Command, id: u32, errno: Errno) -> UblkError {
    UblkError::Command { command: command.name, id, source: errno.into() }
}

#[cfg(test)]
mod tests;
