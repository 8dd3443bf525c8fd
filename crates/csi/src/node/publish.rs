//! Publishing: a bind mount of a staged volume at the target path; of a raw volume, of its device's node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_api::wire::VolumeView;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{SelinuxContext, VolumeFs, VolumeRef};
use bulkhead_sys::block;
use bulkhead_sys::mount::{MountFlags, MountInfo, Place, mountinfo};
use bulkhead_sys::roots::Roots;

use super::{Node, Settings, blocking, paths, required};
use crate::capability::Content;
use crate::proto::{NodePublishVolumeRequest, NodeUnpublishVolumeRequest};
use crate::{capability, names};

/// The field that names where a volume is published.
const TARGET: &str = "target_path";

/// What is to be mounted, and where.
struct Publication {
    settings: Arc<Settings>,
    roots: Roots,
    volume: VolumeRef,
    /// Where the daemon has mounted it.
    mounted_at: PathBuf,
    target: String,
    flags: MountFlags,
    /// The SELinux context that the daemon was to mount it with.
    selinux_context: Option<SelinuxContext>,
    exclusive: bool,
    is_raw: bool,
}

impl Node {
    /// `NodePublishVolume`. Succeeds for a volume that is published there in the same way.
    pub(super) async fn publish(&self, request: &NodePublishVolumeRequest) -> Result<(), Fault> {
        required("volume_id", &request.volume_id)?;
        required(TARGET, &request.target_path)?;
        let wanted = self.capability(request.volume_capability.as_ref())?;
        let view = self.volume(&request.volume_id).await?;
        wanted.check_fs(view.fs)?;
        if wanted.content == Content::Raw && request.readonly {
            return Err(capability::no_reader());
        }
        let staging_path = &request.staging_target_path;
        let lease = match staging_path.is_empty() {
            true => None,
            false => self.lease(&view.volume, staging_path).await?,
        };
        let object = || format!("volume {}", view.volume);
        let Some(lease) = lease.filter(|lease| lease.mounts != Some(0)) else {
            let cause = format!("it is not staged at {staging_path:?}");
            return Err(Fault::new(Code::InUse, object(), cause).hint("stage it first"));
        };
        if lease.selinux_context != wanted.selinux_context {
            let cause = format!("it is staged at {staging_path:?} with another SELinux context, or none");
            return Err(Fault::new(Code::InUse, object(), cause).hint("stage and publish it with the same context"));
        }
        let publication = Publication {
            settings: Arc::clone(&self.settings),
            roots: self.roots.clone(),
            volume: view.volume,
            mounted_at: lease.mounted_at,
            target: request.target_path.clone(),
            flags: MountFlags { readonly: request.readonly || wanted.flags.readonly, ..wanted.flags },
            selinux_context: lease.selinux_context,
            exclusive: wanted.exclusive,
            is_raw: wanted.content == Content::Raw,
        };
        blocking(move || publication.carry_out()).await
    }

    /// `NodeUnpublishVolume`. Succeeds for a volume that is not published there, or no longer exists.
    pub(super) async fn unpublish(&self, request: &NodeUnpublishVolumeRequest) -> Result<(), Fault> {
        required("volume_id", &request.volume_id)?;
        required(TARGET, &request.target_path)?;
        let volume = match names::parse_id("volume_id", &request.volume_id)? {
            None => None,
            Some(volume) => match self.daemon.volume_inspect(&volume).await {
                Err(fault) if fault.code == Code::NotFound => None,
                found => Some(found?),
            },
        };
        let (settings, roots, target) = (Arc::clone(&self.settings), self.roots.clone(), request.target_path.clone());
        blocking(move || unpublish(&settings, &roots, volume.as_ref(), &target)).await
    }
}

impl Publication {
    fn carry_out(&self) -> Result<(), Fault> {
        let fault = |error| paths::fault(TARGET, &error);
        let places = paths::open(&self.settings)?;
        let Some(place) = places.place(Path::new(&self.target)).map_err(fault)? else {
            return Err(Fault::new(Code::InUse, TARGET, format!("the directory above {} does not exist", self.target)));
        };
        let table = table(&self.roots)?;
        let Some(source) = topmost(&table, &self.mounted_at) else {
            let cause = format!("it is staged, but not mounted at {}", self.mounted_at.display());
            return Err(Fault::new(Code::Unavailable, self.object(), cause).hint("the daemon mounts it again"));
        };
        // Which one it is, is not compared: the kernel has words of its own for it.
        if source.selinux_context().is_some() != self.selinux_context.is_some() {
            let cause = format!(
                "it is mounted at {} ({}), which is not the SELinux context that it was staged with",
                self.mounted_at.display(),
                source.super_options
            );
            return Err(Fault::new(Code::InUse, self.object(), cause).hint("unstage it, and stage it again"));
        }
        if let Some(found) = topmost(&table, place.real_path()) {
            return self.check_same(source, found);
        }
        let is_other = |mount: &&MountInfo| {
            is_same(self.is_raw, mount, source) && mount.mount_point.starts_with(places.real_path())
        };
        if self.exclusive
            && let Some(other) = table.iter().find(is_other)
        {
            let cause = format!(
                "its access mode allows one pod, and it is already published at {}",
                other.mount_point.display()
            );
            return Err(Fault::new(Code::InUse, self.object(), cause));
        }
        match self.is_raw {
            true => place.bind_device(&self.mounted_at),
            false => place.bind(&self.mounted_at, self.flags),
        }
        .map_err(fault)
    }

    /// Accepts a mount that an earlier request has made, and no other.
    fn check_same(&self, source: &MountInfo, found: &MountInfo) -> Result<(), Fault> {
        if (found.dev, &found.root) != (source.dev, &source.root) {
            let cause = format!("something else is mounted at {} ({})", self.target, found.source.display());
            return Err(Fault::new(Code::InUse, TARGET, cause).hint("unmount it"));
        }
        let has = |option: &str| found.options.split(',').any(|word| word == option);
        let lacks = |option: &str, wanted: bool| wanted && !has(option);
        let MountFlags { nosuid, nodev, noexec, readonly, .. } = self.flags;
        // A volume may be read-only for a reason of its own.
        let differs = readonly != has("ro") && (readonly || !source.is_readonly())
            || lacks("nosuid", nosuid)
            || lacks("nodev", nodev)
            || lacks("noexec", noexec);
        if !differs {
            return Ok(());
        }
        let cause = format!("it is published at {} with other options ({})", self.target, found.options);
        Err(Fault::new(Code::AlreadyExists, self.object(), cause))
    }

    fn object(&self) -> String {
        format!("volume {}", self.volume)
    }
}

/// Unmounts what a volume has mounted at the target, and nothing else: what covers the volume there, or is in its place, stays.
fn unpublish(settings: &Settings, roots: &Roots, volume: Option<&VolumeView>, target: &str) -> Result<(), Fault> {
    let fault = |error| paths::fault(TARGET, &error);
    let Some(place) = paths::place(settings, TARGET, target)? else { return Ok(()) };
    loop {
        let table = table(roots)?;
        let Some(found) = topmost(&table, place.real_path()) else { break };
        let source = found.source.display();
        let cause = match volume {
            Some(volume) if is_of(volume, found, &place, &table) => {
                place.unmount().map_err(fault)?;
                continue;
            }
            Some(_) => format!("something else is mounted at {target} ({source})"),
            None => format!(
                "{source} is mounted at {target}, and cannot be identified as the volume, which no longer exists"
            ),
        };
        return Err(Fault::new(Code::InUse, TARGET, cause).hint("unmount it"));
    }
    place.remove().map_err(fault)
}

/// Whether a mount at a place is one of a volume: by the daemon's mount, or, if that is lost, by the number of the device.
fn is_of(volume: &VolumeView, found: &MountInfo, place: &Place, table: &[MountInfo]) -> bool {
    let is_raw = volume.fs == VolumeFs::None;
    if let Some(source) = volume.mounted_at.as_deref().and_then(|at| topmost(table, at)) {
        return is_same(is_raw, found, source);
    }
    let Some(device) = volume.device.as_deref().and_then(|path| block::devno_of(Path::new(path)).ok()) else {
        return false;
    };
    if is_raw { place.device() == Some(device) } else { found.dev == device }
}

/// Whether a mount is one of the volume that is mounted as `source`. All nodes of devices are in one file system, and differ by their paths
/// in it.
pub(super) fn is_same(is_raw: bool, mount: &MountInfo, source: &MountInfo) -> bool {
    mount.dev == source.dev && (!is_raw || mount.root == source.root)
}

/// The mounts that this process sees.
pub(super) fn table(roots: &Roots) -> Result<Vec<MountInfo>, Fault> {
    mountinfo(roots).map_err(|error| Fault::new(Code::Internal, "mount table", error))
}

/// The topmost mount at a path.
pub(super) fn topmost<'a>(table: &'a [MountInfo], path: &Path) -> Option<&'a MountInfo> {
    table.iter().rfind(|mount| mount.mount_point == path)
}
