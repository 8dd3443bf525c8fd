//! Imports of all kinds of sources.

use super::*;
use crate::testing::{LAYER, Tar, blob, complete, image, save, saved_image};
use bulkhead_core::error::Code;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use tar::EntryType;

fn options() -> StageOptions {
    StageOptions { platform: "linux/amd64".parse().unwrap(), reference: None, strict: false }
}

/// The names in a tree, with mode, time and length.
fn seen(tree: &Path) -> Vec<(PathBuf, u32, i64, u64)> {
    let (mut seen, mut left) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(at) = left.pop() {
        let found = fs::symlink_metadata(&at).unwrap();
        if found.is_dir() {
            left.extend(fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().path()));
        }
        let len = if found.is_dir() { 0 } else { found.len() };
        seen.push((at.strip_prefix(tree).unwrap().to_owned(), found.mode(), found.mtime(), len));
    }
    seen.sort();
    seen
}

fn content() -> Tar {
    Tar::new()
        .dir("./", 0o755, 5)
        .dir("etc", 0o700, 6)
        .file("etc/passwd", "root")
        .link(EntryType::Link, "etc/linked", "etc/passwd")
        .file("large", vec![9; 100_000])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Packs a directory of regular files.
fn packed(dir: &Path, at: &str, mut tar: Tar) -> Tar {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{at}{}", entry.file_name().to_str().unwrap());
        if entry.metadata().unwrap().is_dir() {
            tar = packed(&entry.path(), &format!("{name}/"), tar.dir(&name, 0o755, 1));
        } else {
            tar = tar.file(&name, fs::read(entry.path()).unwrap());
        }
    }
    tar
}

/// Copies a directory of regular files.
fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.metadata().unwrap().is_dir() {
            copy_all(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Packs a source, and unpacks the archive.
fn stage_of(source: &Path, staging: &Path) -> Result<Tree, ImportError> {
    let mut archive = Vec::new();
    Source::open(source, staging)?.write_to(&mut archive)?;
    stage(&archive[..], &source.display().to_string(), staging, &options(), |_| ())
}

/// Whether this is root, which staging requires.
fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("skipped: requires root");
    }
    is_root
}

#[test]
fn root_all_kinds_of_sources_give_the_same_tree() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (staging, layout) = (dir.path().join("staging"), dir.path().join("layout"));
    fs::create_dir(&staging).unwrap();
    fs::create_dir(&layout).unwrap();
    let plain = content().end();
    let zstd = ruzstd::encoding::compress_to_vec(&plain[..], ruzstd::encoding::CompressionLevel::Fastest);
    let lower = Tar::new().dir("./", 0o700, 4).file("etc/old", "").file("hidden/file", "").file("large", "small").end();
    let upper = content().file(".wh.hidden", "").file("etc/.wh..wh..opq", "").end();
    let layers = [
        blob(&layout, &format!("{LAYER}+gzip"), &gzip(&lower)),
        blob(
            &layout,
            &format!("{LAYER}+zstd"),
            &ruzstd::encoding::compress_to_vec(&upper[..], ruzstd::encoding::CompressionLevel::Fastest),
        ),
    ];
    complete(&layout, &[image(&layout, "linux/amd64", &layers)]);
    // Docker's current format is also an OCI layout, which is preferred to its own manifest.
    let (old, new) = (dir.path().join("saved"), dir.path().join("saved-layout"));
    fs::create_dir(&old).unwrap();
    let saved = saved_image(&old, &["app:latest"], "linux/amd64", &[&lower, &upper]);
    save(&old, &[saved]);
    copy_all(&layout, &new);
    fs::write(new.join("manifest.json"), r#"[{"Config": "blobs/sha256/x", "RepoTags": null, "Layers": []}]"#).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let sources = [
        write("plain.tar", &plain),
        write("tar.gz", &gzip(&plain)),
        write("tar.zst", &zstd),
        layout.clone(),
        write("oci.tar", &packed(&layout, "", Tar::new()).end()),
        old.clone(),
        write("saved.tar", &packed(&old, "", Tar::new()).end()),
        write("saved.tar.gz", &gzip(&packed(&old, "./", Tar::new()).end())),
        new,
    ];
    let mut first = None;
    for source in &sources {
        let tree = stage_of(source, &staging).unwrap();
        assert_eq!((tree.entries(), tree.bytes()), (4, Bytes(4096 + 102_400)), "{}", source.display());
        assert!(tree.scratch().unwrap().is_dir());
        // The unpacked outer archive is not kept.
        assert_eq!(fs::read_dir(tree.staging.path()).unwrap().count(), 2);
        let seen = seen(tree.path());
        let (expected, what) = first.get_or_insert_with(|| (seen.clone(), source.clone()));
        assert_eq!(&seen, expected, "{} and {}", source.display(), what.display());
        drop(tree);
        assert_eq!(fs::read_dir(&staging).unwrap().count(), 0);
    }
    // The unpacked directory is a source as well.
    let (mut reported, unpacked) = (Bytes(0), dir.path().join("unpacked"));
    let mut report = |bytes| reported = bytes;
    unpack_archive(&plain[..], "plain", &unpacked, &mut Meter::new(&mut report)).unwrap();
    assert!(reported.0 >= 100_004);
    assert_eq!(seen(stage_of(&unpacked, &staging).unwrap().path()), first.unwrap().0);
    assert!(unpacked.join("etc/passwd").exists() && fs::read_dir(&staging).unwrap().count() == 0);
}

#[test]
fn root_a_refused_source_leaves_no_files() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (staging, layout) = (dir.path().join("staging"), dir.path().join("layout"));
    fs::create_dir(&staging).unwrap();
    fs::create_dir(&layout).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let plain = content().end();
    let layer = blob(&layout, LAYER, &plain);
    complete(&layout, &[image(&layout, "linux/amd64", std::slice::from_ref(&layer))]);
    let hex = layer["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let mut damaged = plain.clone();
    // In the data of a file, where only the digest reveals it.
    let at_of_data = damaged.iter().rposition(|byte| *byte == 9).unwrap();
    damaged[at_of_data] = 8;
    fs::write(layout.join("blobs/sha256").join(hex), damaged).unwrap();
    let saved = |name: &str, change: &dyn Fn(&Path)| {
        let at = dir.path().join(name);
        fs::create_dir(&at).unwrap();
        let images = ["one:1", "two:2"].map(|tag| saved_image(&at, &[tag], "linux/amd64", &[&plain, tag.as_bytes()]));
        save(&at, &images[..1]);
        change(&at);
        if name == "several" {
            save(&at, &images);
        }
        at
    };
    let layer_of = |at: &Path| {
        let manifest: serde_json::Value = serde_json::from_slice(&fs::read(at.join("manifest.json")).unwrap()).unwrap();
        at.join(manifest[0]["Layers"][0].as_str().unwrap())
    };
    let half = dir.path().join("half");
    fs::create_dir(&half).unwrap();
    fs::write(half.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let cases = [
        (saved("several", &|_| ()), Code::InvalidArgument, "it has several images: "),
        (
            saved("changed", &|at| {
                let mut changed = plain.clone();
                changed[at_of_data] = 8;
                fs::write(layer_of(at), changed).unwrap();
            }),
            Code::Corrupt,
            "is damaged: its digest is sha256:",
        ),
        (saved("missing", &|at| fs::remove_file(layer_of(at)).unwrap()), Code::Corrupt, "layer.tar is missing"),
        (half, Code::Corrupt, "index.json is missing"),
        (write("cut.tar", &plain[..plain.len() - 20_000]), Code::Corrupt, "it is cut off"),
        (write("cut.tar.gz", &gzip(&plain)[..200]), Code::Corrupt, "it is cut off"),
        (write("out.tar", &Tar::new().file("../x", "").end()), Code::InvalidArgument, "leads out"),
        (write("text", b"just text"), Code::InvalidArgument, "not a directory, tar archive or OCI image"),
        (write("x.tar.xz", b"\xfd7zXZ\0rest"), Code::Unsupported, "compressed with xz"),
        (write("empty", b""), Code::InvalidArgument, "not a directory, tar archive or OCI image"),
        (layout, Code::Corrupt, "is damaged: its digest is sha256:"),
        (dir.path().join("nowhere"), Code::NotFound, "cannot find"),
        (dir.path().to_owned(), Code::InvalidArgument, "it contains the staging directory"),
    ];
    for (source, code, cause) in cases {
        let error = stage_of(&source, &staging).unwrap_err();
        assert!(error.to_string().contains(cause) && error.code() == code, "{error} ({:?})", error.code());
        assert!(!error.fault("source").hint.is_empty());
        let (fault, name) = (error.fault(format!("source {}", source.display())).to_string(), source.display());
        assert!(!fault.contains(&format!("{name}: {name}: ")), "it names the source twice: {fault}");
        assert_eq!(fs::read_dir(&staging).unwrap().count(), 0, "{error}");
    }
}

#[test]
fn root_attributes_are_omitted_or_with_strict_refused() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let record: (&str, &[u8]) = ("SCHILY.xattr.com.apple.quarantine", b"0081");
    let plain = Tar::new().records(EntryType::XHeader, &[record]).file("file", "").end();
    let tree = stage(&plain[..], "it", dir.path(), &options(), |_| ()).unwrap();
    let left_out = tree.left_out()[0].clone();
    assert_eq!((left_out.attribute.as_str(), left_out.entries), ("com.apple.quarantine", 1));
    drop(tree);
    let strict = StageOptions { strict: true, ..options() };
    let error = stage(&plain[..], "it", dir.path(), &strict, |_| ()).unwrap_err();
    let expected = r#"it: not all attributes can be kept: com.apple.quarantine of 1 entry such as "file": Linux has no such attribute"#;
    assert_eq!((error.to_string().as_str(), error.code()), (expected, Code::Unsupported));
    assert!(!error.fault("source").hint.is_empty() && fs::read_dir(dir.path()).unwrap().count() == 0);
    // Only attributes in the layers of an image count, not those in the archive around it.
    let layout = dir.path().join("layout");
    fs::create_dir(&layout).unwrap();
    complete(&layout, &[image(&layout, "linux/amd64", &[blob(&layout, LAYER, &content().end())])]);
    let archive = packed(&layout, "", Tar::new().records(EntryType::XHeader, &[record])).end();
    fs::remove_dir_all(&layout).unwrap();
    assert!(stage(&archive[..], "it", dir.path(), &strict, |_| ()).unwrap().left_out().is_empty());
}

#[test]
fn staging_requires_root() {
    if geteuid().is_root() {
        return println!("skipped: this is root");
    }
    let error = stage(&b""[..], "x", Path::new("/nonexistent"), &options(), |_| ()).unwrap_err();
    assert!(error.code() == Code::PermissionDenied && error.fault("source").hint.contains("as root"), "{error}");
}
