//! Ranges of a file that have data (ioctl `FS_IOC_FIEMAP`, `<linux/fiemap.h>`).
//!
//! `SEEK_DATA` is the fallback where this ioctl is missing (tmpfs). In unwritten extents it reports cached zero pages as data
//! (`iomap_seek_data`), which would make a layer hide the layers below it.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::ops::{ControlFlow, Range};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// `FS_IOC_FIEMAP`; the ioctl number encodes the size of the structure without its array.
const FS_IOC_FIEMAP: Opcode = opcode::read_write::<Header>(b'f', 11);
/// Write out cached data first.
const FIEMAP_FLAG_SYNC: u32 = 1;
/// The last extent of the file.
const FIEMAP_EXTENT_LAST: u32 = 1;
/// Allocated but unwritten: reads as zeroes.
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
/// Several adjacent extents, merged.
const FIEMAP_EXTENT_MERGED: u32 = 0x1000;
/// Shared with other files.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Extents per call: 7 KiB on the stack.
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
struct FiemapExtent {
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
    found: [FiemapExtent; BATCH],
}

const _: () = assert!(size_of::<Header>() == 32 && size_of::<FiemapExtent>() == 56);

/// State of an allocated range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Written.
    Data,
    /// Allocated, never written.
    Unwritten,
}

/// A range of a file and its location on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Range in the file, in bytes.
    pub range: Range<u64>,
    /// Offset on the device, in bytes.
    pub device: u64,
}

/// Extents of a file whose device location is known and plain: not compressed, inline or delayed-allocated.
///
/// # Errors
/// The operating system's.
pub fn mapped(file: &File) -> io::Result<Vec<Mapped>> {
    let mut extents = Vec::new();
    let size = file.metadata()?.len();
    query(file, 0..size.next_multiple_of(4096), |extent, range| {
        if extent.flags & !(FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_MERGED | FIEMAP_EXTENT_SHARED) == 0 {
            extents.push(Mapped { device: extent.physical + (range.start - extent.logical), range });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(extents)
}

/// Calls `each` for all allocated ranges of a file, in order, clipped to `range`. Whether concurrent writes are included is
/// unspecified.
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

/// The first unwritten part of a range of a file, either a hole or an unwritten extent, clipped to `range`.
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

/// [`extents`], until `each` breaks.
fn visit(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(Range<u64>, Kind) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let visited = query(file, range.clone(), |extent, range| {
        let unwritten = extent.flags & FIEMAP_EXTENT_UNWRITTEN != 0;
        each(range, if unwritten { Kind::Unwritten } else { Kind::Data })
    });
    match visited {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            visit_by_seeking(file, range, each)
        }
        visited => visited,
    }
}

/// Calls `each` for the extents that overlap a range, in order, with the overlap, until `each` breaks.
fn query(
    file: &File,
    range: Range<u64>,
    mut each: impl FnMut(&FiemapExtent, Range<u64>) -> io::Result<ControlFlow<()>>,
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
        let mut query = Query { header, found: [FiemapExtent::default(); BATCH] };
        // SAFETY: FS_IOC_FIEMAP reads a `struct fiemap` and writes at most `extent_count` elements of the array behind it; `Query`
        // has both.
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

fn visit_by_seeking(
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

    fn collect_extents(file: &File, range: Range<u64>) -> Vec<(Range<u64>, Kind)> {
        let mut found: Vec<(Range<u64>, Kind)> = Vec::new();
        extents(file, range, |range, kind| {
            match found.last_mut() {
                // Physical contiguity does not matter here.
                Some((last, same)) if last.end == range.start && *same == kind => last.end = range.end,
                _ => found.push((range, kind)),
            }
            Ok(())
        })
        .unwrap();
        found
    }

    #[test]
    fn written_extents_are_data_and_unwritten_extents_are_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        assert!(!has_data(&file).unwrap());
        // More than one batch.
        let written = |n: u64| (n * 65536 + 8192)..(n * 65536 + 12288);
        for n in 0..300 {
            file.write_all_at(&[7; 4096], written(n).start).unwrap();
        }
        fallocate(&file, FallocateFlags::KEEP_SIZE, 40 << 20, 1 << 20).unwrap();
        let extents = collect_extents(&file, 0..64 << 20);
        let (data, other): (Vec<_>, Vec<_>) = extents.into_iter().partition(|(_, kind)| *kind == Kind::Data);
        assert_eq!(
            data.into_iter().map(|(range, _)| range).collect::<Vec<_>>(),
            (0..300).map(written).collect::<Vec<_>>()
        );
        assert_eq!(other, [(40 << 20..41 << 20, Kind::Unwritten)]);
        assert_eq!(collect_extents(&file, 9000..10000), [(9000..10000, Kind::Data)]);
        assert_eq!(collect_extents(&file, 12288..65536), []);
        assert!(has_data(&file).unwrap());
    }

    #[test]
    fn cached_zeroes_of_an_unwritten_extent_are_a_gap() {
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
    fn seek_data_is_the_fallback_without_fiemap() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else { return };
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[7; 4096], 8192).unwrap();
        assert_eq!(collect_extents(&file, 0..1 << 20), [(8192..12288, Kind::Data)]);
        assert_eq!(collect_extents(&file, 12288..1 << 20), []);
        assert_eq!(first_gap(&file, 0..1 << 20).unwrap(), Some(0..8192));
        assert_eq!(first_gap(&file, 8192..1 << 20).unwrap(), Some(12288..1 << 20));
    }
}
