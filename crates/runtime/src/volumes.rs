//! The volumes that a container sees: paths of the host below the mount point of a volume.
//!
//! Links and `..` are resolved as the runtime will resolve them. A volume that is mounted a second time somewhere else is not found by that path.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Component, Path};

use bulkhead_core::model::VolumeRef;

/// The volumes that the sources are on. `mounts` is the directory with the mount points, `POOL/VOLUME` each; relative sources are in `bundle`.
pub fn find<'a>(mounts: &Path, bundle: &Path, sources: impl Iterator<Item = &'a str>) -> BTreeSet<VolumeRef> {
    // Without it no volume is mounted.
    let Ok(mounts) = mounts.canonicalize() else { return BTreeSet::new() };
    // The runtime reports a source that does not exist.
    let real = sources.filter_map(|source| bundle.join(source).canonicalize().ok());
    real.filter_map(|source| volume_of(&mounts, &source)).collect()
}

/// The volume that a path without links is on.
fn volume_of(mounts: &Path, source: &Path) -> Option<VolumeRef> {
    let mut parts = source.strip_prefix(mounts).ok()?.components();
    let mut name = || match parts.next()? {
        Component::Normal(part) => OsStr::to_str(part)?.parse().ok(),
        _ => None,
    };
    Some(VolumeRef { pool: name()?, name: name()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn sources_on_volumes_are_found_through_links_and_parents() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for path in ["mnt/fast/db/data", "mnt/fast/log", "mnt/.x/y", "mnt/fast/-z", "mntother/fast/db", "bundle"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("mnt/fast/log/file"), "").unwrap();
        symlink(at("mnt/fast/db"), at("link")).unwrap();
        symlink("../mntother", at("mnt/out")).unwrap();
        let found = |source: &str| {
            let source = source.replace("DIR", dir.path().to_str().unwrap());
            let found = find(&at("mnt"), &at("bundle"), [source.as_str()].into_iter());
            found.into_iter().map(|volume| volume.to_string()).collect::<Vec<_>>()
        };
        for source in ["DIR/mnt/fast/db", "DIR/mnt/fast/db/data", "DIR/link/data", "DIR/mnt/fast/log/../db", "../link"]
        {
            assert_eq!(found(source), ["fast/db"], "{source}");
        }
        assert_eq!(found("DIR/mnt/fast/log/file"), ["fast/log"]);
        for source in [
            "DIR/mnt",
            "DIR/mnt/fast",
            "DIR/mnt/fast/gone",
            "DIR/mnt/.x/y",
            "DIR/mnt/fast/-z",
            "DIR/mntother/fast/db",
            "DIR/mnt/out/fast/db",
            "DIR/mnt/fast/db/../../../mntother/fast/db",
            "",
        ] {
            assert!(found(source).is_empty(), "{source}");
        }
        assert!(find(&at("absent"), &at("bundle"), ["/"].into_iter()).is_empty());
    }
}
