//! The life cycle of a volume, as plans. Each plan can be interrupted after any step: [`recover`] plans its completion.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::action::{Action, CgroupAction, FsAction, LayerAction, MountAction, StateAction};
use crate::backend::{Backend, Replacement};
use crate::error::{Code, Fault};
use crate::model::{FsKind, Provision, Repair, SelinuxContext, Volume, VolumeFs, VolumeState};
use crate::name::Name;
use crate::slices;
use crate::units::Bytes;

/// Steps, and what to do if one of them fails. ([`recover`] handles the case that the daemon is killed.)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Action>,
    /// Applied in order if a step fails; each is tried, even if an earlier one fails.
    pub on_failure: Vec<Action>,
    /// Whether `on_failure` undoes everything after any step: such a plan can be cancelled.
    pub can_be_undone: bool,
}

impl Plan {
    /// A plan that needs no undoing: if it is interrupted, the next attempt completes it.
    #[must_use]
    pub fn steps(steps: Vec<Action>) -> Self {
        Self { steps, on_failure: Vec::new(), can_be_undone: false }
    }
}

/// Creates a volume with an empty file system, or a raw volume, which reads as zeroes. `volume` is in stage `Creating`.
#[must_use]
pub fn create(backend: &dyn Backend, volume: &Volume, journal: Option<Bytes>) -> Plan {
    let mkfs = volume.fs.kind().map(|fs| {
        Action::Fs(FsAction::Mkfs {
            device: backend.device(volume),
            fs,
            uuid: volume.uuid,
            label: volume.label().to_owned(),
            fast_commit: volume.fast_commit,
            journal,
        })
    });
    let ready = backend.record(volume, &volume.with_state(VolumeState::Ready));
    Plan {
        steps: [backend.create(volume), mkfs.into_iter().collect(), backend.close(volume), vec![ready]].concat(),
        on_failure: backend.remove(volume),
        can_be_undone: true,
    }
}

/// Removes a volume that is not mounted. If it turns out to be in use, it is left as it was.
#[must_use]
pub fn remove(backend: &dyn Backend, volume: &Volume) -> Plan {
    let marked = volume.with_state(VolumeState::Removing);
    Plan {
        steps: [backend.close(volume), vec![backend.record(volume, &marked)], backend.remove(volume)].concat(),
        on_failure: vec![backend.record(&marked, volume)],
        can_be_undone: false,
    }
}

/// Makes `new` (stage `Creating`) a snapshot (read-only) or clone of `origin`. If `origin` is mounted at `mounted_at`,
/// its file system is synced first; of a raw volume, what the host has cached of its device.
///
/// # Errors
/// `Unsupported` where the pool has no snapshots.
pub fn snapshot(
    backend: &dyn Backend,
    origin: &Volume,
    new: &Volume,
    mounted_at: Option<&Path>,
) -> Result<Plan, Fault> {
    let sync = mounted_at.map(|at| match origin.fs.kind() {
        Some(_) => MountAction::SyncFs { target: at.to_owned() },
        None => MountAction::SyncDevice { device: backend.device(origin) },
    });
    let mut steps: Vec<Action> = sync.map(Action::Mount).into_iter().collect();
    steps.extend(backend.snapshot(origin, new)?);
    steps.extend(complete_copy(backend, new, origin.read_only));
    Ok(Plan { steps, on_failure: backend.remove(new), can_be_undone: true })
}

/// Makes `new` (stage `Creating`) from a complete staging file.
///
/// # Errors
/// `Unsupported` where the pool cannot.
pub fn receive(backend: &dyn Backend, staging_file: &Path, new: &Volume) -> Result<Plan, Fault> {
    let remove = Action::Layer(LayerAction::RemoveStagingFile { path: staging_file.to_owned() });
    let steps = [backend.receive(staging_file, new)?, complete_copy(backend, new, false), vec![remove]].concat();
    Ok(Plan { steps, on_failure: backend.remove(new), can_be_undone: true })
}

/// Makes a copy an independent volume. A snapshot's file system was checked at its creation, and has not been written
/// to since.
fn complete_copy(backend: &dyn Backend, new: &Volume, of_snapshot: bool) -> Vec<Action> {
    let mut steps = Vec::new();
    match new.fs {
        VolumeFs::Ext4 => {
            let (device, fs) = (backend.device(new), FsKind::Ext4);
            let mut by_device = backend.open(new, None);
            if !of_snapshot {
                // The copy of a mounted file system has a journal to replay, which tune2fs requires before it changes
                // the UUID.
                by_device.push(Action::Fs(FsAction::CheckFs { device: device.clone(), fs, repair: Repair::Safe }));
            }
            by_device.push(Action::Fs(FsAction::NewFsUuid { device, fs, uuid: new.uuid }));
            by_device.extend(backend.close(new));
            steps.extend(if of_snapshot { backend.set_fs_uuid(new, fs, by_device) } else { by_device });
        }
        // It replays its log at its first mount, and is mounted with `nouuid`.
        VolumeFs::Xfs => {}
        VolumeFs::None => steps.extend(backend.close(new)),
    }
    steps.push(backend.record(new, &new.with_state(VolumeState::Ready)));
    steps
}

/// Rolls a volume that is not mounted back to a snapshot of it; `id` is the UUID of no other volume or layer.
///
/// The volume is unchanged until the last steps. After a crash the replacement is removed.
///
/// # Errors
/// `Unsupported` where the pool cannot.
pub fn rollback(backend: &dyn Backend, volume: &Volume, snapshot: &Volume, id: Uuid) -> Result<Plan, Fault> {
    let Replacement { create, device, swap, undo } = backend.replacement(volume, snapshot, id)?;
    let mut steps = [backend.close(volume), create].concat();
    if volume.fs == VolumeFs::Ext4 {
        let fs = FsKind::Ext4;
        steps.push(Action::Fs(FsAction::CheckFs { device: device.clone(), fs, repair: Repair::Safe }));
        steps.push(Action::Fs(FsAction::NewFsUuid { device, fs, uuid: volume.uuid }));
    }
    steps.extend(swap);
    let now = Volume {
        size_bytes: snapshot.size_bytes,
        provision: Provision::OnDemand,
        layered: true,
        flatten: false,
        ..volume.clone()
    };
    steps.push(backend.record(volume, &now));
    steps.extend(backend.sweep());
    Ok(Plan { steps, on_failure: undo, can_be_undone: false })
}

/// Grows or shrinks a volume. With its current size, completes a growth of the device that the file system did not
/// follow. `mounted_at` is its mount point; `scratch` is an empty one for an XFS that is not mounted, since xfs_growfs
/// works on mounted file systems only.
///
/// The new part of a fully provisioned volume is allocated before the file system grows into it. Until then the record
/// has its offset: nothing beyond it is in use.
///
/// # Errors
/// `Unsupported` for shrinking XFS or a raw volume; `InUse` for shrinking a mounted volume, and for growing a raw one that
/// is attached where its new part has to be written first.
pub fn resize(
    backend: &dyn Backend,
    volume: &Volume,
    to: Bytes,
    mounted_at: Option<&Path>,
    scratch: &Path,
) -> Result<Plan, Fault> {
    let Some(fs) = volume.fs.kind() else { return resize_raw(backend, volume, to, mounted_at) };
    let device = backend.device(volume);
    let unfilled = volume.unfilled_from_bytes.filter(|from| *from < volume.size_bytes);
    let from = unfilled.unwrap_or(volume.size_bytes);
    let is_growth = to >= volume.size_bytes;
    let fill = backend.fill(volume, from).filter(|_| is_growth && to > from);
    let marked = Volume {
        unfilled_from_bytes: if is_growth { fill.as_ref().map(|_| from) } else { unfilled },
        ..volume.with_state(VolumeState::Resizing { to_bytes: to })
    };
    let mut last = marked.clone();
    let mut steps = vec![backend.record(volume, &marked)];
    let mut on_failure = Vec::new();
    if is_growth {
        last.unfilled_from_bytes = None;
        let filled = fill.into_iter().flat_map(|fill| [fill, backend.record(&marked, &last)]);
        let enlarge: Vec<Action> = backend.grow(volume, to).into_iter().chain(filled).collect();
        let grow = |at: Option<&Path>| {
            Action::Fs(FsAction::GrowFs { device: device.clone(), fs, mounted_at: at.map(Path::to_owned) })
        };
        match (mounted_at, fs) {
            (Some(at), _) => {
                steps.extend(enlarge);
                steps.push(grow(Some(at)));
            }
            (None, FsKind::Ext4) => {
                steps.extend(backend.open(volume, None));
                steps.extend(enlarge);
                steps.push(Action::Fs(FsAction::CheckFs { device: device.clone(), fs, repair: Repair::Safe }));
                steps.push(grow(None));
                steps.extend(backend.close(volume));
                on_failure.extend(backend.close(volume));
            }
            (None, FsKind::Xfs) => {
                steps.extend(backend.open(volume, None));
                steps.extend(enlarge);
                steps.extend(mount_steps(backend, volume, fs, scratch, None));
                steps.push(grow(Some(scratch)));
                steps.extend(unmount(backend, volume, scratch));
                on_failure.extend(unmount(backend, volume, scratch));
            }
        }
    } else {
        let object = format!("volume {}", volume.reference());
        if fs == FsKind::Xfs {
            return Err(Fault::new(Code::Unsupported, object, "XFS cannot be shrunk")
                .hint("create a smaller volume and copy the files"));
        }
        if let Some(at) = mounted_at {
            let cause =
                format!("it is mounted at {}, and ext4 can be shrunk only while it is not mounted", at.display());
            return Err(Fault::new(Code::InUse, object, cause).hint("detach it from its tenant first"));
        }
        steps.extend(backend.open(volume, None));
        steps.push(Action::Fs(FsAction::CheckFs { device: device.clone(), fs, repair: Repair::Safe }));
        steps.push(Action::Fs(FsAction::ShrinkFs { device, size_bytes: to }));
        steps.extend(backend.close(volume));
        steps.extend(backend.shrink(volume, to));
        on_failure.extend(backend.close(volume));
    }
    // A device larger than its file system is harmless, so a failed resize restores the old record. So does an
    // interrupted one whose completion fails: otherwise the volume would be unusable.
    on_failure.push(backend.record(&marked, &marked.with_state(VolumeState::Ready)));
    let done = Volume {
        size_bytes: to,
        unfilled_from_bytes: last.unfilled_from_bytes.filter(|from| *from < to),
        ..last.with_state(VolumeState::Ready)
    };
    steps.push(backend.record(&last, &done));
    Ok(Plan { steps, on_failure, can_be_undone: false })
}

/// Grows a raw volume, attached at `attached_at` or not.
///
/// Where the new part has to be written first, it may be seen by nobody before: a tenant could read old data there, and
/// what it writes would be written over. Such a growth that is not completed is undone, which loses nothing.
fn resize_raw(backend: &dyn Backend, volume: &Volume, to: Bytes, attached_at: Option<&Path>) -> Result<Plan, Fault> {
    let object = || format!("volume {}", volume.reference());
    if to < volume.size_bytes {
        let cause = "a raw volume cannot be shrunk: where its user's data ends is not known";
        return Err(
            Fault::new(Code::Unsupported, object(), cause).hint("create a smaller volume, and copy what belongs there")
        );
    }
    let from = volume.unfilled_from_bytes.unwrap_or(volume.size_bytes);
    let fill = backend.fill(volume, from).filter(|_| to > from);
    if let (Some(_), Some(at)) = (&fill, attached_at) {
        let cause = format!(
            "it is attached, as {}, and its pool grows a raw volume of this provision only while it is detached: zeroes \
             are written to its new part first",
            at.display()
        );
        return Err(Fault::new(Code::InUse, object(), cause).hint(
            "detach it from its tenant first; those of directory pools, and those provisioned on demand, grow in use",
        ));
    }
    let marked = Volume {
        unfilled_from_bytes: fill.as_ref().map(|_| from),
        ..volume.with_state(VolumeState::Resizing { to_bytes: to })
    };
    let done = Volume { size_bytes: to, unfilled_from_bytes: None, ..volume.with_state(VolumeState::Ready) };
    let undo = match &fill {
        Some(_) => undo_growth(backend, &marked, from),
        None => vec![backend.record(&marked, &marked.with_state(VolumeState::Ready))],
    };
    let is_closed = attached_at.is_none();
    let (open, close) =
        if is_closed { (backend.open(volume, None), backend.close(volume)) } else { Default::default() };
    let steps = [
        vec![backend.record(volume, &marked)],
        open,
        backend.grow(volume, to),
        fill.into_iter().collect(),
        close.clone(),
        vec![backend.record(&marked, &done)],
    ];
    Ok(Plan { steps: steps.concat(), on_failure: [close, undo].concat(), can_be_undone: false })
}

/// Takes back the part of a raw volume from `from` on, which nobody has seen.
fn undo_growth(backend: &dyn Backend, marked: &Volume, from: Bytes) -> Vec<Action> {
    let before = Volume { size_bytes: from, unfilled_from_bytes: None, ..marked.with_state(VolumeState::Ready) };
    [backend.close(marked), backend.shrink(marked, from), vec![backend.record(marked, &before)]].concat()
}

/// Refuses to give anybody the device of a raw volume whose last growth could be neither completed nor undone: beyond its
/// old end it may show old data of others.
///
/// # Errors
/// `InUse`.
pub fn check_shown(volume: &Volume) -> Result<(), Fault> {
    let Some(from) = volume.unfilled_from_bytes.filter(|_| volume.is_raw()) else { return Ok(()) };
    let cause = format!("its growth was interrupted: from {from} on, it may show old data of others");
    Err(Fault::new(Code::InUse, format!("volume {}", volume.reference()), cause)
        .hint("resize it to its present size, which completes that"))
}

/// The error of an operation on the file system of a volume that has none.
#[must_use]
pub fn no_file_system(volume: &Volume, cannot: &str) -> Fault {
    let cause = format!("it is a raw volume, without a file system of Bulkhead's: {cannot}");
    Fault::new(Code::Unsupported, format!("volume {}", volume.reference()), cause)
}

/// Replaces the journal of an ext4 that is not mounted by one of another size.
///
/// The record marks the time in which the journal may be missing, and the volume is not mounted meanwhile. After a
/// failure, [`recover`] finds out which journal it has.
///
/// # Errors
/// `InUse` for a volume that is mounted at `mounted_at`.
pub fn replace_journal(
    backend: &dyn Backend,
    volume: &Volume,
    to: Bytes,
    mounted_at: Option<&Path>,
) -> Result<Plan, Fault> {
    if let Some(at) = mounted_at {
        let cause = format!(
            "it is mounted at {}, and a journal can be replaced only while its file system is not mounted",
            at.display()
        );
        return Err(Fault::new(Code::InUse, format!("volume {}", volume.reference()), cause)
            .hint("detach it from its tenant first"));
    }
    let marked = volume.with_state(VolumeState::ReplacingJournal { to_bytes: to });
    let remove = Action::Fs(FsAction::RemoveJournal { device: backend.device(volume), wanted_bytes: to });
    let mut steps = open_checked(backend, volume);
    steps.extend([backend.record(volume, &marked), remove]);
    steps.extend(make_journal(backend, &marked, to));
    Ok(Plan { steps, on_failure: backend.close(volume), can_be_undone: false })
}

/// Opens a volume and checks its ext4, which replays its journal.
fn open_checked(backend: &dyn Backend, volume: &Volume) -> Vec<Action> {
    let (device, fs) = (backend.device(volume), FsKind::Ext4);
    let check = Action::Fs(FsAction::CheckFs { device, fs, repair: Repair::Safe });
    backend.open(volume, None).into_iter().chain([check]).collect()
}

/// Creates a journal if there is none, and records that there is one.
fn make_journal(backend: &dyn Backend, marked: &Volume, size_bytes: Bytes) -> Vec<Action> {
    let mut steps = vec![Action::Fs(FsAction::MakeJournal { device: backend.device(marked), size_bytes })];
    steps.extend(backend.close(marked));
    steps.push(backend.record(marked, &marked.with_state(VolumeState::Ready)));
    steps
}

/// Checks the file system of a volume that is not mounted.
///
/// # Errors
/// `Unsupported` for a raw volume.
pub fn check(backend: &dyn Backend, volume: &Volume, repair: Repair) -> Result<Plan, Fault> {
    let fs = volume.fs.kind().ok_or_else(|| {
        no_file_system(volume, "there is nothing to check").hint("map it, and use the tools of what is in it")
    })?;
    let check = Action::Fs(FsAction::CheckFs { device: backend.device(volume), fs, repair });
    Ok(Plan {
        steps: [backend.open(volume, None), vec![check], backend.close(volume)].concat(),
        on_failure: backend.close(volume),
        // An interrupted repair may leave more damage than before.
        can_be_undone: repair == Repair::No,
    })
}

/// Keeps the content of a damaged volume as `copy` (stage `Creating`, read-only), unchanged: not checked, and with the
/// same UUID.
///
/// # Errors
/// `Unsupported` where the pool has no snapshots.
pub fn safety_copy(backend: &dyn Backend, volume: &Volume, copy: &Volume) -> Result<Plan, Fault> {
    let mut steps = backend.snapshot(volume, copy)?;
    steps.push(backend.record(copy, &copy.with_state(VolumeState::Ready)));
    Ok(Plan { steps, on_failure: backend.remove(copy), can_be_undone: true })
}

/// Gives a volume a device without mounting it.
#[must_use]
pub fn map(backend: &dyn Backend, volume: &Volume, record: Action) -> Plan {
    // Recorded first: a device without a record is closed at the next start.
    let mut steps = vec![record];
    steps.extend(backend.open(volume, None));
    Plan { steps, on_failure: backend.close(volume), can_be_undone: false }
}

/// Mounts a volume for a tenant, with an SELinux context if one is given. Its block server and journal thread are charged to the tenant. Of a
/// raw volume, the node of its device is bound to the same path.
#[must_use]
pub fn mount(
    backend: &dyn Backend,
    volume: &Volume,
    target: &Path,
    tenant: &Name,
    context: Option<SelinuxContext>,
) -> Plan {
    let mut steps = open_for(backend, volume, tenant);
    match volume.fs.kind() {
        Some(fs) => steps.extend(mount_steps(backend, volume, fs, target, context)),
        None => {
            steps.extend(target.parent().map(|above| Action::State(StateAction::MakeDir { path: above.to_owned() })))
        }
    }
    steps.extend(keep_steps(backend, volume, target, tenant));
    Plan { steps, on_failure: unmount(backend, volume, target), can_be_undone: true }
}

/// Restores the state in which [`mount`] left a mounted volume: its device served, its I/O charged to the tenant.
#[must_use]
pub fn ensure_mounted(backend: &dyn Backend, volume: &Volume, target: &Path, tenant: &Name) -> Vec<Action> {
    let mut steps = open_for(backend, volume, tenant);
    steps.extend(keep_steps(backend, volume, target, tenant));
    steps
}

/// What a mounted volume needs beside its device: its peers can read from it, and its journal is charged; or a raw
/// volume's node is the one of its device.
fn keep_steps(backend: &dyn Backend, volume: &Volume, target: &Path, tenant: &Name) -> Vec<Action> {
    let Some(fs) = volume.fs.kind() else {
        let (device, target) = (backend.device(volume), target.to_owned());
        return vec![Action::Mount(MountAction::BindDevice { device, target })];
    };
    attach_peer(backend, volume, target).into_iter().chain(place_journal(backend, volume, fs, tenant)).collect()
}

fn open_for(backend: &dyn Backend, volume: &Volume, tenant: &Name) -> Vec<Action> {
    backend.open(volume, Some(&slices::server(tenant)))
}

/// A read-only volume has no journal thread.
fn place_journal(backend: &dyn Backend, volume: &Volume, fs: FsKind, tenant: &Name) -> Option<Action> {
    (!volume.read_only).then(|| {
        Action::Cgroup(CgroupAction::PlaceJournal {
            device: backend.device(volume),
            fs,
            cgroup: slices::journal(tenant),
        })
    })
}

/// Lets a volume's peers read from its page cache, if it reads from theirs.
fn attach_peer(backend: &dyn Backend, volume: &Volume, target: &Path) -> Option<Action> {
    volume.read_from.uses_peers().then(|| {
        Action::Mount(MountAction::AttachPeer {
            device: backend.device(volume),
            volume: volume.uuid,
            target: target.to_owned(),
            domain: volume.sharing_domain(),
        })
    })
}

/// Unmounts a volume and releases its device.
#[must_use]
pub fn unmount(backend: &dyn Backend, volume: &Volume, target: &Path) -> Vec<Action> {
    if volume.is_raw() {
        let (device, target) = (backend.device(volume), target.to_owned());
        let unbind = Action::Mount(MountAction::UnbindDevice { device, target });
        return std::iter::once(unbind).chain(backend.close(volume)).collect();
    }
    let mut steps: Vec<Action> = volume
        .read_from
        .uses_peers()
        .then_some(Action::Mount(MountAction::DetachPeer { volume: volume.uuid }))
        .into_iter()
        .collect();
    steps.push(Action::Mount(MountAction::Unmount { target: target.to_owned() }));
    steps.push(Action::State(StateAction::RemoveDir { path: target.to_owned() }));
    steps.extend(backend.close(volume));
    steps
}

/// Completes or undoes the operation that was interrupted when the daemon was killed; `None` if there was none.
///
/// # Errors
/// As [`resize`].
pub fn recover(
    backend: &dyn Backend,
    volume: &Volume,
    mounted_at: Option<&Path>,
    scratch: &Path,
) -> Result<Option<Plan>, Fault> {
    Ok(match volume.state {
        VolumeState::Ready => None,
        VolumeState::Creating | VolumeState::Removing => Some(Plan::steps(backend.remove(volume))),
        // Its file system would be looked for: the record is wrong.
        VolumeState::ReplacingJournal { .. } if volume.is_raw() => {
            Some(Plan::steps(vec![backend.record(volume, &volume.with_state(VolumeState::Ready))]))
        }
        // Nobody has seen the new part, and nobody may before it is filled.
        VolumeState::Resizing { .. } if volume.is_raw() && volume.unfilled_from_bytes.is_some() => {
            let from = volume.unfilled_from_bytes.unwrap_or(volume.size_bytes);
            Some(Plan {
                steps: undo_growth(backend, volume, from),
                on_failure: vec![backend.record(volume, &volume.with_state(VolumeState::Ready))],
                can_be_undone: false,
            })
        }
        // Filling takes time in proportion to the growth, too long for the daemon's start: the caller has to request it
        // again.
        VolumeState::Resizing { .. } if volume.unfilled_from_bytes.is_some() => {
            Some(Plan::steps(vec![backend.record(volume, &volume.with_state(VolumeState::Ready))]))
        }
        VolumeState::Resizing { to_bytes } => {
            // An interrupted offline growth of XFS may have left it mounted at the scratch mount point.
            let mut plan = resize(backend, volume, to_bytes, mounted_at, scratch)?;
            if mounted_at.is_none() && !volume.is_raw() {
                plan.steps.splice(0..0, unmount(backend, volume, scratch));
            }
            Some(plan)
        }
        VolumeState::ReplacingJournal { to_bytes } => {
            let steps = [open_checked(backend, volume), make_journal(backend, volume, to_bytes)].concat();
            Some(Plan { steps, on_failure: backend.close(volume), can_be_undone: false })
        }
    })
}

/// Checks the size of a new or resized volume, and rounds it up to the pool's allocation unit.
///
/// # Errors
/// `InvalidArgument` for a size that is too small for the file system, or overflows when rounded.
pub fn checked_size(volume: &Volume, size: Bytes, extent: Bytes) -> Result<Bytes, Fault> {
    let object = format!("volume {}", volume.reference());
    let minimum = volume.fs.min_size();
    if size < minimum {
        let what = volume.fs.kind().map_or("a raw volume", FsKind::as_str);
        let cause = format!("a size of {size} is too small for {what}");
        return Err(Fault::new(Code::InvalidArgument, object, cause).hint(format!("give it at least {minimum}")));
    }
    size.round_up(extent).ok_or_else(|| Fault::new(Code::InvalidArgument, object, format!("{size} is too large")))
}

fn mount_steps(
    backend: &dyn Backend,
    volume: &Volume,
    fs: FsKind,
    target: &Path,
    selinux_context: Option<SelinuxContext>,
) -> Vec<Action> {
    vec![
        Action::State(StateAction::MakeDir { path: target.to_owned() }),
        Action::Mount(MountAction::Mount {
            device: backend.device(volume),
            fs,
            target: target.to_owned(),
            read_only: volume.read_only,
            nouuid: fs == FsKind::Xfs && (volume.origin.is_some() || volume.layered),
            options: volume.mount_options.clone(),
            selinux_context,
        }),
    ]
}

/// A volume's mount point on the host, below the runtime directory; of a raw volume, the path of its device's node.
#[must_use]
pub fn mount_point(run_dir: &Path, volume: &Volume) -> PathBuf {
    run_dir.join("mnt").join(volume.pool.as_str()).join(volume.name.as_str())
}

/// The temporary mount point for growing an XFS.
#[must_use]
pub fn scratch_mount_point(run_dir: &Path, uuid: Uuid) -> PathBuf {
    run_dir.join("scratch").join(uuid.to_string())
}
