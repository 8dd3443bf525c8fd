//! Loads in a directory, with the protocol kept by the test.

use super::*;
use clap::Parser;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: LoadArgs,
}

fn short(kind: LoadKind) -> LoadResult {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("load");
    let args = LoadArgs {
        threads: (kind != LoadKind::Probe).then_some(2),
        file_bytes: Some(1 << 20),
        files: Some(60),
        interval_ms: Some(10),
        warm_up_seconds: 0.05,
        ..LoadArgs::new(kind, &dir, 0.5)
    };
    let mut said = Vec::new();
    let result = run(
        &args,
        &mut |word| {
            said.push(word.to_owned());
            Ok(())
        },
        &|| Ok(()),
    )
    .unwrap();
    assert_eq!(said, [WAITING, READY]);
    let left: Vec<_> = fs::read_dir(&dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let line = serde_json::to_string(&result).unwrap();
    // Floating-point numbers come back within a rounding of the last digit.
    let back: LoadResult = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (back.kind, back.tally.ops, back.tally.fsync_ms.n()),
        (result.kind, result.tally.ops, result.tally.fsync_ms.n())
    );
    result
}

#[test]
fn the_command_line_is_read_back() {
    let args = LoadArgs {
        warm_up_seconds: 2.5,
        wait_for_start: true,
        threads: Some(3),
        file_bytes: Some(1 << 20),
        interval_ms: Some(50),
        sync_every: Some(0),
        files: Some(7),
        on: Some("/dev/x".into()),
        ..LoadArgs::new(LoadKind::HighFsync, Path::new("/mnt/a b"), 10.0)
    };
    let argv = std::iter::once("x".to_owned()).chain(args.argv());
    assert_eq!(Line::try_parse_from(argv).unwrap().args, args);
}

#[test]
fn every_load_counts_what_it_did_and_leaves_nothing() {
    for kind in [LoadKind::Streams, LoadKind::Fsyncs, LoadKind::LowFsync, LoadKind::HighFsync, LoadKind::RandomSync] {
        let result = short(kind);
        assert!(result.tally.ops > 0 && result.tally.written_bytes > 0, "{result:?}");
        assert!(result.tally.fsync_ms.n() > 0, "{kind:?}");
    }
    let storm = short(LoadKind::Storm);
    assert!(storm.tally.ops > 0 && storm.tally.written_bytes > 0, "{storm:?}");
    let direct = short(LoadKind::SequentialDirect);
    assert!(direct.tally.ops > 0 && direct.tally.synced_bytes == 0, "{direct:?}");
    for kind in [LoadKind::SequentialRead, LoadKind::RandomRead, LoadKind::CachedRead] {
        let reads = short(kind);
        assert!(reads.tally.ops > 0 && reads.tally.written_bytes == 0, "{reads:?}");
        assert_eq!(reads.tally.op_ms.n(), reads.tally.ops, "{kind:?}");
    }
    let mkdirs = short(LoadKind::Mkdirs);
    // Each thread 20 in 10 ms; a busy machine may do fewer.
    assert!((1..=2400).contains(&mkdirs.tally.ops) && mkdirs.tally.missed_ops <= 2400, "{mkdirs:?}");
    for kind in [LoadKind::FileServer, LoadKind::WebServer, LoadKind::MailServer, LoadKind::DatabaseServer] {
        let result = short(kind);
        assert!(result.tally.ops > 0 && result.tally.op_ms.n() == result.tally.ops, "{kind:?}: {result:?}");
        let syncs = matches!(kind, LoadKind::MailServer | LoadKind::DatabaseServer);
        assert_eq!(result.tally.fsync_ms.n() > 0, syncs, "{kind:?}");
    }
    let none = short(LoadKind::NoFsync);
    assert!(none.tally.written_bytes > 0 && none.tally.fsync_ms.n() == 0 && none.tally.synced_bytes == 0, "{none:?}");
}

#[test]
fn the_probe_keeps_its_schedule() {
    let result = short(LoadKind::Probe);
    // 50 are due in half a second; a busy machine may do fewer, and a few that were due in the warm-up, never more.
    let n = result.tally.fsync_ms.n();
    assert!((1..=56).contains(&n), "{n}");
    assert_eq!(result.tally.since_scheduled_ms.n(), n);
    assert!(result.tally.missed_ops <= 56 - n, "{result:?}");
}

#[test]
fn nonsense_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let refused = |args: LoadArgs| run(&args, &mut |_| Ok(()), &|| Ok(())).unwrap_err().to_string();
    let bad = LoadArgs::new(LoadKind::Fsyncs, base.path(), -1.0);
    assert_eq!(refused(bad.clone()), "-1 is not a number of seconds for --seconds");
    assert_eq!(refused(LoadArgs { threads: Some(0), ..bad }), "a load needs at least one thread");
}

#[test]
fn noise_has_the_size_asked_for() {
    assert_eq!(noise(4099, 3).len(), 4099);
    assert_ne!(noise(512, 1), noise(512, 2));
}
