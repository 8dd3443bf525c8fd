//! Two tenants with a volume each, which the daemon creates in a pool on the device and removes at the end.
//!
//! Both are named [`NAMES`] and recorded as created by a calibration, by which the next one identifies the leftovers of a killed one.
//! Nothing else of these names is used or removed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_api::client::Client;
use bulkhead_api::wire::{DeviceView, PoolView, TenantCreate, TenantView, VolumeCreate, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, VolumeFs, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::file::LockFile;
use bulkhead_sys::roots::Roots;

use super::queue;
use crate::cleanup::{RUN_DIR, lock, with_removal};
use crate::daemon::Daemon;
use crate::layout::TenantDirs;
use crate::pair::Pair;

/// Names of the tenants and of their volumes.
const NAMES: [&str; 2] = ["bulkhead-calibrate-a", "bulkhead-calibrate-b"];
/// What they are recorded as created by.
const CREATOR: FrontEnd = FrontEnd::Calibration;
/// Maximum and minimum size of a volume.
const VOLUME: Bytes = Bytes::mib(2048);
const VOLUME_MIN: Bytes = Bytes::mib(400);
/// The free space of the pool is divided into this many parts, of which one stays free.
const PARTS: u64 = 3;

/// The set-up. Removed on drop; [`Scratch::remove`] does the same and returns errors.
pub(super) struct Scratch {
    daemon: Daemon,
    pub(super) roots: Roots,
    pub(super) dev: DevNo,
    pub(super) places: TenantDirs,
    pub(super) pair: Pair,
    pub(super) volume: Bytes,
    removed: bool,
    // Dropped last: another calibration must not see a partial removal.
    _lock: LockFile,
}

impl Scratch {
    /// Removes leftovers of a killed calibration, and sets up.
    ///
    /// # Errors
    /// If another calibration or experiment is in progress, a tenant or volume of another creator has one of the names, no pool on the device
    /// has free space, or the daemon refuses.
    pub(super) fn set_up(client: Client, device: &str, pool: Option<&Name>) -> Result<Self> {
        let lock = lock()?;
        let daemon = Daemon::new(client)?;
        let roots = Roots::host();
        queue::restore(&roots, &kept_queue())?;
        let view = daemon.request(async |client| client.device_inspect(device).await)?;
        let dev = view.dev.parse().context("the device's number")?;
        remove(&daemon)?;
        check_names_unused(&daemon)?;
        let pool = choose_pool(&daemon, &view, pool)?;
        let volume = volume_size(&pool)?;
        let [a, b] = NAMES.map(str::parse::<Name>);
        let names = [a?, b?];
        let pair = Pair::new(&roots, dev, (&names[0], &names[1]), Vec::new());
        let places = TenantDirs { a: PathBuf::new(), b: PathBuf::new() };
        let mut scratch = Self { daemon, roots, dev, places, pair, volume, removed: false, _lock: lock };
        match scratch.make(&view, &pool.name, &names) {
            Ok(()) => Ok(scratch),
            Err(error) => with_removal(Err(error), scratch.remove()),
        }
    }

    fn make(&mut self, device: &DeviceView, pool: &Name, names: &[Name; 2]) -> Result<()> {
        queue::disable(&self.roots, &kept_queue(), device)?;
        let [a, b] = [self.make_volume(pool, &names[0])?, self.make_volume(pool, &names[1])?];
        self.pair.file_systems = vec![a.clone(), b.clone()];
        self.places = TenantDirs { a: a.join("files"), b: b.join("files") };
        for dir in [&self.places.a, &self.places.b] {
            std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(())
    }

    /// Creates a volume and its tenant; returns the mount point.
    fn make_volume(&self, pool: &Name, name: &Name) -> Result<PathBuf> {
        let volume = VolumeRef { pool: pool.clone(), name: name.clone() };
        let (size_bytes, fs, provision, fast_commit) = (self.volume, VolumeFs::Ext4, None, false);
        let created_by = Some(CREATOR);
        let request =
            VolumeCreate { fs, provision, fast_commit, created_by, ..VolumeCreate::new(volume.clone(), size_bytes) };
        self.daemon.request(async |client| client.volume_create(&request, false).await)?;
        let volumes = vec![volume.clone()];
        let request = TenantCreate { volumes, created_by, ..TenantCreate::new(name.clone()) };
        self.daemon.request(async |client| client.tenant_create(&request, false).await)?;
        let view = self.daemon.request(async |client| client.volume_inspect(&volume).await)?;
        view.mounted_at.with_context(|| format!("volume {volume} is not mounted"))
    }

    /// Removes everything, and restores the previous controller.
    ///
    /// # Errors
    /// The first failure; the next calibration tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.tear_down()
    }

    fn tear_down(&self) -> Result<()> {
        let restore = queue::restore(&self.roots, &kept_queue());
        with_removal(restore, remove(&self.daemon).context("cannot remove what the calibration had set up"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.tear_down()
        {
            tracing::error!(error = format!("{error:#}"), "not everything could be removed; the next run tries again");
        }
    }
}

/// The file with the device's settings to restore.
fn kept_queue() -> PathBuf {
    Path::new(RUN_DIR).join("calibrate.json")
}

fn remove(daemon: &Daemon) -> Result<()> {
    daemon.remove_created(CREATOR, |name| NAMES.contains(&name.as_str()))
}

/// Refuses if something that no calibration created has one of the names: requests to create are idempotent, and would return it.
fn check_names_unused(daemon: &Daemon) -> Result<()> {
    let tenants = named_tenants(daemon)?.into_iter().map(|view| format!("tenant {}", view.name));
    let volumes = named_volumes(daemon)?.into_iter().map(|view| format!("volume {}", view.volume));
    match tenants.chain(volumes).next() {
        None => Ok(()),
        Some(object) => {
            Err(Fault::new(Code::AlreadyExists, object, "calibration needs this name, and did not create it")
                .hint("remove it if a calibration of an earlier version left it; otherwise give it another name")
                .into())
        }
    }
}

fn named_tenants(daemon: &Daemon) -> Result<Vec<TenantView>> {
    let all = daemon.request(async |client| client.tenant_list().await)?;
    Ok(all.into_iter().filter(|view| NAMES.contains(&view.name.as_str())).collect())
}

fn named_volumes(daemon: &Daemon) -> Result<Vec<VolumeView>> {
    let all = daemon.request(async |client| client.volume_list(None).await)?;
    Ok(all.into_iter().filter(|view| NAMES.contains(&view.volume.name.as_str())).collect())
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
        let pool = daemon.request(async |client| client.pool_inspect(name).await)?;
        if !on_it(&pool) {
            let cause = format!("pool {name} lies on {}", pool.physical_devices.join(", "));
            return Err(fault(Code::InvalidArgument, cause).hint("name a pool that lies on this device alone").into());
        }
        return Ok(pool);
    }
    let pools = daemon.request(async |client| client.pool_list().await)?;
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

#[cfg(test)]
mod tests;
