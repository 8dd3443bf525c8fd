//! Names of bases: an imported file system is called by what it holds, so that the same import gives the same base.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::{Builder, Uuid};

use crate::cow::BLOCK_BYTES;
use crate::units::Bytes;

/// What a part is called while a base is being made in it.
pub const IMPORTING: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0000);

/// What goes before everything else, so that no other hash of ours is one of these.
const CONTEXT: &str = "bulkhead 2026-11 name of a base";

/// An extended attribute that files of an imported image do not have, although its source has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LeftOut {
    /// Its name; `(others)` for what is too much to be named.
    pub attribute: String,
    /// Why they do not have it.
    pub reason: String,
    /// How many entries of the source have it.
    pub entries: u64,
    /// The first of these.
    pub example: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attribute, reason, entries, example } = self;
        let noun = if *entries == 1 { "entry" } else { "entries" };
        write!(f, "{attribute} of {entries} {noun} such as \"{example}\": {reason}")
    }
}

/// Whether an import gave something its name; what is sent and received has random ones.
#[must_use]
pub fn is_base(content: Uuid) -> bool {
    content.get_version_num() == 8
}

/// Works out the name of a base from its size and its blocks that are not zero.
#[derive(Debug)]
pub struct Contents {
    /// The size, and where the blocks are.
    places: blake3::Hasher,
    blocks: blake3::Hasher,
}

impl Contents {
    /// A base of this size, without any block so far.
    #[must_use]
    pub fn new(size: Bytes) -> Self {
        let mut places = blake3::Hasher::new_derive_key(CONTEXT);
        places.update(&size.0.to_le_bytes());
        Self { places, blocks: blake3::Hasher::new() }
    }

    /// Adds whole blocks, which follow those before. How they are cut into runs makes no difference.
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
    fn a_name_follows_from_what_there_is() {
        let name = |size: u64, parts: &[(u64, Vec<u8>)]| {
            let mut contents = Contents::new(Bytes(size));
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
