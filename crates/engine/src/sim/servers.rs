//! Devices of volumes of the simulated host, and the servers of those that are images.

use std::collections::btree_map::Entry;
use std::path::PathBuf;

use bulkhead_core::action::{DeviceRef, ServerAction};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::health::Backing;
use bulkhead_core::heat::{HeatSource, ReadCounts};
use bulkhead_core::journal::Accounting;
use bulkhead_core::model::FsKind;
use bulkhead_core::name::Name;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::slices;
use bulkhead_core::units::{Bytes, DevNo};
use uuid::Uuid;

use super::lvm::logical_volume;
use super::{FileSystem, Sim, World};
use crate::host::{OpenDevice, Volumes};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_server(&mut self, action: &ServerAction) -> Result<bool, Fault> {
        use ServerAction as A;
        Ok(match action {
            A::AttachImage { spec: ServeSpec { image, volume, flatten, cgroup, .. }, .. } => {
                if *flatten {
                    // It takes no time here.
                    self.empty.remove(image);
                    self.below.insert(image.clone(), None);
                }
                let served = self.owners.entry(*volume).or_insert_with(|| image.clone());
                assert_eq!(served, image, "a volume's device is that of another image");
                let is_there = match logical_volume(image) {
                    Some(key) => self.volumes.contains_key(&key),
                    None => self.images.contains_key(image),
                };
                assert!(is_there, "a missing image was attached");
                assert!(
                    cgroup.as_ref().is_none_or(|cgroup| self.cgroups.contains_key(cgroup)),
                    "a server was started in a missing cgroup"
                );
                let place = self.attached.entry(image.clone());
                let is_new = matches!(place, Entry::Vacant(_));
                let place = place.or_default();
                let is_elsewhere = cgroup.is_some() && place != cgroup;
                if is_elsewhere {
                    place.clone_from(cgroup);
                }
                is_new || is_elsewhere
            }
            A::RefreshImage { .. } => true,
            A::DetachImage { image, volume } => {
                let device = DeviceRef::Image { image: image.clone(), volume: *volume };
                if self.is_mounted(&device) || self.busy.contains(image) {
                    return Err(Fault::new(Code::InUse, image.display(), "its device is mounted"));
                }
                self.owners.remove(volume).is_some_and(|image| self.attached.remove(&image).is_some())
            }
            A::RenewServer { image, .. } => self.attached.contains_key(image),
        })
    }
}

impl Volumes for Sim {
    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault> {
        let open = self.world().fs(device).is_ok();
        let path = PathBuf::from("/dev").join(device.to_string().replace(' ', "-"));
        let logical_block_bytes = Some(if matches!(device, DeviceRef::Image { .. }) { 4096 } else { 512 });
        let (dev, backing) = (DevNo::new(7, 0), Backing::LogicalVolume);
        Ok(open.then_some(OpenDevice { path, dev, backing, logical_block_bytes }))
    }

    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault> {
        let mut world = self.world();
        let is_held = matches!(device, DeviceRef::Image { image, .. } if world.busy.contains(image));
        let is_used = is_held && world.fs(device).is_ok() || world.is_mounted(device);
        Ok(is_used.then(|| "sda1 is mounted on /elsewhere in the mount namespace of process 7".to_owned()))
    }

    fn journal_bytes(&self, device: &DeviceRef) -> Result<Option<Bytes>, Fault> {
        let mut world = self.world();
        let of = |fs: &Option<FileSystem>| fs.as_ref().and_then(|fs| fs.journal);
        if let DeviceRef::Image { image, .. } = device
            && let Some((_, fs)) = world.images.get(image)
        {
            return Ok(of(fs));
        }
        Ok(world.fs(device).ok().and_then(|(fs, _)| of(fs)))
    }

    fn read_counts(&self, volume: Uuid) -> Result<ReadCounts, Fault> {
        let mut counts = ReadCounts::default();
        // A volume that is attached as a peer has read from one.
        if self.world().peers.contains_key(&volume) {
            counts.count(HeatSource::Peer(volume), 4096);
        }
        Ok(counts)
    }

    fn accounting(&self, _device: &DeviceRef, fs: Option<FsKind>, tenant: &Name) -> Accounting {
        if fs.is_none() {
            return Accounting::Users;
        }
        Accounting::JournalThread { pid: 1, cgroup: slices::journal(tenant).to_string() }
    }
}
