//! Volume groups and logical volumes, as LVM reports them.

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

/// What kind of volume it is.
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
        /// The volume of which it is a snapshot, while that exists.
        origin: Option<String>,
    },
    /// An old-style copy-on-write snapshot; it goes when its origin goes.
    ThickSnapshot {
        /// The volume of which it is a snapshot.
        origin: String,
    },
    /// Anything else, as LVM's report calls it (`lv_layout`).
    Other(String),
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Lv {
    /// Name.
    pub name: String,
    /// Its group.
    pub vg: String,
    /// Device node, `/dev/VG/LV`; there only while it is active. A thin pool has none.
    pub path: PathBuf,
    /// Size; for a thin volume the virtual one.
    pub size: Bytes,
    /// What it is.
    pub kind: LvKind,
    /// Whether the kernel has it (`dmsetup`).
    pub active: bool,
    /// Whether something has it open: a mount, a program, or another volume.
    pub open: bool,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// How full it is in percent (0 to 100): mapped part of a thin volume, data of a thin pool. `None` when it is inactive
    /// or this does not apply.
    pub data_percent: Option<f64>,
    /// How full the metadata of a thin pool is, in percent.
    pub metadata_percent: Option<f64>,
    /// Device number while it is active.
    pub dev: Option<DevNo>,
    /// Whether it refuses writes (by its metadata, so also known while it is inactive).
    pub read_only: bool,
    /// Whether it is left out when the group is activated (thin snapshots made by others; lvchange(8), `--setactivationskip`).
    pub activation_skip: bool,
    /// Whether a thin pool gives out blocks zeroed (lvcreate(8), `--zero`); without it a volume shows what its blocks held before.
    pub zeroes: bool,
    /// LVM's word for what is wrong with it (`lv_health_status`): `partial`, `failed`, `out_of_data`,
    /// `metadata_read_only` …; empty when it is well.
    pub health: String,
}

/// The finest step of [`Lv::data_percent`] as LVM reports it, in percent.
const PERCENT_STEP: f64 = 0.01;

impl Lv {
    /// What it takes of its group, or a thin volume of its pool: rounded down to what LVM's percentage surely stands for.
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
