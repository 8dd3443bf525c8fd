//! The driver's user-space interface (`include/uapi/linux/ublk_cmd.h`).
//!
//! Pure: encodes and decodes structures. Their layout is stable ABI; their sizes are encoded in the command numbers, so that the kernel
//! refuses a wrong size.

use bulkhead_core::units::Bytes;
use rustix::ioctl::Opcode;
use rustix::ioctl::opcode::{read, read_write};

/// `struct ublksrv_ctrl_cmd`.
type CtrlCmd = [u8; 32];
/// `struct ublksrv_io_cmd`.
pub(super) type IoCmd = [u8; 16];
/// `struct ublksrv_ctrl_dev_info`.
pub(super) type DevInfo = [u8; 64];
/// `struct ublk_params` as far as `discard`; later members are not used.
pub(super) type Params = [u8; 60];

/// A command to `/dev/ublk-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) name: &'static str,
    pub(super) opcode: Opcode,
}

const fn writes(name: &'static str, number: u8) -> Command {
    Command { name, opcode: read_write::<CtrlCmd>(b'u', number) }
}

const fn reads(name: &'static str, number: u8) -> Command {
    Command { name, opcode: read::<CtrlCmd>(b'u', number) }
}

pub(super) const GET_DEV_INFO: Command = reads("UBLK_U_CMD_GET_DEV_INFO", 0x02);
pub(super) const ADD_DEV: Command = writes("UBLK_U_CMD_ADD_DEV", 0x04);
pub(super) const START_DEV: Command = writes("UBLK_U_CMD_START_DEV", 0x06);
pub(super) const STOP_DEV: Command = writes("UBLK_U_CMD_STOP_DEV", 0x07);
pub(super) const SET_PARAMS: Command = writes("UBLK_U_CMD_SET_PARAMS", 0x08);
pub(super) const START_USER_RECOVERY: Command = writes("UBLK_U_CMD_START_USER_RECOVERY", 0x10);
pub(super) const END_USER_RECOVERY: Command = writes("UBLK_U_CMD_END_USER_RECOVERY", 0x11);
pub(super) const GET_FEATURES: Command = reads("UBLK_U_CMD_GET_FEATURES", 0x13);
pub(super) const DEL_DEV_ASYNC: Command = reads("UBLK_U_CMD_DEL_DEV_ASYNC", 0x14);
pub(super) const UPDATE_SIZE: Command = writes("UBLK_U_CMD_UPDATE_SIZE", 0x15);

/// `UBLK_U_IO_FETCH_REQ`.
pub(super) const FETCH_REQ: Opcode = read_write::<IoCmd>(b'u', 0x20);
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
pub(super) const COMMIT_AND_FETCH_REQ: Opcode = read_write::<IoCmd>(b'u', 0x21);

/// `UBLK_F_USER_RECOVERY`.
pub(super) const F_USER_RECOVERY: u64 = 1 << 3;
/// `UBLK_F_USER_RECOVERY_REISSUE`.
pub(super) const F_USER_RECOVERY_REISSUE: u64 = 1 << 4;
/// `UBLK_F_CMD_IOCTL_ENCODE`.
pub(super) const F_CMD_IOCTL_ENCODE: u64 = 1 << 6;
/// `UBLK_F_NO_AUTO_PART_SCAN`: the kernel does not scan for a partition table.
pub(super) const F_NO_AUTO_PART_SCAN: u64 = 1 << 18;
/// `UBLK_F_UPDATE_SIZE`.
pub(super) const F_UPDATE_SIZE: u64 = 1 << 10;

/// `UBLK_MAX_QUEUE_DEPTH`.
pub(super) const MAX_QUEUE_DEPTH: u64 = 4096;
/// Size of `struct ublksrv_io_desc`.
pub(super) const DESCRIPTOR_BYTES: usize = 24;

/// `UBLK_IO_RES_OK`.
pub(super) const IO_RES_OK: i32 = 0;

const ATTR_READ_ONLY: u32 = 1 << 0;
const ATTR_ROTATIONAL: u32 = 1 << 1;
const ATTR_VOLATILE_CACHE: u32 = 1 << 2;
const ATTR_FUA: u32 = 1 << 3;
const PARAM_TYPE_BASIC: u32 = 1 << 0;
const PARAM_TYPE_DISCARD: u32 = 1 << 1;
const SECTOR_SHIFT: u32 = 9;

/// The command part of a 128-byte SQE for a control command; `buffer` is an address and its length.
pub(super) fn ctrl_cmd(id: u32, buffer: (u64, u16), data: u64) -> [u8; 80] {
    let mut cmd = [0; 80];
    cmd[0..4].copy_from_slice(&id.to_ne_bytes());
    // No queue.
    cmd[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    cmd[6..8].copy_from_slice(&buffer.1.to_ne_bytes());
    cmd[8..16].copy_from_slice(&buffer.0.to_ne_bytes());
    cmd[16..24].copy_from_slice(&data.to_ne_bytes());
    cmd
}

/// Fetches a request for a tag, and commits the result of the previous one.
pub(super) fn io_cmd(queue: u16, tag: u16, result: i32, buffer: u64) -> IoCmd {
    let mut cmd = [0; 16];
    cmd[0..2].copy_from_slice(&queue.to_ne_bytes());
    cmd[2..4].copy_from_slice(&tag.to_ne_bytes());
    cmd[4..8].copy_from_slice(&result.to_ne_bytes());
    cmd[8..16].copy_from_slice(&buffer.to_ne_bytes());
    cmd
}

/// The driver's description of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) queues: u16,
    pub(super) depth: u16,
    pub(super) state: u16,
    pub(super) max_io_bytes: u32,
    pub(super) id: u32,
    pub(super) pid: i32,
    pub(super) flags: u64,
    pub(super) owner: u64,
}

impl Info {
    pub(super) fn encode(&self) -> DevInfo {
        let mut bytes = [0; 64];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.state.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.max_io_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.owner.to_ne_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &DevInfo) -> Self {
        Self {
            queues: u16::from_ne_bytes(bytes_at(bytes, 0)),
            depth: u16::from_ne_bytes(bytes_at(bytes, 2)),
            state: u16::from_ne_bytes(bytes_at(bytes, 4)),
            max_io_bytes: u32::from_ne_bytes(bytes_at(bytes, 8)),
            id: u32::from_ne_bytes(bytes_at(bytes, 12)),
            pid: i32::from_ne_bytes(bytes_at(bytes, 16)),
            flags: u64::from_ne_bytes(bytes_at(bytes, 24)),
            owner: u64::from_ne_bytes(bytes_at(bytes, 32)),
        }
    }
}

/// The driver's description of a request (`struct ublksrv_io_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) op: u8,
    pub(super) fua: bool,
    pub(super) keeps_space: bool,
    pub(super) offset: u64,
    pub(super) len: u64,
}

const IO_F_FUA: u32 = 1 << 13;
const IO_F_NOUNMAP: u32 = 1 << 15;

impl Descriptor {
    pub(super) fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let op_flags = u32::from_ne_bytes(bytes_at(bytes, 0));
        Self {
            op: op_flags.to_le_bytes()[0],
            fua: op_flags & IO_F_FUA != 0,
            keeps_space: op_flags & IO_F_NOUNMAP != 0,
            offset: u64::from_ne_bytes(bytes_at(bytes, 8)) << SECTOR_SHIFT,
            len: u64::from(u32::from_ne_bytes(bytes_at(bytes, 4))) << SECTOR_SHIFT,
        }
    }
}

/// `struct ublk_params` for a device of ours.
pub(super) fn params(params: &super::Params, max_io_bytes: u32) -> Params {
    let attrs = if params.volatile_cache { ATTR_VOLATILE_CACHE | ATTR_FUA } else { 0 }
        | if params.read_only { ATTR_READ_ONLY } else { 0 }
        | if params.rotational { ATTR_ROTATIONAL } else { 0 };
    let block_shift = params.block_bytes.ilog2().to_le_bytes()[0];
    let mut bytes: Params = [0; 60];
    bytes[0..4].copy_from_slice(&60u32.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(PARAM_TYPE_BASIC | PARAM_TYPE_DISCARD).to_ne_bytes());
    bytes[8..12].copy_from_slice(&attrs.to_ne_bytes());
    bytes[12] = block_shift;
    // Physical block size, optimal and minimal I/O size: the unit of the host's page cache and file systems.
    bytes[13..16].copy_from_slice(&[12, 12, 12]);
    bytes[16..20].copy_from_slice(&(max_io_bytes >> SECTOR_SHIFT).to_ne_bytes());
    bytes[24..32].copy_from_slice(&(params.size.0 >> SECTOR_SHIFT).to_ne_bytes());
    bytes[44..48].copy_from_slice(&params.block_bytes.to_ne_bytes());
    bytes[48..52].copy_from_slice(&sectors(params.max_discard).to_ne_bytes());
    bytes[52..56].copy_from_slice(&sectors(params.max_zeroes).to_ne_bytes());
    bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
    bytes
}

fn sectors(size: Bytes) -> u32 {
    u32::try_from(size.0 >> SECTOR_SHIFT).unwrap_or(u32::MAX)
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[offset + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_numbers() {
        // As computed by _IOWR and _IOR of <sys/ioctl.h> from the structures in <linux/ublk_cmd.h>.
        assert_eq!(ADD_DEV.opcode, 0xc020_7504);
        assert_eq!(GET_DEV_INFO.opcode, 0x8020_7502);
        assert_eq!(GET_FEATURES.opcode, 0x8020_7513);
        assert_eq!(FETCH_REQ, 0xc010_7520);
        assert_eq!(COMMIT_AND_FETCH_REQ, 0xc010_7521);
    }

    #[test]
    fn structures_round_trip() {
        let info =
            Info { queues: 2, depth: 64, state: 2, max_io_bytes: 1 << 17, id: 7, pid: 4711, flags: 0x58, owner: 9 };
        assert_eq!(Info::decode(&info.encode()), info);
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[0..4].copy_from_slice(&(1 | IO_F_FUA).to_ne_bytes());
        descriptor[4..8].copy_from_slice(&8u32.to_ne_bytes());
        descriptor[8..16].copy_from_slice(&16u64.to_ne_bytes());
        let wanted = Descriptor { op: 1, fua: true, keeps_space: false, offset: 8192, len: 4096 };
        assert_eq!(Descriptor::decode(&descriptor), wanted);
    }

    #[test]
    fn parameters_are_encoded_at_the_drivers_offsets() {
        let device = super::super::Params {
            size: Bytes::mib(64),
            block_bytes: 4096,
            read_only: false,
            rotational: true,
            volatile_cache: true,
            max_discard: Bytes(0),
            max_zeroes: Bytes::mib(1),
        };
        let bytes = params(&device, 1 << 17);
        assert_eq!(u32::from_ne_bytes(bytes_at(&bytes, 8)), 0b1110, "rotating, volatile cache, FUA");
        assert_eq!(bytes[12], 12, "4096-byte blocks");
        let without = params(&super::super::Params { volatile_cache: false, ..device }, 1 << 17);
        assert_eq!(u32::from_ne_bytes(bytes_at(&without, 8)), 0b0010, "no volatile cache");
        assert_eq!(u32::from_ne_bytes(bytes_at(&bytes, 16)), 256, "largest request in sectors");
        assert_eq!(u64::from_ne_bytes(bytes_at(&bytes, 24)), 131_072, "size in sectors");
        assert_eq!(u32::from_ne_bytes(bytes_at(&bytes, 48)), 0, "no discard");
        assert_eq!(u32::from_ne_bytes(bytes_at(&bytes, 52)), 2048, "zeroes in sectors");
    }
}
