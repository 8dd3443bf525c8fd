//! The medium of a simulated disk in virtual time: host memory that the guest sees as the memory of a PCI device
//! (ivshmem).
//!
//! The disk's server runs in the guest (`bulkhead-lab-disk`), so that its times are on the guest's clock. All written
//! data lies here and outlives the machine, flushed or not. The memory belongs to this process and is freed with it,
//! however it ends. Does not: serve requests.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};

use super::DiskSpec;

/// PCI slot of the first disk; QEMU assigns lower slots to other devices.
const FIRST_SLOT: usize = 0x10;
/// Number of slots of a PCI bus.
const SLOTS: usize = 0x1f;

/// The medium of one disk.
#[derive(Debug)]
pub(super) struct Memory {
    fd: OwnedFd,
    size_bytes: u64,
    slot: usize,
}

impl Memory {
    /// Creates an empty medium. Host memory is used only for written blocks.
    pub(super) fn create(spec: DiskSpec, index: usize) -> Result<Self> {
        let slot = FIRST_SLOT + index;
        if slot >= SLOTS {
            bail!("a machine in virtual time has {} disks at most", SLOTS - FIRST_SLOT);
        }
        let fd = memfd_create("bulkhead-lab-disk", MemfdFlags::CLOEXEC).context("cannot allocate memory for a disk")?;
        let size_bytes = u64::from(spec.size_mib) << 20;
        // QEMU requires a power of two for the memory of a PCI device.
        ftruncate(&fd, size_bytes.next_power_of_two()).context("cannot allocate memory for a disk")?;
        Ok(Self { fd, size_bytes, slot })
    }

    /// Empties the medium, so that it reads as zeroes.
    pub(super) fn erase(&self) -> Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.fd, mode, 0, self.size_bytes.next_power_of_two()).context("cannot empty the memory of a disk")
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its path in the guest.
    pub(super) fn guest_path(&self) -> String {
        format!("/sys/bus/pci/devices/0000:00:{:02x}.0/resource2", self.slot)
    }

    pub(super) fn qemu_options(&self, serial: &str) -> Vec<String> {
        // Through /proc, so that no file is left when this process is killed.
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd());
        let size = self.size_bytes.next_power_of_two();
        vec![
            "-object".to_owned(),
            format!("memory-backend-file,id={serial},size={size},mem-path={path},share=on"),
            "-device".to_owned(),
            format!("ivshmem-plain,memdev={serial},bus=pcie.0,addr={:#x}", self.slot),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskModel;

    #[test]
    fn each_disk_has_its_own_slot() {
        let disk = |index| Memory::create(DiskSpec::new(DiskModel::Fast, 3), index);
        assert_eq!(disk(0).unwrap().guest_path(), "/sys/bus/pci/devices/0000:00:10.0/resource2");
        let options = disk(1).unwrap().qemu_options("fast1");
        assert!(options[1].contains("size=4194304,") && options[3].ends_with("addr=0x11"), "{options:?}");
        assert!(disk(SLOTS).unwrap_err().to_string().contains("15 disks"));
    }

    #[test]
    fn an_erased_medium_uses_no_memory() {
        let memory = Memory::create(DiskSpec::new(DiskModel::Fast, 1), 0).unwrap();
        rustix::io::pwrite(&memory.fd, &[1; 8192], 0).unwrap();
        memory.erase().unwrap();
        assert_eq!(rustix::fs::fstat(&memory.fd).unwrap().st_blocks, 0);
    }
}
