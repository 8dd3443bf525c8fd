//! Generated archives and images, unpacked by this crate and by reference programs: GNU tar for archives, and `umoci` for layers of OCI
//! layouts. The trees are compared name by name; [`allow`] has the accepted differences, with their reasons.
//!
//! `BULKHEAD_COMPARE_FILES=A:B` compares existing ones: archives, and directories with an OCI layout whose image is tagged `it`.
//! `BULKHEAD_COMPARE=N` compares N archives and N images instead of the default, `BULKHEAD_COMPARE_SEED=N` starts at another seed.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "the references are external programs")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bulkhead_image::{ImportError, Platform, Source, StageOptions, Tree, stage};
use rustix::fs::{FileType, Mode, XattrFlags, lsetxattr, makedev, mknodat};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

mod encode;
mod generate;
mod listing;

use encode::{Content, Entry, Kind};
use generate::{Generator, Purpose, could_lead_out};
use listing::{Listing, Node, list};

/// The default number of archives and images.
const N_ARCHIVES: u64 = 60;
const N_IMAGES: u64 = 20;

/// Options with which GNU tar packs a tree again. Only extended headers can have attributes.
const PACKINGS: [&[&str]; 4] = [
    &["--format=pax", "--xattrs", "--xattrs-include=*", "--acls"],
    &["--format=pax", "--xattrs", "--xattrs-include=*", "--acls", "--sparse"],
    &["--format=pax", "--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--sparse-version=0.0"],
    &["--format=gnu", "--sparse"],
];

/// The seeds to compare.
fn cases(by_default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (n, seed) = (number("BULKHEAD_COMPARE").unwrap_or(by_default), number("BULKHEAD_COMPARE_SEED").unwrap_or(1));
    seed..seed + n
}

/// Why this machine cannot run a comparison with a program, whose version must contain a text; `None` if it can.
fn missing_requirement(program: &str, version: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("requires root".to_owned());
    }
    let says = Command::new(program).arg("--version").output();
    if !says.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(version)) {
        return Some(format!("requires {program} ({version})"));
    }
    let dir = tempfile::tempdir().unwrap();
    let (root, file) = (fs::File::open(dir.path()).unwrap(), dir.path().join("file"));
    fs::write(&file, "").unwrap();
    if lsetxattr(&file, "user.test", b"x", XattrFlags::empty()).is_err() {
        return Some("requires a file system with user attributes at TMPDIR".to_owned());
    }
    let node = mknodat(&root, "node", FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, 3));
    node.is_err().then(|| "requires permission to create device nodes".to_owned())
}

fn options() -> StageOptions {
    StageOptions { platform: Platform::host(), reference: None, strict: false }
}

fn unpack(bytes: &[u8], staging: &Path) -> Result<Tree, ImportError> {
    stage(bytes, "generated", staging, &options(), |_| ())
}

/// Runs a program with the usual file mode creation mask.
fn run(program: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 022; exec \"$@\"", "sh", program]).args(arguments).env("LC_ALL", "C").output().unwrap()
}

fn untar(archive: &Path, to: &Path) -> Output {
    fs::create_dir(to).unwrap();
    let options = [
        "--numeric-owner",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "--warning=no-timestamp",
        "--delay-directory-restore",
        "-xpf",
    ]
    .map(Path::new);
    run("tar", &[&options[..], &[archive, Path::new("-C"), to]].concat())
}

/// The reference that a tree is compared with.
enum Reference {
    /// GNU tar's tree; `late` are the directories whose entry follows their contents.
    Tar { late: BTreeSet<Vec<u8>> },
    /// The packed tree itself.
    Itself,
    /// umoci's tree; `disturbed` are the directories whose times umoci does not restore.
    Umoci { disturbed: BTreeSet<Vec<u8>> },
}

/// Removes the accepted differences at one path.
fn allow(path: &[u8], (made, all): (&Node, &Listing), theirs: &mut Node, by: &Reference) {
    let is_directory = made.mode & 0o170_000 == 0o040_000 && theirs.mode & 0o170_000 == 0o040_000;
    // A directory without an entry belongs to root, with mode 0755 and time 0. The references leave its owner to the kernel and its time to the
    // clock.
    if is_directory && made.mtime == 0 && (made.mode, made.uid, made.gid) == (0o040_755, 0, 0) && made.xattrs.is_empty()
    {
        *theirs = made.clone();
    }
    // GNU tar creates links that could lead out at the very end, after setting the times of directories.
    let within = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
    let is_in_it =
        |name: &[u8]| name.strip_prefix(&within[..]).is_some_and(|rest| !rest.is_empty() && !rest.contains(&b'/'));
    let late = match by {
        Reference::Itself => return,
        Reference::Tar { late } => late,
        Reference::Umoci { disturbed } => {
            // umoci restores the time of a directory after each entry in it, but not after creating a directory without an entry there, nor
            // after a whiteout further up removed something.
            if is_directory && disturbed.contains(path) {
                theirs.mtime = made.mtime;
            }
            return;
        }
    };
    if is_directory && all.iter().any(|(name, node)| is_in_it(name) && could_lead_out(&node.target)) {
        theirs.mtime = made.mtime;
    }
    // With `--delay-directory-restore`, GNU tar leaves some directories whose entry follows their contents with the mode of their creation and
    // without an ACL. Without that option, others would have wrong times and modes.
    if late.contains(path) && theirs.mode & 0o777 == 0o755 {
        theirs.mode = made.mode;
        for acl in ["system.posix_acl_access", "system.posix_acl_default"] {
            theirs.xattrs.remove(acl);
            theirs.xattrs.extend(made.xattrs.get_key_value(acl).map(|(name, value)| (name.clone(), value.clone())));
        }
    }
}

fn shown(node: &Option<Node>) -> String {
    let Some(node) = node else { return "nothing".to_owned() };
    let xattrs: Vec<String> =
        node.xattrs.iter().map(|(name, value)| format!("{name}={}", value.escape_ascii())).collect();
    let Node { mode, uid, gid, mtime, content, first_name, target, .. } = node;
    let target = target.escape_ascii();
    format!("{mode:o} {uid}:{gid} {mtime} {content}{target} \"{}\" {}", first_name.escape_ascii(), xattrs.join(" "))
}

/// The differences between two trees, one per line.
fn differences(made: &Listing, theirs: &Listing, by: &Reference) -> String {
    let mut text = String::new();
    for path in made.keys().chain(theirs.keys().filter(|path| !made.contains_key(*path))) {
        let (one, mut other) = (made.get(path).cloned(), theirs.get(path).cloned());
        if let (Some(one), Some(other)) = (&one, &mut other) {
            allow(path, (one, made), other, by);
        }
        if one != other {
            writeln!(text, "\"{}\"\n    made   {}\n    theirs {}", path.escape_ascii(), shown(&one), shown(&other))
                .unwrap();
        }
    }
    text
}

/// Keeps the input of a difference for inspection, and describes it.
fn report(seed: u64, what: &str, generator: &Generator, text: &str, files: &[(&str, &[u8])]) -> String {
    let dir = std::env::temp_dir().join(format!("bulkhead-compare-{seed}"));
    fs::create_dir_all(&dir).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
    let log: Vec<String> = generator.log.iter().map(|line| line.chars().take(250).collect()).collect();
    format!("seed {seed}, {what} (kept in {}):\n{}\n{text}", dir.display(), log.join("\n"))
}

#[test]
fn root_archives_are_unpacked_as_by_gnu_tar() {
    if let Some(reason) = missing_requirement("tar", "GNU tar") {
        return println!("skipped: {reason}");
    }
    let (mut n_entries, mut found) = (0, Vec::new());
    let seeds = cases(N_ARCHIVES);
    for seed in seeds.clone() {
        let dir = tempfile::tempdir().unwrap();
        let mut generator = Generator::new(seed, Purpose::Archive);
        let bytes = generator.archive();
        let archive = dir.path().join("archive.tar");
        fs::write(&archive, &bytes).unwrap();
        let theirs = dir.path().join("theirs");
        let output = untar(&archive, &theirs);
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        let complaints: Vec<&str> = complaints.lines().filter(|line| !line.contains("Removing leading `")).collect();
        let text = match unpack(&bytes, dir.path()) {
            Err(error) => format!("refused: {:#}\n{complaints:?}", error),
            Ok(tree) => {
                let (made, theirs) = (list(tree.path()), list(&theirs));
                let mut text = differences(&made, &theirs, &Reference::Tar { late: generator.late.clone() });
                text.extend(complaints.iter().map(|line| format!("tar: {line}\n")));
                if !tree.left_out().is_empty() {
                    writeln!(text, "omitted: {:?}", tree.left_out()).unwrap();
                }
                text += &packed(dir.path(), tree.path(), &made);
                text += &packed_by_tar(dir.path(), tree.path(), &made, generator.random.pick(&PACKINGS));
                text
            }
        };
        n_entries += generator.n_entries;
        if !text.is_empty() {
            found.push(report(seed, "archive", &generator, &text, &[("archive.tar", &bytes)]));
        }
    }
    println!("seeds {seeds:?}: {n_entries} entries of archives compared with GNU tar");
    assert!(found.is_empty(), "{} differ\n{}", found.len(), found.into_iter().take(3).collect::<Vec<_>>().join("\n"));
}

/// Compares the archives and layouts in `BULKHEAD_COMPARE_FILES`.
#[test]
fn root_existing_sources_are_unpacked_as_by_the_references() {
    let Ok(sources) = std::env::var("BULKHEAD_COMPARE_FILES") else {
        return println!("skipped: BULKHEAD_COMPARE_FILES is not set");
    };
    if let Some(reason) =
        missing_requirement("tar", "GNU tar").or_else(|| missing_requirement("umoci", "umoci version"))
    {
        return println!("skipped: {reason}");
    }
    for source in sources.split(':').map(Path::new) {
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        let (output, archive, by) = if source.is_dir() {
            let archive = dir.path().join("layout.tar");
            assert!(
                run("tar", &[Path::new("-cf"), &archive, Path::new("-C"), source, Path::new(".")]).status.success()
            );
            let image = PathBuf::from(format!("{}:it", source.display()));
            let arguments = ["raw", "unpack", "--image"].map(Path::new);
            let output = run("umoci", &[&arguments[..], &[&image, &theirs]].concat());
            (output, archive, Reference::Umoci { disturbed: BTreeSet::new() })
        } else {
            (untar(source, &theirs), source.to_owned(), Reference::Tar { late: BTreeSet::new() })
        };
        assert!(output.status.success(), "{source:?}: {output:?}");
        let bytes = fs::read(&archive).unwrap();
        let begun = std::time::Instant::now();
        let tree = unpack(&bytes, dir.path()).unwrap();
        let (took, made) = (begun.elapsed(), list(tree.path()));
        println!("{}: {} entries, {} in {took:.1?}", source.display(), made.len(), tree.bytes());
        assert_eq!(differences(&made, &list(&theirs), &by), "", "{source:?}");
        assert_eq!(tree.left_out(), [], "{source:?}");
        if !source.is_dir() {
            assert_eq!(packed(dir.path(), tree.path(), &made), "", "{source:?}");
        }
    }
}

/// Packs a tree here, unpacks it with GNU tar, and compares.
fn packed(dir: &Path, tree: &Path, made: &Listing) -> String {
    let mut bytes = Vec::new();
    Source::open(tree, &dir.join("none")).unwrap().write_to(&mut bytes).unwrap();
    let archive = dir.join("packed.tar");
    fs::write(&archive, &bytes).unwrap();
    let unpacked = dir.join("unpacked");
    let output = untar(&archive, &unpacked);
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints = complaints.lines().filter(|line| !line.contains("Removing leading `"));
    let text = differences(made, &list(&unpacked), &Reference::Tar { late: BTreeSet::new() })
        + &complaints.collect::<Vec<_>>().join("\n");
    if text.is_empty() { text } else { format!("packed and unpacked by GNU tar:\n{text}") }
}

#[test]
fn root_images_are_unpacked_as_by_umoci() {
    if let Some(reason) = missing_requirement("umoci", "umoci version") {
        return println!("skipped: {reason}");
    }
    let (mut n_layers, mut n_entries, mut found) = (0, 0, Vec::new());
    let seeds = cases(N_IMAGES);
    for seed in seeds.clone() {
        let dir = tempfile::tempdir().unwrap();
        let mut generator = Generator::new(seed, Purpose::Layers);
        let layers: Vec<Vec<u8>> = (0..1 + generator.random.below(4)).map(|_| generator.layer()).collect();
        let layout = layout(&dir, &layers);
        let theirs = dir.path().join("theirs");
        let image = dir.path().join("layout:it");
        let arguments = ["raw", "unpack", "--image"].map(Path::new);
        let output = run("umoci", &[&arguments[..], &[&image, &theirs]].concat());
        let archive = dir.path().join("layout.tar");
        let packed = run("tar", &[Path::new("-cf"), &archive, Path::new("-C"), &layout, Path::new(".")]);
        assert!(packed.status.success());
        let mut text = match unpack(&fs::read(&archive).unwrap(), dir.path()) {
            Err(error) => format!("refused: {error:#}\n"),
            Ok(tree) if output.status.success() => differences(
                &list(tree.path()),
                &list(&theirs),
                &Reference::Umoci { disturbed: generator.disturbed.clone() },
            ),
            Ok(_) => String::new(),
        };
        if !output.status.success() {
            writeln!(text, "umoci: {}", String::from_utf8_lossy(&output.stderr)).unwrap();
        }
        n_layers += layers.len();
        n_entries += generator.n_entries;
        if !text.is_empty() {
            let names: Vec<String> = (0..layers.len()).map(|n| format!("layer-{n}.tar")).collect();
            let files: Vec<(&str, &[u8])> =
                names.iter().map(String::as_str).zip(layers.iter().map(Vec::as_slice)).collect();
            found.push(report(seed, "image", &generator, &text, &files));
        }
    }
    println!("seeds {seeds:?}: {n_entries} entries of {n_layers} layers compared with umoci");
    assert!(found.is_empty(), "{} differ\n{}", found.len(), found.into_iter().take(3).collect::<Vec<_>>().join("\n"));
}

/// Packs a tree with GNU tar, unpacks it here, and compares.
fn packed_by_tar(dir: &Path, tree: &Path, made: &Listing, options: &[&str]) -> String {
    let archive = dir.join("theirs.tar");
    let options: Vec<&Path> = options.iter().map(Path::new).collect();
    let output =
        run("tar", &[&options[..], &[Path::new("-cf"), &archive, Path::new("-C"), tree, Path::new(".")]].concat());
    assert!(output.status.success(), "{output:?}");
    let tree = unpack(&fs::read(&archive).unwrap(), dir).unwrap();
    let (mut made, mut again) = (made.clone(), list(tree.path()));
    if !options.contains(&Path::new("--xattrs")) {
        made.values_mut().chain(again.values_mut()).for_each(|node| node.xattrs.clear());
    }
    // GNU tar stores each name of a device or pipe as a separate file.
    for (name, node) in made.iter_mut().filter(|(_, node)| !matches!(node.mode & 0o170_000, 0o100_000 | 0o120_000)) {
        node.first_name.clone_from(name);
    }
    let text = differences(&again, &made, &Reference::Itself);
    if text.is_empty() { text } else { format!("packed by GNU tar with {options:?} and unpacked here:\n{text}") }
}

/// Writes an OCI layout with one image.
fn layout(dir: &TempDir, layers: &[Vec<u8>]) -> PathBuf {
    let layout = dir.path().join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let hex = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let blob = |media_type: &str, bytes: &[u8]| {
        fs::write(blobs.join(hex(bytes)), bytes).unwrap();
        let media_type = format!("application/vnd.oci.image.{media_type}");
        serde_json::json!({"mediaType": media_type, "digest": format!("sha256:{}", hex(bytes)), "size": bytes.len()})
    };
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
    let platform = Platform::host().to_string();
    let mut parts = platform.split('/');
    let (os, architecture) = (parts.next().unwrap(), parts.next().unwrap());
    let config = serde_json::json!({"os": os, "architecture": architecture, "config": {}, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let config = blob("config.v1+json", config.to_string().as_bytes());
    let layers: Vec<_> = layers.iter().map(|layer| blob("layer.v1.tar", layer)).collect();
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes());
    manifest["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": "it"});
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    fs::write(layout.join("index.json"), serde_json::json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())
        .unwrap();
    layout
}

#[test]
fn root_refused_archives_are_refused_by_gnu_tar() {
    if let Some(reason) = missing_requirement("tar", "GNU tar") {
        return println!("skipped: {reason}");
    }
    let file = |name: &str, kind| Entry::plain(name.as_bytes(), kind);
    let content = || Kind::File(Content { len: 1, segments: vec![(0, b"x".to_vec())], sparse: None });
    let link = |target: &str| Kind::HardLink(target.as_bytes().to_vec());
    let cases: [(&str, Vec<Entry>); 7] = [
        ("a name that leads out", vec![file("../out", content())]),
        ("a name that leads out and back", vec![file("a/../b", content())]),
        ("a hard link that leads out", vec![file("a", link("../out"))]),
        ("a hard link to a later entry", vec![file("a", link("b")), file("b", content())]),
        ("a hard link to a directory", vec![file("d/", Kind::Directory), file("a", link("d"))]),
        ("a file in a file", vec![file("a", content()), file("a/b", content())]),
        ("a file for the root", vec![file(".", content())]),
    ];
    for (what, entries) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        encode::end(&mut bytes);
        let archive = dir.path().join("archive.tar");
        fs::write(&archive, &bytes).unwrap();
        let output = untar(&archive, &dir.path().join("theirs"));
        let error = unpack(&bytes, dir.path()).map(drop).unwrap_err();
        assert!(matches!(error, ImportError::Entry { .. }), "{what}: {error:?}");
        assert!(!output.status.success(), "{what}: {output:?}");
    }
}

#[test]
fn root_incremental_backups_of_gnu_tar_are_read() {
    if let Some(reason) = missing_requirement("tar", "GNU tar") {
        return println!("skipped: {reason}");
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), "x").unwrap();
    let archive = dir.path().join("archive.tar");
    let snapshot = dir.path().join("snapshot");
    let options = ["--format=gnu", "--label=weekly", "-g"].map(Path::new);
    let output = run(
        "tar",
        &[&options[..], &[&snapshot, Path::new("-cf"), &archive, Path::new("-C"), &tree, Path::new(".")]].concat(),
    );
    assert!(output.status.success(), "{output:?}");
    let made = unpack(&fs::read(&archive).unwrap(), dir.path()).unwrap();
    assert_eq!(differences(&list(made.path()), &list(&tree), &Reference::Itself), "");
}
