//! Rules about images and what they are on.

use bulkhead_core::facts::{Device, DeviceKind, Facts, Image, Mount};
use bulkhead_core::finding::{Finding, FindingId};

/// File systems with a journal or log that fsync commits.
const JOURNALING: [&str; 6] = ["btrfs", "ext3", "ext4", "f2fs", "jfs", "xfs"];
/// File systems that write each block to a new place.
const COPY_ON_WRITE: [&str; 3] = ["bcachefs", "btrfs", "zfs"];

/// Devices with an image that is written, each with the file systems above it. Those of Bulkhead's own block servers are not among them.
fn images<'a>(facts: &'a Facts) -> Vec<(&'a Device, &'a Image, Vec<&'a Mount>)> {
    let mut above = facts.mounts_above();
    let written = facts.devices.iter().filter(|device| device.kind == DeviceKind::Loop && !device.read_only);
    let image = |device: &'a Device| {
        let mut above = above.remove(device.name.as_str())?;
        above.retain(|mount| !mount.has("ro"));
        Some((device, device.image.as_ref()?, above)).filter(|(.., above)| !above.is_empty())
    };
    written.filter_map(image).collect()
}

fn at(mounts: &[&Mount]) -> String {
    mounts.iter().map(|mount| mount.at.as_str()).collect::<Vec<_>>().join(", ")
}

pub(super) fn image_cached_twice(facts: &Facts) -> Vec<Finding> {
    let buffered = images(facts).into_iter().filter(|(_, image, _)| image.direct == Some(false));
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let evidence =
            format!("{} is read and written through the page cache, and {} is on it", image.path, at(&above));
        let advice = format!(
            "`losetup --direct-io=on /dev/{}`; permanently: `losetup --direct-io=on` where it is attached. It needs an image on a file system \
             with direct I/O, and blocks of the loop device that are no smaller than the disk's",
            device.name
        );
        Finding::new(FindingId::ImageCachedTwice, format!("device {}", device.name), evidence).advise(advice)
    };
    buffered.map(finding).collect()
}

pub(super) fn journal_nested(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let outer = image.fs_type.as_deref().filter(|fs| JOURNALING.contains(fs))?;
        let inner = above.iter().find(|mount| JOURNALING.contains(&mount.fs_type.as_str()))?;
        let evidence = format!("{} at {} is in {}, on {outer}", inner.fs_type, inner.at, image.path);
        let advice = "use a block device or a logical volume, or a volume of Bulkhead's: its block server writes to an image without commits of \
                      the outer journal";
        Some(Finding::new(FindingId::JournalNested, format!("device {}", device.name), evidence).advise(advice))
    };
    images(facts).into_iter().filter_map(finding).collect()
}

pub(super) fn image_copied_on_write(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let outer = image.fs_type.as_deref().filter(|fs| COPY_ON_WRITE.contains(fs))?;
        let evidence = format!("{} is on {outer}, and {} is on it", image.path, at(&above));
        let advice = match outer {
            "btrfs" => {
                "create the image in a directory with `chattr +C`, and copy its content there: the attribute has no effect on a file with data"
            }
            _ => "use a volume of that file system (a zvol, a subvolume), or an image on ext4 or XFS",
        };
        Some(Finding::new(FindingId::ImageCopiedOnWrite, format!("device {}", device.name), evidence).advise(advice))
    };
    images(facts).into_iter().filter_map(finding).collect()
}
