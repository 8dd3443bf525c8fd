//! The engine: recorded state and a host. This file has the look-ups; operations are in a file for each noun.
//!
//! Every operation reads the state from its files, except those that have not changed since: no cache can become stale. Operations claim
//! what they change ([`crate::locks`]); look-ups claim nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bulkhead_core::action::{Action, Record};
use bulkhead_core::backend::{self, Backend, POOL_RECORD, VOLUME_RECORD_SUFFIX, pool_uuid_tag, volume_from_tags};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::Finding;
use bulkhead_core::health::Space;
use bulkhead_core::model::{Lease, Pool, PoolSource, Tenant, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;
use bulkhead_core::volume::mount_point;
use uuid::Uuid;

use crate::carry_out::Executor;
use crate::check::{MountedVolumes, Turns};
use crate::hold::promises::Promises;
use crate::host::{Host, LogicalVolume, Proof};
use crate::jobs::{Job, Jobs};
use crate::locks::Locks;
use crate::merge::Merging;
use crate::problems::Problems;
use crate::room::PoolRoom;
use crate::roster::Roster;
use crate::store;

/// The directories of the daemon's own files.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// Files that survive a reboot: `/var/lib/bulkhead`.
    pub state: PathBuf,
    /// Files that do not: `/run/bulkhead`.
    pub run: PathBuf,
}

impl Default for Dirs {
    fn default() -> Self {
        Self { state: "/var/lib/bulkhead".into(), run: "/run/bulkhead".into() }
    }
}

impl Dirs {
    pub(crate) fn pool_record(&self, name: &Name) -> PathBuf {
        self.state.join("pools").join(name.as_str())
    }

    pub(crate) fn tenant_record(&self, name: &Name) -> PathBuf {
        self.state.join("tenants").join(name.as_str())
    }

    pub(crate) fn mapping_record(&self, volume: Uuid) -> PathBuf {
        self.run.join("mappings").join(volume.to_string())
    }

    pub(crate) fn lease_record(&self, lease: &Lease) -> PathBuf {
        self.run.join("leases").join(lease.id.to_string())
    }
}

/// The daemon's state and host, for one operation.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) dirs: Dirs,
    pub(crate) executor: Executor,
    pub(crate) shared: Arc<Shared>,
    /// What fails together with the host, for its report.
    pub(crate) domain: Option<String>,
}

/// State shared by all operations.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) locks: Arc<Locks>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) problems: Mutex<Problems>,
    /// Volumes without a holder that were in use at the start.
    pub(crate) in_use_at_start: Mutex<Vec<InUse>>,
    mounted_volumes: Mutex<MountedVolumes>,
    /// The content of the records when they were last listed.
    pub(crate) roster: Mutex<Arc<Roster>>,
    /// The reservations of running operations, by the UUIDs of pools.
    pub(crate) reserved: Mutex<BTreeMap<Uuid, Arc<PoolRoom>>>,
    /// The last known space in LVM pools, so that a scrape of metrics needs no LVM call.
    pub(crate) room: Mutex<BTreeMap<Uuid, (Instant, Space)>>,
    /// What the next periodic check examines.
    pub(crate) turns: Mutex<Turns>,
    /// Tenants for whose cgroups the kernel refused the cpu controller.
    without_cpu: Mutex<BTreeMap<Name, WithoutCpu>>,
    pub(crate) promises: Promises,
    pub(crate) merging: Merging,
    /// Bytes trimmed in each pool.
    trimmed: Mutex<BTreeMap<Name, Bytes>>,
    /// The number of workers that no tenant pays for.
    pub(crate) workers_without_payer: Mutex<usize>,
}

/// Why a tenant has no cpu controller, and the time of the last attempt.
#[derive(Debug)]
pub(crate) struct WithoutCpu {
    pub(crate) fault: Fault,
    pub(crate) tried: Instant,
}

/// A volume that could not be closed, and the time of the last attempt.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(crate) volume: VolumeRef,
    pub(crate) tried: Instant,
}

/// A mounted volume that is maintained as it was mounted.
#[derive(Clone, Debug)]
pub(crate) struct MountedVolume {
    pub(crate) tenant: Name,
    pub(crate) target: PathBuf,
    pub(crate) keep: Vec<Action>,
    /// The proof that everything is as `keep` left it, set by a periodic check.
    pub(crate) proof: Option<Arc<dyn Proof>>,
    /// It is being flattened.
    pub(crate) flatten: bool,
}

/// A volume as listed in its pool: intact, or with a damaged record.
pub(crate) type ListedVolume = Result<Volume, Fault>;

/// The holders of all volumes, all mount points, and the mapped volumes.
#[derive(Debug, Default)]
pub(crate) struct Occupancy {
    pub(crate) holders: BTreeMap<VolumeRef, Name>,
    pub(crate) mounts: Arc<BTreeSet<PathBuf>>,
    /// The records of mapped volumes.
    pub(crate) mapped: BTreeSet<PathBuf>,
}

/// A volume with everything that a plan needs.
pub(crate) struct Located {
    pub(crate) pool: Pool,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) volume: Volume,
}

impl Engine {
    /// An engine on this host. Call [`Engine::reconcile`] before anything else.
    #[must_use]
    pub fn new(dirs: Dirs, executor: Executor) -> Self {
        Self { dirs, executor, shared: Arc::default(), domain: None }
    }

    /// On a host that fails together with others: what they have in common, as a rack or a zone.
    #[must_use]
    pub fn in_domain(self, domain: Option<String>) -> Self {
        Self { domain, ..self }
    }

    /// The same for a job.
    pub(crate) fn for_job(&self, job: &Arc<Job>) -> Self {
        Self { executor: self.executor.for_job(job), ..self.clone() }
    }

    /// Problems found at the start and since.
    #[must_use]
    pub fn problems(&self) -> Vec<Finding> {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    /// The number of problems by kind.
    pub(crate) fn problem_counts(&self) -> BTreeMap<&'static str, usize> {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).counts()
    }

    pub(crate) fn mounted_volumes(&self) -> MutexGuard<'_, MountedVolumes> {
        self.shared.mounted_volumes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn trimmed(&self) -> MutexGuard<'_, BTreeMap<Name, Bytes>> {
        self.shared.trimmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn without_cpu(&self) -> MutexGuard<'_, BTreeMap<Name, WithoutCpu>> {
        self.shared.without_cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn host(&self) -> &dyn Host {
        self.executor.host()
    }

    /// All recorded pools; a damaged record is an item, not a failure.
    pub(crate) fn pools(&self) -> Result<Vec<Result<Pool, Fault>>, Fault> {
        self.records_of("pools", read_pool)
    }

    /// All recorded tenants; a damaged record is an item, not a failure.
    pub(crate) fn tenants(&self) -> Result<Vec<Result<Tenant, Fault>>, Fault> {
        self.records_of("tenants", read_tenant)
    }

    fn records_of<T>(
        &self,
        kind: &str,
        read: impl Fn(&Path, Result<Record, Fault>) -> Result<T, Fault>,
    ) -> Result<Vec<Result<T, Fault>>, Fault> {
        let records = self.host().records(&self.dirs.state.join(kind), "")?;
        Ok(records.iter().map(|(path, record)| read(path, record.clone())).collect())
    }

    /// All leases with a readable record. Leases do not survive a reboot: a damaged one is a problem, and blocks nothing.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>, Fault> {
        let records = self.host().records(&self.dirs.run.join("leases"), "")?;
        let lease = |(_, record): &(PathBuf, Result<Record, Fault>)| match record {
            Ok(Record::Lease(lease)) => Some(lease.clone()),
            _ => None,
        };
        Ok(records.iter().filter_map(lease).collect())
    }

    /// Why records of holds cannot be read.
    pub(crate) fn damaged_holds(&self) -> Vec<Fault> {
        let holds = self.host().records(&self.dirs.run.join("holds"), "").unwrap_or_default();
        holds.iter().filter_map(|(_, record)| record.as_ref().err().cloned()).collect()
    }

    pub(crate) fn pool(&self, name: &Name) -> Result<Pool, Fault> {
        let path = self.dirs.pool_record(name);
        self.host().record(&path).map(|record| read_pool(&path, record)).unwrap_or_else(|| {
            Err(Fault::new(Code::NotFound, format!("pool {name}"), "there is no pool of that name")
                .reason(Reason::NoSuchPool { pool: name.clone() }))
        })
    }

    pub(crate) fn tenant(&self, name: &Name) -> Result<Tenant, Fault> {
        let path = self.dirs.tenant_record(name);
        self.host().record(&path).map(|record| read_tenant(&path, record)).unwrap_or_else(|| {
            Err(Fault::new(Code::NotFound, format!("tenant {name}"), "there is no tenant of that name")
                .reason(Reason::NoSuchTenant { tenant: name.clone() }))
        })
    }

    /// Refuses a directory or volume group that is not the recorded pool, for example because its file system is not mounted.
    pub(crate) fn check_identity(&self, pool: &Pool) -> Result<(), Fault> {
        let fault = |place: String| {
            let cause = format!("{place} is missing, or is not the one that the pool was created on");
            Fault::new(Code::Corrupt, format!("pool {}", pool.name), cause)
        };
        let (is_same, fault) = match &pool.source {
            PoolSource::File { directory, .. } => {
                let found = self.host().record(&directory.join(POOL_RECORD)).transpose()?;
                let is_same = matches!(found, Some(Record::Pool(found)) if found.uuid == pool.uuid);
                let fault = fault(format!("directory {}", directory.display()));
                (is_same, fault.reason(Reason::PoolNotThere { pool: pool.name.clone() }))
            }
            PoolSource::Lvm { vg, .. } => {
                let tags = self.host().vg_tags(vg)?;
                let is_same = tags.is_some_and(|tags| tags.contains(&pool_uuid_tag(pool)));
                let fault = fault(format!("volume group {vg}"));
                (is_same, fault.reason(group_not_there(pool, vg)))
            }
        };
        if is_same { Ok(()) } else { Err(fault) }
    }

    /// The volumes in a pool, by name. The size of one is that of its device, also where an operation on it was interrupted.
    pub(crate) fn volumes_in(&self, pool: &Pool) -> Result<Vec<ListedVolume>, Fault> {
        match &pool.source {
            PoolSource::File { directory, .. } => {
                self.check_identity(pool)?;
                let records = self.host().records(directory, &format!(".{VOLUME_RECORD_SUFFIX}"))?;
                let read = |(path, record): &(PathBuf, Result<Record, Fault>)| {
                    self.read_volume(pool, directory, path, record.clone())
                };
                Ok(records.iter().map(read).collect())
            }
            PoolSource::Lvm { vg, .. } => {
                Ok(self.group_volumes(pool, vg)?.iter().filter_map(|lv| volume_of(pool, lv)).collect())
            }
        }
    }

    /// The logical volumes in the volume group of a pool.
    pub(crate) fn group_volumes(&self, pool: &Pool, vg: &str) -> Result<Vec<LogicalVolume>, Fault> {
        self.host().logical_volumes(vg).map_err(|fault| match fault.code {
            // The volume may exist although its group is missing.
            Code::NotFound => Fault { code: Code::Corrupt, ..fault }.reason(group_not_there(pool, vg)),
            _ => fault,
        })
    }

    fn read_volume(&self, pool: &Pool, directory: &Path, path: &Path, record: Result<Record, Fault>) -> ListedVolume {
        match record? {
            Record::Volume(volume)
                if volume.pool == pool.name && path == backend::volume_record_path(directory, &volume.name) =>
            {
                let image = backend::image_path(directory, &volume.name);
                let size_bytes = self.host().image_size(&image)?.unwrap_or(volume.size_bytes);
                Ok(Volume { size_bytes, ..volume })
            }
            _ => Err(wrong_record(path)),
        }
    }

    /// A volume with an intact record, in any state.
    pub(crate) fn locate(&self, reference: &VolumeRef) -> Result<Located, Fault> {
        let pool = self.pool(&reference.pool)?;
        let backend = backend::backend(&pool);
        let found = match &pool.source {
            PoolSource::File { directory, .. } => {
                self.check_identity(&pool)?;
                let path = backend::volume_record_path(directory, &reference.name);
                self.host().record(&path).map(|record| self.read_volume(&pool, directory, &path, record))
            }
            PoolSource::Lvm { vg, .. } => {
                let all = self.group_volumes(&pool, vg)?;
                all.iter().find(|lv| lv.name == reference.name.as_str()).and_then(|lv| volume_of(&pool, lv))
            }
        };
        let found = found.unwrap_or_else(|| {
            let cause = "there is no volume of that name in the pool";
            Err(Fault::new(Code::NotFound, format!("volume {reference}"), cause)
                .reason(Reason::NoSuchVolume { volume: reference.clone() }))
        });
        Ok(Located { pool, backend, volume: found? })
    }

    /// A volume without an interrupted operation.
    pub(crate) fn locate_ready(&self, reference: &VolumeRef) -> Result<Located, Fault> {
        let located = self.locate(reference)?;
        if located.volume.state != VolumeState::Ready {
            let cause = "an operation on it was interrupted and could not be completed";
            return Err(Fault::new(Code::InUse, format!("volume {reference}"), cause)
                .reason(Reason::VolumeUnfinished { volume: reference.clone() }));
        }
        Ok(located)
    }

    /// Where a volume is mounted; `None` if it is not.
    pub(crate) fn mounted_at(&self, volume: &Volume) -> Result<Option<PathBuf>, Fault> {
        let target = mount_point(&self.dirs.run, volume);
        Ok(self.host().is_mounted(&target)?.then_some(target))
    }

    /// The facts that the views of all volumes need, read once.
    pub(crate) fn occupancy(&self) -> Result<Occupancy, Fault> {
        let mut holders: BTreeMap<VolumeRef, Name> = BTreeMap::new();
        for tenant in self.tenants()?.into_iter().filter_map(Result::ok) {
            holders.extend(tenant.volumes.into_iter().map(|volume| (volume, tenant.name.clone())));
        }
        for lease in self.leases()? {
            holders.entry(lease.volume).or_insert(lease.tenant);
        }
        let mounts = self.host().mount_points()?;
        let mapped =
            self.host().records(&self.dirs.run.join("mappings"), "")?.iter().map(|(path, _)| path.clone()).collect();
        Ok(Occupancy { holders, mounts, mapped })
    }

    /// The tenant that a volume is mounted for, also one that is being removed, and the leases on it.
    pub(crate) fn holders(&self, reference: &VolumeRef) -> Result<(Option<Name>, Vec<Lease>), Fault> {
        let leases: Vec<Lease> = self.leases()?.into_iter().filter(|lease| lease.volume == *reference).collect();
        let kept_by = self
            .tenants()?
            .into_iter()
            .filter_map(Result::ok)
            .find(|tenant| tenant.volumes.contains(reference))
            .map(|tenant| tenant.name);
        Ok((kept_by.or_else(|| leases.first().map(|lease| lease.tenant.clone())), leases))
    }

    /// Fails if a tenant's record is damaged, because its volumes are unknown then.
    pub(crate) fn check_tenants_readable(&self) -> Result<(), Fault> {
        self.tenants()?.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}

fn group_not_there(pool: &Pool, vg: &str) -> Reason {
    Reason::PoolGroupNotThere { pool: pool.name.clone(), vg: vg.to_owned() }
}

fn read_pool(path: &Path, record: Result<Record, Fault>) -> Result<Pool, Fault> {
    match record? {
        Record::Pool(pool) if path.ends_with(pool.name.as_str()) => Ok(pool),
        _ => Err(wrong_record(path)),
    }
}

/// The volume that a logical volume is; `None` for one that is not Bulkhead's.
pub(crate) fn volume_of(pool: &Pool, lv: &LogicalVolume) -> Option<ListedVolume> {
    volume_from_tags(&pool.name, &lv.name, lv.size, &lv.tags).transpose()
}

pub(crate) fn read_tenant(path: &Path, record: Result<Record, Fault>) -> Result<Tenant, Fault> {
    match record? {
        Record::Tenant(tenant) if path.ends_with(tenant.name.as_str()) => Ok(tenant),
        _ => Err(wrong_record(path)),
    }
}

fn wrong_record(path: &Path) -> Fault {
    store::damaged(
        path,
        "its content belongs to an object of another name or kind: it was probably copied or renamed by hand",
    )
}
