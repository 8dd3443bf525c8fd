//! The programs that use only the fields of tracepoints, and the offsets of these fields, from the format files of tracefs
//! (`Documentation/trace/events.rst`). For kernels without BTF.

use std::path::{Path, PathBuf};

use libbpf_rs::{Object, ObjectBuilder};

use super::generated::{
    FIELD_BIO_DEV, FIELD_BIO_LETTERS, FIELD_BIO_SECTORS, FIELD_DIRTY_DEV, FIELD_DIRTY_INO, FIELD_DROP_DEV,
    FIELD_DROP_TID, FIELD_FAST_DEV, FIELD_HANDLE_DEV, FIELD_HANDLE_DIRTIED, FIELD_HANDLE_TID, FIELD_START_DEV,
    FIELD_START_TID, FIELD_SUPERBLOCK_DEV, FIELD_SYNC_DEV, FIELD_WRITEBACK_CGROUP, FIELD_WRITEPAGES_DEV,
    FIELD_WRITEPAGES_INO, N_FIELDS,
};
use super::{Aligned, BpfError};
use crate::roots::Roots;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/plain.bpf.o")));

/// Index in the programs' `offsets`, event, name and size of each field.
const FIELDS: [(u32, &str, &str, u32); N_FIELDS as usize] = [
    (FIELD_HANDLE_DEV, "jbd2/jbd2_handle_stats", "dev", 4),
    (FIELD_HANDLE_TID, "jbd2/jbd2_handle_stats", "tid", 4),
    (FIELD_HANDLE_DIRTIED, "jbd2/jbd2_handle_stats", "dirtied_blocks", 4),
    (FIELD_START_DEV, "jbd2/jbd2_start_commit", "dev", 4),
    (FIELD_START_TID, "jbd2/jbd2_start_commit", "transaction", 4),
    (FIELD_DROP_DEV, "jbd2/jbd2_drop_transaction", "dev", 4),
    (FIELD_DROP_TID, "jbd2/jbd2_drop_transaction", "transaction", 4),
    (FIELD_SUPERBLOCK_DEV, "jbd2/jbd2_write_superblock", "dev", 4),
    (FIELD_FAST_DEV, "ext4/ext4_fc_commit_start", "dev", 4),
    (FIELD_SYNC_DEV, "ext4/ext4_sync_file_exit", "dev", 4),
    (FIELD_WRITEPAGES_DEV, "ext4/ext4_writepages", "dev", 4),
    (FIELD_WRITEPAGES_INO, "ext4/ext4_writepages", "ino", 8),
    (FIELD_DIRTY_DEV, "ext4/ext4_mark_inode_dirty", "dev", 4),
    (FIELD_DIRTY_INO, "ext4/ext4_mark_inode_dirty", "ino", 8),
    (FIELD_WRITEBACK_CGROUP, "writeback/writeback_single_inode_start", "cgroup_ino", 8),
    (FIELD_BIO_DEV, "block/block_bio_queue", "dev", 4),
    (FIELD_BIO_SECTORS, "block/block_bio_queue", "nr_sector", 4),
    (FIELD_BIO_LETTERS, "block/block_bio_queue", "rwbs", 8),
];

/// The offset of each field, in the order of the programs' `offsets`.
///
/// # Errors
/// [`BpfError::NoTracefs`], [`BpfError::NoField`].
pub(super) fn offsets(roots: &Roots) -> Result<[u32; N_FIELDS as usize], BpfError> {
    let events = events(roots)?;
    let mut offsets = [0; N_FIELDS as usize];
    for (index, event, field, size) in FIELDS {
        let path = events.join(event).join("format");
        let found = std::fs::read_to_string(&path).ok().and_then(|text| offset(&text, field, size));
        offsets[index as usize] = found.ok_or(BpfError::NoField { path, field })?;
    }
    Ok(offsets)
}

/// Loads the programs with these field offsets.
pub(super) fn load(offsets: &[u32; N_FIELDS as usize]) -> libbpf_rs::Result<Object> {
    let mut object = ObjectBuilder::default().name("bulkhead")?.open_memory(&OBJECT.0)?;
    let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
    let mut constants = object.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata.offsets"));
    constants.as_mut().expect("the object has constants").set_initial_value(&bytes)?;
    object.load()
}

/// The directory of events; the same candidates as in libbpf.
fn events(roots: &Roots) -> Result<PathBuf, BpfError> {
    let places = ["kernel/tracing/events", "kernel/debug/tracing/events"].map(|place| roots.sys.join(place));
    let first = places[0].clone();
    places.into_iter().find(|path| Path::is_dir(path)).ok_or(BpfError::NoTracefs { path: first })
}

/// The offset of a field of at least this size.
fn offset(format: &str, field: &str, size: u32) -> Option<u32> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().split(';').map(str::trim);
        let declared = parts.next()?.strip_prefix("field:")?;
        let name = declared.rsplit(' ').next()?.split('[').next()?;
        let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
        let has: u32 = parts.next()?.strip_prefix("size:")?.parse().ok()?;
        (name == field && has >= size).then_some(offset)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_names() {
        let format = "name: block_bio_queue\nID: 1191\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;\n\
            \tfield:char rwbs[10];\toffset:28;\tsize:10;\tsigned:0;\n\nprint fmt: \"%d,%d\", REC->dev\n";
        assert_eq!(offset(format, "nr_sector", 4), Some(24));
        assert_eq!(offset(format, "rwbs", 8), Some(28));
        assert_eq!((offset(format, "sector", 4), offset(format, "dev", 8), offset("", "dev", 4)), (None, None, None));
    }

    #[test]
    fn every_field_index_occurs_once() {
        let mut indices: Vec<u32> = FIELDS.iter().map(|(index, ..)| *index).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..N_FIELDS).collect::<Vec<_>>());
    }

    #[test]
    fn without_tracefs_the_error_names_its_path() {
        let base = tempfile::tempdir().unwrap();
        let error = offsets(&Roots::under(base.path())).unwrap_err();
        assert!(
            matches!(&error, BpfError::NoTracefs { path } if path.ends_with("sys/kernel/tracing/events")),
            "{error}"
        );
    }
}
