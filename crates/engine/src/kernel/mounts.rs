//! Mounts: mounting, unmounting, writing and trimming what is mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::action::{DeviceRef, MountAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity;
use bulkhead_core::model::{FsKind, MountOptions, SelinuxContext};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::jbd2::LogThread;
use bulkhead_sys::mount::{self, MountError, MountFlags, MountPoints};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup, file, loopdev, process, selinux, trim};

use super::Kernel;
use super::act::Outcome;
use super::faults::Classify;
use crate::host::{Mounts, Volumes as _};

/// How long unmounting waits for the journal thread to exit, so that its cgroup can be removed. Requests wait meanwhile.
const THREAD_END_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for a file system to end that no process has mounted any more: what is dirty has to be written, on a loaded host.
const FILE_SYSTEM_END_LIMIT: Duration = Duration::from_secs(40);
/// How long a raw volume's device may stay open after its user has ended, and between two looks.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(20);
/// Loop devices on one device that are detached: the kubelet makes one for each pod.
const MAX_LOOPS: usize = 64;

impl Kernel {
    pub(super) fn act_on_mount(&self, action: &MountAction) -> Result<Outcome, Fault> {
        use MountAction as A;
        match action {
            A::Mount { device, fs, target, read_only, nouuid, options, selinux_context } => {
                let nouuid = nouuid.then_some(("nouuid", None));
                self.mount(device, (*fs, nouuid), target, *read_only, (options, selinux_context.as_ref()))
            }
            A::BindDevice { device, target } => {
                let (dev, _) = self.kernel_name(device)?;
                let bound = mount::bind_node(&self.roots, &self.node(device)?, dev, target);
                bound.map(Outcome::changed).map_err(|e| e.fault(device))
            }
            A::UnbindDevice { device, target } => self.unbind_device(device, target),
            A::SyncDevice { device } => {
                block::sync(&self.node(device)?).map_err(|e| e.fault(device))?;
                Ok(Outcome::DONE)
            }
            A::Unmount { target } => self.unmount(target),
            A::SyncFs { target } => {
                file::sync_fs(target).map_err(|e| e.fault(format!("mount point {}", target.display())))?;
                Ok(Outcome::DONE)
            }
            A::AttachPeer { device, volume, target, domain } => self.attach_peer(device, *volume, target, domain),
            A::DetachPeer { volume } => self.detach_peer(*volume),
            A::TrimFs { target, start_bytes, length_bytes, .. } => {
                trim_fs(&self.roots, target, *start_bytes, *length_bytes).map(Outcome::discarded)
            }
        }
    }

    fn mount(
        &self,
        device: &DeviceRef,
        (fs, fs_option): (FsKind, Option<(&str, Option<&str>)>),
        target: &Path,
        read_only: bool,
        (options, context): (&MountOptions, Option<&SelinuxContext>),
    ) -> Result<Outcome, Fault> {
        let (dev, _) = self.kernel_name(device)?;
        if let Some(found) = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))? {
            if found == dev {
                self.check_context(target, context)?;
                return self.expose_subdir(target, options);
            }
            let other = block::name_of(&self.roots, found).unwrap_or_else(|_| found.to_string());
            let cause = format!("something else is mounted there ({other})");
            return Err(Fault::new(Code::InUse, target.display(), cause).hint("unmount it"));
        }
        if fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_some()) {
            let cause = "it contains files, which a file system mounted over them would hide";
            return Err(Fault::new(Code::HasData, format!("directory {}", target.display()), cause)
                .hint("move them away: only the volume belongs there"));
        }
        let (nosuid, nodev) = (!options.suid, !options.dev);
        let flags = MountFlags { nosuid, nodev, noexec: false, noatime: true, readonly: read_only };
        let node = self.node(device)?;
        let context = context.map(|context| (selinux::CONTEXT_OPTION, Some(context.as_str())));
        let fs_options: Vec<_> = fs_option.into_iter().chain(context).collect();
        mount::mount(&node, fs.as_str(), target, flags, &fs_options).map_err(|e| e.fault(device))?;
        self.expose_subdir(target, options)?;
        Ok(Outcome::DONE)
    }

    /// Refuses a mount with an SELinux context where none is wanted, and the other way round. Which context it is, is not compared: the kernel
    /// has words of its own for it.
    fn check_context(&self, target: &Path, wanted: Option<&SelinuxContext>) -> Result<(), Fault> {
        let mounts = mount::mountinfo(&self.roots).map_err(|e| e.fault(target.display()))?;
        let mount = mounts.iter().rfind(|mount| mount.mount_point == target);
        let cause = match (mount.and_then(|mount| mount.selinux_context()), wanted) {
            (Some(found), None) => format!("it is mounted with SELinux context {found}, and none is wanted"),
            (None, Some(wanted)) => format!("it is mounted without an SELinux context, and {wanted} is wanted"),
            _ => return Ok(()),
        };
        Err(Fault::new(Code::InUse, target.display(), cause).hint("unmount it"))
    }

    /// Makes a mounted volume expose only the directory in its options.
    fn expose_subdir(&self, target: &Path, options: &MountOptions) -> Result<Outcome, Fault> {
        let Some(subdir) = &options.subdir else { return Ok(Outcome::UNCHANGED) };
        let mounts = mount::mountinfo(&self.roots).map_err(|e| e.fault(target.display()))?;
        if mounts.iter().rfind(|mount| mount.mount_point == target).is_none_or(|mount| mount.root != Path::new("/")) {
            return Ok(Outcome::UNCHANGED);
        }
        mount::mount_subdirectory(target, subdir.as_str()).map_err(|e| e.fault(target.display()))?;
        Ok(Outcome::DONE)
    }

    fn unmount(&self, target: &Path) -> Result<Outcome, Fault> {
        let Some(dev) = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))? else {
            return Ok(Outcome::UNCHANGED);
        };
        // A file system without a block device has no such thread.
        let (source, thread) = match block::name_of(&self.roots, dev) {
            Ok(name) => {
                let thread = LogThread::find(&self.roots, &name).map_err(|e| e.fault(&name))?;
                (self.roots.dev.join(name).display().to_string(), thread)
            }
            Err(_) => (dev.to_string(), None),
        };
        mount::unmount(target).map_err(|e| {
            let fault = e.fault(format!("mount {}", target.display()));
            Fault { cause: format!("{}{}", fault.cause, self.users_of(dev)), ..fault }
        })?;
        // The file system ends when its last mount in any namespace does; only then is its journal thread gone.
        let is_gone = |limit| thread.as_ref().is_none_or(|thread| thread.wait_until_gone(&self.roots, limit));
        let done = Outcome { old: Some(source), changed: true, ..Outcome::DONE };
        if is_gone(THREAD_END_LIMIT) {
            return Ok(done);
        }
        let target = format!("mount {}", target.display());
        let users = self.users_of(dev);
        if !users.is_empty() {
            let cause = format!("its file system is still mounted elsewhere{users}");
            return Err(Fault::new(Code::InUse, target, cause).hint("stop the processes in those mount namespaces"));
        }
        // A process that has just detached its copy of the mounts, as a starting block server does, had the last one, and ends the file system.
        if is_gone(FILE_SYSTEM_END_LIMIT) {
            return Ok(done);
        }
        let cause =
            format!("its file system has not ended {} s after its last unmount", FILE_SYSTEM_END_LIMIT.as_secs());
        Err(Fault::new(Code::Unavailable, target, cause)
            .hint("repeat the request; the kernel log has errors of the device"))
    }

    /// Without a mount of its own, a device that is in use would be removed under its users, with what is still in the page cache.
    fn unbind_device(&self, device: &DeviceRef, target: &Path) -> Result<Outcome, Fault> {
        let object = || format!("device node {}", target.display());
        let fault = |error: MountError| error.fault(object());
        if mount::bound_node(&self.roots, target).map_err(fault)?.is_some() {
            let table = mount::mountinfo(&self.roots).map_err(fault)?;
            if let Some(at) = mount::other_binds(&table, target).first() {
                let cause = format!("it is also mounted at {}", at.display());
                return Err(Fault::new(Code::InUse, object(), cause)
                    .hint("stop the containers that use the volume: its node is unmounted with them"));
            }
            // udev opens a device for a moment after its last writer.
            let give_up = Instant::now() + RELEASE_LIMIT;
            while let Some(user) = self.user_of(device, target)? {
                if Instant::now() >= give_up {
                    return Err(Fault::new(Code::InUse, device, user).hint("stop what uses the device"));
                }
                process::pause(RELEASE_POLL);
            }
        }
        let unbound = mount::unbind_node(&self.roots, target).map_err(fault)?;
        Ok(Outcome { old: unbound.then(|| target.display().to_string()), ..Outcome::changed(unbound) })
    }

    /// Who has a raw volume's device open.
    fn user_of(&self, device: &DeviceRef, target: &Path) -> Result<Option<String>, Fault> {
        let Some(open) = self.open_device(device)? else { return Ok(None) };
        if let Some(user) = block::is_in_use(&self.roots, open.dev).map_err(|e| e.fault(device))? {
            return Ok(Some(user.to_string()));
        }
        if let Some(pid) = block::openers(&self.roots, open.dev).map_err(|e| e.fault(device))?.first() {
            let name = process::name(&self.roots, *pid).unwrap_or_default();
            return Ok(Some(format!("process {pid} ({}) has it open", identity::printable(&name))));
        }
        let over = loopdev::find_by_backing(&self.roots, target).map_err(|e| e.fault(device))?;
        Ok(over.map(|over| format!("{} is attached to it", over.dev_path.display())))
    }

    /// Ends what a container's agent does with the node of a raw volume beside the container's own use: its binds, and the loop devices by
    /// which the kubelet keeps the device from being removed.
    fn release_node(&self, target: &Path) -> Result<(), Fault> {
        let fault = |error: MountError| error.fault(format!("device node {}", target.display()));
        for _ in 0..MAX_LOOPS {
            let found = loopdev::find_by_backing(&self.roots, target);
            let Some(over) = found.map_err(|e| e.fault(target.display()))? else { break };
            loopdev::detach(&self.roots, &over).map_err(|e| e.fault(target.display()))?;
        }
        let table = mount::mountinfo(&self.roots).map_err(fault)?;
        mount::unmount_other_binds(&table, target).map_err(fault)
    }

    /// Waits for the end of the file system on a device that no process has mounted any more: whoever had the last mount may still be ending it
    /// (see [`Self::unmount`]; that request may have been cut off). Returns `false` if some process has it mounted, or it does not end.
    pub(super) fn ends_meanwhile(&self, name: &str) -> bool {
        let Some(dev) = block::devno_of_name(&self.roots, name) else { return false };
        let thread = LogThread::find(&self.roots, name).ok().flatten();
        self.users_of(dev).is_empty()
            && thread.is_none_or(|thread| thread.wait_until_gone(&self.roots, FILE_SYSTEM_END_LIMIT))
    }

    fn users_of(&self, dev: DevNo) -> String {
        let users = mount::mounts_of_device(&self.roots, dev).map(|users| users.mounts).unwrap_or_default();
        let own = std::process::id();
        let list: Vec<String> = users
            .iter()
            .filter(|user| user.pid != own && user.pid != 1)
            .map(|user| format!("pid {} at {}", user.pid, user.mount.mount_point.display()))
            .collect();
        if list.is_empty() { String::new() } else { format!("; mounted by {}", list.join(", ")) }
    }
}

impl Mounts for Kernel {
    fn is_mounted(&self, target: &Path) -> Result<bool, Fault> {
        let found = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))?;
        Ok(found.is_some())
    }

    fn mounted_device(&self, target: &Path) -> Result<Option<String>, Fault> {
        let found = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))?;
        Ok(found.and_then(|dev| block::name_of(&self.roots, dev).ok()))
    }

    fn has_selinux(&self) -> Result<bool, Fault> {
        selinux::is_enabled(&self.roots).map_err(|error| Fault::new(Code::Internal, "the kernel's file systems", error))
    }

    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault> {
        let mut points = self.mount_points.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match points.take() {
            Some(open) => open,
            None => MountPoints::open(&self.roots).map_err(|e| e.fault("mount table"))?,
        };
        points.insert(open).current().map_err(|e| e.fault("mount table"))
    }

    fn unmount_binds(&self, target: &Path) -> Result<(), Fault> {
        let fault = |error: MountError| error.fault(format!("mount {}", target.display()));
        if mount::bound_node(&self.roots, target).map_err(fault)?.is_some() {
            return self.release_node(target);
        }
        let Some(dev) = mount::mounted_at(&self.roots, target).map_err(fault)? else { return Ok(()) };
        let table = mount::mountinfo(&self.roots).map_err(fault)?;
        mount::unmount_others(&table, dev, target).map_err(fault)
    }

    fn mounted_elsewhere(&self, targets: &[PathBuf]) -> Result<Vec<(PathBuf, CgroupPath)>, Fault> {
        let mut devices: BTreeMap<DevNo, &PathBuf> = BTreeMap::new();
        for target in targets {
            let dev = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))?;
            // A block server does the I/O of other devices.
            let is_logical = |dev: &DevNo| block::name_of(&self.roots, *dev).is_ok_and(|name| name.starts_with("dm-"));
            devices.extend(dev.filter(is_logical).map(|dev| (dev, target)));
        }
        if devices.is_empty() {
            return Ok(Vec::new());
        }
        let wanted = devices.keys().copied().collect();
        let users = mount::mounts_of_devices(&self.roots, &wanted).map_err(|e| e.fault("mount tables"))?;
        let own = std::process::id();
        let mut found = BTreeSet::new();
        for user in users.mounts.iter().filter(|user| user.pid != own && user.pid != 1) {
            let Some(target) = devices.get(&user.mount.dev) else { continue };
            let came_along = user.mount.mount_point.ends_with(target.strip_prefix("/").unwrap_or(target));
            // A process that has exited meanwhile uses nothing.
            if let (false, Ok(cgroup)) = (came_along, cgroup::cgroup_of(&self.roots, user.pid)) {
                found.insert(((*target).clone(), cgroup));
            }
        }
        Ok(found.into_iter().collect())
    }
}

/// Without a mount, the directory belongs to another file system, which is not to be trimmed.
fn trim_fs(roots: &Roots, target: &Path, start: Bytes, length: Bytes) -> Result<Bytes, Fault> {
    let object = || format!("mount point {}", target.display());
    if mount::mounted_at(roots, target).map_err(|e| e.fault(object()))?.is_none() {
        return Err(Fault::new(Code::NotFound, object(), "nothing is mounted there now"));
    }
    trim::trim(target, start, length).map_err(|e| e.fault(object()))
}
