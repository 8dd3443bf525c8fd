//! The sources of `bulkhead image import`: archives, compressed or not, and OCI image layouts.

use std::fs;
use std::path::Path;

use bulkhead_image::{Source, StageOptions, stage};
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

use crate::input::{Input, scratch};

/// Size of a header in an archive, and the position of its checksum.
const HEADER: usize = 512;
const CHECKSUM: std::ops::Range<usize> = 148..156;

/// The first byte selects whether the rest is an archive, or one whose headers get correct checksums first.
pub fn archive(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mode = input.byte();
    let mut archive = input.0.to_vec();
    if mode != 0 {
        fix_checksums(&mut archive);
    }
    unpack(|source| {
        let path = source.join("archive.tar");
        fs::write(&path, archive).expect("a file can be written");
        path
    });
}

/// Documents separated by zero bytes: the index, then blobs. `@0`, `@1` … is replaced by the digest of that blob, `#0` by its size, if
/// the blob comes later. A blob that begins with `T` is an archive whose headers get correct checksums.
pub fn layout(bytes: &[u8]) {
    let parts: Vec<&[u8]> = bytes.splitn(8, |byte| *byte == 0).collect();
    unpack(|source| {
        let blobs = source.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("a directory can be created");
        fs::write(source.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#).expect("a file can be written");
        let mut known: Vec<Option<(String, usize)>> = vec![None; parts.len()];
        for (number, part) in parts.iter().enumerate().rev() {
            let content = match part.strip_prefix(b"T") {
                Some(archive) => {
                    let mut archive = archive.to_vec();
                    fix_checksums(&mut archive);
                    archive
                }
                None => substitute(part, &known),
            };
            let digest = hex(&content);
            let path = if number == 0 { source.join("index.json") } else { blobs.join(&digest) };
            fs::write(path, &content).expect("a file can be written");
            known[number] = Some((digest, content.len()));
        }
        source.to_owned()
    });
}

/// Stages the source that `make` creates in a directory. Nothing may be created outside the staging directory, or be left in it.
fn unpack(make: impl FnOnce(&Path) -> std::path::PathBuf) {
    if !geteuid().is_root() {
        return;
    }
    let dir = scratch();
    let (source, staging) = (dir.path().join("source"), dir.path().join("staging"));
    for path in [&source, &staging] {
        fs::create_dir(path).expect("a directory can be created");
    }
    let made = make(&source);
    let before = names(&source);
    let wanted = StageOptions { platform: "linux/amd64".parse().expect("a platform"), reference: None, strict: false };
    let mut archive = Vec::new();
    let packed = Source::open(&made, &staging).and_then(|source| source.write_to(&mut archive));
    packed.expect("the new source can be read");
    drop(stage(&archive[..], "source", &staging, &wanted, |_| ()));
    assert_eq!(names(dir.path()), ["source", "staging"], "files were created outside the staging directory");
    assert_eq!(names(&staging), [""; 0], "files are left in the staging directory");
    assert_eq!(names(&source), before, "the source was changed");
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("a directory can be read");
    let mut names: Vec<String> = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
    names.sort();
    names
}

/// Writes a header checksum into each block; in data blocks these eight bytes do not matter.
fn fix_checksums(archive: &mut [u8]) {
    for block in archive.chunks_exact_mut(HEADER).filter(|block| block.iter().any(|byte| *byte != 0)) {
        block[CHECKSUM].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}

fn substitute(part: &[u8], known: &[Option<(String, usize)>]) -> Vec<u8> {
    let mut filled = Vec::new();
    let mut rest = part.iter();
    while let Some(byte) = rest.next() {
        let number = rest.as_slice().first().map(|digit| usize::from(digit.wrapping_sub(b'0')));
        let blob = number.and_then(|number| known.get(number + 1)?.as_ref()).filter(|_| b"@#".contains(byte));
        match blob {
            Some((digest, len)) => {
                let text = if *byte == b'@' { format!("sha256:{digest}") } else { len.to_string() };
                filled.extend(text.as_bytes());
                rest.next();
            }
            None => filled.push(*byte),
        }
    }
    filled
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
