//! Volumes: created, changed, trimmed.

use expect_test::{Expect, expect};

use crate::Daemon;

#[test]
fn volumes_are_created_once_and_within_their_pool() {
    let daemon = Daemon::start();
    daemon.create_pools();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["volume", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no volumes; `bulkhead volume create` creates one
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M", "--dry-run"],
        expect![[r#"
            exit 0
            ----- stdout
            would write volume record /srv/pool/data.volume
            would create image /srv/pool/data.img of 64 MiB, provision full
            would serve image /srv/pool/data.img with direct I/O
            would make ext4 on block device of /srv/pool/data.img
            would remove the block device of /srv/pool/data.img
            would write volume record /srv/pool/data.volume
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/data: created
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/data: nothing to do
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "1G"],
        expect![[r#"
            exit 4
            ----- stderr
            error: volume files/data: a volume of that name already exists (64 MiB ext4)
            hint: choose another name
        "#]],
    );
    check(
        &["volume", "create", "fast/data", "--size", "100M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/data: created
    "#]],
    );
    check(
        &["volume", "create", "fast/big", "--size", "2T"],
        expect![[r#"
            exit 7
            ----- stderr
            error: volume fast/big: 2 TiB is larger than the whole pool (1 GiB)
            hint: request less, or use a larger pool
        "#]],
    );
    check(
        &["volume", "create", "fast/logs", "--size", "300M", "--fs", "xfs"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: created
    "#]],
    );
}

#[test]
fn volumes_are_resized_copied_and_checked() {
    let daemon = Daemon::start();
    daemon.create_pools();
    daemon.create_volumes();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["volume", "resize", "data", "--size", "128M"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume data: more than one pool has a volume of that name: fast/data, files/data
        hint: write it with its pool: POOL/VOLUME
    "#]],
    );
    check(
        &["volume", "resize", "fast/data", "--size", "64M"],
        expect![[r#"
            exit 2
            ----- stderr
            error: volume fast/data: 64 MiB is less than its current size of 100 MiB
            hint: add `--shrink` to confirm that the volume is to shrink
        "#]],
    );
    check(
        &["volume", "resize", "logs", "--size", "400M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: resized
    "#]],
    );
    check(
        &["volume", "snapshot", "fast/data", "before"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/before: created
    "#]],
    );
    check(
        &["volume", "clone", "files/data", "copy"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/copy: created
        "#]],
    );
    check(
        &["volume", "rm", "files/copy"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/copy: removed
    "#]],
    );
    check(
        &["volume", "check", "logs"],
        expect![[r#"
            exit 0
            ----- stderr
            volume fast/logs: check passed
        "#]],
    );
    check(
        &["volume", "inspect", "nothing"],
        expect![[r#"
            exit 3
            ----- stderr
            error: volume nothing: no pool has a volume of that name
            hint: `bulkhead volume ls` lists the volumes
        "#]],
    );
    check(
        &["volume", "ls", "--pool", "nothing"],
        expect![[r#"
            exit 3
            ----- stderr
            error: pool nothing: there is no pool of that name
            hint: `bulkhead pool ls` lists the pools, `bulkhead pool create nothing --dir PATH` creates one
        "#]],
    );
}

#[test]
fn only_volumes_that_can_be_trimmed_are_trimmed() {
    let daemon = Daemon::start();
    for args in [
        &["pool", "create", "files", "--dir", "/srv/pool"][..],
        &["volume", "create", "files/full", "--size", "64M"],
        &["volume", "create", "files/sparse", "--size", "64M", "--provision", "on-demand"],
        &["volume", "create", "files/detached", "--size", "64M", "--provision", "on-demand"],
        &["tenant", "create", "db", "--volume", "full", "--volume", "sparse"],
    ] {
        assert!(daemon.screen(args).starts_with("exit 0\n"), "{}", daemon.screen(args));
    }
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["volume", "trim", "sparse", "--dry-run"],
        expect![[r#"
        exit 0
        ----- stdout
        would trim the file system at [DIR]/run/mnt/files/sparse from 0 B to 64 MiB
    "#]],
    );
    check(
        &["volume", "trim", "sparse"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/sparse: 1 MiB of free space trimmed
    "#]],
    );
    check(
        &["volume", "trim", "sparse", "full", "detached"],
        expect![[r#"
            exit 8
            ----- stderr
            volume files/sparse: 1 MiB of free space trimmed
            warning: volume files/detached: it is not mounted, and only a mounted file system can be trimmed
            error: volume files/full: it was written in advance, so that no later write changes metadata that all tenants share: trimming would undo that
        "#]],
    );
    check(
        &["volume", "trim", "--all"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/sparse: 1 MiB of free space trimmed
            volumes trimmed: 1; skipped (not mounted, or cannot be trimmed): 2
        "#]],
    );
    check(
        &["volume", "trim", "--all", "--output", "json"],
        expect![[r#"
            exit 0
            ----- stdout
            {
              "trimmed": [
                {
                  "object": {
                    "volume": "files/sparse",
                    "trimmed_bytes": 1048576
                  },
                  "steps": [
                    {
                      "action": {
                        "action": "trim_fs",
                        "target": "[DIR]/run/mnt/files/sparse",
                        "cgroup": "bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice",
                        "start_bytes": 0,
                        "length_bytes": 67108864
                      },
                      "changed": true,
                      "discarded_bytes": 1048576
                    }
                  ],
                  "dry_run": false
                }
              ],
              "passed_over": [
                {
                  "code": "invalid_argument",
                  "object": "volume files/detached",
                  "cause": "it is not mounted, and only a mounted file system can be trimmed",
                  "hint": "attach files/detached to a tenant first",
                  "reason": {
                    "reason": "volume_not_attached",
                    "volume": "files/detached"
                  }
                },
                {
                  "code": "unsupported",
                  "object": "volume files/full",
                  "cause": "it was written in advance, so that no later write changes metadata that all tenants share: trimming would undo that"
                }
              ]
            }
        "#]],
    );
    check(
        &["volume", "trim", "none"],
        expect![[r#"
            exit 3
            ----- stderr
            error: volume none: no pool has a volume of that name
            hint: `bulkhead volume ls` lists the volumes
        "#]],
    );
    check(
        &["volume", "trim", "a b"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume: name "a b" contains ' ': only letters, digits, '_', '.' and '-' are allowed
    "#]],
    );
    check(
        &["volume", "trim"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <VOLUME>...

        Usage: bulkhead volume trim --socket <PATH> <VOLUME>...

        For more information, try '--help'.
    "#]],
    );
    check(
        &["volume", "trim", "sparse", "--all"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the argument '[VOLUME]...' cannot be used with '--all'

        Usage: bulkhead volume trim --socket <PATH> <VOLUME>...

        For more information, try '--help'.
    "#]],
    );
}
