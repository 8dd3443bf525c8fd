//! The slots of the block servers of one device (`bulkhead_core::arbiter`), in a file that all of them map
//! (`/run/bulkhead/blockd/turns/MAJOR:MINOR`), and the pipes by which they wake each other (`turns/UUID` of a volume).
//!
//! Owns: the layout, and which server has which slot. Does not: decide who submits, or trust what is in a slot.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use bulkhead_core::arbiter::{Nanos, Slot};
use bulkhead_core::units::DevNo;
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::words::Words;
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkfifoat, open, openat};
use rustix::io::Errno;
use uuid::Uuid;

use crate::servers;

/// Directory of the files, in the registry of block servers.
const DIR: &str = "turns";

/// The first word: this layout.
const LAYOUT: u64 = u64::from_be_bytes(*b"BHturns1");

/// Most servers of one device; others serve without turns.
pub const MAX_SLOTS: usize = 128;

/// Words before the slots, and of each slot: two cache lines.
const HEAD: usize = 16;
const SLOT: usize = 16;

/// Words of the head.
const ON: usize = 1;
const USED: usize = 2;

/// Words of a slot.
const PID: usize = 0;
const VOLUME: usize = 1;
const TENANT: usize = 3;
/// The share in the upper half, requests in the device in the lower one.
const SHARE: usize = 4;
const VIRTUAL: usize = 5;
const ASKED: usize = 6;
const WAITING: usize = 7;
const WINDOW: usize = 8;
const KEEPS: usize = 9;
const SEEN: usize = 10;
const COMPLETED: usize = 11;
const DIRTY: usize = 12;
const DIRTY_SINCE: usize = 13;
const FLUSHED: usize = 14;
const OWED: usize = 15;

/// The directory of tables and pipes.
#[must_use]
pub fn dir(roots: &Roots) -> PathBuf {
    servers::dir(roots).join(DIR)
}

/// The pipe of a volume's server.
#[must_use]
pub fn pipe(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(volume.to_string())
}

/// The slots of a device.
#[derive(Debug)]
pub struct Table(Words);

impl Table {
    /// Opens a device's table, and creates it if there is none.
    ///
    /// # Errors
    /// The operating system's; `InvalidData` if another version has made it.
    pub fn open(roots: &Roots, device: DevNo) -> io::Result<Self> {
        std::fs::create_dir_all(dir(roots))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(open(dir(roots).join(device.to_string()), flags, Mode::RUSR | Mode::WUSR)?);
        if !file.metadata()?.is_file() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let words = Words::open(&file, HEAD + MAX_SLOTS * SLOT)?;
        if !words.replace(0, 0, LAYOUT) && words.get(0) != LAYOUT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self(words))
    }

    /// Opens a device's table if there is one.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn find(roots: &Roots, device: DevNo) -> io::Result<Option<Self>> {
        let exists = dir(roots).join(device.to_string()).try_exists()?;
        exists.then(|| Self::open(roots, device)).transpose()
    }

    /// Whether servers take turns.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.get(ON) == 1
    }

    /// Lets all servers of the device take turns, or none.
    pub fn switch(&self, on: bool) {
        self.0.set(ON, u64::from(on));
    }

    /// Takes a slot for a volume's server, this process: the one that an earlier server of it had, a free one, or one whose server
    /// `is_gone`. `None` if there is none.
    #[must_use]
    pub fn claim(&self, volume: Uuid, pid: u32, is_gone: impl Fn(u32) -> bool) -> Option<usize> {
        let pid = u64::from(pid);
        let own = (0..self.used()).find(|index| self.volume(*index) == volume && self.word(*index, PID) != 0);
        let found = match own {
            // The volume's earlier server is gone: its device has no server while another is started.
            Some(index) => {
                self.set(index, PID, pid);
                index
            }
            None => (0..MAX_SLOTS).find(|index| {
                let was = self.word(*index, PID);
                let is_free = was == 0 || is_gone(u32::try_from(was).unwrap_or(0));
                is_free && self.0.replace(at(*index, PID), was, pid)
            })?,
        };
        let (high, low) = volume.as_u64_pair();
        for (word, value) in [(VOLUME, high), (VOLUME + 1, low), (SHARE, 0), (WAITING, 0), (WINDOW, 0), (KEEPS, 0)] {
            self.set(found, word, value);
        }
        let wanted = found as u64 + 1;
        loop {
            let used = self.0.get(USED);
            if used >= wanted || self.0.replace(USED, used, wanted) {
                return Some(found);
            }
        }
    }

    /// Gives a slot back.
    pub fn release(&self, index: usize) {
        for word in (0..SLOT).rev() {
            self.set(index, word, 0);
        }
    }

    /// How many slots were ever taken: the others are free.
    #[must_use]
    pub fn used(&self) -> usize {
        usize::try_from(self.0.get(USED)).map_or(MAX_SLOTS, |used| used.min(MAX_SLOTS))
    }

    /// The volume of a slot.
    #[must_use]
    pub fn volume(&self, index: usize) -> Uuid {
        Uuid::from_u64_pair(self.word(index, VOLUME), self.word(index, VOLUME + 1))
    }

    /// Copies all used slots.
    pub fn read(&self, slots: &mut Vec<Slot>) {
        slots.clear();
        slots.extend((0..self.used()).map(|index| self.slot(index)));
    }

    /// A slot, without what it has to pay; that of a server that was never seen if it is free.
    #[must_use]
    pub fn slot(&self, index: usize) -> Slot {
        if self.word(index, PID) == 0 {
            return Slot::default();
        }
        let (share, in_flight) = (self.word(index, SHARE) >> 32, self.word(index, SHARE) & u64::from(u32::MAX));
        let small = |n| u32::try_from(n).unwrap_or(u32::MAX);
        Slot {
            tenant: self.word(index, TENANT),
            share: small(share),
            virtual_ns: self.word(index, VIRTUAL),
            in_flight: small(in_flight),
            waiting_since: self.word(index, WAITING),
            window_until: self.word(index, WINDOW),
            keeps_since: self.word(index, KEEPS),
            last_seen: self.word(index, SEEN),
            last_completed: self.word(index, COMPLETED),
            dirty: self.word(index, DIRTY),
            dirty_since: self.word(index, DIRTY_SINCE),
            flushed_at: self.word(index, FLUSHED),
            asked_at: self.word(index, ASKED),
            owed: 0,
        }
    }

    /// Adds to what the server of a slot has to pay.
    pub fn owe(&self, index: usize, device_ns: Nanos) {
        self.0.add(at(index, OWED), device_ns);
    }

    /// What the server of a slot has to pay, which it has taken over then.
    #[must_use]
    pub fn take_owed(&self, index: usize) -> Nanos {
        self.0.take(at(index, OWED))
    }

    /// Shows a slot to the other servers, without what it has to pay.
    pub fn show(&self, index: usize, slot: &Slot) {
        for (word, value) in [
            (TENANT, slot.tenant),
            (SHARE, u64::from(slot.share) << 32 | u64::from(slot.in_flight)),
            (VIRTUAL, slot.virtual_ns),
            (ASKED, slot.asked_at),
            (WAITING, slot.waiting_since),
            (WINDOW, slot.window_until),
            (KEEPS, slot.keeps_since),
            (COMPLETED, slot.last_completed),
            (DIRTY, slot.dirty),
            (DIRTY_SINCE, slot.dirty_since),
            (FLUSHED, slot.flushed_at),
            (SEEN, slot.last_seen),
        ] {
            self.set(index, word, value);
        }
    }

    fn word(&self, index: usize, word: usize) -> u64 {
        self.0.get(at(index, word))
    }

    fn set(&self, index: usize, word: usize, value: u64) {
        self.0.set(at(index, word), value);
    }
}

fn at(index: usize, word: usize) -> usize {
    HEAD + index * SLOT + word
}

/// Makes the pipe of a volume's server, and opens it for reading. It never blocks and never ends.
///
/// # Errors
/// The operating system's; `InvalidData` if another kind of file has its name.
pub fn open_pipe(roots: &Roots, volume: Uuid) -> io::Result<File> {
    let path = pipe(roots, volume);
    match mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    // A pipe without a writer would be readable, at its end.
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    checked(open(path, flags, Mode::empty())?)
}

/// Opens the pipe of another volume's server for writing, in the [`dir`] that was opened earlier.
///
/// # Errors
/// The operating system's (`ENXIO` while no server has it open); `InvalidData` if another kind of file has its name.
pub fn open_pipe_of(directory: impl AsFd, volume: Uuid) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    checked(openat(directory, volume.to_string(), flags, Mode::empty())?)
}

fn checked(file: OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::Fifo => Ok(File::from(file)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Removes the pipe of a volume that no longer has a device.
///
/// # Errors
/// [`FileError`].
pub fn remove_pipe(roots: &Roots, volume: Uuid) -> Result<(), FileError> {
    file::remove_durable(&pipe(roots, volume)).map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    const DISK: DevNo = DevNo::new(8, 0);

    fn volume(n: u128) -> Uuid {
        Uuid::from_u128(n << 64 | n)
    }

    #[test]
    fn a_slot_is_seen_by_the_other_servers_and_kept_by_a_successor() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let (one, other) = (Table::open(&roots, DISK).unwrap(), Table::open(&roots, DISK).unwrap());
        let alive = |_| false;
        assert_eq!((one.claim(volume(1), 10, alive), other.claim(volume(2), 11, alive)), (Some(0), Some(1)));
        let slot = Slot { tenant: 3, share: 70, virtual_ns: 9, in_flight: 2, last_seen: 5, ..Slot::default() };
        one.show(0, &slot);
        let mut slots = Vec::new();
        other.read(&mut slots);
        assert_eq!((&slots[..], other.volume(0)), (&[slot, Slot::default()][..], volume(1)));
        assert_eq!(one.claim(volume(1), 12, alive), Some(0), "a successor has the slot of its volume");
        assert_eq!(
            one.slot(0),
            Slot { share: 0, in_flight: 0, ..slot },
            "and its virtual time, but nothing in the device"
        );
        other.release(1);
        assert_eq!(other.slot(1), Slot::default());
        assert_eq!(other.claim(volume(3), 13, |pid| pid == 12), Some(0), "a server that is gone leaves its slot");
        for n in 0..MAX_SLOTS as u128 - 1 {
            assert!(one.claim(volume(100 + n), 20, alive).is_some());
        }
        assert_eq!(one.claim(volume(99), 21, alive), None, "there are no more");
        other.owe(0, 5);
        other.owe(0, 6);
        assert_eq!((one.take_owed(0), one.take_owed(0)), (11, 0));
        assert!(!other.is_on());
        one.switch(true);
        assert!(other.is_on() && Table::find(&roots, DISK).unwrap().unwrap().is_on());
        assert!(Table::find(&roots, DevNo::new(8, 16)).unwrap().is_none());
    }

    #[test]
    fn a_table_of_another_version_or_kind_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        std::fs::create_dir_all(dir(&roots)).unwrap();
        std::fs::write(dir(&roots).join("8:0"), b"BHturns0").unwrap();
        assert_eq!(Table::open(&roots, DISK).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::os::unix::fs::symlink("/etc/passwd", dir(&roots).join("8:16")).unwrap();
        assert!(Table::open(&roots, DevNo { major: 8, minor: 16 }).is_err());
        std::fs::write(pipe(&roots, volume(1)), b"").unwrap();
        assert_eq!(open_pipe(&roots, volume(1)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn servers_wake_each_other() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        std::fs::create_dir_all(dir(&roots)).unwrap();
        let directory = File::open(dir(&roots)).unwrap();
        assert!(open_pipe_of(&directory, volume(1)).is_err());
        let mut pipe = open_pipe(&roots, volume(1)).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(pipe.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        open_pipe_of(&directory, volume(1)).unwrap().write_all(&[1]).unwrap();
        assert_eq!(pipe.read(&mut buffer).unwrap(), 1);
        remove_pipe(&roots, volume(1)).unwrap();
        remove_pipe(&roots, volume(1)).unwrap();
    }
}
