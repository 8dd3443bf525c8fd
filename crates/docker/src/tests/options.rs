//! What `--opt` accepts.

use bulkhead_core::error::Fault;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::{FsKind, MountOptions, Provision, ReadFrom};
use bulkhead_core::units::Bytes;

use crate::options::{KNOWN, Options, Source, parse};

fn parsed(options: &[(&str, &str)]) -> Result<Options, Fault> {
    parse(&options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
}

fn text(options: &[(&str, &str)]) -> String {
    let fault = parsed(options).unwrap_err();
    format!("{fault}; {}", fault.hint)
}

#[test]
fn every_option_of_an_empty_volume_is_read() {
    let options = parsed(&[
        ("size", "20GiB"),
        ("fs", "ext4"),
        ("pool", "fast"),
        ("share", "300"),
        ("fsync-p99", "1.5ms"),
        ("tenant", "web"),
        ("journal-size", "128M"),
        ("provision", "on-demand"),
        ("fast-commit", ""),
        ("subdir", "pg"),
        ("suid", "true"),
        ("dev", "false"),
    ]);
    let expected = Options {
        pool: Some("fast".parse().unwrap()),
        tenant: Some("web".parse().unwrap()),
        share: Some(300.try_into().unwrap()),
        fsync_p99_us: Some(1500),
        source: Source::Empty {
            size: Some(Bytes::mib(20 << 10)),
            fs: FsKind::Ext4,
            provision: Some(Provision::OnDemand),
            journal: Some(JournalSize::Bytes(Bytes::mib(128))),
            fast_commit: true,
        },
        mount_options: MountOptions { suid: true, dev: false, subdir: Some("pg".parse().unwrap()) },
    };
    assert_eq!(options, Ok(expected));
}

#[test]
fn a_raw_volume_is_refused_with_the_reason() {
    let said = text(&[("fs", "none")]);
    assert!(said.contains("\"fs\": a raw volume has no directory, and Docker mounts directories"), "{said}");
    assert!(text(&[("fs", "btrfs")]).contains("is not one of ext4, xfs"));
}

#[test]
fn every_option_of_a_clone_is_read() {
    let options =
        parsed(&[("clone-of", "fast/base"), ("read-from", "host-cache"), ("domain", "ci"), ("share", "50")]).unwrap();
    let origin = "base".parse().unwrap();
    let source = Source::CloneOf { origin, read_from: Some(ReadFrom::HostCache), domain: Some("ci".parse().unwrap()) };
    assert_eq!((options.pool, options.source), (Some("fast".parse().unwrap()), source));
    // Its data is where the origin's is.
    assert_eq!(options.mount_options.subdir, None);
}

#[test]
fn without_options_containers_see_an_empty_directory() {
    let options = parsed(&[]).unwrap();
    assert_eq!(options.mount_options.subdir, Some("data".parse().unwrap()));
    assert_eq!(Options { mount_options: MountOptions::default(), ..options }, Options::default());
}

#[test]
fn an_unknown_option_is_refused_with_the_most_similar_one() {
    assert_eq!(text(&[("sise", "1G")]), r#"option "sise": no option has that name; did you mean "size"?"#);
    assert_eq!(text(&[("clone_of", "x")]), r#"option "clone_of": no option has that name; did you mean "clone-of"?"#);
    let local = r#"option "device": no option has that name; it belongs to Docker's own driver `local`: omit it"#;
    assert_eq!(text(&[("device", "/dev/sdb")]), local);
    let other = text(&[("qqqq", "")]);
    assert!(KNOWN.iter().all(|option| other.contains(option)), "{other}");
}

#[test]
fn an_invalid_value_names_its_option() {
    for (key, value) in [
        ("size", "lots"),
        ("size", "0"),
        ("size", "99999999999999T"),
        ("fs", "btrfs"),
        ("pool", "../etc"),
        ("share", "0"),
        ("fsync-p99", "0ms"),
        ("fsync-p99", "fast"),
        ("tenant", ""),
        ("journal-size", "-1"),
        ("provision", "thin"),
        ("fast-commit", "perhaps"),
        ("subdir", "a/b"),
        ("suid", "yes"),
        ("read-from", "disk"),
        ("domain", "d"),
    ] {
        let error = text(&[(key, value)]);
        assert!(error.starts_with(&format!("option {key:?}: ")), "{key}={value}: {error}");
    }
    for (key, value) in [("clone-of", "a/b/c"), ("clone-of", ""), ("read-from", "cache")] {
        let error = text(&[("clone-of", "base"), (key, value)]);
        assert!(error.starts_with(&format!("option {key:?}: ")), "{key}={value}: {error}");
    }
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for key in ["size", "fs", "provision", "journal-size", "fast-commit"] {
        let error = text(&[("clone-of", "base"), (key, "1G")]);
        assert!(error.contains("a clone has the size and the file system of its origin"), "{error}");
    }
    let error = text(&[("clone-of", "fast/base"), ("pool", "slow")]);
    assert!(error.contains("in the pool of its origin, which is fast, not slow"), "{error}");
}
