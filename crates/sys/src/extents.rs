//! Which ranges of a file have data (ioctl `FS_IOC_FIEMAP`, `<linux/fiemap.h>`).
//!
//! `SEEK_DATA` is asked only where there is no such ioctl (tmpfs): where blocks are allocated and were never written, it takes
//! zeroes that the page cache happens to hold for data (`iomap_seek_data`), and then a layer would hide what is below it.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ops::{ControlFlow, Range};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `FS_IOC_FIEMAP`; the structure counts without its array.
const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);
/// Write what is cached first.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// No extent follows.
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Allocated, and reads as zeroes.
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
/// Several lie together.
const FIEMAP_EXTENT_MERGED: u32 = 0x1000;
/// Other files have it as well.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Extents that are asked for at a time: 7 KiB on the stack.
const BATCH: usize = 128;

/// `struct fiemap` without `fm_extents`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Header {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Query {
    header: Header,
    found: [Found; BATCH],
}

const _: () = assert!(size_of::<Header>() == 32 && size_of::<Found>() == 56);

/// What a range of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It was written.
    Data,
    /// Its blocks are allocated, and were never written.
    Unwritten,
}

/// A range of a file, and where the device has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// In the file, in bytes.
    pub range: Range<u64>,
    /// Its start on the device, in bytes.
    pub device: u64,
}

/// Tells where the device has the data of a file, as far as it lies there plainly: not compressed, nor within metadata, nor yet
/// without a place.
///
/// # Errors
/// The operating system's.
pub fn mapped(file: &File) -> io::Result<Vec<Mapped>> {
    let mut all = Vec::new();
    let size = file.metadata()?.len();
    ask(file, 0..size.next_multiple_of(4096), |extent, range| {
        if extent.flags & !(FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_MERGED | FIEMAP_EXTENT_SHARED) == 0 {
            all.push(Mapped { device: extent.physical + (range.start - extent.logical), range });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

/// Tells of all ranges of a file that are no holes, in order, cut off at the ends of `range`. What is written meanwhile is
/// told of or not.
///
/// # Errors
/// The operating system's, and what `each` returns.
pub fn extents(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>, Kind) -> io::Result<()>,
) -> io::Result<()> {
    visit(file, range, |range, kind| each(range, kind).map(ControlFlow::Continue))
}

/// The first part of a range of a file that was never written: a hole, or blocks that are only allocated. It is cut off at the ends of
/// `range`.
///
/// # Errors
/// The operating system's.
pub fn first_gap(file: &File, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
    let mut gap = range.start..range.end;
    visit(file, range, |found, kind| {
        if kind == Kind::Unwritten {
            return Ok(ControlFlow::Continue(()));
        }
        if found.start > gap.start {
            gap.end = found.start;
            return Ok(ControlFlow::Break(()));
        }
        gap.start = found.end;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((!gap.is_empty()).then_some(gap))
}

/// [`extents`], until `each` has seen enough.
fn visit(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>, Kind) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let asked = ask(file, range.clone(), |extent, range| {
        let unwritten = extent.flags & FIEMAP_EXTENT_UNWRITTEN != 0;
        each(range, if unwritten { Kind::Unwritten } else { Kind::Data })
    });
    match asked {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => by_seeking(file, range, each),
        asked => asked,
    }
}

/// Tells of the extents that touch a range, in order, with what of the range each has, until `each` has seen enough.
fn ask(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(&Found, Range<u64>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let header = Header {
            start: at,
            length: range.end - at,
            flags: FIEMAP_FLAG_SYNC,
            #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
            extent_count: BATCH as u32,
            ..Header::default()
        };
        let mut query = Query { header, found: [Found::default(); BATCH] };
        // SAFETY: FS_IOC_FIEMAP reads a `struct fiemap` and writes at most `extent_count` elements of the array that follows it,
        // which `Query` has.
        let request = unsafe { Updater::<FS_IOC_FIEMAP, Query>::new(&mut query) };
        // SAFETY: as above; the request borrows the query for as long as the call takes.
        unsafe { ioctl(file, request) }?;
        let found = query.found.get(..query.header.mapped_extents as usize).unwrap_or_default();
        for extent in found {
            let end = extent.logical.saturating_add(extent.length).min(range.end);
            let part = extent.logical.max(at)..end;
            if !part.is_empty() {
                at = end;
                if each(extent, part)?.is_break() {
                    return Ok(());
                }
            }
        }
        if found.last().is_none_or(|extent| extent.flags & FIEMAP_EXTENT_LAST != 0) {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether a file has data.
///
/// # Errors
/// The operating system's.
pub fn has_data(file: &File) -> io::Result<bool> {
    let mut any = false;
    let size = file.metadata()?.len();
    extents(file, 0..size, |_, kind| {
        any |= kind == Kind::Data;
        Ok(())
    })?;
    Ok(any)
}

fn by_seeking(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>, Kind) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let start = match seek(file, SeekFrom::Data(at)) {
            // No data follows.
            Err(Errno::NXIO) => return Ok(()),
            found => found?,
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(range.end);
        if start >= end {
            return Ok(());
        }
        if each(start..end, Kind::Data)?.is_break() {
            return Ok(());
        }
        at = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FallocateFlags, fallocate};
    use std::os::unix::fs::FileExt;

    fn all(file: &File, range: Range<u64>) -> Vec<(Range<u64>, Kind)> {
        let mut all: Vec<(Range<u64>, Kind)> = Vec::new();
        extents(file, range, |range, kind| {
            match all.last_mut() {
                // What lies together on the disk or not is not the point here.
                Some((last, same)) if last.end == range.start && *same == kind => last.end = range.end,
                _ => all.push((range, kind)),
            }
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn data_is_found_and_what_is_only_allocated_is_not_data() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        assert!(!has_data(&file).unwrap());
        // More than one batch.
        let written = |n: u64| (n * 65536 + 8192)..(n * 65536 + 12288);
        for n in 0..300 {
            file.write_all_at(&[7; 4096], written(n).start).unwrap();
        }
        fallocate(&file, FallocateFlags::KEEP_SIZE, 40 << 20, 1 << 20).unwrap();
        let found = all(&file, 0..64 << 20);
        let (data, other): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, kind)| *kind == Kind::Data);
        assert_eq!(
            data.into_iter().map(|(range, _)| range).collect::<Vec<_>>(),
            (0..300).map(written).collect::<Vec<_>>()
        );
        assert_eq!(other, [(40 << 20..41 << 20, Kind::Unwritten)]);
        assert_eq!(all(&file, 9000..10000), [(9000..10000, Kind::Data)]);
        assert_eq!(all(&file, 12288..65536), []);
        assert!(has_data(&file).unwrap());
    }

    #[test]
    fn zeroes_that_the_page_cache_holds_are_a_gap() {
        let file = tempfile::tempfile().unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        file.write_all_at(&[7; 8192], 65536).unwrap();
        file.read_exact_at(&mut [0; 32768], 0).unwrap();
        let gap = |range| first_gap(&file, range).unwrap();
        assert_eq!(gap(0..1 << 20), Some(0..65536));
        assert_eq!(gap(0..4096), Some(0..4096));
        assert_eq!(gap(65536..70000), None);
        assert_eq!(gap(65536..1 << 20), Some(73728..1 << 20));
        assert_eq!(gap(4096..4096), None);
    }

    #[test]
    fn where_it_cannot_be_asked_it_is_sought() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else { return };
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 4096], 8192).unwrap();
        assert_eq!(all(&file, 0..1 << 20), [(8192..12288, Kind::Data)]);
        assert_eq!(all(&file, 12288..1 << 20), []);
        assert_eq!(first_gap(&file, 0..1 << 20).unwrap(), Some(0..8192));
        assert_eq!(first_gap(&file, 8192..1 << 20).unwrap(), Some(12288..1 << 20));
    }
}
