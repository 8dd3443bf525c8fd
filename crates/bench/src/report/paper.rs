//! Numbers that were published by others, to stand beside ours.
//!
//! Source unless said: A. A. A. Mardan and K. Kono, "Alleviating File System Journaling Problem in Containers for DBMS
//! Consolidation", IEICE Trans. Inf. & Syst., July 2021 (Dell T610, one SAS disk, Linux 4.18, OpenVZ 7, MySQL 5.7).

/// Mean fsync latency of MySQL in ms (its Table 1): shared journal, own journal, own journal with accounting.
const DBMS_FSYNC_MS: [(&str, [f64; 3]); 3] = [
    ("no-fsync", [120.23, 103.80, 24.23]),
    ("low-fsync", [160.651, 92.65, 25.38]),
    ("high-fsync", [96.20, 90.50, 24.75]),
];

/// Disk share of MySQL in percent, of 70 promised (its figures 4, 9 and 10, read as the text does).
const DBMS_SHARE_A: [(&str, [Option<f64>; 3]); 3] = [
    ("no-fsync", [None, Some(25.0), Some(70.0)]),
    ("low-fsync", [None, Some(30.0), Some(70.0)]),
    ("high-fsync", [Some(20.0), None, Some(70.0)]),
];

/// Where a layout stands in the paper's three steps.
fn step(layout: &str) -> Option<usize> {
    match layout {
        "shared" => Some(0),
        "own" => Some(1),
        "own+accounting" | "own+accounting+hold" => Some(2),
        _ => None,
    }
}

/// Mean fsync latency of the database, Table 1.
pub(crate) fn dbms_fsync_ms(layout: &str, neighbour: &str) -> Option<f64> {
    let (_, steps) = DBMS_FSYNC_MS.iter().find(|(name, _)| *name == neighbour)?;
    steps.get(step(layout)?).copied()
}

/// The database's share of the disk.
pub(crate) fn dbms_share_a_pct(layout: &str, neighbour: &str) -> Option<f64> {
    let (_, steps) = DBMS_SHARE_A.iter().find(|(name, _)| *name == neighbour)?;
    steps.get(step(layout)?).copied().flatten()
}

/// Mean fsync latency of tenants A (70 %) and B (30 %) that both call fsync often, Table 2.
pub(crate) fn pair_fsync_ms(layout: &str) -> Option<(f64, f64)> {
    match layout {
        "own" => Some((55.0, 53.0)),
        "own+accounting" | "own+accounting+hold" => Some((45.0, 86.0)),
        _ => None,
    }
}

/// What the second container gains over reading from the disk, where blocks are taken from the first one's cache (Zhao et al. 2016): on a
/// spinning disk, or on a flash drive.
pub(crate) fn clone_gain(layout: &str, is_spinning: bool) -> Option<f64> {
    (layout == "drr").then_some(if is_spinning { 10.0 } else { 2.4 })
}

/// What others found, in sentences: shown beside our figures.
pub(crate) fn says(experiment: &str) -> &'static [&'static str] {
    match experiment {
        "fsync-probe" => &[
            "No paper has this probe. A public report (Containarium issue 1206) saw 17 ms alone, 11 885 ms beside neighbours on one \
             file system, and 21 to 165 ms after each tenant got a file system of its own.",
        ],
        "dbms-consolidation" => &[
            "Mardan & Kono 2021, Table 1, mean fsync latency of MySQL beside a neighbour with no, low and high fsync load: shared \
             journal 120 / 161 / 96 ms; own journal 104 / 93 / 91 ms; own journal with accounting 24 / 25 / 25 ms.",
            "Its throughput gain is \"up to 3.4x\" in the abstract and 2.8x in the text; MySQL's share of the disk went from 20 % to \
             the promised 70 % (figures 4 and 9). The figures of throughput are only plotted, so they are not repeated here.",
        ],
        "share-correction" => &[
            "Tobimatsu et al. (the paper that the published mode follows): two containers with equal shares on one file system, both read, \
             one makes 2000 directories in a second: 64.1/35.9 % of the disk without the correction, 50.1/49.9 % with it (BFQ, mean of 60 s).",
        ],
        "journal-fsync" => &[
            "Mardan & Kono 2021, Table 2, two tenants with high fsync load and shares of 70 and 30: 55 / 53 ms without accounting, \
             45 / 86 ms with it. Shares of 70 to 30 would make the latencies 1 to 2.33; theirs came to 1 to 1.9.",
        ],
        "volume-overhead" => &[
            "No paper has these figures. By hand (docs, kernel 6.12): 100 fsyncs in a guest file system on a loop device cost 198 \
             commits of the host's journal; on a logical volume none.",
        ],
        "journal-cost" => &[
            "Tobimatsu et al., Table 1, KiB for 1000 calls, mean (coefficient of variation) of 10 runs: mkdir 4442.4 (0.011), creat 323.6 \
             (0.045), mknod 318.8 (0.040), truncate 261.2 (0.010), unlink 296.0 (0.000), write 268.0 (0.000), rmdir 327.6 (0.013).",
        ],
        "attribution" => &[
            "No published tool charges containers for the journal they share. Tobimatsu et al. estimate it from numbers of calls: the \
             columns \"by counts\". Their weights have no fsync; a synced append is taken for their write.",
        ],
        "clone-read" => &[
            "Zhao, Xu and Shain, \"Improving Copy-on-Write Performance in Container Storage Drivers\" (SNIA SDC 2016; Docker 1.10, dm-thin with \
             their module): the second container reads a large file at 1.2 GB/s where the disk gives 120 MB/s (10x, SATA disk), 2.0 GB/s \
             where it gives 840 MB/s (2.4x, PCIe SSD); a hit in the container's own cache gives 2.5 and 3.9 GB/s, so 48 and 51 % of that. \
             md5sum of the file: 2.7 times as fast on the SATA disk.",
            "Where nothing is found, reading is 2.5 % (SATA disk) to 6.7 % (PCIe SSD) slower with their module.",
        ],
        "launch-storm" => &[
            "Zhao, Xu and Shain (SNIA SDC 2016): TensorFlow containers, each of which loads about 104 MB of model and parameters, start in up to \
             47 % less time on a SATA disk, with two thirds fewer reads of the disk; on a PCIe SSD slightly faster.",
            "They estimate 100 to 400 MB of memory for the records of a 50 GB image with 10 % hot data: 2 to 8 % of that.",
        ],
        "disk-models" => &[
            "Published figures are of the drives' data sheets and of measurements by others; those marked d are derived from them, not published. \
             No drive has all depths published in one place: Exos X24, Exos M and WD DC HC580 stand in for the spinning disk at depths 16 and 32, \
             the 860 EVO for the flushes of the 870 EVO, the 850 EVO for its sequential rates at depth 1.",
            "The spinning disk's sequential rate is recalled from its data sheet, which was not at hand.",
        ],
        _ => &[],
    }
}
