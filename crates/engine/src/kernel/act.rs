//! One `sys` call for each `Action`. Idempotent: what is done already is found, and reported as unchanged.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::action::{Action, Applied, DeviceRef};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{self, FsKind};
use bulkhead_core::observe::shares::Weights;
use bulkhead_core::reason::Reason;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::cgroup::{self, CgroupError, CgroupPath};
use bulkhead_sys::file;
use bulkhead_sys::fsutil::{self, CheckOutcome, FsError, MkfsOptions, Repair};
use bulkhead_sys::iocost::{ModelLine, QosLine};
use bulkhead_sys::jbd2::{Jbd2Error, LogThread};
use bulkhead_sys::lvm::LvKind;
use bulkhead_sys::mount::MountFlags;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, image, iocost, iosched, jbd2, layer, lvm, merge, mount, part, trim};

use super::Kernel;
use super::faults::{Classify, file as file_object};
use crate::host::Host as _;
use crate::store;

/// How long unmounting waits for the journal thread to end, so that its cgroup can be removed. Requests wait meanwhile.
const THREAD_END_LIMIT: Duration = Duration::from_secs(3);

/// What an action did.
pub(super) struct Outcome {
    pub(super) old: Option<String>,
    pub(super) changed: bool,
}

impl Outcome {
    pub(super) const DONE: Outcome = Outcome { old: None, changed: true };
    pub(super) const UNCHANGED: Outcome = Outcome { old: None, changed: false };

    pub(super) fn changed(changed: bool) -> Self {
        Self { old: None, changed }
    }
}

impl Kernel {
    pub(super) fn act(&self, action: &Action) -> Result<Applied, Fault> {
        // The only one that has more to tell than an outcome does.
        if let Action::TrimFs { target, start_bytes, length_bytes, .. } = action {
            let discarded = trim_fs(&self.roots, target, *start_bytes, *length_bytes)?;
            let (action, changed) = (action.clone(), discarded > Bytes(0));
            return Ok(Applied { action, old: None, changed, discarded_bytes: Some(discarded) });
        }
        let Outcome { old, changed } = self.dispatch(action)?;
        Ok(Applied { action: action.clone(), old, changed, discarded_bytes: None })
    }

    fn dispatch(&self, action: &Action) -> Result<Outcome, Fault> {
        use Action as A;
        match action {
            A::MakeDir { path } => make_dir(path),
            A::RemoveDir { path } => remove_dir(path),
            A::WriteRecord { path, record } => write_record(path, &store::encode(record)),
            A::RemoveRecord { path } => remove_file(path),
            A::RemoveImage { path } => {
                let removed = remove_file(path)?;
                self.forget_new(path);
                Ok(removed)
            }
            A::CreateImage { path, size_bytes, provision } => {
                image::create(path, *size_bytes, *provision).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }
            A::GrowImage { path, size_bytes, provision } => {
                layer::hide_below(path, *size_bytes).map_err(|e| e.fault(file_object(path)))?;
                let old = image::grow(path, *size_bytes, *provision).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome { old: Some(old.to_string()), changed: old < *size_bytes })
            }
            A::ShrinkImage { path, size_bytes } => {
                let old = image::shrink(path, *size_bytes).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome { old: Some(old.to_string()), changed: old > *size_bytes })
            }
            A::FreezeImage { image, volume, layer } => self.making_layers(|| self.freeze_image(image, *volume, *layer)),
            A::CopyImage { path, of } => self.making_layers(|| {
                self.note_new(path);
                layer::create_beside(path, of).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }),
            A::ReplaceImage { path, by } => self.making_layers(|| {
                let replaced = layer::replace(path, by).map_err(|e| e.fault(file_object(path)))?;
                self.forget_new(by);
                Ok(Outcome::changed(replaced))
            }),
            A::CreatePart { path, content, base, size_bytes } => self.making_layers(|| {
                part::create(path, *content, *base, *size_bytes)
                    .map(Outcome::changed)
                    .map_err(|e| e.fault(file_object(path)))
            }),
            A::PublishPart { path, image } => self.making_layers(|| {
                part::publish(path, image).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }),
            A::RemovePart { path } => part::remove(path).map(Outcome::changed).map_err(|e| e.fault(file_object(path))),
            A::SweepLayers { directory } => Ok(self.sweep_layers(directory)),
            A::SetLayersApart { directory, layers, names } => {
                self.alone_with_layers(directory, || merge::set_apart(directory, layers, names))
            }
            A::MergeLayers { directory, layers, into, .. } => {
                let copied = merge::copy(directory, layers, *into).map_err(|e| e.fault(file_object(directory)))?;
                tracing::info!(directory = %directory.display(), %copied, "layers are merged");
                Ok(Outcome::DONE)
            }
            A::ReplaceLayers { directory, layers, into, below } => {
                self.alone_with_layers(directory, || merge::replace(directory, layers, *into, *below))
            }
            A::RenewServer { image, volume } => self.renew_stale(image, *volume),
            A::AttachImage { server, spec } => self.attach_image(*server, spec),
            A::RefreshImage { image, volume, size_bytes } => self.refresh_image(image, *volume, *size_bytes),
            A::DetachImage { image, volume } => self.detach_image(image, *volume),
            A::CreateVg { .. }
            | A::CreateThinPool { .. }
            | A::TagVg { .. }
            | A::RemoveVg { .. }
            | A::CreateLv { .. }
            | A::SnapshotLv { .. }
            | A::ProtectLv { .. }
            | A::ActivateLv { .. }
            | A::TagLv { .. }
            | A::GrowLv { .. }
            | A::ShrinkLv { .. }
            | A::RemoveLv { .. } => act_on_lvm(action),
            A::FillLv { vg, lv, from_bytes } => self.fill_lv(vg, lv, *from_bytes),
            A::StampFsUuid { image, uuid, otherwise } => {
                if !fsutil::stamp_uuid(image, *uuid).map_err(|e| e.fault(file_object(image)))? {
                    otherwise.iter().try_for_each(|step| self.act(step).map(drop))?;
                }
                Ok(Outcome::DONE)
            }
            A::Mkfs { .. }
            | A::CheckFs { .. }
            | A::NewFsUuid { .. }
            | A::GrowFs { .. }
            | A::ShrinkFs { .. }
            | A::RemoveJournal { .. }
            | A::MakeJournal { .. } => self.act_on_fs(action),
            A::Mount { device, fs, target, read_only, nouuid } => self.mount(device, *fs, target, *read_only, *nouuid),
            A::AttachSibling { device, volume, target, domain } => self.attach_sibling(device, *volume, target, domain),
            A::DetachSibling { volume } => self.detach_sibling(*volume),
            A::SyncFs { target } => {
                file::sync_fs(target).map_err(|e| e.fault(format!("mount point {}", target.display())))?;
                Ok(Outcome::DONE)
            }
            A::TrimFs { .. } => unreachable!("carried out before: {action}"),
            A::Unmount { target } => self.unmount(target),
            A::CreateCgroup { cgroup } => self.create_cgroup(cgroup),
            A::MoveProcesses { from, to } => self.move_processes(from, to),
            A::EnableController { cgroup, controller } => {
                let old = cgroup::enable(&self.roots, &cgroup_path(cgroup)?, &[controller])
                    .map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
                Ok(Outcome { changed: old.is_some(), old })
            }
            A::WriteCgroup { cgroup, file, value } => self.write_cgroup(cgroup, file, value),
            A::SetWeight { cgroup, file, device, weight } => {
                let dev = block::devno_of_name(&self.roots, device).ok_or_else(|| {
                    Fault::new(Code::NotFound, format!("device {device}"), "the device no longer exists")
                })?;
                let before = self.weights(cgroup, file)?.ok_or_else(|| no_weight(cgroup, file))?;
                let old = before.on(dev);
                if before.has_own(dev) && old == u64::from(*weight) {
                    return Ok(Outcome::UNCHANGED);
                }
                self.write_cgroup(cgroup, file, &format!("{dev} {weight}"))?;
                Ok(Outcome { changed: true, old: Some(old.to_string()) })
            }
            A::ResetWeight { cgroup, file, device } => {
                // With a device go the weights on it.
                let Some(dev) = block::devno_of_name(&self.roots, device) else { return Ok(Outcome::UNCHANGED) };
                match self.weights(cgroup, file)? {
                    Some(before) if before.has_own(dev) => {
                        self.write_cgroup(cgroup, file, &format!("{dev} default"))?;
                        Ok(Outcome { changed: true, old: Some(before.on(dev).to_string()) })
                    }
                    _ => Ok(Outcome::UNCHANGED),
                }
            }
            A::LimitIo { cgroup, device, limit } => {
                let Some(dev) = block::devno_of_name(&self.roots, device) else { return Ok(Outcome::UNCHANGED) };
                match self.io_max(cgroup, dev)?.map(|before| before.as_far_as(*limit)) {
                    Some(before) if before != *limit => {
                        self.write_cgroup(cgroup, "io.max", &format!("{dev} {limit}"))?;
                        Ok(Outcome { changed: true, old: Some(before.to_string()) })
                    }
                    _ => Ok(Outcome::UNCHANGED),
                }
            }
            A::RemoveCgroup { cgroup } => self.remove_cgroup(cgroup),
            A::PlaceJournal { device, fs, cgroup } => self.place_journal(device, *fs, cgroup),
            // With the file system goes its thread.
            A::MoveJournal { device, cgroup } => match jbd2::place(&self.roots, device, &cgroup_path(cgroup)?) {
                Ok(placed) => Ok(Outcome { old: Some(placed.from.to_string()), changed: placed.moved }),
                Err(Jbd2Error::NoThread { .. }) => Ok(Outcome::UNCHANGED),
                Err(error) => Err(error.fault(format!("device {device}"))),
            },
            A::SetScheduler { device, scheduler } => {
                let dev = self.dev_of(device)?;
                let old = block::set_scheduler(&self.roots, dev, scheduler)
                    .map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != *scheduler, old: Some(old) })
            }
            A::SetTunable { device, tunable, value } => {
                // With a device, or another scheduler in force, go its tunables.
                let Some(dev) = block::devno_of_name(&self.roots, device) else { return Ok(Outcome::UNCHANGED) };
                match iosched::set(&self.roots, dev, tunable, value) {
                    Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(Outcome::UNCHANGED),
                    Err(error) => Err(error.fault(format!("device {device}"))),
                    Ok(old) => Ok(Outcome { changed: old != *value, old: Some(old) }),
                }
            }
            A::SetCostModel { device, line } => {
                let dev = self.dev_of(device)?;
                let (_, wanted) = ModelLine::parse(&format!("{dev} {line}")).ok_or_else(|| bad_line(device, line))?;
                let old =
                    iocost::write_model(&self.roots, dev, &wanted).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != Some(wanted), old: old.map(|old| old.line(dev)) })
            }
            A::DisableCost { device } => {
                let dev = self.dev_of(device)?;
                let old = iocost::disable(&self.roots, dev).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old.is_some_and(|old| old.enable), old: old.map(|old| old.line(dev)) })
            }
            A::SetCostQos { device, line } => {
                let dev = self.dev_of(device)?;
                let (_, wanted) = QosLine::parse(&format!("{dev} {line}")).ok_or_else(|| bad_line(device, line))?;
                let old =
                    iocost::write_qos(&self.roots, dev, &wanted).map_err(|e| e.fault(format!("device {device}")))?;
                Ok(Outcome { changed: old != Some(wanted), old: old.map(|old| old.line(dev)) })
            }
        }
    }

    /// The node of a device that is open.
    pub(super) fn node(&self, device: &DeviceRef) -> Result<PathBuf, Fault> {
        match device {
            DeviceRef::Image { image, volume } => {
                let node = self.attached(image, *volume)?.map(|attached| attached.node(&self.roots));
                node.ok_or_else(|| Fault::new(Code::Internal, device, "it is not attached"))
            }
            DeviceRef::Lv { vg, lv } => Ok(lvm::node(vg, lv)),
        }
    }

    pub(super) fn kernel_name(&self, device: &DeviceRef) -> Result<(DevNo, String), Fault> {
        let dev = block::devno_of(&self.node(device)?).map_err(|e| e.fault(device))?;
        let name = block::name_of(&self.roots, dev).map_err(|e| e.fault(device))?;
        Ok((dev, name))
    }

    fn dev_of(&self, device: &str) -> Result<DevNo, Fault> {
        let path = self.roots.dev.join(device.trim_start_matches("/dev/"));
        block::devno_of(&path).map_err(|e| e.fault(format!("device {device}")))
    }

    fn act_on_fs(&self, action: &Action) -> Result<Outcome, Fault> {
        match action {
            Action::Mkfs { device, fs, uuid, label, fast_commit } => {
                let node = self.node(device)?;
                let options = MkfsOptions {
                    kind: *fs,
                    uuid: uuid.to_string(),
                    label: label.clone(),
                    fast_commit: *fast_commit,
                    journal_size: None,
                    reads_zero: reads_zero(device)?,
                };
                fsutil::mkfs(&node, &options).map_err(|e| e.fault(device))?;
            }
            Action::CheckFs { device, fs, repair } => {
                let node = self.node(device)?;
                let how = match repair {
                    model::Repair::No => Repair::No,
                    model::Repair::Safe => Repair::Preen,
                    model::Repair::Full => Repair::Yes,
                };
                let outcome = fsutil::check(&node, *fs, how).map_err(|e| e.fault(device))?;
                match outcome {
                    CheckOutcome::Clean => return Ok(Outcome::UNCHANGED),
                    CheckOutcome::Repaired => {}
                    CheckOutcome::LogDirty => {
                        let cause = "its log has not been replayed; XFS does that at the next mount";
                        return Err(Fault::new(Code::InUse, device, cause).hint("mount it once, then check again"));
                    }
                    CheckOutcome::Errors(text) => {
                        return Err(Fault::new(Code::Corrupt, device, format!("its {fs} has errors: {text}"))
                            .reason(Reason::FileSystemErrors));
                    }
                }
            }
            Action::NewFsUuid { device, fs, uuid } => {
                fsutil::new_uuid(&self.node(device)?, *fs, &uuid.to_string()).map_err(|e| e.fault(device))?;
            }
            Action::GrowFs { device, fs, mounted_at } => {
                fsutil::grow(&self.node(device)?, *fs, mounted_at.as_deref()).map_err(|e| e.fault(device))?;
            }
            Action::ShrinkFs { device, size_bytes } => {
                match fsutil::shrink(&self.node(device)?, *size_bytes) {
                    // Cut off after it was done: nothing is left to do.
                    Err(FsError::NotSmaller { .. }) => return Ok(Outcome::UNCHANGED),
                    other => other.map_err(|e| e.fault(device))?,
                };
            }
            Action::RemoveJournal { device, wanted_bytes } => {
                let removed =
                    fsutil::remove_journal(&self.node(device)?, *wanted_bytes).map_err(|e| e.fault(device))?;
                return Ok(Outcome::changed(removed));
            }
            Action::MakeJournal { device, size_bytes } => {
                let made = fsutil::make_journal(&self.node(device)?, *size_bytes).map_err(|e| e.fault(device))?;
                return Ok(Outcome::changed(made));
            }
            other => unreachable!("dispatched as a file-system action: {other}"),
        }
        Ok(Outcome::DONE)
    }

    fn mount(
        &self,
        device: &DeviceRef,
        fs: FsKind,
        target: &Path,
        read_only: bool,
        nouuid: bool,
    ) -> Result<Outcome, Fault> {
        let (dev, _) = self.kernel_name(device)?;
        if let Some(found) = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))? {
            if found == dev {
                return Ok(Outcome::UNCHANGED);
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
        let flags = MountFlags { nosuid: true, nodev: true, noexec: false, noatime: true, readonly: read_only };
        let options: &[(&str, Option<&str>)] = if nouuid { &[("nouuid", None)] } else { &[] };
        let node = self.node(device)?;
        mount::mount(&node, fs.as_str(), target, flags, options).map_err(|e| e.fault(device))?;
        Ok(Outcome::DONE)
    }

    fn unmount(&self, target: &Path) -> Result<Outcome, Fault> {
        let Some(dev) = mount::mounted_at(&self.roots, target).map_err(|e| e.fault(target.display()))? else {
            return Ok(Outcome::UNCHANGED);
        };
        // What is on no block device has no such thread.
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
        if thread.is_none_or(|thread| thread.wait_until_gone(&self.roots, THREAD_END_LIMIT)) {
            return Ok(Outcome { old: Some(source), changed: true });
        }
        let cause = format!("its file system is still mounted elsewhere{}", self.users_of(dev));
        Err(Fault::new(Code::InUse, format!("mount {}", target.display()), cause)
            .hint("stop the processes in those mount namespaces"))
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

    /// What a weight file says; `None` when the cgroup is gone or does not have it.
    pub(super) fn weights(&self, cgroup: &str, file: &str) -> Result<Option<Weights>, Fault> {
        let text = match cgroup::read(&self.roots, &cgroup_path(cgroup)?, file) {
            Ok(text) => text,
            Err(CgroupError::NotFound { .. } | CgroupError::NoFile { .. }) => return Ok(None),
            Err(error) => return Err(error.fault(format!("cgroup {cgroup}"))),
        };
        Weights::parse(&text).map(Some).ok_or_else(|| {
            Fault::new(Code::Internal, format!("cgroup {cgroup}"), format!("cannot parse {file}: {text:?}"))
        })
    }

    /// Never over a file system: after a growth that was cut off, somebody may have made it larger by hand.
    fn fill_lv(&self, vg: &str, lv: &str, from: Bytes) -> Result<Outcome, Fault> {
        let (node, object) = (lvm::node(vg, lv), format!("logical volume {vg}/{lv}"));
        let mut from = from;
        if from > Bytes(0) {
            let dev = block::devno_of(&node).map_err(|e| e.fault(&object))?;
            let mounts = mount::mountinfo(&self.roots).map_err(|e| e.fault(&object))?;
            let mounted_at = mounts.iter().find(|mount| mount.dev == dev).map(|mount| mount.mount_point.as_path());
            from = from.max(fsutil::end(&node, mounted_at).map_err(|e| e.fault(&object))?);
        }
        fsutil::write_zeroes(&node, from).map_err(|e| e.fault(&object))?;
        Ok(Outcome::DONE)
    }

    fn place_journal(&self, device: &DeviceRef, fs: FsKind, cgroup: &str) -> Result<Outcome, Fault> {
        let path = cgroup_path(cgroup)?;
        let (_, name) = self.kernel_name(device)?;
        let placed = match fs {
            FsKind::Ext4 => jbd2::place(&self.roots, &name, &path),
            FsKind::Xfs => jbd2::place_kthread(&self.roots, "xfsaild", &name, &path),
        }
        .map_err(|e| e.fault(device))?;
        Ok(Outcome { old: Some(placed.from.to_string()), changed: placed.moved })
    }
}

/// Where nothing is mounted, the directory belongs to another file system, which is not ours to trim.
fn trim_fs(roots: &Roots, target: &Path, start: Bytes, length: Bytes) -> Result<Bytes, Fault> {
    let object = || format!("mount point {}", target.display());
    if mount::mounted_at(roots, target).map_err(|e| e.fault(object()))?.is_none() {
        return Err(Fault::new(Code::NotFound, object(), "nothing is mounted there now"));
    }
    trim::trim(target, start, length).map_err(|e| e.fault(object()))
}

fn act_on_lvm(action: &Action) -> Result<Outcome, Fault> {
    use Action as A;
    let of_vg = |vg: &str| format!("volume group {vg}");
    let of_lv = |vg: &str, lv: &str| format!("logical volume {vg}/{lv}");
    let changed = match action {
        A::CreateVg { vg, device, tags, erase } => {
            if *erase {
                fsutil::wipe(Path::new(device)).map_err(|e| e.fault(format!("device {device}")))?;
            }
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            lvm::vg_create(vg, Path::new(device), &tags).map_err(|e| e.fault(of_vg(vg)))?;
            true
        }
        A::CreateThinPool { vg, lv } => {
            let group = lvm::vg(vg).map_err(|e| e.fault(of_vg(vg)))?;
            let group = group.ok_or_else(|| Fault::new(Code::NotFound, of_vg(vg), "there is no such group"))?;
            let size = Bytes(group.free.0 / 100 * 98 / group.extent_size.0 * group.extent_size.0);
            lvm::create_thin_pool(vg, lv, size).map_err(|e| e.fault(of_lv(vg, lv)))?;
            true
        }
        A::TagVg { vg, add, remove } => {
            lvm::change_vg_tags(vg, add, remove).map_err(|e| e.fault(of_vg(vg)))?;
            true
        }
        A::RemoveVg { vg, owner_tag, thin_pool, device } => remove_vg(vg, owner_tag, thin_pool.as_deref(), device)?,
        A::CreateLv { vg, lv, thin_pool, size_bytes, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            match thin_pool {
                Some(pool) => lvm::create_thin(vg, pool, lv, *size_bytes, &tags),
                None => lvm::create_linear(vg, lv, *size_bytes, &tags),
            }
            .map_err(|e| e.fault(of_lv(vg, lv)))?;
            true
        }
        A::SnapshotLv { vg, origin, lv, tags } => {
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            lvm::snapshot_thin(vg, origin, lv, &tags, false).map_err(|e| e.fault(of_lv(vg, lv)))?;
            true
        }
        A::ProtectLv { vg, lv } => lvm::protect(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?,
        A::ActivateLv { vg, lv } => {
            // The node is there exactly as long as the volume is active.
            if lvm::node(vg, lv).exists() {
                return Ok(Outcome::UNCHANGED);
            }
            lvm::activate(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?;
            true
        }
        A::TagLv { vg, lv, add, remove } => {
            lvm::change_lv_tags(vg, lv, add, remove).map_err(|e| e.fault(of_lv(vg, lv)))?;
            true
        }
        A::GrowLv { vg, lv, size_bytes } | A::ShrinkLv { vg, lv, size_bytes } => {
            let found = lvm::lv(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?;
            let Some(found) = found else {
                return Err(Fault::new(Code::NotFound, of_lv(vg, lv), "there is no such logical volume"));
            };
            let shrink = matches!(action, A::ShrinkLv { .. });
            if found.size == *size_bytes || (found.size < *size_bytes) == shrink {
                return Ok(Outcome::UNCHANGED);
            }
            lvm::resize(&found, *size_bytes, shrink).map_err(|e| e.fault(of_lv(vg, lv)))?;
            return Ok(Outcome { old: Some(found.size.to_string()), changed: true });
        }
        // One of that name without the tag is somebody else's.
        A::RemoveLv { vg, lv, owner_tag } => {
            lvm::remove(vg, lv, Some(owner_tag)).map_err(|e| e.fault(of_lv(vg, lv)))?
        }
        other => unreachable!("dispatched as an LVM action: {other}"),
    };
    Ok(Outcome::changed(changed))
}

/// Removes a group that Bulkhead made: its thin pool first, which must hold no volume any more, then the label.
fn remove_vg(vg: &str, owner_tag: &str, thin_pool: Option<&str>, device: &str) -> Result<bool, Fault> {
    let object = format!("volume group {vg}");
    if let Some(group) = lvm::vg(vg).map_err(|e| e.fault(&object))? {
        if !group.tags.iter().any(|tag| tag == owner_tag) {
            return Ok(false);
        }
        if let Some(thin_pool) = thin_pool {
            lvm::remove(vg, thin_pool, None).map_err(|e| e.fault(&object))?;
        }
        lvm::vg_remove(vg).map_err(|e| e.fault(&object))?;
    }
    lvm::pv_remove(Path::new(device)).map_err(|e| e.fault(format!("device {device}")))
}

/// Whether a device that was just made reads as zeroes: images and thin volumes do, a thick volume shows old data.
fn reads_zero(device: &DeviceRef) -> Result<bool, Fault> {
    match device {
        DeviceRef::Image { .. } => Ok(true),
        DeviceRef::Lv { vg, lv } => {
            let found = lvm::lv(vg, lv).map_err(|e| e.fault(device))?;
            Ok(found.is_some_and(|lv| matches!(lv.kind, LvKind::Thin { .. })))
        }
    }
}

fn remove_file(path: &Path) -> Result<Outcome, Fault> {
    file::remove_durable(path).map(Outcome::changed).map_err(|e| e.fault(file_object(path)))
}

fn make_dir(path: &Path) -> Result<Outcome, Fault> {
    if path.is_dir() {
        return Ok(Outcome::UNCHANGED);
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| io_fault("make", path, e)).map(|()| Outcome::DONE)
}

fn remove_dir(path: &Path) -> Result<Outcome, Fault> {
    // Asked first: on a read-only file system, removing what is not there fails for another reason.
    if !path.exists() {
        return Ok(Outcome::UNCHANGED);
    }
    match fs::remove_dir(path) {
        Ok(()) => Ok(Outcome::DONE),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Outcome::UNCHANGED),
        // Whatever somebody put there stays. Nothing will be mounted over it.
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
            tracing::warn!(directory = %path.display(), "files are in it, so it stays");
            Ok(Outcome::UNCHANGED)
        }
        Err(e) => Err(io_fault("remove", path, e)),
    }
}

fn io_fault(operation: &'static str, path: &Path, source: io::Error) -> Fault {
    file::FileError::Io { operation, path: path.to_owned(), source }.fault(format!("directory {}", path.display()))
}

fn write_record(path: &Path, content: &[u8]) -> Result<Outcome, Fault> {
    let limit = Bytes(store::MAX_BYTES);
    if file::read_limited(path, limit).is_ok_and(|old| old == content) {
        return Ok(Outcome::UNCHANGED);
    }
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    file::write_atomic(path, content).map_err(|e| e.fault(file_object(path)))?;
    Ok(Outcome::DONE)
}

pub(super) fn cgroup_path(text: &str) -> Result<CgroupPath, Fault> {
    text.parse().map_err(|error| Fault::new(Code::InvalidArgument, format!("cgroup {text}"), error))
}

fn no_weight(cgroup: &str, file: &str) -> Fault {
    Fault::new(Code::NotFound, format!("cgroup {cgroup}"), format!("it is gone, or has no {file}"))
}

fn bad_line(device: &str, line: &str) -> Fault {
    Fault::new(Code::InvalidArgument, format!("device {device}"), format!("io.cost cannot be set to {line:?}"))
}
