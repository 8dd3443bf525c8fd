//! Swap and the limits on dirty pages, as facts.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use bulkhead_core::facts::Swap;
use bulkhead_core::identity::printable;
use bulkhead_core::units::{Bytes, DevNo};

use crate::block::dev_from_raw;
use crate::roots::Roots;

/// Swap areas, from `/proc/swaps` (proc(5)).
pub(super) fn swaps(roots: &Roots) -> Vec<Swap> {
    let text = fs::read_to_string(roots.proc.join("swaps")).unwrap_or_default();
    let of = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [path, _, _, used, ..] = words[..] else { return None };
        // A path with white space is escaped, and then not found.
        let dev = fs::metadata(path).map_or(DevNo::default(), |metadata| {
            dev_from_raw(if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() })
        });
        Some(Swap { path: printable(path), dev, used_bytes: Bytes(used.parse::<u64>().ok()?.saturating_mul(1024)) })
    };
    text.lines().skip(1).filter_map(of).collect()
}

/// Dirty data from which on writers are throttled: the kernel's own figure in `/proc/vmstat`.
pub(super) fn dirty_limit(roots: &Roots) -> Option<Bytes> {
    let text = fs::read_to_string(roots.proc.join("vmstat")).ok()?;
    let pages: u64 = text.lines().find_map(|line| line.strip_prefix("nr_dirty_threshold "))?.trim().parse().ok()?;
    let page = u64::try_from(rustix::param::page_size()).ok()?;
    pages.checked_mul(page).map(Bytes)
}
