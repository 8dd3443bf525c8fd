//! The size of an ext4 journal, and how a journal is charged ([`Accounting`]).
//!
//! `mkfs` determines the size of a journal; growing the file system does not change it. A journal can be replaced while
//! the volume is not mounted.

use serde::{Deserialize, Serialize};

use crate::error::{Code, Fault};
use crate::finding::{Finding, FindingId};
use crate::model::{Volume, VolumeFs};
use crate::reason::Reason;
use crate::units::Bytes;

/// Smallest journal: jbd2 requires 1024 blocks (`JBD2_MIN_JOURNAL_BLOCKS`) of 4 KiB.
pub const MIN: Bytes = Bytes::mib(4);
/// Largest journal of [`size_for`].
pub const MAX: Bytes = Bytes::mib(1024);
/// Largest journal that e2fsprogs creates: 10 240 000 blocks of 4 KiB (`figure_journal_size`).
const LARGEST: Bytes = Bytes(10_240_000 * 4096 / Bytes::MIB * Bytes::MIB);

/// A requested journal size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum JournalSize {
    /// The size for a new volume of the same size.
    Auto,
    /// This size, rounded up to whole MiB.
    Bytes(Bytes),
}

/// How a volume's journal is charged to its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum Accounting {
    /// The volume is not mounted; a raw volume: not attached.
    NotMounted,
    /// The journal thread runs in the tenant's `journal` cgroup.
    JournalThread {
        /// Its process id.
        pid: u32,
        /// Its cgroup.
        cgroup: String,
    },
    /// The volume's block server, which runs in the tenant's `server` cgroup, does all its writes, journal included.
    Server {
        /// Its process id.
        pid: u32,
        /// Its cgroup.
        cgroup: String,
    },
    /// A raw volume without a block server: it has no journal, and its I/O is charged to the cgroups of the processes that
    /// use its device.
    Users,
    /// Only part of the journal I/O is charged.
    Partial {
        /// What is not charged, and why.
        limit: String,
    },
    /// Not charged.
    None {
        /// Why.
        reason: String,
    },
}

/// The size of an ext4 journal: 1/64 of the volume, in whole MiB, at least 16 MiB or 1/8 of the volume (whichever is less) and
/// at least 4 MiB (jbd2 needs 1024 blocks), at most 1 GiB.
///
/// From 2 to 64 GiB this is larger than the default of `mkfs.ext4`: fsync waits less for checkpoints, and replay after
/// a crash delays only this volume. Monotonic in the size of the volume.
#[must_use]
pub fn size_for(volume: Bytes) -> Bytes {
    let floor = (volume.0 / 8).min(16 * Bytes::MIB);
    let wanted = (volume.0 / 64).max(floor);
    Bytes((wanted / Bytes::MIB * Bytes::MIB).clamp(MIN.0, MAX.0))
}

/// The requested journal size for a volume of `volume_size`, in whole MiB, as `mke2fs` and `tune2fs` accept it.
///
/// # Errors
/// `Unsupported` for XFS and for raw volumes, `InvalidArgument` for a size that ext4 does not accept.
pub fn checked_size(volume: &Volume, volume_size: Bytes, asked: JournalSize) -> Result<Bytes, Fault> {
    let object = || format!("volume {}", volume.reference());
    match volume.fs {
        VolumeFs::Ext4 => {}
        VolumeFs::Xfs => {
            return Err(Fault::new(
                Code::Unsupported,
                object(),
                "the log of an XFS file system keeps the size that mkfs.xfs gave it",
            )
            .hint("create a volume of the new size, and copy the files"));
        }
        VolumeFs::None => {
            return Err(Fault::new(Code::Unsupported, object(), "it is a raw volume, which has no journal"));
        }
    }
    let JournalSize::Bytes(size) = asked else { return Ok(size_for(volume_size)) };
    let largest = LARGEST.min(Bytes(volume_size.0 / 2 / Bytes::MIB * Bytes::MIB));
    match size.round_up(Bytes::mib(1)) {
        Some(size) if (MIN..=largest).contains(&size) => Ok(size),
        _ => Err(Fault::new(Code::InvalidArgument, object(), format!("its journal cannot have a size of {size}"))
            .hint(format!("give it {MIN} to {largest}, or `auto`: {}", size_for(volume_size)))),
    }
}

/// The finding about a journal that stayed small while its volume grew: that of a new volume would be larger by a
/// quarter or more. A smaller difference is not noticeable.
#[must_use]
pub fn small(volume: &Volume, journal: Bytes) -> Option<Finding> {
    let wanted = size_for(volume.size_bytes);
    if volume.fs != VolumeFs::Ext4 || volume.read_only || wanted.0 < journal.0.saturating_add(journal.0 / 4) {
        return None;
    }
    let reference = volume.reference();
    let evidence = format!(
        "its journal has {journal}, but that of a new volume of {} has {wanted}: a small journal makes fsync wait for checkpoints sooner",
        volume.size_bytes
    );
    let finding = Finding::new(FindingId::JournalSmallAfterGrowth, format!("volume {reference}"), evidence);
    Some(finding.reason(Reason::JournalSmall { volume: reference }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(size_bytes: Bytes) -> Volume {
        Volume { size_bytes, ..Volume::sample() }
    }

    #[test]
    fn journals_follow_the_volume() {
        for (volume_mib, journal_mib) in
            [(16, 4), (64, 8), (128, 16), (1024, 16), (2048, 32), (10 << 10, 160), (64 << 10, 1024), (9 << 20, 1024)]
        {
            assert_eq!(size_for(Bytes::mib(volume_mib)), Bytes::mib(journal_mib), "{volume_mib} MiB");
        }
        let sizes: Vec<_> = (0..20_000).map(|n| size_for(Bytes(n * 7 * Bytes::MIB + n))).collect();
        assert!(sizes.is_sorted());
    }

    #[test]
    fn a_size_is_whole_and_fits_the_volume() {
        let volume = volume(Bytes::mib(64));
        let size = |asked| checked_size(&volume, volume.size_bytes, asked).map_err(|fault| fault.code);
        let bytes = |n| size(JournalSize::Bytes(Bytes(n)));
        assert_eq!(size(JournalSize::Auto), Ok(Bytes::mib(8)));
        assert_eq!((bytes(4 << 20), bytes(32 << 20)), (Ok(Bytes::mib(4)), Ok(Bytes::mib(32))));
        assert_eq!(bytes((5 << 20) + 1), Ok(Bytes::mib(6)));
        for wrong in [0, 3 << 20, (32 << 20) + 1, u64::MAX] {
            assert_eq!(bytes(wrong), Err(Code::InvalidArgument), "{wrong}");
        }
        let xfs = Volume { fs: VolumeFs::Xfs, ..volume.clone() };
        let refused = checked_size(&xfs, xfs.size_bytes, JournalSize::Auto).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported);
        let raw = Volume { fs: VolumeFs::None, ..volume.clone() };
        let refused = checked_size(&raw, raw.size_bytes, JournalSize::Auto).unwrap_err();
        assert_eq!(
            (refused.code, refused.cause.as_str()),
            (Code::Unsupported, "it is a raw volume, which has no journal")
        );
    }

    #[test]
    fn a_journal_that_stayed_small_is_a_finding() {
        let grown = volume(Bytes::mib(10 << 10));
        let small = |mib| small(&grown, Bytes::mib(mib));
        let finding = small(8).unwrap();
        let sizes = [finding.evidence.contains("8 MiB"), finding.evidence.contains("160 MiB")];
        assert!(
            sizes == [true, true] && matches!(finding.reason.as_deref(), Some(Reason::JournalSmall { .. })),
            "{}",
            finding.evidence
        );
        assert!(small(128).is_some());
        assert_eq!([small(129), small(160), small(1024)], [None, None, None]);
        let snapshot = Volume { read_only: true, ..grown.clone() };
        assert_eq!(super::small(&snapshot, Bytes::mib(8)), None);
    }
}
