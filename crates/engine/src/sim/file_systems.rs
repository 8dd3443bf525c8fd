//! File systems of the simulated host.

use bulkhead_core::action::{DeviceRef, FsAction};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use super::lvm::node;
use super::{FileSystem, World};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_fs(&mut self, action: &FsAction) -> Result<bool, Fault> {
        use FsAction as A;
        Ok(match action {
            A::Mkfs { device, fs, .. } => {
                let (slot, size) = self.fs(device)?;
                assert!(slot.is_none(), "a file system was made over another one: data lost");
                *slot = Some(FileSystem::new(*fs, size));
                true
            }
            A::CheckFs { device, .. } | A::NewFsUuid { device, .. } => {
                if let (A::NewFsUuid { .. }, DeviceRef::Image { image, .. }) = (action, device) {
                    self.empty.remove(image);
                }
                assert!(!self.is_mounted(device), "a mounted file system was checked");
                self.fs(device)?.0.as_ref().ok_or_else(|| Fault::new(Code::Corrupt, device, "no file system"))?;
                true
            }
            A::StampFsUuid { image, .. } => {
                assert!(!self.attached.contains_key(image), "a served image was written to");
                self.empty.remove(image);
                self.images.get(image).and_then(|(_, fs)| fs.as_ref()).expect("there is a file system");
                true
            }
            A::GrowFs { device, fs, mounted_at } => {
                assert_eq!(self.is_mounted(device), mounted_at.is_some());
                assert!(*fs == FsKind::Ext4 || mounted_at.is_some(), "XFS was grown unmounted");
                if let DeviceRef::Lv { vg, lv } = device {
                    let is_unfilled = self.unfilled.contains_key(&node(vg, lv));
                    assert!(!is_unfilled, "a file system grew into unallocated space");
                }
                let (slot, size) = self.fs(device)?;
                let fs = slot.as_mut().expect("there is a file system");
                std::mem::replace(&mut fs.size, size) != size
            }
            A::ShrinkFs { device, size_bytes } => {
                assert!(!self.is_mounted(device), "a mounted file system was shrunk");
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                if *size_bytes < Bytes::mib(20) {
                    return Err(Fault::new(Code::NoSpace, device, "its files need more"));
                }
                fs.size = *size_bytes;
                true
            }
            A::RemoveJournal { device, wanted_bytes } => {
                assert!(!self.is_mounted(device), "the journal of a mounted file system was removed");
                let lacks_room = self.lacks_journal_room;
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                assert_eq!(fs.kind, FsKind::Ext4, "the log of an XFS was removed");
                if fs.journal == Some(*wanted_bytes) {
                    return Ok(false);
                }
                if lacks_room {
                    return Err(Fault::new(Code::NoSpace, device, "there is no room for such a journal"));
                }
                fs.journal.take().is_some()
            }
            A::MakeJournal { device, size_bytes } => {
                assert!(!self.is_mounted(device), "a journal was made in a mounted file system");
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                let is_new = fs.journal.is_none();
                fs.journal.get_or_insert(*size_bytes);
                is_new
            }
        })
    }

    pub(super) fn resize_under(fs: Option<&FileSystem>, to: Bytes) {
        assert!(fs.is_none_or(|fs| fs.size <= to), "a device became smaller than its file system: data lost");
    }
}
