//! The guest as a volume of Bulkhead's, on a host's file system: its image is served by a block server.
//!
//! Owns: the pool, the volume and its tenant, in records of their own, as for the other experiments. Does not: mount the host's file system.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_api::wire::{NewPoolSource, PoolCreate, TenantCreate, VolumeCreate};
use bulkhead_core::backend::image_path;
use bulkhead_core::model::{Server, VolumeFs, VolumeRef};
use bulkhead_core::units::Bytes;
use bulkhead_sys::roots::Roots;

use crate::image::write_out;
use crate::layout::{STATE_DIR, name, private_engine, remove_all, remove_leftovers};

/// The name of the pool, of the volume and of the tenant.
const NAME: &str = "nest";

/// A mounted volume.
pub(super) struct Volume {
    pub(super) device: PathBuf,
    pub(super) mounted_at: PathBuf,
}

/// Makes a volume with all blocks of its image written, in a directory of the host's file system.
///
/// # Errors
/// If the guest is neither ext4 nor XFS, the host's file system cannot have volumes, or this host has tenants of Bulkhead's.
pub(super) fn make(roots: &Roots, program: &Path, host: &Path, guest: &str, size: Bytes) -> Result<Volume> {
    let fs = match guest {
        "ext4" => VolumeFs::Ext4,
        "xfs" => VolumeFs::Xfs,
        other => bail!("a volume has ext4 or XFS, not {other}"),
    };
    let engine = private_engine(program)?;
    remove_leftovers(&engine, roots)?;
    let path = host.join("pool");
    let source = NewPoolSource::Directory { path: path.clone(), server: Server::Auto };
    engine.pool_create(&PoolCreate { name: name(NAME)?, source }, false)?;
    let volume = VolumeRef { pool: name(NAME)?, name: name(NAME)? };
    engine.volume_create(&VolumeCreate { fs, ..VolumeCreate::new(volume.clone(), size) }, false)?;
    // The block server would write them later, in the background.
    write_out(&image_path(&path, &volume.name)).context("the image")?;
    let volumes = vec![volume.clone()];
    engine.tenant_create(&TenantCreate { volumes, ..TenantCreate::new(name(NAME)?) }, false)?;
    let view = engine.volume_inspect(&volume)?;
    let device = PathBuf::from(view.device.context("the volume has no device")?);
    let mounted_at = view.mounted_at.context("the volume is not mounted")?;
    Ok(Volume { device, mounted_at })
}

/// Removes it, also what a killed run has left.
///
/// # Errors
/// If a part of it is busy.
pub(super) fn remove(roots: &Roots, program: &Path) -> Result<()> {
    if !Path::new(STATE_DIR).exists() {
        return Ok(());
    }
    remove_all(&private_engine(program)?, roots).context("cannot remove the volume")
}
