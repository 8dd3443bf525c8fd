//! The engine: recorded state plus a host. This file holds the look-ups; each noun has a file of its own.
//!
//! State is read from its files for every operation: no cache of it can go stale. Whoever changes something has claimed it before
//! ([`crate::locks`]); look-ups claim nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bulkhead_core::action::{Action, Record};
use bulkhead_core::backend::{self, Backend, POOL_RECORD, VOLUME_RECORD_SUFFIX, pool_uuid_tag, volume_from_tags};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Lease, Pool, PoolSource, Tenant, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::volume::mount_point;
use uuid::Uuid;

use crate::carry_out::Executor;
use crate::host::{Host, Space};
use crate::jobs::{Job, Jobs};
use crate::locks::Locks;
use crate::problems::Problems;

/// Where the daemon keeps its own files.
#[derive(Clone, Debug)]
pub struct Dirs {
    /// What must survive a reboot: `/var/lib/bulkhead`.
    pub state: PathBuf,
    /// What must not: `/run/bulkhead`.
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

    pub(crate) fn lease_record(&self, lease: &Lease) -> PathBuf {
        self.run.join("leases").join(lease.id.to_string())
    }
}

/// The daemon's state and its hands, as one operation has them.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) dirs: Dirs,
    pub(crate) executor: Executor,
    pub(crate) shared: Arc<Shared>,
}

/// What all operations have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) locks: Arc<Locks>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) problems: Mutex<Problems>,
    /// What nobody held at the start and was in use all the same.
    pub(crate) in_use_at_start: Mutex<Vec<InUse>>,
    /// The volumes that this daemon mounted or found mounted, so that looking after them every few seconds costs no LVM call.
    watched: Mutex<BTreeMap<VolumeRef, Watched>>,
    /// What operations that are under way are going to take of pools, by their UUIDs.
    pub(crate) reserved: Mutex<BTreeMap<Uuid, u64>>,
    /// The room in LVM pools when it was looked at last, so that a scrape of metrics costs no LVM call each time.
    pub(crate) room: Mutex<BTreeMap<Uuid, (Instant, Space)>>,
    /// The tenants whose cgroups the kernel refused the cpu controller.
    without_cpu: Mutex<BTreeMap<Name, WithoutCpu>>,
}

/// Why a tenant does without the cpu controller, and when that was tried last.
#[derive(Debug)]
pub(crate) struct WithoutCpu {
    pub(crate) fault: Fault,
    pub(crate) tried: Instant,
}

/// A volume that could not be closed, and when that was tried last.
#[derive(Debug)]
pub(crate) struct InUse {
    pub(crate) volume: VolumeRef,
    pub(crate) tried: Instant,
}

/// A mounted volume that is kept as it was mounted.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) tenant: Name,
    pub(crate) target: PathBuf,
    pub(crate) keep: Vec<Action>,
    /// It is being flattened.
    pub(crate) flatten: bool,
}

/// A volume as found in its pool: whole, or with a damaged record.
pub(crate) type Found = Result<Volume, Fault>;

/// What a record says, by the name that it is recorded under, which holds also where the record is damaged.
type Named<T> = (String, Result<T, Fault>);

/// A volume with all that is needed to plan for it.
pub(crate) struct Located {
    pub(crate) pool: Pool,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) volume: Volume,
}

impl Engine {
    /// An engine on this host. Call [`Engine::reconcile`] before anything else.
    #[must_use]
    pub fn new(dirs: Dirs, executor: Executor) -> Self {
        Self { dirs, executor, shared: Arc::default() }
    }

    /// The same for a job.
    pub(crate) fn for_job(&self, job: &Arc<Job>) -> Self {
        Self { executor: self.executor.for_job(job), ..self.clone() }
    }

    /// What was found wrong at the start, and what is wrong now.
    #[must_use]
    pub fn problems(&self) -> Vec<Fault> {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).all()
    }

    pub(crate) fn watched(&self) -> MutexGuard<'_, BTreeMap<VolumeRef, Watched>> {
        self.shared.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn without_cpu(&self) -> MutexGuard<'_, BTreeMap<Name, WithoutCpu>> {
        self.shared.without_cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn host(&self) -> &dyn Host {
        self.executor.host()
    }

    /// All recorded pools; a damaged record is an item, not a failure.
    pub(crate) fn pools(&self) -> Result<Vec<Result<Pool, Fault>>, Fault> {
        Ok(self.named_pools()?.into_iter().map(|(_, pool)| pool).collect())
    }

    /// The same with the names of their records.
    fn named_pools(&self) -> Result<Vec<Named<Pool>>, Fault> {
        self.named("pools", |record, name| match record {
            Record::Pool(pool) if pool.name.as_str() == name => Some(pool),
            _ => None,
        })
    }

    /// All recorded tenants; a damaged record is an item, not a failure.
    pub(crate) fn tenants(&self) -> Result<Vec<Result<Tenant, Fault>>, Fault> {
        Ok(self.named_tenants()?.into_iter().map(|(_, tenant)| tenant).collect())
    }

    fn named_tenants(&self) -> Result<Vec<Named<Tenant>>, Fault> {
        self.named("tenants", |record, name| match record {
            Record::Tenant(tenant) if tenant.name.as_str() == name => Some(tenant),
            _ => None,
        })
    }

    /// The records of a kind, which `read` accepts if they are of this kind and name.
    fn named<T>(&self, kind: &str, read: impl Fn(Record, &str) -> Option<T>) -> Result<Vec<Named<T>>, Fault> {
        let records = self.host().records(&self.dirs.state.join(kind), "")?;
        let named = records.into_iter().map(|(path, record)| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let found = record.and_then(|record| read(record, &name).ok_or_else(|| wrong_record(&path)));
            (name, found)
        });
        Ok(named.collect())
    }

    /// All leases with a readable record. Leases do not survive a reboot, so a damaged one is only logged.
    pub(crate) fn leases(&self) -> Result<Vec<Lease>, Fault> {
        let records = self.host().records(&self.dirs.run.join("leases"), "")?;
        Ok(records
            .into_iter()
            .filter_map(|(path, record)| match record {
                Ok(Record::Lease(lease)) => Some(lease),
                Ok(_) => None,
                Err(fault) => {
                    tracing::warn!(path = %path.display(), %fault, "damaged lease");
                    None
                }
            })
            .collect())
    }

    pub(crate) fn pool(&self, name: &Name) -> Result<Pool, Fault> {
        of_name(self.named_pools()?, name).unwrap_or_else(|| {
            Err(Fault::new(Code::NotFound, format!("pool {name}"), "there is no pool of that name")
                .cure("`bulkhead pool ls` lists them, `bulkhead pool create` makes one"))
        })
    }

    pub(crate) fn tenant(&self, name: &Name) -> Result<Tenant, Fault> {
        of_name(self.named_tenants()?, name).unwrap_or_else(|| {
            Err(Fault::new(Code::NotFound, format!("tenant {name}"), "there is no tenant of that name")
                .cure("`bulkhead tenant ls` lists them, `bulkhead tenant create` makes one"))
        })
    }

    /// Refuses a place that is not the recorded pool: a directory whose file system is not mounted, another volume group.
    pub(crate) fn check_identity(&self, pool: &Pool) -> Result<(), Fault> {
        let (is_it, place, cure) = match &pool.source {
            PoolSource::File { directory, .. } => {
                let mut markers = self.host().records(directory, POOL_RECORD)?;
                markers.retain(|(path, _)| path.file_name().is_some_and(|name| name == POOL_RECORD));
                let found = markers.pop().map(|(_, record)| record).transpose()?;
                let is_it = matches!(found, Some(Record::Pool(found)) if found.uuid == pool.uuid);
                (
                    is_it,
                    format!("directory {}", directory.display()),
                    format!(
                        "mount the file system that the pool is on; if it is mounted elsewhere now: `bulkhead pool move {} --dir DIRECTORY`",
                        pool.name
                    ),
                )
            }
            PoolSource::Lvm { vg, .. } => {
                let tags = self.host().vg_tags(vg)?;
                let is_it = tags.is_some_and(|tags| tags.contains(&pool_uuid_tag(pool)));
                (
                    is_it,
                    format!("volume group {vg}"),
                    "`vgs -o+vg_tags` shows the volume groups that are there".to_owned(),
                )
            }
        };
        if is_it {
            return Ok(());
        }
        let cause = format!("{place} is not there, or is not the one that the pool was made on");
        Err(Fault::new(Code::Corrupt, format!("pool {}", pool.name), cause).cure(cure))
    }

    /// The volumes in a pool, by name. The size of one is that of its device, also where an operation on it was interrupted.
    pub(crate) fn volumes_in(&self, pool: &Pool) -> Result<Vec<Found>, Fault> {
        Ok(self.named_volumes_in(pool)?.into_iter().map(|(_, volume)| volume).collect())
    }

    fn named_volumes_in(&self, pool: &Pool) -> Result<Vec<Named<Volume>>, Fault> {
        match &pool.source {
            PoolSource::File { directory, .. } => {
                self.check_identity(pool)?;
                let suffix = format!(".{VOLUME_RECORD_SUFFIX}");
                let records = self.host().records(directory, &suffix)?;
                let read = |path: &Path, record: Result<Record, Fault>| match record? {
                    Record::Volume(volume)
                        if volume.pool == pool.name && path == backend::volume_record_path(directory, &volume.name) =>
                    {
                        let image = backend::image_path(directory, &volume.name);
                        let size_bytes = self.host().image_size(&image)?.unwrap_or(volume.size_bytes);
                        Ok(Volume { size_bytes, ..volume })
                    }
                    _ => Err(wrong_record(path)),
                };
                let named = records.into_iter().map(|(path, record)| {
                    let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                    (file.strip_suffix(&suffix).unwrap_or(&file).to_owned(), read(&path, record))
                });
                Ok(named.collect())
            }
            PoolSource::Lvm { vg, .. } => {
                let volumes = self.host().logical_volumes(vg).map_err(|fault| match fault.code {
                    // A volume of a group that is not there may well exist.
                    Code::NotFound => Fault { code: Code::Corrupt, ..fault },
                    _ => fault,
                })?;
                let read = |lv: crate::host::LogicalVolume| {
                    let volume = volume_from_tags(&pool.name, &lv.name, lv.size, &lv.tags).transpose()?;
                    Some((lv.name, volume))
                };
                Ok(volumes.into_iter().filter_map(read).collect())
            }
        }
    }

    /// A volume that is whole, in whatever stage it is.
    pub(crate) fn locate(&self, reference: &VolumeRef) -> Result<Located, Fault> {
        let pool = self.pool(&reference.pool)?;
        let backend = backend::backend(&pool);
        let found = of_name(self.named_volumes_in(&pool)?, &reference.name).unwrap_or_else(|| {
            let cause = "there is no volume of that name in the pool";
            Err(Fault::new(Code::NotFound, format!("volume {reference}"), cause)
                .cure("`bulkhead volume ls` lists them, `bulkhead volume create` makes one"))
        });
        Ok(Located { pool, backend, volume: found? })
    }

    /// A volume that can be worked on.
    pub(crate) fn locate_ready(&self, reference: &VolumeRef) -> Result<Located, Fault> {
        let located = self.locate(reference)?;
        if located.volume.state != VolumeState::Ready {
            let cause = "an operation on it was interrupted and could not be completed";
            return Err(Fault::new(Code::InUse, format!("volume {reference}"), cause)
                .cure("`bulkhead volume inspect` and the daemon's log say why; restart the daemon to try again"));
        }
        Ok(located)
    }

    /// Where a volume is mounted, `None` when it is not.
    pub(crate) fn mounted_at(&self, volume: &Volume) -> Result<Option<PathBuf>, Fault> {
        let target = mount_point(&self.dirs.run, volume);
        let mounts = self.host().mounts_below(&self.dirs.run)?;
        Ok(mounts.contains(&target).then_some(target))
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

    /// Refuses when a tenant's record is damaged: nobody knows which volumes it holds.
    pub(crate) fn check_tenants_readable(&self) -> Result<(), Fault> {
        self.tenants()?.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }
}

/// What is recorded under a name.
fn of_name<T>(named: Vec<Named<T>>, name: &Name) -> Option<Result<T, Fault>> {
    named.into_iter().find(|(found, _)| found == name.as_str()).map(|(_, record)| record)
}

fn wrong_record(path: &Path) -> Fault {
    let cause = "its content belongs to an object of another name or kind";
    Fault::new(Code::Corrupt, format!("state file {}", path.display()), cause)
        .cure("it was probably copied or renamed by hand: put it back under its own name, or move it away")
}
