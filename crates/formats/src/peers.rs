//! What block servers, the daemon and the peer reader say to each other (docs/sharing.md). Each message is one packet of a
//! `SOCK_SEQPACKET` socket. Whoever connects says first who it is, as JSON; reads, of which there are many, have a form of their own.
//!
//! Owns: what the bytes mean. Does not: send or receive any.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The most blocks that are asked for at a time: one bit each in a word.
pub const MAX_BLOCKS: u32 = 32;

/// Bytes of the memory in which found blocks are handed over.
pub const MEMORY_BYTES: usize = MAX_BLOCKS as usize * 4096;

/// The longest packet, in bytes.
pub const MAX_PACKET_BYTES: usize = 4096;

/// Bytes of a read.
pub const READ_BYTES: usize = 16;

/// Bytes of what is said of the data that was found.
pub const FOUND_BYTES: usize = 24;

/// The first packet of a connection, and what is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case", deny_unknown_fields)]
pub enum Hello {
    /// A block server will ask for blocks of a layer. With the packet comes memory of [`MEMORY_BYTES`] that cannot be cut off
    /// (`F_SEAL_SHRINK`): what is found is at its beginning when the server hears of it, until it asks again.
    Read {
        /// The layer.
        content: Uuid,
        /// Its index.
        index: PathBuf,
        /// The sharing domain of the server's volume.
        domain: String,
    },
    /// The daemon has mounted a volume, whose root directory comes with the packet.
    Attach {
        /// The volume.
        volume: Uuid,
        /// The number of its ublk device, by which servers know it.
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
    /// It is so now; whether it was not before.
    Done {
        /// Whether anything changed.
        changed: bool,
    },
    /// Why not.
    Refused(String),
}

/// Asks for blocks of the layer that was named in [`Hello::Read`], from what a peer has in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The first, counted in the layer.
    pub block: u64,
    /// How many, 1 to [`MAX_BLOCKS`].
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

    /// Reads a packet; `None` for what is no read.
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

/// Which of the blocks that were asked for are in the memory, each at its place among all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// A bit for each block, the first the lowest.
    pub hits: u32,
    /// A bit for each that a peer could have had: those of files, by the index.
    pub of_files: u32,
    /// The volume of the peer that had them.
    pub volume: Uuid,
}

impl Found {
    /// Nothing, of a peer that has nothing at all.
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

    /// Reads a packet; `None` for what is none.
    #[must_use]
    pub fn decode(packet: &[u8]) -> Option<Self> {
        let bytes: &[u8; FOUND_BYTES] = packet.try_into().ok()?;
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self { hits: word(0)?, of_files: word(4)?, volume: Uuid::from_bytes(*bytes.last_chunk()?) })
    }
}

/// Who read each block of a layer last, in a sharing domain: the AccessTable of Zhao et al., as a file in memory that all servers
/// of the domain have open. For each block it has four bytes: one more than the number of a ublk device, or 0.
///
/// Nobody locks it: what is lost or torn costs a read from the disk, and what is wrong is found out by its hash.
pub mod access {
    /// How the names of tables begin.
    pub const PREFIX: &str = "access-";

    /// Bytes for each block.
    pub const ENTRY_BYTES: usize = 4;

    /// The entry of a reader.
    #[must_use]
    pub fn entry(id: u32) -> [u8; ENTRY_BYTES] {
        id.saturating_add(1).to_le_bytes()
    }

    /// The reader of an entry.
    #[must_use]
    pub fn reader(entry: [u8; ENTRY_BYTES]) -> Option<u32> {
        u32::from_le_bytes(entry).checked_sub(1)
    }

    /// The name of the table's file.
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
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn a_hello_is_read_as_it_is_written() {
        let all = [
            Hello::Read { content: Uuid::from_u128(7), index: "/pool/7.index".into(), domain: "pool/".into() },
            Hello::Attach { volume: Uuid::from_u128(8), id: 3, domain: "pool/a".into() },
            Hello::Detach { volume: Uuid::from_u128(8) },
        ];
        for hello in all {
            let text = serde_json::to_string(&hello).unwrap();
            assert_eq!(serde_json::from_str::<Hello>(&text).unwrap(), hello, "{text}");
        }
        assert!(serde_json::from_str::<Hello>(r#"{"say":"detach"}"#).is_err());
    }

    #[test]
    fn tables_of_other_domains_and_layers_are_others() {
        let name = |content, domain| access::file_name(Uuid::from_u128(content), domain);
        assert_eq!(name(1, "a/"), name(1, "a/"));
        assert!(name(1, "a/") != name(1, "a/b") && name(1, "a/") != name(2, "a/"));
        assert_eq!(access::reader(access::entry(5)), Some(5));
        assert_eq!(access::reader([0; 4]), None);
    }

    proptest! {
        #[test]
        fn a_read_is_read_as_it_is_written(block in 0..1u64 << 50, count in 1..=MAX_BLOCKS, peer in any::<u32>()) {
            let read = Read { block, count, peer };
            prop_assert_eq!(Read::decode(&read.encode()), Some(read));
            let found = Found { hits: peer, of_files: count, volume: Uuid::from_u128(block.into()) };
            prop_assert_eq!(Found::decode(&found.encode()), Some(found));
        }

        #[test]
        fn noise_does_no_harm(noise in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(read) = Read::decode(&noise) {
                prop_assert!(read.count >= 1 && read.count <= MAX_BLOCKS && read.block < u64::MAX / 4096);
            }
            let _ = Found::decode(&noise);
        }
    }
}
