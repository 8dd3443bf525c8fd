//! Parsing the output of e2fsprogs and xfsprogs.

use bulkhead_core::units::Bytes;

use super::{FsInfo, FsKind};
use crate::tool::ToolOutput;

/// Parses `dumpe2fs -h`; the error is the missing field.
pub(super) fn parse_dumpe2fs(text: &str) -> Result<FsInfo, &'static str> {
    let value = |key: &str| {
        let mut values = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        values.next().map(str::trim)
    };
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    let blocks = number("Block count").ok_or("the block count")?;
    let block_bytes = number("Block size").ok_or("the block size")?;
    let features = value("Filesystem features").ok_or("the list of features")?;
    // Debian 12 also prints "Journal size: 64M"; the number of blocks is exact.
    let journal_blocks = number("Total journal blocks").or_else(|| number("Journal length"));
    Ok(FsInfo {
        kind: FsKind::Ext4,
        uuid: value("Filesystem UUID").ok_or("the uuid")?.to_owned(),
        label: value("Filesystem volume name").filter(|label| *label != "<none>").unwrap_or_default().to_owned(),
        size: Bytes(blocks.saturating_mul(block_bytes)),
        block_size: Bytes(block_bytes),
        journal_bytes: journal_blocks.map(|n| Bytes(n.saturating_mul(block_bytes))),
        features: features.split_whitespace().filter(|word| *word != "(none)").map(str::to_owned).collect(),
    })
}

/// Free space of an ext4, and the size of the fast-commit area, which is in addition to the size with which the journal was created; from
/// `dumpe2fs -h`. The error is the missing field.
pub(super) fn parse_free_and_fast_commit(text: &str) -> Result<(Bytes, Bytes), &'static str> {
    let number = |key: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim().parse().ok()
    };
    let block_bytes = number("Block size").ok_or("the block size")?;
    let free = number("Free blocks").ok_or("the number of free blocks")?;
    // e2fsprogs before 1.46 does not support fast commits.
    let fast_commit = number("Fast commit length").unwrap_or(0);
    Ok((Bytes(free.saturating_mul(block_bytes)), Bytes(fast_commit.saturating_mul(block_bytes))))
}

/// Parses `xfs_db -c 'sb 0' -c 'p uuid fname blocksize dblocks logblocks' -c version`; the error is the missing field.
pub(super) fn parse_xfs_db(text: &str) -> Result<FsInfo, &'static str> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.split_once(" = "))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.trim())
    };
    let number = |key: &str| value(key)?.parse::<u64>().ok();
    let block_bytes = number("blocksize").ok_or("the block size")?;
    let blocks = number("dblocks").ok_or("the number of blocks")?;
    let log_blocks = number("logblocks").ok_or("the size of the log")?;
    // "volx\000\000…": padded with zeroes, in octal escapes.
    let label = value("fname").unwrap_or_default().trim_matches('"');
    let label = label.split_once("\\000").map_or(label, |(label, _)| label);
    let version = text.lines().find(|line| line.starts_with("versionnum")).ok_or("the version")?;
    let features = version.split_once(" = ").map_or("", |(_, features)| features);
    Ok(FsInfo {
        kind: FsKind::Xfs,
        uuid: value("uuid").ok_or("the uuid")?.to_owned(),
        label: label.to_owned(),
        size: Bytes(blocks.saturating_mul(block_bytes)),
        block_size: Bytes(block_bytes),
        journal_bytes: Some(Bytes(log_blocks.saturating_mul(block_bytes))),
        features: features.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
    })
}

/// `resize2fs -P`: "Estimated minimum size of the filesystem: 43547", in blocks.
pub(super) fn parse_minimum_blocks(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("minimum size"))?;
    line.rsplit_once(':')?.1.trim().parse().ok()
}

/// `xfs_logprint -t`: "log tail: 2 head: 2 state: <CLEAN>". Anything but clean is dirty.
pub(super) fn xfs_log_is_dirty(text: &str) -> bool {
    !text.contains("state: <CLEAN>")
}

/// The last lines of a checker's output, for error messages, without xfs_repair's progress report.
pub(super) fn last_lines(output: &ToolOutput) -> String {
    let clean: String =
        format!("{}\n{}", output.stdout, output.stderr).chars().filter(|c| !c.is_control() || *c == '\n').collect();
    let lines: Vec<&str> = clean.lines().map(str::trim).filter(|line| !line.is_empty() && !is_progress(line)).collect();
    lines[lines.len().saturating_sub(8)..].join("; ")
}

fn is_progress(line: &str) -> bool {
    ["- ", "Phase ", "No modify flag set", "done"].iter().any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ext4_superblock_is_read() {
        // e2fsprogs 1.47.2: 2 GiB, journal 16 MiB and 256 blocks for fast commits.
        let info = parse_dumpe2fs(include_str!("../../tests/fixtures/dumpe2fs-1.47.2.txt")).unwrap();
        assert_eq!((info.uuid.as_str(), info.label.as_str()), ("11111111-2222-3333-4444-555555555555", "vol1"));
        assert_eq!(
            (info.size, info.block_size, info.journal_bytes),
            (Bytes::mib(2048), Bytes(4096), Some(Bytes::mib(17)))
        );
        assert!(info.has("fast_commit") && info.has("has_journal") && !info.has("needs_recovery"));
        assert!(parse_dumpe2fs("").is_err());
        let text = include_str!("../../tests/fixtures/dumpe2fs-1.47.2.txt");
        let (free, fast_commit) = parse_free_and_fast_commit(text).unwrap();
        assert!(free > Bytes::mib(1900) && free < info.size && fast_commit == Bytes::mib(1), "{free} {fast_commit}");
        assert!(parse_free_and_fast_commit("Block size: 4096\n").is_err());
    }

    #[test]
    fn an_xfs_superblock_is_read() {
        // xfsprogs 6.13: 4 GiB, log 64 MiB.
        let info = parse_xfs_db(include_str!("../../tests/fixtures/xfs_db-6.13.txt")).unwrap();
        assert_eq!((info.uuid.as_str(), info.label.as_str()), ("11111111-2222-3333-4444-555555555555", "volx"));
        assert_eq!((info.size, info.journal_bytes), (Bytes::mib(4096), Some(Bytes::mib(64))));
        assert!(info.has("REFLINK") && info.has("CRC"), "{:?}", info.features);
        assert!(parse_xfs_db("uuid = x\n").is_err());
    }

    #[test]
    fn small_outputs_are_read() {
        assert_eq!(parse_minimum_blocks("Estimated minimum size of the filesystem: 43547\n"), Some(43547));
        assert_eq!(parse_minimum_blocks("resize2fs 1.47.2\n"), None);
        assert!(!xfs_log_is_dirty("    log tail: 2 head: 2 state: <CLEAN>\n"));
        assert!(xfs_log_is_dirty("    log tail: 2 head: 312 state: <DIRTY>\n") && xfs_log_is_dirty(""));
    }
}
