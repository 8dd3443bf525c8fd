//! Tenants and their volumes.

use expect_test::{Expect, expect};

use crate::Daemon;

#[test]
fn a_tenant_is_created_once_with_volumes_of_its_own() {
    let daemon = Daemon::start();
    daemon.create_pools();
    daemon.create_volumes();
    daemon.change_volumes();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["tenant", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no tenants; `bulkhead tenant create` creates one
        "#]],
    );
    let create =
        ["tenant", "create", "db", "--share", "300", "--volume", "fast/data", "--limit", "sdb:wbps=50M,riops=100"];
    check(
        &create,
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: created
    "#]],
    );
    check(
        &create,
        expect![[r#"
            exit 0
            ----- stderr
            tenant db: created
        "#]],
    );
    check(
        &["tenant", "create", "web", "--volume", "fast/data"],
        expect![[r#"
        exit 5
        ----- stderr
        error: volume fast/data: it is mounted for tenant db; a volume belongs to one tenant at a time
        hint: detach it first: `bulkhead tenant set db --detach fast/data`
    "#]],
    );
}

#[test]
fn a_tenant_is_changed_and_shown() {
    let daemon = Daemon::start();
    daemon.create_pools();
    daemon.create_volumes();
    daemon.change_volumes();
    daemon.create_tenant();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["tenant", "set", "db", "--share", "400", "--attach", "logs", "--dry-run"],
        expect![[r#"
            exit 0
            ----- stdout
            would write tenant record [DIR]/state/tenants/db
            would create cgroup bulkhead.slice/bulkhead-db.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice
            would write "default 400" to bulkhead.slice/bulkhead-db.slice/io.weight
            would write "8:16 rbps=max wbps=52428800 riops=100 wiops=max" to bulkhead.slice/bulkhead-db.slice/io.max
            would enable controller cpu below cgroup /
            would enable controller cpu below cgroup bulkhead.slice
            would enable controller cpu below cgroup bulkhead.slice/bulkhead-db.slice
            would write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice/cpu.weight
            would write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice/cpu.weight
            would activate tvg/logs
            would make directory [DIR]/run/mnt/fast/logs
            would mount xfs of /dev/tvg/logs at [DIR]/run/mnt/fast/logs (nosuid,nodev,noatime)
            would move the journal thread of /dev/tvg/logs to bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice
        "#]],
    );
    check(
        &["tenant", "set", "db", "--share", "400", "--attach", "logs", "--no-limits", "--fsync-p99", "1.5 s"],
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: changed
    "#]],
    );
    check(
        &["tenant", "inspect", "db"],
        expect![[r#"
            exit 0
            ----- stdout
            name:        db
            share:       400
            limits:      -
            fsync p99:   1500ms
            volumes:     fast/data, fast/logs
            created by:  -
            slice:       bulkhead.slice/bulkhead-db.slice
            processes:   0
            payload I/O: 0 B read, 0 B written
            journal I/O: 0 B read, 0 B written
            server I/O:  0 B read, 0 B written
        "#]],
    );
    check(
        &["tenant", "set", "db", "--fsync-p99", "20min"],
        expect![[r#"
        exit 2
        ----- stderr
        error: --fsync-p99: "20min" is not a time in us, ms or s, between 1us and an hour, for example 20ms
    "#]],
    );
    check(
        &["tenant", "set", "db", "--fsync-p99", "none"],
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: changed
    "#]],
    );
    check(
        &["tenant", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME  SHARE  PROCESSES  READ  WRITTEN  JOURNAL  VOLUMES
        db    400    0          0 B   0 B      0 B      fast/data, fast/logs
    "#]],
    );
    check(
        &["volume", "ls"],
        expect![[r#"
            exit 0
            ----- stdout
            VOLUME       SIZE     FS       STATE  TENANT  JOURNAL  DEVICE           CREATED BY
            fast/before  100 MiB  ext4 ro  ready  -       -        /dev/tvg/before  -
            fast/data    100 MiB  ext4     ready  db      charged  /dev/tvg/data    -
            fast/logs    400 MiB  xfs      ready  db      charged  /dev/tvg/logs    -
            files/data   64 MiB   ext4     ready  -       -        -                -
        "#]],
    );
}

#[test]
fn a_volume_of_a_tenant_is_removed_only_by_force() {
    let daemon = Daemon::start();
    daemon.create_pools();
    daemon.create_volumes();
    daemon.change_volumes();
    daemon.create_tenant();
    daemon.run(&["tenant", "set", "db", "--share", "400", "--attach", "logs", "--no-limits"]);
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["volume", "rm", "logs"],
        expect![[r#"
        exit 5
        ----- stderr
        error: volume fast/logs: it is mounted for tenant db
        hint: detach it: `bulkhead tenant set db --detach fast/logs`, or remove it with `--force`
    "#]],
    );
    check(
        &["volume", "rm", "logs", "--force"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: removed
    "#]],
    );
    check(
        &["volume", "rm", "fast/logs"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: nothing to do
    "#]],
    );
    check(
        &["run", "--tenant", "nobody", "--", "true"],
        expect![[r#"
            exit 125
            ----- stderr
            error: tenant nobody: there is no tenant of that name
            hint: `bulkhead tenant ls` lists the tenants, `bulkhead tenant create nobody` creates one
        "#]],
    );
    check(
        &["tenant", "rm", "db"],
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: removed
    "#]],
    );
    check(
        &["tenant", "inspect", "db"],
        expect![[r#"
            exit 3
            ----- stderr
            error: tenant db: there is no tenant of that name
            hint: `bulkhead tenant ls` lists the tenants, `bulkhead tenant create db` creates one
        "#]],
    );
}
