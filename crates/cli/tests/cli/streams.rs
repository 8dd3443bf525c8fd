//! Streams that go through the command line: imports, snapshots sent and received.

use bulkhead_core::model::VolumeFs;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_formats::stream::encode_header;
use expect_test::{Expect, expect};

use crate::{Daemon, bulkhead, screen};

#[test]
fn an_import_is_refused_before_anything_is_unpacked() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: created
    "#]],
    );
    check(
        &["volume", "create", "files/taken", "--size", "64M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/taken: created
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "base"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume: "base" does not name a volume: write POOL/VOLUME
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--size", "0"],
        expect![[r#"
            exit 2
            ----- stderr
            error: --size: a volume cannot have size 0: specify a size such as 10G
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--platform", "amd64"],
        expect![[r#"
        exit 2
        ----- stderr
        error: --platform: "amd64" is not a platform: write OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, for example linux/arm64
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/taken"],
        expect![[r#"
            exit 4
            ----- stderr
            error: volume files/taken: a volume of that name already exists
            hint: choose another name
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--size", "1M"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume files/base: a size of 1 MiB is too small for ext4
        hint: give it at least 16 MiB
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "elsewhere/base", "-o", "json"],
        expect![[r#"
            exit 3
            ----- stderr
            {"code":"not_found","object":"pool elsewhere","cause":"there is no pool of that name","hint":"`bulkhead pool ls` lists the pools, `bulkhead pool create elsewhere --dir PATH` creates one","reason":{"reason":"no_such_pool","pool":"elsewhere"}}
        "#]],
    );
}

/// The simulated workers send a fixed text, accept any input, and build the same base from any source.
#[test]
fn streams_go_through_the_command_line() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    for args in [
        &["pool", "create", "files", "--dir", "/srv/pool"][..],
        &["volume", "create", "files/v", "--size", "64M"],
        &["volume", "snapshot", "files/v", "s"],
    ] {
        assert!(daemon.screen(args).starts_with("exit 0"), "{args:?}");
    }
    check(
        &["volume", "send", "files/s"],
        expect![[r#"
            exit 0
            ----- stdout
            what the snapshot holds
            ----- stderr
            volume files/s: sent, 24 B read
        "#]],
    );
    check(
        &["volume", "send", "files/v"],
        expect![[r#"
            exit 2
            ----- stderr
            error: volume files/v: it is not a snapshot, and may change while it is sent
            hint: create a snapshot first, and use it instead: `bulkhead volume snapshot files/v NAME`
        "#]],
    );
    let header = StreamHeader {
        content: uuid::Uuid::from_u128(7),
        base: None,
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(0),
        data_bytes: Bytes(0),
        fs: VolumeFs::Ext4,
        snapshot: "elsewhere/s".to_owned(),
    };
    let stream = daemon.dir.path().join("stream");
    let more = vec![7; 1 << 20];
    std::fs::write(&stream, [encode_header(&header).unwrap(), more].concat()).unwrap();
    let mut receive = bulkhead(&daemon.dir.path().join("sock"), &["volume", "receive", "files/r"]);
    receive.stdin(std::fs::File::open(&stream).unwrap());
    expect![[r#"
        exit 0
        ----- stderr
        volume files/r: received, with the content of elsewhere/s
    "#]]
    .assert_eq(&screen(receive));
    let tree = daemon.dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "x").unwrap();
    check(
        &["image", "import", tree.to_str().unwrap(), "files/base", "--staging", "/var/tmp"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/base: imported 7 entries as base 1d693a3c-4e0d-8f6e-9b55-b07c6a5e0001
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/other"],
        expect![[r#"
            exit 3
            ----- stderr
            error: source /nowhere: cannot find /nowhere: No such file or directory (os error 2)
            hint: check the path
        "#]],
    );
    check(
        &["device", "calibrate", "sda"],
        expect![[r#"
            exit 0
            ----- stderr
            small load alone: fsync 5.0 ms
            device sda: calibrated
        "#]],
    );
}
