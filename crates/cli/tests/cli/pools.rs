//! Pools.

use expect_test::{Expect, expect};

use crate::Daemon;

#[test]
fn a_host_without_pools() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["host"],
        expect![[r#"
        exit 0
        ----- stdout
        version:            0.1.0
        cgroup controllers: cpu, io, memory
        cgroup mode:        v2
        is root:            yes
        kernel release:     6.12.0-simulated
        programs fio:       -
        programs lvm:       /usr/sbin/lvm
        findings:
          - warning[cpu_controller_missing]: host: no cpu controller on cgroup v2
            hint: boot with one
    "#]],
    );
    check(
        &["pool", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no pools; `bulkhead pool create` creates one
        "#]],
    );
    check(
        &["pool", "ls", "--output", "json"],
        expect![[r#"
        exit 0
        ----- stdout
        []
    "#]],
    );
}

#[test]
fn pools_are_created_once() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["pool", "create", "files", "--dir", "/srv/pool", "--dry-run"],
        expect![[r#"
        exit 0
        ----- stdout
        would make directory /srv/pool
        would write pool record /srv/pool/bulkhead-pool
        would write pool record [DIR]/state/pools/files
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: created
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: nothing to do
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/other"],
        expect![[r#"
            exit 4
            ----- stderr
            error: pool files: a pool of that name already exists, on /srv/pool
            hint: choose another name
        "#]],
    );
    check(
        &["pool", "create", "fast", "--vg", "tvg", "--thin-pool", "thin"],
        expect![[r#"
        exit 0
        ----- stderr
        pool fast: created
    "#]],
    );
    check(
        &["pool", "create", "dev", "--device", "/dev/sdb"],
        expect![[r#"
            exit 6
            ----- stderr
            error: device /dev/sdb: it contains data: ext4
            hint: if that data may be erased, confirm with exactly `--erase /dev/sdb`
        "#]],
    );
}

#[test]
fn pools_are_listed_and_inspected() {
    let daemon = Daemon::start();
    daemon.create_pools();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["pool", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME   KIND      SOURCE     SIZE   FREE     VOLUMES  ON
        fast   lvm-thin  tvg/thin   1 GiB  512 MiB  0        sda
        files  file      /srv/pool  1 GiB  512 MiB  0        sda
    "#]],
    );
    check(
        &["pool", "inspect", "files"],
        expect![[r#"
        exit 0
        ----- stdout
        name:             files
        kind:             file
        source:           /srv/pool
        size:             1 GiB
        free:             512 MiB
        volumes:          0
        physical devices: sda
    "#]],
    );
}

#[test]
fn a_pool_with_volumes_is_not_removed() {
    let daemon = Daemon::start();
    daemon.create_pools();
    daemon.create_volumes();
    daemon.change_volumes();
    daemon.run(&["volume", "rm", "logs"]);
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["pool", "rm", "fast"],
        expect![[r#"
        exit 5
        ----- stderr
        error: pool fast: it still has 2 volumes
        hint: remove them first: `bulkhead volume ls --pool fast`, `bulkhead volume rm fast/VOLUME`
    "#]],
    );
}
