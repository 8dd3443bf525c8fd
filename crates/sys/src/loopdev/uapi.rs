//! Requests and structures of the loop driver (kernel `include/uapi/linux/loop.h`).

use std::ffi::c_void;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// Request numbers (include/uapi/linux/loop.h).
pub(super) mod request {
    use rustix::ioctl::Opcode;

    pub(in super::super) const LOOP_CLR_FD: Opcode = 0x4C01;
    pub(in super::super) const LOOP_SET_STATUS64: Opcode = 0x4C04;
    pub(in super::super) const LOOP_GET_STATUS64: Opcode = 0x4C05;
    pub(in super::super) const LOOP_SET_CAPACITY: Opcode = 0x4C07;
    pub(in super::super) const LOOP_SET_DIRECT_IO: Opcode = 0x4C08;
    pub(in super::super) const LOOP_CONFIGURE: Opcode = 0x4C0A;
    pub(in super::super) const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
}

/// `LO_FLAGS_READ_ONLY` (include/uapi/linux/loop.h).
pub(super) const LO_FLAGS_READ_ONLY: u32 = 1;

/// `LO_FLAGS_AUTOCLEAR` (include/uapi/linux/loop.h).
pub(super) const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `LO_FLAGS_DIRECT_IO` (include/uapi/linux/loop.h).
pub(super) const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `LO_NAME_SIZE` (include/uapi/linux/loop.h).
pub(super) const LO_NAME_SIZE: usize = 64;

/// `struct loop_info64` (include/uapi/linux/loop.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopInfo64 {
    pub(super) lo_device: u64,
    pub(super) lo_inode: u64,
    pub(super) lo_rdevice: u64,
    pub(super) lo_offset: u64,
    pub(super) lo_sizelimit: u64,
    pub(super) lo_number: u32,
    pub(super) lo_encrypt_type: u32,
    pub(super) lo_encrypt_key_size: u32,
    pub(super) lo_flags: u32,
    pub(super) lo_file_name: [u8; LO_NAME_SIZE],
    pub(super) lo_crypt_name: [u8; LO_NAME_SIZE],
    pub(super) lo_encrypt_key: [u8; 32],
    pub(super) lo_init: [u64; 2],
}

/// `struct loop_config` (include/uapi/linux/loop.h), since Linux 5.8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopConfig {
    pub(super) fd: u32,
    pub(super) block_size: u32,
    pub(super) info: LoopInfo64,
    pub(super) reserved: [u64; 8],
}

impl LoopConfig {
    pub(super) const ZERO: LoopConfig = LoopConfig {
        fd: 0,
        block_size: 0,
        info: LoopInfo64 {
            lo_device: 0,
            lo_inode: 0,
            lo_rdevice: 0,
            lo_offset: 0,
            lo_sizelimit: 0,
            lo_number: 0,
            lo_encrypt_type: 0,
            lo_encrypt_key_size: 0,
            lo_flags: 0,
            lo_file_name: [0; LO_NAME_SIZE],
            lo_crypt_name: [0; LO_NAME_SIZE],
            lo_encrypt_key: [0; 32],
            lo_init: [0; 2],
        },
        reserved: [0; 8],
    };
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<LoopInfo64>() == 232);
    assert!(offset_of!(LoopInfo64, lo_sizelimit) == 32);
    assert!(offset_of!(LoopInfo64, lo_number) == 40);
    assert!(offset_of!(LoopInfo64, lo_flags) == 52);
    assert!(offset_of!(LoopInfo64, lo_file_name) == 56);
    assert!(offset_of!(LoopInfo64, lo_init) == 216);
    assert!(size_of::<LoopConfig>() == 304);
    assert!(offset_of!(LoopConfig, info) == 8);
    assert!(offset_of!(LoopConfig, reserved) == 240);
};

/// `LOOP_CTL_GET_FREE`: takes no argument and returns the number of a free device.
pub(super) struct GetFree;

// SAFETY: the request takes no argument (the null pointer is not dereferenced), writes no memory of ours, and returns a plain
// number, which `output_from_ptr` reads as such.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        request::LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::RANGE)
    }
}
