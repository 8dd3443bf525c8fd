//! The protocol of the peer reader with block servers and the daemon (docs/sharing.md). Each message is one packet of a
//! `SOCK_SEQPACKET` socket. The first message of a connection is JSON; reads, which are frequent, have a binary format.
//!
//! Owns: the encoding. Does not: send or receive.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Maximum number of blocks in one read: a bit each in a 32-bit mask.
pub const MAX_BLOCKS: u32 = 32;

/// Size of the shared memory that found blocks are copied to.
pub const MEMORY_BYTES: usize = MAX_BLOCKS as usize * 4096;

/// Size limit of a packet.
pub const MAX_PACKET_BYTES: usize = 4096;

/// Size of an encoded [`Read`].
pub const READ_BYTES: usize = 16;

/// Size of an encoded [`Found`].
pub const FOUND_BYTES: usize = 24;

/// The first packet of a connection, which is also its request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum Hello {
    /// A block server is going to read blocks of a layer. The packet carries a descriptor of memory of [`MEMORY_BYTES`] that cannot be
    /// truncated (`F_SEAL_SHRINK`). Found blocks are at its beginning from the answer until the next read.
    Read {
        /// The layer.
        content: Uuid,
        /// Its index.
        index: PathBuf,
        /// The sharing domain of the server's volume.
        domain: String,
    },
    /// The daemon has mounted a volume. The packet carries a descriptor of its root directory.
    Attach {
        /// The volume.
        volume: Uuid,
        /// The number of its ublk device, by which servers identify it.
        id: u32,
        /// Its sharing domain.
        domain: String,
    },
    /// The daemon is about to unmount a volume.
    Detach {
        /// The volume.
        volume: Uuid,
    },
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The request was carried out.
    Done {
        /// Whether it changed anything.
        changed: bool,
    },
    /// The request was refused, with the reason.
    Refused(String),
}

/// Reads blocks of the layer in [`Hello::Read`] from the page cache of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The first block, counted in the layer.
    pub block: u64,
    /// Number of blocks, 1 to [`MAX_BLOCKS`].
    pub count: u32,
    /// Number of the peer's ublk device.
    pub peer: u32,
}

impl Read {
    /// The packet.
    #[must_use]
    pub fn encode(&self) -> [u8; READ_BYTES] {
        let mut bytes = [0; READ_BYTES];
        bytes[..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.count.to_le_bytes());
        bytes[12..].copy_from_slice(&self.peer.to_le_bytes());
        bytes
    }

    /// Decodes a packet; `None` if it is no valid read.
    #[must_use]
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; READ_BYTES] = packet.try_into().ok()?;
        let small = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let block = u64::from(small(4)) << 32 | u64::from(small(0));
        let read = Self { block, count: small(8), peer: small(12) };
        let fits = (1..=MAX_BLOCKS).contains(&read.count) && block <= u64::MAX / bulkhead_core::cow::BLOCK_BYTES - 64;
        fits.then_some(read)
    }
}

/// Which blocks of a [`Read`] were copied to the memory, each at its offset in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Found blocks: a bit for each, the first in the lowest bit.
    pub hits: u32,
    /// Blocks that belong to files by the index, and that a peer can have.
    pub of_files: u32,
    /// The volume of the peer.
    pub volume: Uuid,
}

impl Found {
    /// The answer for a peer that is not attached.
    pub const NOTHING: Self = Self { hits: 0, of_files: u32::MAX, volume: Uuid::nil() };

    /// The packet.
    #[must_use]
    pub fn encode(&self) -> [u8; FOUND_BYTES] {
        let mut bytes = [0; FOUND_BYTES];
        bytes[..4].copy_from_slice(&self.hits.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.of_files.to_le_bytes());
        bytes[8..].copy_from_slice(self.volume.as_bytes());
        bytes
    }

    /// Decodes a packet; `None` if it is invalid.
    #[must_use]
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; FOUND_BYTES] = packet.try_into().ok()?;
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self { hits: word(0)?, of_files: word(4)?, volume: Uuid::from_bytes(*bytes.last_chunk()?) })
    }
}

/// The access table of Zhao et al.: the last reader of each block of a layer in a sharing domain, as a file on tmpfs that all servers of
/// the domain have open. An entry has four bytes: the number of a ublk device plus one, or 0.
///
/// It is not locked: a lost or torn entry costs a read of the disk, and a wrong one is detected by the block's hash.
pub mod access {
    /// Prefix of the names of tables.
    pub const PREFIX: &str = "access-";

    /// Size of an entry.
    pub const ENTRY_BYTES: usize = 4;

    /// The entry of a reader.
    #[must_use]
    pub fn entry(id: u32) -> [u8; ENTRY_BYTES] {
        id.saturating_add(1).to_le_bytes()
    }

    /// The reader in an entry.
    #[must_use]
    pub fn reader(entry: [u8; ENTRY_BYTES]) -> Option<u32> {
        u32::from_le_bytes(entry).checked_sub(1)
    }

    /// The file name of a table.
    #[must_use]
    pub fn file_name(content: uuid::Uuid, domain: &str) -> String {
        let hash = blake3::Hasher::new_derive_key("bulkhead 2026-11 name of an access table")
            .update(content.as_bytes())
            .update(domain.as_bytes())
            .finalize();
        format!("{PREFIX}{}", &hash.to_hex()[..32])
    }
}

#[cfg(test)]
mod tests;
