//! Runs each target on its seeds, and on truncated and changed seeds.

use std::fs;
use std::path::Path;

type Target = fn(&[u8]);

const TARGETS: &[(&str, Target)] = &[
    ("stream", crate::stream),
    ("index", crate::index),
    ("layers", crate::layers),
    ("peers", crate::peers),
    ("archive", crate::archive),
    ("layout", crate::layout),
    ("docker", crate::docker),
    ("runtime", crate::runtime),
    ("csi", crate::csi),
    ("image_name", crate::image_name),
];

#[test]
fn seeds_violate_no_invariant() {
    for (name, target) in TARGETS {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let entries: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!entries.is_empty(), "{} is empty", dir.display());
        for path in entries {
            let bytes = fs::read(path).unwrap();
            target(&bytes);
            // Truncated, and with single bits changed.
            for at in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
                target(&bytes[..at]);
                let mut changed = bytes.clone();
                changed[at] ^= 1 << (at % 8);
                target(&changed);
            }
        }
    }
}
