//! Additions to the common set-up that some experiments need: more tenants, and other kinds of volumes.
//!
//! Owns: adding them to a [`Bench`], which removes them with the rest. Does not: remove devices of third-party programs (`served` does).

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bulkhead_api::wire::{NewPoolSource, PoolCreate, TenantCreate, VolumeCreate, VolumeView};
use bulkhead_core::backend::image_path;
use bulkhead_core::model::{FsKind, Server, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_formats::servers;
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::image::{write_image, write_out};
use bulkhead_measure::layout::{Bench, Layout, POOL, TenantDirs, name};
use bulkhead_sys::lvm;
use bulkhead_sys::roots::Roots;

use crate::served::{self, Served};

/// Pools of images, by server.
const IMAGE_POOLS: [(Server, &str); 2] = [(Server::Auto, "bench-blockd"), (Server::Loop, "bench-loop")];
/// The name of the volume in each of them.
const IMAGE_VOLUME: &str = "files";
/// Size of each image.
const IMAGE: Bytes = Bytes::mib(256);

/// Adds tenants without a volume until there are `n` in total, with a directory on the shared volume for each. All have the share of the first.
/// Returns their names and directories.
///
/// # Errors
/// If one cannot be created.
pub(crate) fn add_tenants(bench: &Bench, n: usize) -> Result<Vec<(Name, PathBuf)>> {
    let TenantDirs { a, b } = bench.dirs(Layout::Shared).clone();
    let mut all: Vec<(Name, PathBuf)> = bench.tenants()?.into_iter().zip([a, b]).collect();
    let share = bench.engine().tenant_inspect(&all[0].0)?.share;
    let base = bench.host_dir()?;
    for number in all.len() + 1..=n {
        let tenant_name = name(&format!("bench-{number}"))?;
        let (limits, volumes) = (Vec::new(), Vec::new());
        bench
            .engine()
            .tenant_create(&TenantCreate { share, limits, volumes, ..TenantCreate::new(tenant_name.clone()) }, false)?;
        let dir = base.join(number.to_string());
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        all.push((tenant_name, dir));
    }
    all.truncate(n);
    Ok(all)
}

/// Adds a logical volume without a file system; returns its device node. Only on a device target.
///
/// # Errors
/// If it cannot be created.
pub(crate) fn add_raw(bench: &Bench) -> Result<PathBuf> {
    let raw = VolumeRef { pool: name(POOL)?, name: name("raw")? };
    let size_bytes = Bytes(bench.volume_bytes().min(Bytes::GIB));
    let (fs, provision, fast_commit) = (FsKind::Ext4, None, false);
    // Created like any other volume, so that it is removed in the same way; its file system is overwritten.
    bench.engine().volume_create(
        &VolumeCreate { fs: fs.into(), provision, fast_commit, ..VolumeCreate::new(raw, size_bytes) },
        false,
    )?;
    let vg = format!("bulkhead-{POOL}");
    servers::lvm().activate(&vg, "raw").context("cannot activate the raw volume")?;
    Ok(lvm::node(&vg, "raw"))
}

/// Adds a file volume on the shared volume, with all blocks of its image written.
///
/// # Errors
/// If it cannot be created.
pub(crate) fn add_image(bench: &Bench, server: Server) -> Result<VolumeView> {
    let found = IMAGE_POOLS.iter().find(|(of, _)| *of == server);
    let pool = name(found.map(|(_, pool)| *pool).context("there is no pool for it")?)?;
    let path = bench.host_dir()?.join(pool.as_str());
    let source = NewPoolSource::Directory { path: path.clone(), server };
    bench.engine().pool_create(&PoolCreate { name: pool.clone(), source }, false)?;
    let volume = VolumeRef { pool: pool.clone(), name: name(IMAGE_VOLUME)? };
    let (fs, provision, fast_commit) = (FsKind::Ext4, None, false);
    let request = VolumeCreate { fs: fs.into(), provision, fast_commit, ..VolumeCreate::new(volume.clone(), IMAGE) };
    bench.engine().volume_create(&request, false)?;
    // A block server would write them later, in the background.
    write_out(&image_path(&path, &volume.name)).context("the image")?;
    let volumes = vec![volume.clone()];
    let request = TenantCreate { volumes, ..TenantCreate::new(pool) };
    bench.engine().tenant_create(&request, false)?;
    Ok(bench.engine().volume_inspect(&volume)?)
}

/// Adds an image of the same kind on the shared volume, served by a third-party program.
///
/// # Errors
/// If it cannot be created.
pub(crate) fn add_served(bench: &Bench, server: served::Server, cancel: &Cancel) -> Result<Served> {
    let image = bench.host_dir()?.join(format!("{}.img", server.as_str()));
    write_image(&image, IMAGE).context("the image")?;
    Served::start(&Roots::host(), server, &image, cancel)
}
