//! The block devices of volumes: their nodes, users, and the charging of their journals.

use std::path::PathBuf;

use bulkhead_core::action::DeviceRef;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::health::Backing;
use bulkhead_core::heat::ReadCounts;
use bulkhead_core::journal::Accounting;
use bulkhead_core::model::FsKind;
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_formats::{first_block, read_counts};
use bulkhead_sys::{block, cgroup, jbd2, lvm};
use uuid::Uuid;

use super::Kernel;
use super::faults::Classify;
use crate::host::{OpenDevice, Volumes};

impl Kernel {
    /// The node of a device that is open.
    pub(super) fn node(&self, device: &DeviceRef) -> Result<PathBuf, Fault> {
        match device {
            DeviceRef::Image { image, volume } => {
                let node = self.attached(image, *volume)?.map(|attached| attached.node(&self.roots));
                node.ok_or_else(|| Fault::new(Code::Internal, device, "it is not attached"))
            }
            DeviceRef::Lv { vg, lv } => Ok(lvm::node(vg, lv)),
        }
    }

    pub(super) fn kernel_name(&self, device: &DeviceRef) -> Result<(DevNo, String), Fault> {
        let dev = block::devno_of(&self.node(device)?).map_err(|e| e.fault(device))?;
        let name = block::name_of(&self.roots, dev).map_err(|e| e.fault(device))?;
        Ok((dev, name))
    }
}

impl Volumes for Kernel {
    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault> {
        match device {
            DeviceRef::Image { image, volume } => self.open_image(image, *volume),
            DeviceRef::Lv { vg, lv } => {
                let path = lvm::node(vg, lv);
                if !path.exists() {
                    return Ok(None);
                }
                let dev = block::devno_of(&path).map_err(|e| e.fault(device))?;
                let logical_block_bytes = block::logical_block_bytes(&self.roots, dev).ok();
                Ok(Some(OpenDevice { path, dev, backing: Backing::LogicalVolume, logical_block_bytes }))
            }
        }
    }

    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault> {
        let Some(open) = self.open_device(device)? else { return Ok(None) };
        let used = block::is_in_use(&self.roots, open.dev).map_err(|e| e.fault(device))?;
        Ok(used.map(|used| used.to_string()))
    }

    fn journal_bytes(&self, device: &DeviceRef) -> Result<Option<Bytes>, Fault> {
        let place = match (self.open_device(device)?, device) {
            (Some(open), _) => open.path,
            (None, DeviceRef::Image { image, .. }) if image.is_file() => image.clone(),
            (None, _) => return Ok(None),
        };
        first_block::journal_bytes(&place).map_err(|e| e.fault(device))
    }

    fn read_counts(&self, volume: Uuid) -> Result<ReadCounts, Fault> {
        read_counts::read(&self.roots, volume).map_err(|e| e.fault(format!("volume {volume}")))
    }

    fn accounting(&self, device: &DeviceRef, fs: Option<FsKind>, tenant: &Name) -> Accounting {
        if let DeviceRef::Image { image, volume } = device
            && let Some(accounting) = self.server_accounting(image, *volume, &slices::server(tenant))
        {
            return accounting;
        }
        let Some(fs) = fs else { return Accounting::Users };
        let journal_cgroup = slices::journal(tenant);
        let thread = self.kernel_name(device).and_then(|(_, name)| {
            let found = match fs {
                FsKind::Ext4 => jbd2::find_thread(&self.roots, &name),
                FsKind::Xfs => jbd2::find_xfsaild(&self.roots, &name),
            };
            found.map_err(|e| e.fault(device))
        });
        let pid = match thread {
            Ok(Some(pid)) => pid,
            Ok(None) => return Accounting::None { reason: "its journal thread was not found".to_owned() },
            Err(fault) => return Accounting::None { reason: fault.to_string() },
        };
        let found = match cgroup::cgroup_of(&self.roots, pid) {
            Ok(found) => found,
            Err(error) => return Accounting::None { reason: error.to_string() },
        };
        if found != journal_cgroup {
            let reason = format!("its journal thread (pid {pid}) is in cgroup {found}, not in {journal_cgroup}");
            return Accounting::None { reason };
        }
        match fs {
            FsKind::Ext4 => Accounting::JournalThread { pid, cgroup: journal_cgroup.to_string() },
            FsKind::Xfs => Accounting::Partial {
                limit: "XFS: log writes under fsync are charged to the caller and xfsaild to the journal cgroup; background \
                        log writes are made by kworkers, which cannot be moved, and are charged to the root cgroup"
                    .to_owned(),
            },
        }
    }
}
