//! On real files: the content of an image is the same before, during and after a merge.

use super::*;
use std::collections::BTreeMap;

use bulkhead_core::merge;
use bulkhead_core::model::Provision;
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};
use tempfile::TempDir;

use crate::layer::{chain, freeze, retry_while_locked, sweep};
use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::image;

const BLOCKS: u64 = 600;

/// Only root can write to a layer, which is read-only.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("Skipped: needs root");
    }
    is_root
}

const fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// The content of an image: the first byte of each block that exists, read as docs/formats/layers.md specifies.
fn content(image: &Path) -> BTreeMap<u64, u8> {
    let mut all = BTreeMap::new();
    let files = std::iter::once(image.to_owned()).chain(chain(image).unwrap().unwrap_or_default());
    for path in files {
        let file = File::open(&path).unwrap();
        let whole = file.metadata().unwrap().len() / BLOCK_BYTES * BLOCK_BYTES;
        extents::extents(&file, 0..whole, |range, kind| {
            for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
                let mut bytes = [0; 4096];
                file.read_exact_at(&mut bytes, block * BLOCK_BYTES)?;
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block of {} is torn", path.display());
                if kind == Kind::Data {
                    all.entry(block).or_insert(bytes[0]);
                }
            }
            Ok(())
        })
        .unwrap();
    }
    all
}

fn write(image: &Path, blocks: Range<u64>, byte: u8) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    for block in blocks {
        file.write_all_at(&[byte; 4096], block * BLOCK_BYTES).unwrap();
    }
}

/// An image on layers 1, 2, …, one for each write of other bytes; the image may be grown or shrunk before each.
fn layered(writes: &[(Range<u64>, u64)]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.img");
    image::create(&path, Bytes(BLOCKS * BLOCK_BYTES), Provision::OnDemand).unwrap();
    for (n, (blocks, size)) in writes.iter().enumerate() {
        let n = u8::try_from(n + 1).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size * BLOCK_BYTES).unwrap();
        // Never empty: an empty image would not become a layer.
        write(&path, blocks.start..blocks.end.min(*size).max(blocks.start + 1), n);
        freeze(&path, id(n.into()), std::time::Duration::from_secs(5), || ()).unwrap();
    }
    (dir, path)
}

fn the_run(directory: &Path) -> merge::Run {
    let runs = tree(directory).unwrap().runs();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.into_iter().next().unwrap()
}

/// Sets the run aside under new names.
fn set_run_aside(directory: &Path, run: &merge::Run) -> merge::Run {
    let aside = run.renamed(Uuid::new_v4);
    retry_while_locked(|| set_aside(directory, &run.layers, &aside.layers)).unwrap();
    aside
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn root_a_merge_keeps_the_content_of_an_image(
        writes in proptest::collection::vec((0..BLOCKS - 1, 1..200_u64, BLOCKS / 2..BLOCKS), 2..9),
        own in 0..BLOCKS - 20,
        cut_at in 0..3_u64,
    ) {
        if !is_root() {
            return Ok(());
        }
        let writes: Vec<_> = writes.into_iter().map(|(at, len, size)| (at.min(size - 1)..at.min(size - 1) + len, size)).collect();
        let (dir, path) = layered(&writes);
        write(&path, own..own + 20, 200);
        let before = content(&path);
        let run = the_run(dir.path());
        prop_assert_eq!(run.layers.len(), writes.len());
        let aside = set_run_aside(dir.path(), &run);
        prop_assert_eq!(&content(&path), &before);
        // Interrupted during the copy.
        {
            let open = Run::open(dir.path(), &aside.layers, aside.into).unwrap();
            layer::unseal(&open.into, &open.path).unwrap();
            open.copy(0..(cut_at * CHUNK).min(open.map.end()), &mut Buffer::new()).unwrap();
        }
        prop_assert_eq!(&content(&path), &before);
        let copied = copy(dir.path(), &aside.layers, aside.into).unwrap();
        prop_assert_eq!(&content(&path), &before);
        assert!(copied <= run.bytes, "{copied} of {}", run.bytes);
        retry_while_locked(|| replace(dir.path(), &aside.layers, aside.into, aside.parent)).unwrap();
        prop_assert_eq!(&content(&path), &before);
        sweep(dir.path(), &[]).unwrap();
        prop_assert_eq!(&content(&path), &before);
        prop_assert_eq!(chain(&path).unwrap().unwrap(), [layer_path(dir.path(), run.layers[0])]);
        prop_assert_eq!(tree(dir.path()).unwrap().runs(), []);
    }
}

#[test]
fn root_a_snapshot_during_a_merge_does_not_undo_it() {
    if !is_root() {
        return;
    }
    let (dir, path) = three();
    let aside = set_run_aside(dir.path(), &the_run(dir.path()));
    copy(dir.path(), &aside.layers, aside.into).unwrap();
    write(&path, 400..410, 7);
    freeze(&path, id(4), Duration::from_secs(5), || ()).unwrap();
    let snapshot = dir.path().join("s.img");
    layer::create_with_backing_of(&snapshot, &path).unwrap();
    let before = content(&path);
    retry_while_locked(|| replace(dir.path(), &aside.layers, aside.into, aside.parent)).unwrap();
    sweep(dir.path(), &[]).unwrap();
    assert_eq!((content(&path), content(&snapshot)), (before.clone(), before));
    assert_eq!(chain(&path).unwrap().unwrap(), [4, 3].map(|n| layer_path(dir.path(), id(n))));
}

/// Three layers, the middle one the largest.
fn three() -> (TempDir, PathBuf) {
    layered(&[(0..10, BLOCKS), (5..300, BLOCKS), (290..310, BLOCKS)])
}

#[test]
fn root_an_interrupted_merge_is_repeated() {
    if !is_root() {
        return;
    }
    // After each link, attribute and removal of the first rename; and after the new backing layer is set, before the last rename.
    for cut in 0..4 {
        let (dir, path) = three();
        let before = content(&path);
        let run = the_run(dir.path());
        let new = layer_path(dir.path(), id(77));
        if cut < 3 {
            let top = layer_path(dir.path(), id(3));
            fs::hard_link(layer_path(dir.path(), id(2)), &new).unwrap();
            if cut > 0 {
                layer::set_backing(&File::open(&top).unwrap(), &top, Some(id(77))).unwrap();
            }
            if cut > 1 {
                fs::remove_file(layer_path(dir.path(), id(2))).unwrap();
            }
        } else {
            let aside = set_run_aside(dir.path(), &run);
            copy(dir.path(), &aside.layers, aside.into).unwrap();
            let into = layer_path(dir.path(), aside.into);
            layer::set_backing(&File::open(&into).unwrap(), &into, None).unwrap();
        }
        assert_eq!(content(&path), before);
        sweep(dir.path(), &[]).unwrap();
        assert_eq!(content(&path), before);
        let run = the_run(dir.path());
        assert_eq!(run.layers.len(), if cut < 3 { 3 } else { 2 });
        let aside = set_run_aside(dir.path(), &run);
        copy(dir.path(), &aside.layers, aside.into).unwrap();
        retry_while_locked(|| replace(dir.path(), &aside.layers, aside.into, aside.parent)).unwrap();
        sweep(dir.path(), &[]).unwrap();
        assert_eq!(content(&path), before);
        assert_eq!(chain(&path).unwrap().unwrap(), [layer_path(dir.path(), id(3))]);
    }
}

#[test]
fn root_layers_with_a_new_dependent_are_not_merged() {
    if !is_root() {
        return;
    }
    let (dir, path) = three();
    let run = the_run(dir.path());
    let staging = dir.path().join("r.part");
    crate::staging::create(&staging, id(50), Some(id(1)), Bytes(BLOCKS * BLOCK_BYTES)).unwrap();
    let names = run.renamed(Uuid::new_v4);
    let refused = set_aside(dir.path(), &run.layers, &names.layers).unwrap_err();
    assert!(matches!(refused, LayerError::RunChanged { .. }), "{refused}");
    assert!(chain(&path).unwrap().is_some_and(|chain| chain.contains(&layer_path(dir.path(), id(1)))));
    fs::remove_file(&staging).unwrap();
    // A process that was left behind is still merging.
    let other = lock(dir.path(), Duration::ZERO).unwrap();
    assert!(matches!(set_aside(dir.path(), &run.layers, &names.layers), Err(LayerError::RunChanged { .. })));
    drop(other);
    let aside = set_run_aside(dir.path(), &run);
    // That process finds none of the layers that it was to copy.
    assert!(copy(dir.path(), &run.layers, run.into).is_err());
    // A stream that is based on the old layer does not find the changed one.
    let missing = crate::staging::create(&staging, id(50), Some(id(1)), Bytes(BLOCKS * BLOCK_BYTES)).unwrap_err();
    assert!(matches!(missing, LayerError::NoBase { .. }), "{missing}");
    // The volume and its layers are removed during the copy.
    copy(dir.path(), &aside.layers, aside.into).unwrap();
    fs::remove_file(&path).unwrap();
    sweep(dir.path(), &[]).unwrap();
    let gone = replace(dir.path(), &aside.layers, aside.into, aside.parent).unwrap_err();
    assert!(matches!(gone, LayerError::RunChanged { .. }), "{gone}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn root_a_layer_that_was_written_to_is_not_merged() {
    if !is_root() {
        return;
    }
    let (dir, path) = three();
    let run = the_run(dir.path());
    let aside = set_run_aside(dir.path(), &run);
    write(&layer_path(dir.path(), aside.layers[2]), 1..2, 9);
    let refused = copy(dir.path(), &aside.layers, aside.into).unwrap_err();
    assert!(matches!(refused, LayerError::Changed { .. }), "{refused}");
    assert!(matches!(chain(&path), Err(LayerError::Changed { .. })));
}

#[test]
fn root_a_merged_layer_is_sealed_and_ends_at_a_block() {
    if !is_root() {
        return;
    }
    // The largest is not a multiple of a block, and the newest is longer.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v.img");
    image::create(&path, Bytes(100 * BLOCK_BYTES), Provision::OnDemand).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&vec![1; 90 * 4096 + 100], 10 * BLOCK_BYTES).unwrap();
    drop(file);
    freeze(&path, id(1), std::time::Duration::from_secs(5), || ()).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(200 * BLOCK_BYTES).unwrap();
    write(&path, 150..160, 2);
    freeze(&path, id(2), std::time::Duration::from_secs(5), || ()).unwrap();
    let before = content(&path);
    let aside = set_run_aside(dir.path(), &the_run(dir.path()));
    assert_ne!(aside.into, id(2));
    copy(dir.path(), &aside.layers, aside.into).unwrap();
    retry_while_locked(|| replace(dir.path(), &aside.layers, aside.into, aside.parent)).unwrap();
    assert_eq!(content(&path), before);
    write(&layer_path(dir.path(), id(2)), 1..2, 9);
    assert!(matches!(chain(&path), Err(LayerError::Changed { .. })));
}
