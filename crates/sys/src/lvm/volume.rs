//! [`Vg`] and [`Lv`]: what `vgs` and `lvs` report.

use std::path::PathBuf;

use bulkhead_core::units::{Bytes, DevNo};

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vg {
    /// Name.
    pub name: String,
    /// Size of all its extents.
    pub size: Bytes,
    /// Space in extents that no volume uses.
    pub free: Bytes,
    /// Size of an extent: volumes are multiples of it.
    pub extent_size: Bytes,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Number of physical volumes.
    pub pv_count: u32,
    /// Whether a physical volume is missing.
    pub partial: bool,
}

/// Kind of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LvKind {
    /// Plain extents.
    Linear,
    /// A thin pool.
    ThinPool,
    /// A thin volume.
    Thin {
        /// Its pool.
        pool: String,
        /// The origin of a snapshot, while it exists.
        origin: Option<String>,
    },
    /// An old-style copy-on-write snapshot; it is removed with its origin.
    ThickSnapshot {
        /// The origin.
        origin: String,
    },
    /// Any other kind, as in LVM's report (`lv_layout`).
    Other(String),
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Lv {
    /// Name.
    pub name: String,
    /// Its group.
    pub vg: String,
    /// Device node, `/dev/VG/LV`, which exists only while it is active. A thin pool has none.
    pub path: PathBuf,
    /// Size; the virtual size of a thin volume.
    pub size: Bytes,
    /// Kind.
    pub kind: LvKind,
    /// Whether the kernel has its device (`dmsetup`).
    pub active: bool,
    /// Whether a mount, a program or another volume has it open.
    pub open: bool,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Fill level in percent (0 to 100): mapped part of a thin volume, data of a thin pool. `None` if it is inactive or not applicable.
    pub data_percent: Option<f64>,
    /// Fill level of a thin pool's metadata in percent.
    pub metadata_percent: Option<f64>,
    /// Device number while it is active.
    pub dev: Option<DevNo>,
    /// Whether it refuses writes (from its metadata, so also known while it is inactive).
    pub read_only: bool,
    /// Whether activation of the group skips it (thin snapshots created by other tools; lvchange(8), `--setactivationskip`).
    pub activation_skip: bool,
    /// Whether a thin pool zeroes blocks before use (lvcreate(8), `--zero`); otherwise volumes expose the previous content of blocks.
    pub zeroes: bool,
    /// Health (`lv_health_status`): `partial`, `failed`, `out_of_data`, `metadata_read_only` …; empty if healthy.
    pub health: String,
}

/// Resolution of [`Lv::data_percent`] in LVM's report, in percent.
const PERCENT_STEP: f64 = 0.01;

impl Lv {
    /// Space allocated from its group, or by a thin volume from its pool: a lower bound, given the resolution of LVM's percentage.
    #[must_use]
    pub fn allocated(&self) -> Bytes {
        if !matches!(self.kind, LvKind::Thin { .. }) {
            return self.size;
        }
        let pct = self.data_percent.map_or(0.0, |pct| (pct - PERCENT_STEP).clamp(0.0, 100.0));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of a size, rounded down"
        )]
        Bytes((self.size.0 as f64 * (pct / 100.0)) as u64)
    }
}
