//! Two tenants with a volume each, made by the daemon in a pool on the device and removed at the end.
//!
//! Their names are [`NAMES`], for tenants and volumes alike, and reserved: what a killed calibration left under them is
//! removed by the next one.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_api::client::{Client, Removal};
use bulkhead_api::wire::{DeviceView, PoolView, TenantCreate, VolumeCreate};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FsKind, MountOptions, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, DevNo, Share};
use bulkhead_sys::file::LockFile;
use bulkhead_sys::roots::Roots;

use super::queue;
use crate::cleanup::{RUN_DIR, lock, with_removal};
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
    pub(super) places: Places,
    pub(super) pair: Pair,
    pub(super) volume: Bytes,
    removed: bool,
    // Given up last: another calibration must not find ours half removed.
    _lock: LockFile,
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
    /// Removes what a killed calibration left, and sets up.
    ///
    /// # Errors
    /// When another calibration or experiment is under way, no pool with room is on the device, or the daemon refuses.
    pub(super) fn set_up(client: Client, device: &str, pool: Option<&Name>) -> Result<Self> {
        let lock = lock()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let daemon = Daemon { client, runtime: runtime.context("cannot start a runtime")? };
        let roots = Roots::host();
        queue::put_back(&roots, &kept_queue())?;
        let view = daemon.ask(async |client| client.device_inspect(device).await)?;
        let dev = view.dev.parse().context("the device's number")?;
        remove(&daemon)?;
        let pool = choose_pool(&daemon, &view, pool)?;
        let volume = volume_size(&pool)?;
        let [a, b] = NAMES.map(str::parse::<Name>);
        let names = [a?, b?];
        let pair = Pair::new(&roots, dev, (&names[0], &names[1]), Vec::new());
        let places = Places { a: PathBuf::new(), b: PathBuf::new() };
        let mut scratch = Self { daemon, roots, dev, places, pair, volume, removed: false, _lock: lock };
        match scratch.make(&view, &pool.name, &names) {
            Ok(()) => Ok(scratch),
            Err(error) => with_removal(Err(error), scratch.remove()),
        }
    }

    fn make(&mut self, device: &DeviceView, pool: &Name, names: &[Name; 2]) -> Result<()> {
        queue::switch_off(&self.roots, &kept_queue(), device)?;
        let [a, b] = [self.make_volume(pool, &names[0])?, self.make_volume(pool, &names[1])?];
        self.pair.file_systems = vec![a.clone(), b.clone()];
        self.places = Places { a: a.join("files"), b: b.join("files") };
        for dir in [&self.places.a, &self.places.b] {
            std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(())
    }

    /// Makes a volume and its tenant: where it is mounted.
    fn make_volume(&self, pool: &Name, name: &Name) -> Result<PathBuf> {
        let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
        let (size_bytes, fs, provision, fast_commit) = (self.volume, FsKind::Ext4, None, false);
        let request = VolumeCreate {
            mount_options: MountOptions::default(),
            volume: volume.clone(),
            size_bytes,
            fs,
            provision,
            fast_commit,
        };
        self.daemon.ask(async |client| client.volume_create(&request, false).await)?;
        let volumes = vec![volume.clone()];
        let request = TenantCreate { name: name.clone(), share: Share::DEFAULT, limits: Vec::new(), volumes };
        self.daemon.ask(async |client| client.tenant_create(&request, false).await)?;
        let view = self.daemon.ask(async |client| client.volume_inspect(&volume).await)?;
        view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))
    }

    /// Removes everything, and restores the previous controller.
    ///
    /// # Errors
    /// What could not be put back or removed; the next calibration tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.take_back()
    }

    fn take_back(&self) -> Result<()> {
        let put_back = queue::put_back(&self.roots, &kept_queue());
        with_removal(put_back, remove(&self.daemon).context("cannot remove what the calibration had set up"))
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

/// Where the device's settings are kept while others are active.
fn kept_queue() -> PathBuf {
    Path::new(RUN_DIR).join("calibrate.json")
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
            .hint("calibrate the physical device")
            .into());
    }
    let on_it = |pool: &PoolView| pool.physical_devices == [device.name.clone()];
    if let Some(name) = wanted {
        let pool = daemon.ask(async |client| client.pool_inspect(name).await)?;
        if !on_it(&pool) {
            let cause = format!("pool {name} lies on {}", pool.physical_devices.join(", "));
            return Err(fault(Code::InvalidArgument, cause).hint("name a pool that lies on this device alone").into());
        }
        return Ok(pool);
    }
    let pools = daemon.ask(async |client| client.pool_list().await)?;
    let found = pools.into_iter().filter(on_it).max_by_key(|pool| pool.free_bytes);
    found.ok_or_else(|| {
        fault(Code::NotFound, "no pool lies on it, and measuring needs scratch volumes".to_owned())
            .hint("make one first: `bulkhead pool create`")
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
            .hint("remove volumes from it, or name another pool with `--pool`")
            .into());
    }
    Ok(size)
}
