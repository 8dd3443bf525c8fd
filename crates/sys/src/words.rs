//! 64-bit words in a file that several processes map, each word read and written as a whole.
//!
//! The file must be one that only root can truncate: access beyond its end would kill the process (SIGBUS).

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{fstat, ftruncate};
use rustix::mm::ProtFlags;

use crate::mapping::Mapping;

const WORD_BYTES: usize = size_of::<u64>();

/// Words of a mapped file, unmapped on drop. All accesses are sequentially consistent, in all processes together.
pub struct Words(Mapping);

// SAFETY: it is the address of memory that stays mapped during the lifetime of this value, and is accessed by atomic operations only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Words").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Words {
    /// Maps the first `len` words of a file, which is extended by zeroes if it is shorter.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(file: &File, len: usize) -> io::Result<Self> {
        let bytes = len.saturating_mul(WORD_BYTES);
        if usize::try_from(fstat(file)?.st_size).is_ok_and(|size| size < bytes) {
            ftruncate(file, bytes as u64)?;
        }
        Ok(Self(Mapping::shared(file, bytes, 0, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len / WORD_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A word; 0 beyond the end.
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |word| word.load(Ordering::SeqCst))
    }

    /// Sets a word; nothing beyond the end.
    pub fn set(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::SeqCst);
        }
    }

    /// Adds to a word, modulo 2^64; nothing beyond the end.
    pub fn add(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.fetch_add(value, Ordering::SeqCst);
        }
    }

    /// Sets a word to 0 and returns what it was; 0 beyond the end.
    #[must_use]
    pub fn take(&self, index: usize) -> u64 {
        self.word(index).map_or(0, |word| word.swap(0, Ordering::SeqCst))
    }

    /// Sets a word if it is still `from`, and says whether it was.
    #[must_use]
    pub fn replace(&self, index: usize, from: u64, to: u64) -> bool {
        self.word(index).is_some_and(|word| word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: the word is within the mapping, as was just checked.
        let place = unsafe { self.0.start.cast::<u64>().add(index) };
        // SAFETY: mapped during the borrow of `self`, aligned because a mapping begins at a page, and accessed by atomic operations only, by
        // this process and others.
        Some(unsafe { AtomicU64::from_ptr(place.as_ptr()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shared_and_the_file_is_only_extended() {
        let file = tempfile::tempfile().unwrap();
        let one = Words::open(&file, 4).unwrap();
        let other = Words::open(&file.try_clone().unwrap(), 2).unwrap();
        assert_eq!((one.len(), other.len(), file.metadata().unwrap().len()), (4, 2, 32));
        one.set(1, u64::MAX);
        assert_eq!((other.get(1), other.get(2)), (u64::MAX, 0));
        assert!(other.replace(1, u64::MAX, 7) && !other.replace(1, u64::MAX, 8));
        other.set(2, 9);
        assert_eq!((one.get(1), one.get(2), one.get(4)), (7, 0, 0));
        other.add(1, 3);
        assert_eq!((one.take(1), other.get(1), one.take(4)), (10, 0, 0));
    }
}
