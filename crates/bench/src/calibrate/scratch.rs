//! Two tenants with a volume each, made by the daemon in a pool on the device and removed at the end.
//!
//! Their names are [`NAMES`], for tenants and volumes alike, and reserved: what a killed calibration left under them is
//! removed by the next one.

use anyhow::{Context, Result};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FsKind, Policy, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, DevNo, Share};
use bulkhead_core::wire::{DeviceControl, DeviceView, PoolView, TenantCreate, VolumeCreate};
use bulkhead_engine::client::{Client, Removal};
use bulkhead_sys::iocost;
use bulkhead_sys::roots::Roots;

use crate::layout::Places;
use crate::pair::Pair;

/// Names of the tenants and of their volumes.
const NAMES: [&str; 2] = ["bulkhead-calibrate-a", "bulkhead-calibrate-b"];
/// Largest and smallest size of a volume.
const VOLUME: Bytes = Bytes::mib(2048);
const VOLUME_MIN: Bytes = Bytes::mib(400);
/// Part of the pool's room that both volumes leave free.
const PARTS: u64 = 3;

/// What is set up. Removed when it is dropped; [`Scratch::remove`] does the same and tells what failed.
pub(super) struct Scratch {
    daemon: Daemon,
    pub(super) roots: Roots,
    pub(super) dev: DevNo,
    before: DeviceView,
    pub(super) places: Places,
    pub(super) pair: Pair,
    pub(super) volume: Bytes,
    removed: bool,
}

/// The daemon, asked by a thread that may wait.
struct Daemon {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Daemon {
    fn ask<T, F: Future<Output = Result<T, Fault>>>(&self, question: impl FnOnce(Client) -> F) -> Result<T> {
        Ok(self.runtime.block_on(question(self.client.clone()))?)
    }
}

impl Scratch {
    /// Removes what a killed calibration left, and sets up. The device's controller is switched off meanwhile.
    ///
    /// # Errors
    /// When no pool with room lies on the device, or the daemon refuses.
    pub(super) fn set_up(client: Client, device: &str, pool: Option<&Name>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let daemon = Daemon { client, runtime: runtime.context("cannot start a runtime")? };
        let before = daemon.ask(async |client| client.device_inspect(device).await)?;
        let roots = Roots::host();
        let dev = before.dev.parse().context("the device's number")?;
        remove(&daemon)?;
        let pool = choose_pool(&daemon, &before, pool)?;
        let volume = volume_size(&pool)?;
        let nowhere = Places { a: "".into(), b: "".into() };
        let [a, b] = NAMES.map(str::parse::<Name>);
        let names = [a?, b?];
        let pair = Pair::new(&roots, dev, (&names[0], &names[1]), Vec::new())?;
        // From here on `Drop` removes what was made, also when a step fails.
        let mut scratch = Self { daemon, roots, dev, before, places: nowhere, pair, volume, removed: false };
        scratch.daemon.ask(async |client| {
            client.device_control(device, &DeviceControl { policy: Some(Policy::None) }, false).await
        })?;
        let [a, b] = [scratch.make(&pool.name, &names[0])?, scratch.make(&pool.name, &names[1])?];
        scratch.pair.file_systems = vec![a.clone(), b.clone()];
        scratch.places = Places { a: a.join("files"), b: b.join("files") };
        for dir in [&scratch.places.a, &scratch.places.b] {
            std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(scratch)
    }

    /// Makes a volume and its tenant: where it is mounted.
    fn make(&self, pool: &Name, name: &Name) -> Result<std::path::PathBuf> {
        let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
        let (size_bytes, fs, provision, fast_commit) = (self.volume, FsKind::Ext4, None, false);
        let request = VolumeCreate { volume: volume.clone(), size_bytes, fs, provision, fast_commit };
        self.daemon.ask(async |client| client.volume_create(&request, false).await)?;
        let volumes = vec![volume.clone()];
        let request = TenantCreate { name: name.clone(), share: Share::DEFAULT, limits: Vec::new(), volumes };
        self.daemon.ask(async |client| client.tenant_create(&request, false).await)?;
        let view = self.daemon.ask(async |client| client.volume_inspect(&volume).await)?;
        view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))
    }

    /// Removes everything, and puts the controller back that was in force.
    ///
    /// # Errors
    /// The first thing that could not be removed; the next calibration tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.take_back()
    }

    fn take_back(&self) -> Result<()> {
        iocost::disable(&self.roots, self.dev).context("cannot switch io.cost off")?;
        remove(&self.daemon)?;
        // io.cost that somebody set by hand has no calibration: restoring puts its lines back.
        let by_hand = self.before.policy == Policy::Iocost && self.before.calibration.is_none();
        let policy = Some(self.before.policy).filter(|policy| *policy != Policy::None && !by_hand);
        let request = DeviceControl { policy };
        self.daemon.ask(async |client| client.device_control(&self.before.name, &request, false).await)?;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.take_back()
        {
            tracing::error!(error = format!("{error:#}"), "not everything could be removed; the next run tries again");
        }
    }
}

fn remove(daemon: &Daemon) -> Result<()> {
    let how = Removal { force: true, dry_run: false };
    for tenant in daemon.ask(async |client| client.tenant_list().await)? {
        if NAMES.contains(&tenant.name.as_str()) {
            daemon.ask(async |client| client.tenant_remove(&tenant.name, how).await)?;
        }
    }
    for volume in daemon.ask(async |client| client.volume_list(None).await)? {
        if NAMES.contains(&volume.volume.name.as_str()) {
            daemon.ask(async |client| client.volume_remove(&volume.volume, how).await)?;
        }
    }
    Ok(())
}

fn choose_pool(daemon: &Daemon, device: &DeviceView, wanted: Option<&Name>) -> Result<PoolView> {
    let fault = |code, cause: String| Fault::new(code, format!("device {}", device.name), cause);
    if device.physical_devices != [device.name.clone()] {
        let below = device.physical_devices.join(", ");
        return Err(fault(Code::Unsupported, format!("it is stacked on {below}: controllers act on physical devices"))
            .cure("calibrate the physical device")
            .into());
    }
    let on_it = |pool: &PoolView| pool.physical_devices == [device.name.clone()];
    if let Some(name) = wanted {
        let pool = daemon.ask(async |client| client.pool_inspect(name).await)?;
        if !on_it(&pool) {
            let cause = format!("pool {name} lies on {}", pool.physical_devices.join(", "));
            return Err(fault(Code::InvalidArgument, cause).cure("name a pool that lies on this device alone").into());
        }
        return Ok(pool);
    }
    let pools = daemon.ask(async |client| client.pool_list().await)?;
    let found = pools.into_iter().filter(on_it).max_by_key(|pool| pool.free_bytes);
    found.ok_or_else(|| {
        fault(Code::NotFound, "no pool lies on it, and measuring needs scratch volumes".to_owned())
            .cure("make one first: `bulkhead pool create`")
            .into()
    })
}

fn volume_size(pool: &PoolView) -> Result<Bytes> {
    let free = pool.free_bytes.with_context(|| format!("the room in pool {} is not known", pool.name))?;
    let size = Bytes(free.0 / PARTS / Bytes::MIB * Bytes::MIB).min(VOLUME);
    if size < VOLUME_MIN {
        let cause =
            format!("it has {free} of room, and {} are needed for scratch volumes", Bytes(VOLUME_MIN.0 * PARTS));
        return Err(Fault::new(Code::NoSpace, format!("pool {}", pool.name), cause)
            .cure("remove volumes from it, or name another pool with `--pool`")
            .into());
    }
    Ok(size)
}
