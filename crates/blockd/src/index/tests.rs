use super::*;
use bulkhead_core::units::Bytes;
use bulkhead_sys::fsutil::{TreeOptions, make_of_tree};

const CONTENT: Uuid = Uuid::from_u128(0x77);

/// A base with an index, or the reason to skip the test.
fn indexed(dir: &Path) -> Result<(PathBuf, PathBuf, u64), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("needs root".to_owned());
    }
    let (tree, image, index) = (dir.join("tree"), dir.join("image"), dir.join("index"));
    std::fs::create_dir_all(tree.join("a/b")).unwrap();
    for n in 0..200_usize {
        let byte = u8::try_from(n).unwrap();
        std::fs::write(tree.join(format!("a/b/{n}")), vec![byte; 3000 * (n % 9)]).unwrap();
    }
    std::fs::write(tree.join("large"), (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    std::fs::hard_link(tree.join("large"), tree.join("a/linked")).unwrap();
    let size = Bytes::mib(64);
    File::create(&image).unwrap().set_len(size.0).unwrap();
    let options = TreeOptions { tree: &tree, entries: 204, size, scratch: dir };
    make_of_tree(&image, &options).map_err(|error| error.to_string())?;
    match build(&Roots::host(), &image, FsKind::Ext4, CONTENT, &index, |_| ()) {
        Ok(blocks) => Ok((image, index, blocks)),
        // No loop devices or no permission to mount, as in a container.
        Err(IndexFileError::Loop(error)) => Err(error.to_string()),
        Err(IndexFileError::Mount(error)) => Err(error.to_string()),
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn root_every_block_of_a_file_is_found_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (image, index, blocks) = match indexed(dir.path()) {
        Ok(made) => made,
        Err(why) => return println!("Skipped: {why}"),
    };
    let in_files: u64 =
        (0..200).map(|n: u64| (3000 * (n % 9)).div_ceil(4096)).sum::<u64>() + 12_000_000_u64.div_ceil(4096);
    assert_eq!(blocks, in_files);
    let index = Index::open(&index, CONTENT).unwrap();
    let image = File::open(image).unwrap();
    let places = index.places(&(0..16384)).unwrap();
    assert_eq!(places.iter().map(|place| place.blocks.end - place.blocks.start).sum::<u64>(), blocks);
    for place in &places {
        let mut bytes = vec![0; usize::try_from((place.blocks.end - place.blocks.start) * BLOCK_BYTES).unwrap()];
        image.read_exact_at(&mut bytes, place.blocks.start * BLOCK_BYTES).unwrap();
        for n in 0..place.blocks.end - place.blocks.start {
            let block = &bytes[usize::try_from(n * BLOCK_BYTES).unwrap()..][..4096];
            assert_eq!(index.matching(&place.part(n..n + 1), block).unwrap(), 1);
        }
        // A part of a place is found as well, and a changed block is detected.
        let part = place.blocks.end - 1..place.blocks.end;
        let found = index.places(&part).unwrap();
        let last = bytes.len() - 4096;
        assert_eq!((found.len(), index.matching(&found[0], &bytes[last..]).unwrap()), (1, 1));
        assert_eq!(found[0].file_block, place.file_block + (part.start - place.blocks.start));
        bytes[last] ^= 1;
        assert_eq!(index.matching(&found[0], &bytes[last..]).unwrap(), 0);
    }
}

#[test]
fn root_a_damaged_index_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_, index, _) = match indexed(dir.path()) {
        Ok(made) => made,
        Err(why) => return println!("Skipped: {why}"),
    };
    assert!(matches!(Index::open(&index, Uuid::nil()), Err(IndexFileError::Other { found: CONTENT, .. })));
    let whole = std::fs::read(&index).unwrap();
    let damaged = dir.path().join("damaged");
    let refused = |bytes: &[u8]| {
        std::fs::write(&damaged, bytes).unwrap();
        matches!(Index::open(&damaged, CONTENT), Err(IndexFileError::Unusable { .. }))
    };
    assert!(!refused(&whole));
    for len in [0, 50, HEAD_BYTES, 200, 4096, whole.len() - 1] {
        assert!(refused(&whole[..len]), "truncated at {len}");
    }
    let longer = [&whole[..], &[0]].concat();
    assert!(refused(&longer));
    for at in (64..300).step_by(7) {
        let mut flipped = whole.clone();
        flipped[at] ^= 4;
        assert!(refused(&flipped), "flipped at {at}");
    }
}
