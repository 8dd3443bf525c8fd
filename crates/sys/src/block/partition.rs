//! Partitions without a partition table: created and removed by the ioctl `BLKPG` (`<linux/blkpg.h>`).
//!
//! They last as long as the disk. Does not: read or write partition tables.

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};

use bulkhead_core::units::Bytes;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `BLKPG`.
const BLKPG: Opcode = opcode::none(0x12, 105);
const ADD_PARTITION: c_int = 1;
const DEL_PARTITION: c_int = 2;
const RESIZE_PARTITION: c_int = 3;

/// Maximum number of partitions that the kernel reads from a table (`DISK_MAX_PARTS`).
const MAX_FOUND: c_int = 256;

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct Argument {
    op: c_int,
    flags: c_int,
    datalen: c_int,
    data: *const Partition,
}

/// `struct blkpg_partition`; the names are not used by the kernel.
#[repr(C)]
struct Partition {
    start: i64,
    length: i64,
    number: c_int,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

const _: () = assert!(size_of::<Partition>() == 152 && offset_of!(Partition, device_name) == 20);

/// Makes the first `size` bytes of a disk its only partition, number 1. Partitions that were found in a table are removed.
///
/// # Errors
/// The kernel's: `EBUSY` if a partition is in use.
pub fn make_only(disk: &File, size: Bytes) -> io::Result<()> {
    remove_all(disk)?;
    change(disk, ADD_PARTITION, 1, size)
}

/// Removes all partitions of a disk from the kernel. Data on the disk is unchanged.
///
/// # Errors
/// The kernel's: `EBUSY` if a partition is in use.
pub fn remove_all(disk: &File) -> io::Result<()> {
    for number in 1..=MAX_FOUND {
        match change(disk, DEL_PARTITION, number, Bytes(0)) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Changes the size of partition 1, which starts at offset 0; it may be in use.
///
/// # Errors
/// The kernel's.
pub fn resize(disk: &File, size: Bytes) -> io::Result<()> {
    change(disk, RESIZE_PARTITION, 1, size)
}

fn change(disk: &File, op: c_int, number: c_int, size: Bytes) -> io::Result<()> {
    let length = i64::try_from(size.0).map_err(|_| io::ErrorKind::InvalidInput)?;
    let partition = Partition { start: 0, length, number, device_name: [0; 64], volume_name: [0; 64] };
    let datalen = c_int::try_from(size_of::<Partition>()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let argument = Argument { op, flags: 0, datalen, data: &raw const partition };
    // SAFETY: BLKPG takes a pointer to a `blkpg_ioctl_arg`, whose layout `Argument` has.
    let request = unsafe { Setter::<BLKPG, Argument>::new(argument) };
    // SAFETY: the partition that the argument points to outlives the call, and is only read.
    Ok(unsafe { ioctl(disk, request) }?)
}
