//! Volumes on real kernels: their lifecycle on each kind of pool, and refused requests.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{KINDS, PROFILE, cli, has_ublk, json, make_pools, refused, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "volume_life",
        about: "volumes are created, mounted, grown, shrunk, checked and removed: ext4 on file and thin pools, XFS on \
                a thick pool",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volume_life(ctx, &[("file", "ext4"), ("thick", "xfs"), ("thin", "ext4")])),
    },
    Case {
        name: "volume_life_others",
        about: "the same as volume_life: ext4 on a thick pool, XFS on a file pool",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volume_life(ctx, &[("thick", "ext4"), ("file", "xfs")])),
    },
    Case {
        name: "volume_copies",
        about: "snapshots and clones of a mounted volume contain its data and can be mounted at the same time: XFS on \
                a thin pool, ext4 on a file pool",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volume_copies(ctx, [("thin", "xfs", "320M"), ("file", "ext4", "64M")])),
    },
    Case {
        name: "volume_copies_others",
        about: "the same as volume_copies: ext4 on a thin pool, XFS on a file pool",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volume_copies(ctx, [("thin", "ext4", "64M"), ("file", "xfs", "320M")])),
    },
    Case {
        name: "volume_mount_options",
        about: "set-user-ID programs and device nodes of a clone work only with --suid and --dev, --subdir hides lost+found and follows no link, and \
                all hold after the daemon's restart",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volume_mount_options(ctx)),
    },
    Case {
        name: "bad_input",
        about: "invalid names, sizes, devices and operations are refused with object, cause and hint, and change \
                nothing",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(bad_input(ctx)),
    },
];

async fn volume_life(ctx: &mut Ctx, volumes: &[(&str, &str)]) -> Result<Outcome> {
    let ctx = &*ctx;
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| volumes.iter().any(|(used, _)| used == kind)).collect();
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &kinds).await?;
    for &(kind, fs) in volumes {
        let (small, large) = if fs == "ext4" { ("64M", "128M") } else { ("320M", "400M") };
        let volume = format!("{kind}/v-{fs}");
        ctx.log(&volume);
        let create = ["volume", "create", &volume, "--size", small, "--fs", fs, "--provision", "full"];
        json(ctx, &create).await?;
        let again = json(ctx, &create).await?;
        ensure!(again["steps"].as_array().is_some_and(Vec::is_empty), "not idempotent: {again}");
        json(ctx, &["volume", "check", &volume]).await?;
        // Offline growth, then online growth with data.
        json(ctx, &["volume", "resize", &volume, "--size", large]).await?;
        let tenant = json(ctx, &["tenant", "create", "db", "--share", "700", "--volume", &volume]).await?;
        ensure!(tenant["object"]["share"] == 700, "{tenant}");
        let view = json(ctx, &["volume", "inspect", &volume]).await?;
        let at = view["mounted_at"].as_str().unwrap_or_default().to_owned();
        let way = view["accounting"]["way"].as_str().unwrap_or_default();
        let expected = match (kind, fs) {
            ("file", _) if has_ublk(ctx).await? => "server",
            (_, "ext4") => "journal_thread",
            _ => "partial",
        };
        ensure!(way == expected, "{view}");
        ctx.machine
            .sh(&format!("head -c 20000000 /dev/urandom > {at}/data; md5sum < {at}/data > /run/sum; sync"))
            .await?;
        let grown = json(ctx, &["volume", "resize", &volume, "--size", "512M"]).await?;
        ensure!(grown["object"]["size_bytes"] == 512 << 20, "{grown}");
        let reports_small = grown["object"]["findings"].to_string().contains("journal_small_after_growth");
        ensure!(reports_small == (fs == "ext4"), "finding about the small journal: {grown}");
        let free = ctx.machine.sh(&format!("df -B1M --output=size {at} | tail -1")).await?;
        ensure!(free.trim().parse::<u32>()? > 420, "the file system did not grow: {free} MiB");
        if kind == "thin" {
            // A mounted volume keeps its full provisioning when it grows.
            let device = view["device"].as_str().context("no device")?;
            let taken = ctx.machine.sh(&format!("lvs --noheadings -o data_percent {device}")).await?;
            ensure!(taken.trim() == "100.00", "a volume provisioned in full has only {taken} % of its space");
        }
        let options = ctx.machine.sh(&format!("findmnt -no OPTIONS {at}")).await?;
        for option in ["nosuid", "nodev", "noatime"] {
            ensure!(options.contains(option), "mounted without {option}: {options}");
        }
        refused(ctx, 5, &["mounted for tenant db", "--force"], &["volume", "rm", &volume]).await?;
        json(ctx, &["tenant", "set", "db", "--detach", &volume]).await?;
        if fs == "ext4" {
            json(ctx, &["volume", "resize", &volume, "--size", "100M", "--shrink"]).await?;
            refused(ctx, 7, &["needs about"], &["volume", "resize", &volume, "--size", "20M", "--shrink"]).await?;
            let replaced = json(ctx, &["volume", "resize", &volume, "--journal", "auto"]).await?;
            ensure!(!replaced["object"]["findings"].to_string().contains("journal_small_after_growth"), "{replaced}");
            json(ctx, &["volume", "check", &volume]).await?;
        } else {
            refused(ctx, 8, &["log of an XFS"], &["volume", "resize", &volume, "--journal", "auto"]).await?;
            let shrink = ["volume", "resize", &volume, "--size", "320M", "--shrink"];
            refused(ctx, 8, &["XFS cannot be shrunk"], &shrink).await?;
        }
        json(ctx, &["tenant", "set", "db", "--attach", &volume]).await?;
        ctx.machine.sh(&format!("md5sum < {at}/data | diff - /run/sum; rm /run/sum")).await?;
        json(ctx, &["volume", "rm", &volume, "--force"]).await?;
        json(ctx, &["tenant", "rm", "db"]).await?;
        let left = ctx.machine.sh("ls -d /sys/fs/cgroup/bulkhead.slice 2>/dev/null || true").await?;
        ensure!(left.is_empty(), "a cgroup was left: {left}");
    }
    unmake_pools(ctx, &kinds).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

async fn volume_mount_options(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let mut daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file", "thin"]).await?;
    for kind in ["file", "thin"] {
        ctx.log(kind);
        let (plain, root) = (format!("{kind}/plain"), format!("{kind}/root"));
        json(ctx, &["volume", "create", &plain, "--size", "64M"]).await?;
        json(ctx, &["volume", "clone", &plain, "root", "--suid", "--dev", "--subdir", "data"]).await?;
        json(ctx, &["volume", "clone", &root, "again"]).await?;
        let again = format!("{kind}/again");
        let view = json(ctx, &["volume", "inspect", &again]).await?;
        ensure!(view["mount_options"] == serde_json::json!({"subdir": "data"}), "{view}");
        json(ctx, &["tenant", "create", "t", "--volume", &plain, "--volume", &root]).await?;
        let at = |name: &str| format!("/run/bulkhead/mnt/{kind}/{name}");
        let check = async |when: &str| {
            let options = ctx.machine.sh(&format!("findmnt -no OPTIONS {}", at("root"))).await?;
            ensure!(!options.contains("nosuid") && !options.contains("nodev"), "{when}: {options}");
            let options = ctx.machine.sh(&format!("findmnt -no OPTIONS {}", at("plain"))).await?;
            ensure!(options.contains("nosuid") && options.contains("nodev"), "{when}: {options}");
            let fs_root = ctx.machine.sh(&format!("findmnt -no FSROOT {}", at("root"))).await?;
            ensure!(fs_root.trim() == "/data", "{when}: {fs_root}");
            Ok(())
        };
        check("attached").await?;
        let found = ctx.machine.sh(&format!("ls -A {}; ls -A {}", at("root"), at("plain"))).await?;
        ensure!(found.trim() == "lost+found", "{found}");
        // A device node can be opened in the one alone.
        let nodes = format!("mknod {}/null c 1 3; mknod {}/null c 1 3", at("root"), at("plain"));
        ctx.machine.sh(&nodes).await?;
        ctx.machine
            .sh(&format!("echo x > {}/null && ! ( echo x > {}/null ) 2>/dev/null", at("root"), at("plain")))
            .await?;
        let grown = json(ctx, &["volume", "resize", &root, "--size", "128M"]).await?;
        ensure!(grown["object"]["size_bytes"] == 128 << 20, "{grown}");
        daemon.stop().await?;
        ctx.machine.sh(&format!("umount {}", at("root"))).await?;
        daemon = start_daemon(ctx, &[]).await?;
        check("after a restart").await?;
        json(ctx, &["tenant", "rm", "t"]).await?;
        // A link of that name leads nowhere.
        let link = format!("{kind}/link");
        json(ctx, &["volume", "create", &link, "--size", "64M"]).await?;
        json(ctx, &["tenant", "create", "t", "--volume", &link]).await?;
        ctx.machine.sh(&format!("ln -s /etc {}/data", at("link"))).await?;
        json(ctx, &["tenant", "rm", "t"]).await?;
        json(ctx, &["volume", "clone", &link, "behind", "--subdir", "data"]).await?;
        let behind = format!("{kind}/behind");
        refused(ctx, 1, &["data", "cannot bind"], &["tenant", "create", "t", "--volume", &behind]).await?;
        for volume in [behind, link, again, root, plain] {
            json(ctx, &["volume", "rm", &volume, "--force"]).await?;
        }
    }
    unmake_pools(ctx, &["file", "thin"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

async fn volume_copies(ctx: &mut Ctx, pools: [(&str, &str, &str); 2]) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file", "thin"]).await?;
    for (kind, fs, size) in pools {
        let volume = |name: &str| format!("{kind}/{name}");
        json(ctx, &["volume", "create", &volume("base"), "--size", size, "--fs", fs]).await?;
        json(ctx, &["tenant", "create", "a", "--volume", &volume("base")]).await?;
        let view = json(ctx, &["volume", "inspect", &volume("base")]).await?;
        let base = view["mounted_at"].as_str().unwrap_or_default().to_owned();
        ctx.machine.sh(&format!("echo one > {base}/file; sync -f {base}/file; mkdir {base}/unsynced")).await?;
        json(ctx, &["volume", "snapshot", &volume("base"), "snap"]).await?;
        ctx.machine.sh(&format!("echo two > {base}/file")).await?;
        json(ctx, &["volume", "clone", &volume("base"), "copy"]).await?;
        json(ctx, &["tenant", "create", "b", "--volume", &volume("snap"), "--volume", &volume("copy")]).await?;
        let at = |name: &str| base.replace("/base", name);
        let found = ctx.machine.sh(&format!("cat {} {}", at("/snap/file"), at("/copy/file"))).await?;
        ensure!(found == "one\ntwo\n", "{fs}: the copies contain {found:?}");
        let written = ctx.machine.run(&["touch", &at("/snap/new")]).await?;
        ensure!(written.stderr.contains("Read-only"), "{fs}: a snapshot was written to: {written:?}");
        ctx.machine.sh(&format!("echo three > {}; cat {base}/file | grep two", at("/copy/file"))).await?;
        refused(ctx, 8, &["read-only snapshot"], &["volume", "resize", &volume("snap"), "--size", "1G"]).await?;
        for tenant in ["a", "b"] {
            json(ctx, &["tenant", "rm", tenant]).await?;
        }
        // The origin may be removed first: data that its copies need stays.
        for name in ["base", "snap", "copy"] {
            json(ctx, &["volume", "rm", &volume(name)]).await?;
        }
    }
    unmake_pools(ctx, &["file", "thin"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// A copy of the mount in another namespace: its processes can still write to the volume, so no other tenant gets it.
async fn still_used_elsewhere(ctx: &Ctx, at: &str) -> Result<()> {
    let copy = ctx.machine.spawn(&["unshare", "--mount", "--propagation", "private", "sleep", "1000"], &[]).await?;
    let (own, theirs) = ("/proc/self/ns/mnt", format!("/proc/{}/ns/mnt", copy.pid()));
    ctx.machine
        .wait_until("it has a namespace of its own", Duration::from_secs(30), async || {
            let differ =
                ctx.machine.sh(&format!("test $(readlink {own}) != $(readlink {theirs}) && echo yes || true")).await?;
            Ok((differ.trim() == "yes").then_some(()))
        })
        .await?;
    refused(ctx, 5, &["mounted elsewhere"], &["tenant", "set", "db", "--detach", "thick/v"]).await?;
    refused(ctx, 5, &["tenant db"], &["tenant", "create", "x", "--volume", "thick/v"]).await?;
    // It still belongs to the tenant.
    ctx.machine
        .wait_until("it is mounted again", Duration::from_secs(60), async || {
            let view = json(ctx, &["volume", "inspect", "thick/v"]).await?;
            Ok((view["tenant"] == "db" && view["mounted_at"] == at).then_some(()))
        })
        .await?;
    copy.kill(9).await?;
    copy.wait(Duration::from_secs(30)).await?;
    Ok(())
}

/// Files in the mount point of a volume, below the mount.
async fn files_in_the_mount_point(ctx: &Ctx, at: &str) -> Result<()> {
    let below = at.replace("/run/bulkhead", "/run/below");
    ctx.machine
        .sh(&format!(
            "mkdir /run/below; mount --bind /run/bulkhead /run/below; touch {below}/keep; umount /run/below; rmdir /run/below"
        ))
        .await?;
    json(ctx, &["tenant", "set", "db", "--detach", "thick/v"]).await?;
    let attach = ["tenant", "set", "db", "--attach", "thick/v"];
    refused(ctx, 6, &["it contains files"], &attach).await?;
    ctx.machine.sh(&format!("rm {at}/keep")).await?;
    json(ctx, &attach).await?;
    Ok(())
}

/// A file system without its root directory: a safe repair gives up; a full repair keeps a copy of the previous state.
async fn damaged(ctx: &Ctx) -> Result<()> {
    for (volume, keeps) in [("file/broken", true), ("thick/broken", false)] {
        json(ctx, &["volume", "create", volume, "--size", "64M"]).await?;
        let mapped = json(ctx, &["volume", "map", volume]).await?;
        let device = mapped["object"]["device"].as_str().unwrap_or_default().to_owned();
        refused(ctx, 5, &["mapped"], &["tenant", "create", "x", "--volume", volume]).await?;
        ctx.machine.sh(&format!("debugfs -w -R 'clri <2>' {device}")).await?;
        json(ctx, &["volume", "unmap", volume]).await?;
        refused(ctx, 10, &["errors", "--full"], &["volume", "check", volume]).await?;
        refused(ctx, 10, &["errors"], &["volume", "check", volume, "--repair"]).await?;
        json(ctx, &["volume", "check", volume, "--full"]).await?;
        json(ctx, &["volume", "check", volume]).await?;
        let kept = format!("{volume}-before-repair");
        if keeps {
            let mapped = json(ctx, &["volume", "map", &kept]).await?;
            let device = mapped["object"]["device"].as_str().unwrap_or_default().to_owned();
            let root = ctx.machine.sh(&format!("debugfs -R 'stat <2>' {device} 2>&1")).await?;
            ensure!(root.contains("Mode:  0000"), "the copy was changed: {root}");
            json(ctx, &["volume", "unmap", &kept]).await?;
            json(ctx, &["volume", "rm", &kept]).await?;
        } else {
            refused(ctx, 3, &["no volume"], &["volume", "inspect", &kept]).await?;
        }
        json(ctx, &["volume", "rm", volume]).await?;
    }
    Ok(())
}

async fn bad_input(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    refused(ctx, 11, &["bulkhead daemon"], &["pool", "ls"]).await?;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &KINDS).await?;
    let create = |name: &str, size: &str| ["volume", "create", name, "--size", size].map(str::to_owned).to_vec();
    let long = format!("file/{}", "n".repeat(300));
    for (args, code, words) in [
        (create("file/a b", "64M"), 2, "' '"),
        (create("file/../x", "64M"), 2, "x"),
        (create("file/..", "64M"), 2, "starts with"),
        (create("file/a\u{7}", "64M"), 2, "only letters"),
        (create(&long, "64M"), 2, "300 bytes"),
        (create("file/x", "0"), 2, "size 0"),
        (create("file/x", "1M"), 2, "too small"),
        (create("file/x", "-5G"), 2, "-5G"),
        (create("file/x", "64Q"), 2, "64Q"),
        (create("file/x", "100G"), 7, "larger than the whole pool"),
        (create("thick/x", "100G"), 7, "larger than the whole pool"),
        (create("none/x", "64M"), 3, "no pool of that name"),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        refused(ctx, code, &[words], &args).await?;
    }
    let data = ctx.machine.disk(0).await?;
    let used = ctx.machine.disk(1).await?;
    refused(ctx, 5, &["mounted"], &["pool", "create", "p", "--device", &data]).await?;
    refused(ctx, 5, &["belongs to volume group"], &["pool", "create", "p", "--device", &used, "--erase", &used])
        .await?;
    refused(ctx, 2, &["not a block device"], &["pool", "create", "p", "--device", "/dev/null"]).await?;
    refused(ctx, 3, &["no such device"], &["pool", "create", "p", "--device", "/dev/nothing"]).await?;
    refused(ctx, 6, &["not empty"], &["pool", "create", "p", "--dir", "/etc"]).await?;
    refused(ctx, 3, &["no such volume group"], &["pool", "create", "p", "--vg", "nothing"]).await?;
    ctx.machine.sh("mkdir /run/ro; mount -t tmpfs -o ro none /run/ro").await?;
    refused(ctx, 8, &["read-only"], &["pool", "create", "p", "--dir", "/run/ro/pool"]).await?;
    ctx.machine
        .sh("umount /run/ro; mount -t tmpfs -o size=64k none /run/ro; head -c 1M /dev/zero > /run/ro/fill || true")
        .await?;
    refused(ctx, 7, &["No space left", "free up space"], &["pool", "create", "p", "--dir", "/run/ro/pool"]).await?;
    ctx.machine.sh("umount /run/ro; rmdir /run/ro").await?;
    let pools = json(ctx, &["pool", "ls"]).await?;
    ensure!(pools.as_array().is_some_and(|pools| pools.len() == 3), "a refused pool is there: {pools}");

    // A device with data: only the exact confirmation erases it; a wrong one leaves the data unchanged.
    json(ctx, &["pool", "rm", "thick"]).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {used}; head -c 16M {used} | md5sum > /run/sum")).await?;
    refused(ctx, 6, &["ext4", &format!("--erase {used}")], &["pool", "create", "thick", "--device", &used]).await?;
    refused(ctx, 6, &["ext4"], &["pool", "create", "thick", "--device", &used, "--erase", "yes"]).await?;
    ctx.machine.sh(&format!("head -c 16M {used} | md5sum | diff - /run/sum; rm /run/sum")).await?;
    json(ctx, &["pool", "create", "thick", "--device", &used, "--erase", &used]).await?;

    // A volume in use by a process.
    json(ctx, &["volume", "create", "thick/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "db", "--volume", "thick/v"]).await?;
    refused(ctx, 2, &["1 to 10000"], &["tenant", "create", "x", "--share", "0"]).await?;
    refused(ctx, 5, &["tenant db"], &["tenant", "create", "x", "--volume", "thick/v"]).await?;
    let view = json(ctx, &["volume", "inspect", "thick/v"]).await?;
    let at = view["mounted_at"].as_str().unwrap_or_default().to_owned();
    let busy = ctx.machine.spawn(&["bash", "-c", &format!("cd {at}; exec sleep 1000")], &[]).await?;
    refused(ctx, 5, &["in use"], &["volume", "rm", "thick/v", "--force"]).await?;
    let still = json(ctx, &["volume", "inspect", "thick/v"]).await?;
    ensure!(still["state"] == "ready" && still["mounted_at"] == view["mounted_at"], "half removed: {still}");
    busy.kill(9).await?;
    busy.wait(Duration::from_secs(30)).await?;
    still_used_elsewhere(ctx, &at).await?;
    files_in_the_mount_point(ctx, &at).await?;

    damaged(ctx).await?;

    // A second daemon.
    let second = cli(ctx, &["daemon"]).await?;
    ensure!(
        second.status != ExitStatus::Code(0) && second.stderr.contains("another daemon is already running"),
        "{second:?}"
    );
    // Damaged records are reported, and the data behind them is not touched.
    json(ctx, &["volume", "create", "file/torn", "--size", "64M"]).await?;
    let record = "/run/filepool/pool/torn.volume";
    ctx.machine.sh(&format!("cp {record} /run/keep; truncate -s 50 {record}")).await?;
    refused(ctx, 10, &["torn.volume", "truncated"], &["volume", "inspect", "file/torn"]).await?;
    refused(ctx, 10, &["torn.volume"], &["volume", "rm", "file/torn", "--force"]).await?;
    ctx.machine.sh(&format!("cp /run/keep {record}; sed -i s/ext4/ext5/ {record}")).await?;
    refused(ctx, 10, &["checksum"], &["volume", "inspect", "file/torn"]).await?;
    ctx.machine.sh(&format!("cp /run/keep {record}; rm /run/keep")).await?;
    json(ctx, &["volume", "rm", "file/torn"]).await?;

    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "thick/v"]).await?;
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}
