//! Pools: create, list, inspect, move, remove.

use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use bulkhead_api::wire::{Done, NewPoolSource, PoolCreate, PoolMove, PoolView};
use bulkhead_core::action::{Action, LvmAction, Record, StateAction};
use bulkhead_core::backend::{self, POOL_RECORD, pool_tags, pool_uuid_from_tags, pool_uuid_tag};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId, in_order};
use bulkhead_core::health::Space;
use bulkhead_core::model::{Pool, PoolSource, Server};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::volume::Plan;
use uuid::Uuid;

use crate::engine::Engine;
use crate::findings::{of_content, of_pool};
use crate::host::ThinPool;

/// Name of the thin pool created on a device given with `thin`.
const THIN_POOL: &str = "thinpool";

/// How long metrics show the last known space of an LVM pool.
const SPACE_TTL: Duration = Duration::from_secs(60);

impl Engine {
    /// Creates a pool, or adopts an existing one that has this name in its own record. Idempotent.
    ///
    /// # Errors
    /// `HasData` if the directory or device contains data, `AlreadyExists` if the name belongs to another pool.
    pub fn pool_create(&self, request: &PoolCreate, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        let object = format!("pool {}", request.name);
        let recorded = self.pools()?.into_iter().filter_map(Result::ok).find(|pool| pool.name == request.name);
        if let Some(pool) = recorded {
            if is_same_place(&pool, &request.source) {
                return Ok(Done { object: Some(self.pool_view(&pool)), steps: Vec::new(), dry_run });
            }
            let cause = format!("a pool of that name already exists, on {}", place(&pool.source));
            return Err(Fault::new(Code::AlreadyExists, object, cause).hint("choose another name"));
        }
        let (pool, mut plan) = match &request.source {
            NewPoolSource::Directory { path, server } => self.plan_directory_pool(&request.name, path, *server)?,
            NewPoolSource::VolumeGroup { vg, thin_pool } => {
                self.plan_group_pool(&request.name, vg, thin_pool.as_deref())?
            }
            NewPoolSource::Device { path, thin, erase } => {
                self.plan_device_pool(&request.name, path, *thin, erase.as_deref())?
            }
        };
        let path = self.dirs.pool_record(&pool.name);
        plan.on_failure.push(Action::State(StateAction::RemoveRecord { path: path.clone() }));
        plan.steps.push(Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Pool(pool.clone())) }));
        let steps = self.executor.run(&plan, dry_run)?;
        Ok(Done { object: (!dry_run).then(|| self.pool_view(&pool)), steps, dry_run })
    }

    /// All pools. A pool with a damaged record is listed by the daemon's problems, not here.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub fn pool_list(&self) -> Result<Vec<PoolView>, Fault> {
        Ok(self.pools()?.into_iter().filter_map(Result::ok).map(|pool| self.pool_view(&pool)).collect())
    }

    /// One pool.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn pool_inspect(&self, name: &Name) -> Result<PoolView, Fault> {
        Ok(self.pool_view(&self.pool(name)?))
    }

    /// Removes an empty pool, with its volume group if Bulkhead created that. Idempotent.
    ///
    /// # Errors
    /// `InUse` while it has volumes.
    pub fn pool_remove(&self, name: &Name, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        let pool = match self.pool(name) {
            Err(fault) if fault.code == Code::NotFound => {
                return Ok(Done { object: None, steps: Vec::new(), dry_run });
            }
            other => other?,
        };
        let record = self.dirs.pool_record(name);
        let forget = Action::State(StateAction::RemoveRecord { path: record.clone() });
        let remember =
            Action::State(StateAction::WriteRecord { path: record, record: Box::new(Record::Pool(pool.clone())) });
        // A missing group was removed by an interrupted removal, or with its disk: nothing is left to check.
        if let PoolSource::Lvm { vg, .. } = &pool.source
            && self.host().vg_tags(vg)?.is_none()
        {
            return Ok(Done { object: None, steps: self.executor.run_steps(vec![forget], dry_run)?, dry_run });
        }
        self.check_identity(&pool)?;
        let n_volumes = self.volumes_in(&pool)?.len();
        if n_volumes > 0 {
            let cause = format!("it still has {n_volumes} {}", if n_volumes == 1 { "volume" } else { "volumes" });
            return Err(Fault::new(Code::InUse, format!("pool {name}"), cause)
                .reason(Reason::PoolHasVolumes { pool: pool.name }));
        }
        if let Some(receive) = self.incomplete_receives(&pool)?.first() {
            let cause = format!("the transfer of {} is incomplete", receive.volume);
            return Err(Fault::new(Code::InUse, format!("pool {name}"), cause)
                .reason(Reason::PoolHasPart { volume: receive.volume.clone() }));
        }
        let steps = match &pool.source {
            PoolSource::Lvm { vg, thin_pool, device: Some(device) } => {
                self.check_no_other_volumes(vg, thin_pool.as_deref())?;
                vec![remove_vg(&pool, vg, thin_pool.as_deref(), device), forget]
            }
            // The record goes first: a pool that still has its mark can be adopted again, but one that has lost it could not be removed.
            PoolSource::Lvm { vg, .. } => {
                vec![
                    forget,
                    Action::Lvm(LvmAction::TagVg { vg: vg.clone(), add: Vec::new(), remove: pool_tags(&pool) }),
                ]
            }
            PoolSource::File { directory, .. } => {
                vec![forget, Action::State(StateAction::RemoveRecord { path: directory.join(POOL_RECORD) })]
            }
        };
        let steps = self.executor.run(&Plan { steps, on_failure: vec![remember], can_be_undone: false }, dry_run)?;
        if !dry_run {
            self.forget_conditions_of(&pool);
        }
        Ok(Done { object: None, steps, dry_run })
    }

    /// Refuses to remove a group with volumes that are not Bulkhead's.
    fn check_no_other_volumes(&self, vg: &str, thin_pool: Option<&str>) -> Result<(), Fault> {
        let volumes = self.host().logical_volumes(vg)?;
        let others: Vec<&str> =
            volumes.iter().map(|lv| lv.name.as_str()).filter(|name| Some(*name) != thin_pool).collect();
        if others.is_empty() {
            return Ok(());
        }
        let cause = format!("it has logical volumes that are not Bulkhead's: {}", others.join(", "));
        Err(Fault::new(Code::InUse, format!("volume group {vg}"), cause)
            .hint(format!("remove them first, if they are not needed: `lvremove {vg}/{}`", others[0])))
    }

    /// Refuses a directory in which users other than root could replace an image.
    fn check_nobody_can_replace(&self, path: &Path) -> Result<(), Fault> {
        let Some(why) = self.host().who_can_replace(path)? else { return Ok(()) };
        let cause = format!("{why}: images of volumes could be replaced");
        Err(Fault::new(Code::InvalidArgument, format!("directory {}", path.display()), cause).hint(
            "use a directory that only root can write to, like all directories above it: for example /var/lib/bulkhead-pool",
        ))
    }

    /// Records the new directory of a pool whose file system is mounted elsewhere now. Idempotent.
    ///
    /// # Errors
    /// `NotFound` and `HasData` if the directory is not that pool, `InUse` while a volume is open by its old path.
    pub fn pool_move(&self, name: &Name, request: &PoolMove, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        let path = checked_directory(&request.directory)?;
        let object = format!("directory {}", path.display());
        let recorded = match self.pool(name) {
            Err(fault) if fault.code == Code::NotFound => None,
            found => Some(found?),
        };
        let found =
            self.host().records(path, POOL_RECORD)?.iter().find(|(found, _)| *found == path.join(POOL_RECORD)).cloned();
        let (marker, found) = match found {
            Some((marker, Ok(Record::Pool(pool)))) if pool.name == *name => (marker, pool),
            Some((_, Ok(Record::Pool(pool)))) => {
                return Err(Fault::new(Code::HasData, object, format!("it is pool {}", pool.name))
                    .reason(Reason::PoolMoved { pool: pool.name, directory: path.to_owned() }));
            }
            Some((_, Err(fault))) => return Err(fault),
            _ => {
                return Err(Fault::new(Code::NotFound, object, "there is no pool in it")
                    .hint("mount the pool's file system, and give the directory that contains its volumes"));
            }
        };
        let PoolSource::File { directory: before, server } = &found.source else {
            return Err(Fault::new(Code::Corrupt, object, "its record is that of an LVM pool"));
        };
        if let Some(recorded) = recorded.as_ref().filter(|recorded| recorded.uuid != found.uuid) {
            let cause = format!("it is not the same pool {name} as the one on {}", place(&recorded.source));
            return Err(
                Fault::new(Code::HasData, object, cause).hint("pool names are unique on a host: remove one of the two")
            );
        }
        self.check_nobody_can_replace(path)?;
        let moved = Pool { source: PoolSource::File { directory: path.to_owned(), server: *server }, ..found.clone() };
        if before != path {
            for volume in self.volumes_in(&moved)?.into_iter().filter_map(Result::ok) {
                let device = backend::backend(&found).device(&volume);
                if let Some(open) = self.host().open_device(&device)? {
                    let cause =
                        format!("it is open as {}, under its path in {}", open.path.display(), before.display());
                    return Err(Fault::new(Code::InUse, format!("volume {}", volume.reference()), cause)
                        .hint("detach it from its tenant first"));
                }
            }
        }
        let mut steps = Vec::new();
        for (path, known) in [(marker, Some(&found)), (self.dirs.pool_record(name), recorded.as_ref())] {
            if known != Some(&moved) {
                steps.push(Action::State(StateAction::WriteRecord {
                    path,
                    record: Box::new(Record::Pool(moved.clone())),
                }));
            }
        }
        let steps = self.executor.run_steps(steps, dry_run)?;
        if !dry_run && before != path {
            self.forget_conditions_of(&found);
        }
        Ok(Done { object: (!dry_run).then(|| self.pool_view(&moved)), steps, dry_run })
    }

    fn plan_directory_pool(&self, name: &Name, path: &Path, server: Server) -> Result<(Pool, Plan), Fault> {
        let object = format!("directory {}", checked_directory(path)?.display());
        let marker = path.join(POOL_RECORD);
        let entries = self.host().list_dir(path)?;
        let mut plan = Plan::default();
        if let Some(entries) = &entries
            && entries.iter().any(|entry| entry == POOL_RECORD)
        {
            // The pool describes itself: the host's record was lost, or the pool came from another host.
            let found = self.host().records(path, POOL_RECORD)?.last().cloned();
            return match found {
                Some((_, Ok(Record::Pool(pool)))) if pool.name == *name && is_directory(&pool, path) => {
                    Ok((pool, plan))
                }
                Some((_, Ok(Record::Pool(pool)))) if pool.name == *name => {
                    let cause = format!("it is pool {name}, which was at {} before", place(&pool.source));
                    let reason = Reason::PoolMoved { pool: pool.name, directory: path.to_owned() };
                    Err(Fault::new(Code::HasData, object, cause).reason(reason))
                }
                Some((_, Ok(Record::Pool(pool)))) => {
                    let cause = format!("it is already pool {} ({})", pool.name, place(&pool.source));
                    Err(Fault::new(Code::HasData, object, cause)
                        .hint("use that name, remove that pool first, or choose another directory"))
                }
                Some((_, Err(fault))) => Err(fault),
                _ => Err(Fault::new(Code::Corrupt, object, "its pool record cannot be read")),
            };
        }
        if entries.as_ref().is_some_and(|entries| entries.iter().any(|entry| entry != "lost+found")) {
            return Err(Fault::new(Code::HasData, object, "it is not empty")
                .hint("give the pool its own directory, for example a new one inside this one"));
        }
        self.check_nobody_can_replace(path)?;
        if entries.is_none() {
            plan.steps.push(Action::State(StateAction::MakeDir { path: path.to_owned() }));
        }
        let source = PoolSource::File { directory: path.to_owned(), server };
        let pool = Pool { name: name.clone(), uuid: Uuid::new_v4(), source };
        plan.steps.push(Action::State(StateAction::WriteRecord {
            path: marker.clone(),
            record: Box::new(Record::Pool(pool.clone())),
        }));
        plan.on_failure.push(Action::State(StateAction::RemoveRecord { path: marker }));
        if entries.is_none() {
            plan.on_failure.push(Action::State(StateAction::RemoveDir { path: path.to_owned() }));
        }
        Ok((pool, plan))
    }

    fn plan_group_pool(&self, name: &Name, vg: &str, thin_pool: Option<&str>) -> Result<(Pool, Plan), Fault> {
        let object = format!("volume group {vg}");
        let Some(tags) = self.host().vg_tags(vg)? else {
            return Err(Fault::new(Code::NotFound, object, "there is no such volume group")
                .reason(Reason::NoSuchVolumeGroup { vg: vg.to_owned() }));
        };
        if let Some(owner) = tags.iter().find_map(|tag| tag.strip_prefix("bulkhead.pool="))
            && owner != name.as_str()
        {
            return Err(Fault::new(Code::HasData, object, format!("it is already pool {owner}"))
                .hint("use that name, or remove that pool first"));
        }
        if let Some(thin) = thin_pool {
            self.check_thin_pool(vg, thin)?;
        }
        let uuid = pool_uuid_from_tags(&tags).unwrap_or_else(Uuid::new_v4);
        let source = PoolSource::Lvm { vg: vg.to_owned(), thin_pool: thin_pool.map(str::to_owned), device: None };
        let pool = Pool { name: name.clone(), uuid, source };
        let mark = |add, remove| Action::Lvm(LvmAction::TagVg { vg: vg.to_owned(), add, remove });
        let plan = Plan {
            steps: vec![mark(pool_tags(&pool), Vec::new())],
            on_failure: vec![mark(Vec::new(), pool_tags(&pool))],
            can_be_undone: false,
        };
        Ok((pool, plan))
    }

    /// Refuses a volume that is not a thin pool, and a thin pool whose new volumes would show data of earlier ones.
    fn check_thin_pool(&self, vg: &str, thin: &str) -> Result<(), Fault> {
        let object = format!("thin pool {vg}/{thin}");
        let found = self.host().logical_volumes(vg)?.into_iter().find(|lv| lv.name == thin);
        match found.map(|lv| lv.thin_pool) {
            None => Err(Fault::new(Code::NotFound, object, "there is no such thin pool")
                .hint(format!("create it: `lvcreate --type thin-pool -L SIZE -n {thin} {vg}`"))),
            Some(None) => Err(Fault::new(Code::InvalidArgument, object, "it is a logical volume of another kind")
                .hint("`lvs -o lv_name,lv_layout` shows which are thin pools")),
            Some(Some(ThinPool { zeroes: false })) => {
                let cause = "it does not zero new blocks: a new volume would expose the data of an earlier one";
                Err(Fault::new(Code::Unsupported, object, cause).hint(format!("`lvchange --zero y {vg}/{thin}`")))
            }
            Some(Some(ThinPool { zeroes: true })) => Ok(()),
        }
    }

    /// The group of an interrupted creation on this device, if there is one, to be completed.
    fn plan_resumed_pool(&self, name: &Name, vg: &str, device: &str, thin: bool) -> Result<(Pool, Plan), Fault> {
        let tags = self.host().vg_tags(vg)?.unwrap_or_default();
        let pool = device_pool(name, vg, device, thin, pool_uuid_from_tags(&tags).unwrap_or_default());
        let dev = self.host().named_device(Path::new(device))?.dev;
        if !pool_tags(&pool).iter().all(|tag| tags.contains(tag)) || !self.host().vg_devices(vg)?.contains(&dev) {
            return Err(Fault::new(Code::AlreadyExists, format!("volume group {vg}"), "it already exists")
                .reason(Reason::VolumeGroupTaken { vg: vg.to_owned() }));
        }
        let lacks_pool = thin && !self.host().logical_volumes(vg)?.iter().any(|lv| lv.name == THIN_POOL);
        let make = Action::Lvm(LvmAction::CreateThinPool { vg: vg.to_owned(), lv: THIN_POOL.to_owned() });
        Ok((pool, Plan::steps(lacks_pool.then_some(make).into_iter().collect())))
    }

    fn plan_device_pool(
        &self,
        name: &Name,
        path: &Path,
        thin: bool,
        erase: Option<&str>,
    ) -> Result<(Pool, Plan), Fault> {
        let object = format!("device {}", path.display());
        let device = path
            .to_str()
            .ok_or_else(|| Fault::new(Code::InvalidArgument, &object, "its path is not UTF-8, which LVM requires"))?;
        let vg = format!("bulkhead-{name}");
        if self.host().vg_tags(&vg)?.is_some() {
            return self.plan_resumed_pool(name, &vg, device, thin);
        }
        let found = self.host().named_device(path)?;
        if let Some(reason) = found.in_use {
            return Err(Fault::new(Code::InUse, object, reason).hint("choose a device that is not in use"));
        }
        if !found.signatures.is_empty() && erase != Some(device) {
            let cause = format!("it contains data: {}", found.signatures.join(", "));
            return Err(
                Fault::new(Code::HasData, object, cause).reason(Reason::EraseUnconfirmed { device: device.to_owned() })
            );
        }
        let pool = device_pool(name, &vg, device, thin, Uuid::new_v4());
        let (tags, erase) = (pool_tags(&pool), !found.signatures.is_empty());
        let on_failure = vec![remove_vg(&pool, &vg, thin.then_some(THIN_POOL), device)];
        let mut steps =
            vec![Action::Lvm(LvmAction::CreateVg { vg: vg.clone(), device: device.to_owned(), tags, erase })];
        if thin {
            steps.push(Action::Lvm(LvmAction::CreateThinPool { vg, lv: THIN_POOL.to_owned() }));
        }
        Ok((pool, Plan { steps, on_failure, can_be_undone: false }))
    }

    /// The space in all pools whose place exists; for those on LVM, as of the last minute.
    pub(crate) fn room(&self) -> Result<Vec<(Name, Space)>, Fault> {
        let pools = self.pools()?.into_iter().filter_map(Result::ok);
        Ok(pools.filter_map(|pool| Some((pool.name.clone(), self.room_in(&pool).ok()?))).collect())
    }

    /// The space in a pool; for one on LVM, as of the last minute.
    pub(crate) fn room_in(&self, pool: &Pool) -> Result<Space, Fault> {
        if matches!(pool.source, PoolSource::File { .. }) {
            return self.host().space(&pool.source);
        }
        let mut seen = self.shared.room.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, (at, _)| at.elapsed() < SPACE_TTL);
        if let Some((_, space)) = seen.get(&pool.uuid) {
            return Ok(space.clone());
        }
        let space = self.host().space(&pool.source)?;
        seen.insert(pool.uuid, (Instant::now(), space.clone()));
        Ok(space)
    }

    /// The physical devices below a pool, and findings about them.
    pub(crate) fn below(&self, pool: &Pool) -> (Vec<String>, Vec<Finding>) {
        let (devices, unknown) = self.host().physical_devices(&pool.source);
        let object = format!("pool {}", pool.name);
        let finding = |why| Finding::new(FindingId::PhysicalDevicesUnknown, &object, why);
        (devices, unknown.into_iter().map(finding).collect())
    }

    pub(crate) fn pool_view(&self, pool: &Pool) -> PoolView {
        let (physical_devices, of_devices) = self.below(pool);
        let space = self.host().space(&pool.source);
        let found = self.volumes_in(pool);
        let mut findings = of_pool(pool, &space);
        findings.extend(of_devices);
        findings.extend(of_content(&found, &self.incomplete_receives(pool)));
        PoolView {
            name: pool.name.clone(),
            kind: pool.source.kind().to_owned(),
            source: place(&pool.source),
            total_bytes: space.as_ref().ok().map(|space| space.total),
            free_bytes: space.as_ref().ok().map(|space| space.free),
            n_volumes: found.map_or(0, |found| found.len()),
            physical_devices,
            findings: in_order(findings),
        }
    }
}

fn checked_directory(path: &Path) -> Result<&Path, Fault> {
    if path.is_absolute() && path.components().all(|part| part.as_os_str() != "..") {
        return Ok(path);
    }
    let object = format!("directory {}", path.display());
    Err(Fault::new(Code::InvalidArgument, object, "it is not an absolute path without `..`"))
}

fn device_pool(name: &Name, vg: &str, device: &str, thin: bool, uuid: Uuid) -> Pool {
    let thin_pool = thin.then(|| THIN_POOL.to_owned());
    let source = PoolSource::Lvm { vg: vg.to_owned(), thin_pool, device: Some(device.to_owned()) };
    Pool { name: name.clone(), uuid, source }
}

fn remove_vg(pool: &Pool, vg: &str, thin_pool: Option<&str>, device: &str) -> Action {
    Action::Lvm(LvmAction::RemoveVg {
        vg: vg.to_owned(),
        owner_tag: pool_uuid_tag(pool),
        thin_pool: thin_pool.map(str::to_owned),
        device: device.to_owned(),
    })
}

fn place(source: &PoolSource) -> String {
    match source {
        PoolSource::File { directory, server: Server::Auto } => directory.display().to_string(),
        PoolSource::File { directory, server: Server::Loop } => format!("{}, loop devices", directory.display()),
        PoolSource::Lvm { vg, thin_pool: None, .. } => vg.clone(),
        PoolSource::Lvm { vg, thin_pool: Some(thin_pool), .. } => format!("{vg}/{thin_pool}"),
    }
}

fn is_directory(pool: &Pool, path: &Path) -> bool {
    matches!(&pool.source, PoolSource::File { directory, .. } if directory == path)
}

fn is_same_place(pool: &Pool, source: &NewPoolSource) -> bool {
    match (&pool.source, source) {
        (PoolSource::File { directory, server }, NewPoolSource::Directory { path, server: asked }) => {
            directory == path && server == asked
        }
        (
            PoolSource::Lvm { vg, thin_pool, device: None },
            NewPoolSource::VolumeGroup { vg: asked, thin_pool: thin },
        ) => vg == asked && thin_pool == thin,
        (PoolSource::Lvm { thin_pool, device: Some(device), .. }, NewPoolSource::Device { path, thin, .. }) => {
            Path::new(device) == path && thin_pool.is_some() == *thin
        }
        _ => false,
    }
}
