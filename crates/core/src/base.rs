//! Names of bases: an imported file system is named after its content, so that importing the same content again gives
//! the same base.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

use crate::cow::BLOCK_BYTES;
use crate::units::Bytes;

/// The content UUID of a staging file while a base is being built in it.
pub const IMPORTING: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0000);

/// Context of key derivation (BLAKE3), which separates these hashes from all others.
const CONTEXT: &str = "bulkhead 2026-11 name of a base";

/// An extended attribute of the source that files of an imported image do not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeftOut {
    /// Its name; `(others)` for the rest of a long list.
    pub attribute: String,
    /// Why it was omitted.
    pub reason: String,
    /// Number of entries of the source that have it.
    pub entries: u64,
    /// The first such entry.
    pub example: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attribute, reason, entries, example } = self;
        let noun = if *entries == 1 { "entry" } else { "entries" };
        write!(f, "{attribute} of {entries} {noun} such as \"{example}\": {reason}")
    }
}

/// Whether content was imported: its UUID is of version 8. Other content has random UUIDs.
#[must_use]
pub fn is_base(content: Uuid) -> bool {
    content.get_version_num() == 8
}

/// Computes the name of a base from its size and its non-zero blocks.
#[derive(Debug)]
pub struct ContentHasher {
    /// Hashes the size, and the blocks' offsets.
    places: blake3::Hasher,
    blocks: blake3::Hasher,
}

impl ContentHasher {
    /// A base of this size, without blocks so far.
    #[must_use]
    pub fn new(size: Bytes) -> Self {
        let mut places = blake3::Hasher::new_derive_key(CONTEXT);
        places.update(&size.0.to_le_bytes());
        Self { places, blocks: blake3::Hasher::new() }
    }

    /// Adds whole blocks in ascending order. How they are divided into runs makes no difference.
    pub fn add(&mut self, offset: u64, run: &[u8]) {
        debug_assert!(offset.is_multiple_of(BLOCK_BYTES) && (run.len() as u64).is_multiple_of(BLOCK_BYTES));
        self.blocks.update(run);
        for n in 0..run.len() as u64 / BLOCK_BYTES {
            self.places.update(&(offset + n * BLOCK_BYTES).to_le_bytes());
        }
    }

    /// The name: a UUID of version 8 (RFC 9562), with 122 bits of a BLAKE3 hash.
    #[must_use]
    pub fn name(&self) -> Uuid {
        let mut places = self.places.clone();
        places.update(self.blocks.finalize().as_bytes());
        let mut bytes = [0; 16];
        places.finalize_xof().fill(&mut bytes);
        Builder::from_custom_bytes(bytes).into_uuid()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_content_only() {
        let name = |size: u64, parts: &[(u64, Vec<u8>)]| {
            let mut contents = ContentHasher::new(Bytes(size));
            parts.iter().for_each(|(at, run)| contents.add(*at, run));
            contents.name()
        };
        let (one, two) = (vec![1; 4096], vec![2; 4096]);
        let both = [one.clone(), two.clone()].concat();
        let first = name(1 << 20, &[(4096, both.clone())]);
        assert_eq!(first, name(1 << 20, &[(4096, one.clone()), (8192, two.clone())]));
        assert!(is_base(first) && is_base(IMPORTING) && !is_base(Uuid::from_u128(7)) && !is_base(Uuid::nil()));
        let others = [
            name(2 << 20, &[(4096, both.clone())]),
            name(1 << 20, &[(0, both)]),
            name(1 << 20, &[(4096, one.clone()), (12288, two.clone())]),
            name(1 << 20, &[(4096, two), (8192, one)]),
            name(1 << 20, &[]),
        ];
        assert!(others.iter().all(|other| *other != first), "{others:?}");
    }
}
