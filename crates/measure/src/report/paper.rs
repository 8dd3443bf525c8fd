//! Published figures, for comparison.
//!
//! Source unless stated otherwise: A. A. A. Mardan and K. Kono, "Alleviating File System Journaling Problem in Containers for DBMS
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

/// The position of a layout in the paper's three steps.
fn step(layout: &str) -> Option<usize> {
    match layout {
        "shared" => Some(0),
        "own" => Some(1),
        "own+accounting" | "own+accounting+hold" => Some(2),
        _ => None,
    }
}

/// Mean fsync latency of the database, Table 1.
#[must_use]
pub fn dbms_fsync_ms(layout: &str, neighbour: &str) -> Option<f64> {
    let (_, steps) = DBMS_FSYNC_MS.iter().find(|(name, _)| *name == neighbour)?;
    steps.get(step(layout)?).copied()
}

/// The database's share of the disk.
#[must_use]
pub fn dbms_share_a_pct(layout: &str, neighbour: &str) -> Option<f64> {
    let (_, steps) = DBMS_SHARE_A.iter().find(|(name, _)| *name == neighbour)?;
    steps.get(step(layout)?).copied().flatten()
}
