//! Removal of a set-up, including that of a killed run, and the record of settings to restore.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{DeviceArbiter, DeviceControl};
use bulkhead_core::slices;
use bulkhead_engine::engine::Engine;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup, iocost};
use serde::{Deserialize, Serialize};

use super::{HOLDER, POOL, STATE_DIR, name};
use crate::cleanup::{load_record, remove_record, store_record};

/// The settings to restore after a killed run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct RestoreRecord {
    pub(super) device: String,
    pub(super) scheduler: Option<String>,
    pub(super) directory: Option<PathBuf>,
}

/// Removes the set-up of an earlier run. Refuses to continue if the host has other tenants.
///
/// # Errors
/// The first failed removal, or the name of another tenant.
pub fn remove_leftovers(engine: &Engine, roots: &Roots) -> Result<()> {
    remove_all(engine, roots).context("cannot remove the set-up of an experiment")?;
    refuse_foreign_tenants(roots)
}

/// Removes everything in the records: tenants with their processes, volumes, pools and directories; restores the queue's settings.
///
/// # Errors
/// The first failed removal.
pub fn remove_all(engine: &Engine, roots: &Roots) -> Result<()> {
    let holder = name(HOLDER)?;
    for hold in engine.holds()? {
        engine.hold_stop(hold.device.as_str(), false)?;
    }
    for tenant in engine.tenant_list()?.into_iter().filter(|tenant| tenant.name != holder) {
        engine.tenant_remove(&tenant.name, true, false)?;
    }
    // Pools on the shared volume are removed before it is unmounted. After a reboot they cannot be listed, and disappear with it.
    for pool in engine.pool_list()?.into_iter().filter(|pool| pool.name.as_str() != POOL) {
        for volume in engine
            .volume_list(&VolumeFilter { pool: Some(pool.name.clone()), ..VolumeFilter::default() })
            .unwrap_or_default()
        {
            engine.volume_remove(&volume.volume, true, false)?;
        }
        engine.pool_remove(&pool.name, false)?;
    }
    engine.tenant_remove(&holder, true, false)?;
    for volume in engine.volume_list(&VolumeFilter::default())? {
        engine.volume_remove(&volume.volume, true, false)?;
    }
    for pool in engine.pool_list()? {
        engine.pool_remove(&pool.name, false)?;
    }
    let path = record_path();
    let Some(leftover) = load_record::<RestoreRecord>(&path)? else { return Ok(()) };
    if let Ok(dev) = block::devno_of(&roots.dev.join(&leftover.device)) {
        if !leftover.device.is_empty() {
            iocost::disable(roots, dev).context("cannot disable io.cost")?;
            engine.device_control(&leftover.device, &DeviceControl { policy: None }, false)?;
            engine.device_arbiter(&leftover.device, &DeviceArbiter { on: false }, false)?;
        }
        if let Some(scheduler) = &leftover.scheduler {
            block::set_scheduler(roots, dev, scheduler).context("cannot restore the scheduler")?;
        }
    }
    if let Some(directory) = &leftover.directory
        && directory.ends_with("bulkhead-bench")
        && directory.exists()
    {
        fs::remove_dir_all(directory).with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    remove_record(&path)
}

/// The experiment's tenants share `bulkhead.slice` with the daemon's: each would disturb the other.
fn refuse_foreign_tenants(roots: &Roots) -> Result<()> {
    let slice = slices::root();
    if !cgroup::exists(roots, &slice) {
        return Ok(());
    }
    let found = cgroup::children(roots, &slice).context("the tenants on this host")?;
    if let Some(other) = found.first() {
        bail!("this host has the tenant {} of Bulkhead: it and the experiment would disturb each other", other.name());
    }
    Ok(())
}

/// Records the scheduler of a device, which [`remove_all`] restores.
///
/// # Errors
/// If the record cannot be written.
pub fn record_scheduler(device: &str, scheduler: Option<String>) -> Result<()> {
    store_record(&record_path(), &RestoreRecord { device: device.to_owned(), scheduler, directory: None })
}

pub(super) fn record_path() -> PathBuf {
    Path::new(STATE_DIR).join("restore.json")
}
