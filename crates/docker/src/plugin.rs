//! What each request of the protocol does, by requests to the daemon.
//!
//! Docker has one namespace for volumes, Bulkhead one in each pool: a Docker name resolves to the only volume of that name that Docker created,
//! else to the one in the default pool, else to the only one with that name. Volumes that operators or other front ends have created can be used
//! like Docker's own.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_api::client::{Client, Removal};
use bulkhead_api::wire::{LeaseCreate, LeaseReply, LeaseView, TenantCreate, VolumeCopy, VolumeCreate, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, LeaseUser, VolumeFs, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::units::{Bytes, Latency};
use bulkhead_front_end::{repeat, tenants};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine;
use crate::options::{self, Options, Source};
use crate::protocol::{Create, Use, Volume};
use crate::turns::Turns;

/// How many changes are worked on at a time, and for how long a slow one delays the next.
const AT_A_TIME: usize = 8;
const TURN: Duration = Duration::from_secs(10);

/// For how long a Mount or Unmount is pursued after Docker has given up, and how long the daemon waits for other operations on a volume that
/// is to be unmounted.
const PATIENT: Duration = Duration::from_secs(3600);

/// What is used where a volume's options say nothing.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// Where volumes are created, and looked for first. Default: the only pool.
    pub pool: Option<Name>,
    /// The size of new volumes.
    pub size: Bytes,
}

/// The driver. It has no state of its own.
#[derive(Clone, Debug)]
pub struct Plugin {
    daemon: Client,
    defaults: Defaults,
    turns: Turns,
}

/// Each method fails with the daemon's error, with `Unavailable` when no daemon answers, and with `NotFound` for a volume that does not
/// exist.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them, at the top of the block")]
impl Plugin {
    /// The driver in front of a daemon.
    #[must_use]
    pub fn new(daemon: Client, defaults: Defaults) -> Self {
        Self { daemon, defaults, turns: Turns::new(AT_A_TIME, TURN) }
    }

    /// `VolumeDriver.Create`: creates a volume, and a tenant for it where there is none. The same request again finds both.
    pub async fn create(&self, request: &Create, deadline: Instant) -> Result<(), Fault> {
        let name = checked_name(&request.name)?;
        let options = options::parse(&request.opts)?;
        let volume = VolumeRef { pool: self.pool_for(&options, &name).await?, name };
        let create = async {
            let new_tenant = self.tenant_for(&options, &volume.name).await?;
            let created = self.create_volume(&volume, &options).await;
            if let (Err(fault), Some(tenant)) = (&created, new_tenant)
                && fault.code != Code::Unavailable
            {
                tenants::remove_unused(&self.daemon, FrontEnd::Docker, &tenant).await?;
            }
            created
        };
        in_time(deadline, &volume, self.turns.take(&object(&volume), deadline, create)).await
    }

    /// `VolumeDriver.Remove`: removes a volume, and the tenant that was created for it. Succeeds if there is no such volume: the request may have
    /// been repeated. Refused while a container of the other engine uses it.
    pub async fn remove(&self, name: &str, engine: FrontEnd, deadline: Instant) -> Result<(), Fault> {
        let view = match self.find(name).await {
            Err(fault) if fault.code == Code::NotFound => {
                return tenants::remove_unused(&self.daemon, FrontEnd::Docker, &checked_name(name)?).await;
            }
            found => found?,
        };
        let volume = &view.volume;
        in_time(deadline, volume, self.turns.take(&object(volume), deadline, self.remove_volume(&view, engine))).await
    }

    async fn remove_volume(&self, view: &VolumeView, engine: FrontEnd) -> Result<(), Fault> {
        let mut leases = self.daemon.lease_list().await?;
        leases.retain(|lease| lease.volume == view.volume);
        let is_own = |lease: &LeaseView| lease.user.as_ref().and_then(|user| engine::is_own(engine, user));
        if let Some(user) =
            leases.iter().find(|lease| is_own(lease) == Some(false)).and_then(|lease| lease.user.as_ref())
        {
            let (other, name) = (user.front_end, &view.volume.name);
            return Err(Fault::new(Code::InUse, object(&view.volume), format!("a container of {other} uses it")).hint(
                format!(
                    "remove the containers of `{other} ps -a --filter volume={name}`, then `{other} volume rm {name}`"
                ),
            ));
        }
        // An engine removes only volumes that none of its containers uses: users that it has forgotten, in a crash, are none.
        for lease in leases.iter().filter(|lease| is_own(lease) == Some(true)) {
            for _ in 0..lease.mounts.unwrap_or(1).max(1) {
                self.daemon.lease_remove(lease.id).await?;
            }
        }
        self.daemon.volume_remove(&view.volume, Removal::default()).await?;
        let tenant = view.default_tenant.as_ref().unwrap_or(&view.volume.name);
        tenants::remove_unused(&self.daemon, FrontEnd::Docker, tenant).await
    }

    /// `VolumeDriver.Mount`: mounts a volume for its tenant, until each of its users has unmounted it as often as it has mounted it.
    pub async fn mount(&self, request: &Use, engine: FrontEnd, deadline: Instant) -> Result<PathBuf, Fault> {
        let view = self.find(&request.name).await?;
        let volume = view.volume.clone();
        let mount = async {
            let tenant = tenants::of_volume(&self.daemon, FrontEnd::Docker, &view).await?;
            let volumes = vec![volume.clone()];
            let lease =
                LeaseCreate { tenant, volumes, pid: None, user: Some(user(request, engine)), selinux_context: None };
            // Counted once, however often it is repeated.
            let daemon = self.daemon.clone().with_one_request();
            let mut mounting = tokio::spawn(async move { patiently(|| daemon.lease_create(&lease)).await });
            let Ok(ended) = tokio::time::timeout_at(deadline, &mut mounting).await else {
                // Docker takes this mount for failed, and does not unmount it.
                tokio::spawn(give_back(self.daemon.clone(), mounting));
                return Err(goes_on(&volume));
            };
            let internal = |cause: &str| Fault::new(Code::Internal, object(&volume), cause);
            let reply = ended.map_err(|_| internal("mounting it was aborted"))??;
            let lease = reply.leases.into_iter().next();
            lease.map(|lease| lease.mounted_at).ok_or_else(|| internal("the daemon did not mount it"))
        };
        self.turns.take(&object(&volume), deadline, mount).await
    }

    /// `VolumeDriver.Unmount`: one mount less. Succeeds for a volume that is not mounted, or no longer exists.
    pub async fn unmount(&self, request: &Use, engine: FrontEnd, deadline: Instant) -> Result<(), Fault> {
        let (name, user, daemon) =
            (request.name.clone(), user(request, engine), self.daemon.clone().with_wait(PATIENT));
        // Docker does not repeat it, so it waits for no turn, and goes on when Docker has given up waiting.
        let unmounting = tokio::spawn(async move {
            let mut leases = patiently(|| daemon.lease_list()).await?;
            let has_id = |found: &LeaseUser| found.id == user.id && engine::is_own(engine, found).is_some();
            leases.retain(|lease| lease.volume.name.as_str() == name && lease.user.as_ref().is_some_and(has_id));
            // Earlier versions took Podman for Docker.
            let is_known = leases.iter().any(|lease| lease.user.as_ref() == Some(&user));
            for lease in leases.iter().filter(|lease| !is_known || lease.user.as_ref() == Some(&user)) {
                // Counted once, however often it is repeated.
                let daemon = daemon.clone().with_one_request();
                patiently(|| daemon.lease_remove(lease.id)).await?;
            }
            Ok(())
        });
        let aborted =
            |_| Err(Fault::new(Code::Internal, format!("volume {}", request.name), "unmounting it was aborted"));
        in_time(deadline, &request.name, async { unmounting.await.unwrap_or_else(aborted) }).await
    }

    /// `VolumeDriver.Path`: where a volume is mounted; an empty path when it is not.
    pub async fn path(&self, name: &str) -> Result<PathBuf, Fault> {
        Ok(self.find(name).await?.mounted_at.unwrap_or_default())
    }

    /// `VolumeDriver.Get`: a volume with its status.
    pub async fn get(&self, name: &str) -> Result<Volume, Fault> {
        let view = self.find(name).await?;
        let status = [
            ("volume", json!(view.volume)),
            ("tenant", json!(view.tenant.as_ref().or(view.default_tenant.as_ref()))),
            ("size_bytes", json!(view.size_bytes)),
            ("fs", json!(view.fs)),
            ("provision", json!(view.provision)),
            ("origin", json!(view.origin)),
            ("device", json!(view.device)),
            ("accounting", json!(view.accounting)),
            ("created_by", json!(view.created_by)),
            ("findings", json!(view.findings.iter().map(ToString::to_string).collect::<Vec<_>>())),
        ];
        let status = status.into_iter().filter(|(_, value)| !value.is_null()).collect();
        Ok(Volume { name: name.to_owned(), mountpoint: view.mounted_at.unwrap_or_default(), status })
    }

    /// `VolumeDriver.List`: every volume that a container can use, by the name that [`Plugin::get`] finds it by.
    pub async fn list(&self) -> Result<Vec<Volume>, Fault> {
        let views = self.usable().await?;
        let is_found =
            |view: &&VolumeView| self.choose(&views, &view.volume.name).is_ok_and(|found| found.volume == view.volume);
        let listed = views.iter().filter(is_found).map(|view| Volume {
            name: view.volume.name.to_string(),
            mountpoint: view.mounted_at.clone().unwrap_or_default(),
            status: Default::default(),
        });
        Ok(listed.collect())
    }

    async fn create_volume(&self, volume: &VolumeRef, options: &Options) -> Result<(), Fault> {
        let tenant = options.tenant.clone().unwrap_or_else(|| volume.name.clone());
        let (created_by, default_tenant) = (Some(FrontEnd::Docker), Some(tenant));
        match &options.source {
            Source::Empty { size, fs, provision, journal, fast_commit } => {
                let request = VolumeCreate {
                    fs: (*fs).into(),
                    provision: *provision,
                    journal: *journal,
                    fast_commit: *fast_commit,
                    mount_options: options.mount_options.clone(),
                    created_by,
                    default_tenant,
                    ..VolumeCreate::new(volume.clone(), size.unwrap_or(self.defaults.size))
                };
                self.daemon.volume_create(&request, false).await.map(drop)
            }
            Source::CloneOf { origin, read_from, domain } => {
                let request = VolumeCopy {
                    read_from: *read_from,
                    domain: domain.clone(),
                    mount_options: options.mount_options.clone(),
                    created_by,
                    default_tenant,
                    ..VolumeCopy::new(volume.name.clone(), false)
                };
                let origin = VolumeRef { pool: volume.pool.clone(), name: origin.clone() };
                if self.daemon.volume_inspect(&origin).await?.fs == VolumeFs::None {
                    let cause =
                        format!("{origin} is a raw volume, and a container gets directories from Docker, not devices");
                    return Err(Fault::new(Code::InvalidArgument, object(volume), cause)
                        .hint("clone a volume with a file system"));
                }
                self.daemon.volume_copy(&origin, &request, false).await.map(drop)
            }
        }
    }

    /// The pool of a new volume: the option's, the default, that of the origin, or the only one.
    async fn pool_for(&self, options: &Options, name: &Name) -> Result<Name, Fault> {
        if let Some(pool) = &options.pool {
            return Ok(pool.clone());
        }
        if let Source::CloneOf { origin, .. } = &options.source {
            let volumes = self.daemon.volumes_named(origin, false).await?;
            return Ok(self.choose(&volumes, origin)?.volume.pool.clone());
        }
        if let Some(pool) = &self.defaults.pool {
            return Ok(pool.clone());
        }
        let mut pools: Vec<Name> = self.daemon.pool_list().await?.into_iter().map(|pool| pool.name).collect();
        match pools.len() {
            1 => Ok(pools.remove(0)),
            0 => Err(Fault::new(
                Code::NotFound,
                format!("volume {name}"),
                "there is no pool in which it could be created",
            )
            .hint("create one with `bulkhead pool create`")),
            _ => Err(Fault::new(
                Code::InvalidArgument,
                format!("volume {name}"),
                format!("there are several pools ({}), and no default", listed(&pools)),
            )
            .hint("set --opt pool=POOL, or start the plugin with --pool POOL")),
        }
    }

    /// Ensures that the tenant of a new volume exists; returns its name if it was created.
    async fn tenant_for(&self, options: &Options, volume: &Name) -> Result<Option<Name>, Fault> {
        let name = options.tenant.as_ref().unwrap_or(volume);
        let request = TenantCreate {
            share: options.share.unwrap_or_default(),
            fsync_p99_us: options.fsync_p99_us.filter(|us| *us > 0),
            created_by: Some(FrontEnd::Docker),
            ..TenantCreate::new(name.clone())
        };
        let Some(found) = tenants::ensure(&self.daemon, &request).await? else { return Ok(Some(name.clone())) };
        let differs = |option: &str, cause: String, wanted: String| {
            Fault::new(Code::AlreadyExists, format!("tenant {name}"), cause)
                .hint(format!("omit --opt {option}, or change it: `bulkhead tenant set {name} --{option} {wanted}`"))
        };
        if let Some(share) = options.share.filter(|share| *share != found.share) {
            return Err(differs("share", format!("it has share {}, not {share}", found.share), share.to_string()));
        }
        if options.fsync_p99_us.is_some() && found.fsync_p99_us != request.fsync_p99_us {
            let text = |us: Option<u64>| us.map_or("none".to_owned(), |us| Latency::from_us(us).to_string());
            let (has, wanted) = (text(found.fsync_p99_us), text(request.fsync_p99_us));
            return Err(differs("fsync-p99", format!("its promised p99 of fsyncs is {has}, not {wanted}"), wanted));
        }
        Ok(None)
    }

    async fn find(&self, name: &str) -> Result<VolumeView, Fault> {
        let name = checked_name(name)?;
        let (volumes, unreadable) = match self.daemon.volumes_named(&name, true).await {
            Ok(volumes) => (volumes, None),
            Err(fault) if fault.reason.as_deref() == Some(&Reason::DaemonUnreachable) => return Err(fault),
            Err(fault) => (self.daemon.volumes_named(&name, false).await?, Some(fault)),
        };
        match (self.choose(&mountable(volumes), &name).cloned(), unreadable) {
            // Docker drops what it knows of a volume that is said not to exist.
            (Err(missing), Some(fault)) if missing.code == Code::NotFound => {
                Err(Fault { code: Code::Unavailable, ..fault })
            }
            (found, _) => found,
        }
    }

    /// All volumes but snapshots, which only clones are made of, and raw volumes, which have no directory.
    async fn usable(&self) -> Result<Vec<VolumeView>, Fault> {
        Ok(mountable(self.daemon.volume_list(None).await?))
    }

    /// The volume that a name means.
    fn choose<'a>(&self, volumes: &'a [VolumeView], name: &Name) -> Result<&'a VolumeView, Fault> {
        let named: Vec<&VolumeView> = volumes.iter().filter(|view| view.volume.name == *name).collect();
        let own: Vec<_> = named.iter().filter(|view| view.created_by == Some(FrontEnd::Docker)).collect();
        if let [view] = own.as_slice() {
            return Ok(view);
        }
        let in_default = named.iter().find(|view| Some(&view.volume.pool) == self.defaults.pool.as_ref());
        match (in_default, named.as_slice()) {
            (Some(view), _) | (None, [view]) => Ok(view),
            (None, []) => Err(Fault::new(Code::NotFound, format!("volume {name}"), "there is no volume of that name")),
            (None, several) => {
                let pools: Vec<Name> = several.iter().map(|view| view.volume.pool.clone()).collect();
                let cause = format!("there is one in each of the pools {}", listed(&pools));
                Err(Fault::new(Code::InvalidArgument, format!("volume {name}"), cause)
                    .hint("start the plugin with --pool POOL to choose"))
            }
        }
    }
}

/// Answers in time. The daemon continues a request that takes longer, and the same request again finds its result.
async fn in_time<T>(
    deadline: Instant,
    volume: &impl Display,
    request: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout_at(deadline, request).await.unwrap_or_else(|_| Err(goes_on(volume)))
}

fn goes_on(volume: &impl Display) -> Fault {
    Fault::new(
        Code::Unavailable,
        format!("volume {volume}"),
        "it takes longer than the engine waits, and the daemon continues it",
    )
    .hint("repeat the command when `bulkhead job ls` shows that it has finished")
}

/// Repeats a request that is pursued after Docker has given up.
async fn patiently<T, F: Future<Output = Result<T, Fault>>>(attempt: impl Fn() -> F) -> Result<T, Fault> {
    repeat::until_answered(PATIENT, Instant::now() + PATIENT, attempt).await
}

/// Returns the leases of a mount that took too long, once it has succeeded.
async fn give_back(daemon: Client, mounting: JoinHandle<Result<LeaseReply, Fault>>) {
    let Ok(Ok(reply)) = mounting.await else { return };
    for lease in reply.leases {
        if let Err(fault) = daemon.lease_remove(lease.id).await {
            tracing::warn!(volume = %lease.volume, %fault, "cannot undo a mount that timed out");
        }
    }
}

fn mountable(mut volumes: Vec<VolumeView>) -> Vec<VolumeView> {
    volumes.retain(|view| !view.read_only && view.fs != VolumeFs::None);
    volumes
}

fn user(request: &Use, engine: FrontEnd) -> LeaseUser {
    LeaseUser { front_end: engine, id: request.id.clone() }
}

fn checked_name(name: &str) -> Result<Name, Fault> {
    name.parse().map_err(|error| Fault::new(Code::InvalidArgument, format!("volume {name:?}"), error))
}

fn object(volume: &VolumeRef) -> String {
    format!("volume {volume}")
}

fn listed(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}
