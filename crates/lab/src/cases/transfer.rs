//! Transfer of snapshots from one pool to another, through real pipes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{KINDS, PROFILE, cli, json, make_pools, refused, refused_as, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "send_receive",
        about: "ext4 snapshots sent to another pool, in full and incrementally, contain the same files there; a \
                killed, truncated or damaged transfer resumes where it stopped, and invalid streams change nothing",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(1200),
        run: |ctx| Box::pin(send_receive(ctx, false)),
    },
    Case {
        name: "send_receive_others",
        about: "the same as send_receive for snapshots of XFS and of a thin pool",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(1200),
        run: |ctx| Box::pin(send_receive(ctx, true)),
    },
];

/// Directory of the receiving pool, on the same disk.
const OTHER: &str = "/run/filepool/other";

/// Directory of saved streams.
const STREAMS: &str = "/run/filepool/streams";

/// Lists the contents of a tree, with owners, modes and times.
const TREE: &str = "cd AT; find . -not -path './lost+found*' -printf '%P %M %U %G %s %T@ %l\\n' | sort; find . -type f | sort | xargs md5sum";

/// Creates a stream that is damaged in the middle, one of another version, noise, and a stream followed by noise.
const DAMAGE: &str = "cd STREAMS; cp whole flipped; printf '\\377\\377' | dd of=flipped bs=1 seek=25000000 conv=notrunc status=none; \
                      cp whole newer; printf '\\002' | dd of=newer bs=1 seek=8 conv=notrunc status=none; \
                      head -c 1000000 /dev/urandom > noise; cat whole noise > longer";

async fn send_receive(ctx: &mut Ctx, is_others: bool) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    ctx.machine.sh(&format!("mkdir {STREAMS}")).await?;
    json(ctx, &["pool", "create", "other", "--dir", OTHER]).await?;
    if is_others {
        full_and_incremental(ctx, "xfs").await?;
        make_pools(ctx, &["thick", "thin"]).await?;
        ctx.log("thin: full and incremental");
        of_a_thin_pool(ctx).await?;
    } else {
        full_and_incremental(ctx, "ext4").await?;
        interrupted(ctx).await?;
        make_pools(ctx, &["thick", "thin"]).await?;
        refusals(ctx).await?;
    }
    ctx.machine.sh(&format!("rm -r {STREAMS}")).await?;
    for view in json(ctx, &["volume", "ls"]).await?.as_array().into_iter().flatten() {
        json(ctx, &["volume", "rm", view["volume"].as_str().context("no name")?]).await?;
    }
    let left = ctx.machine.sh(&format!("ls {OTHER}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "the other pool still has {left}");
    json(ctx, &["pool", "rm", "other"]).await?;
    ctx.machine.sh(&format!("rmdir {OTHER}")).await?;
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Sends two snapshots of a volume in use, the second incrementally, and sends both back under other names.
async fn full_and_incremental(ctx: &Ctx, fs: &str) -> Result<()> {
    let (volume, size) = (format!("file/{fs}"), if fs == "xfs" { "400M" } else { "256M" });
    json(ctx, &["volume", "create", &volume, "--size", size, "--fs", fs]).await?;
    let at = attach(ctx, &volume).await?;
    ctx.machine
        .sh(&format!(
            "cd {at}; mkdir -p a/b; head -c 30000000 /dev/urandom > a/data; truncate -s 50M a/holes; ln -s b a/link; cp -r /etc a/b; sync -f ."
        ))
        .await?;
    json(ctx, &["volume", "snapshot", &volume, &format!("{fs}-1")]).await?;
    ctx.machine
        .sh(&format!(
            "cd {at}; rm -r a/b/etc; mkdir c; head -c 3000000 /dev/urandom > c/new; dd if=/dev/zero of=a/data bs=1M seek=5 count=4 conv=notrunc status=none; sync -f ."
        ))
        .await?;
    json(ctx, &["volume", "snapshot", &volume, &format!("{fs}-2")]).await?;
    ctx.machine.sh(&format!("cd {at}; rm -r a c; sync -f .")).await?;
    let first = pipe(ctx, &format!("file/{fs}-1"), "", &format!("other/{fs}-1")).await?;
    let second = pipe(ctx, &format!("file/{fs}-2"), &format!("--from {fs}-1"), &format!("other/{fs}-2")).await?;
    ctx.log(format!("{fs}: {first} bytes, then {second}"));
    ensure!(second < first / 2, "the incremental stream has {second} bytes, the full one {first}");
    let mut trees = Vec::new();
    for n in ["1", "2"] {
        for pool in ["file", "other"] {
            let (snapshot, name) = (format!("{pool}/{fs}-{n}"), format!("{fs}-{n}-{pool}"));
            json(ctx, &["volume", "clone", &snapshot, &name]).await?;
            let at = attach(ctx, &format!("{pool}/{name}")).await?;
            trees.push(ctx.machine.sh(&TREE.replace("AT", &at)).await?);
        }
    }
    ensure!(trees[0] == trees[1], "the first differs:\n{}\n{}", trees[0], trees[1]);
    ensure!(trees[2] == trees[3], "the second differs:\n{}\n{}", trees[2], trees[3]);
    ensure!(trees[0] != trees[2] && trees[2].contains("c/new"), "the snapshots do not differ: {}", trees[2]);
    // A mounted snapshot can be sent as well, and so can a received one.
    let read = attach(ctx, &format!("other/{fs}-2")).await?;
    ensure!(ctx.machine.sh(&TREE.replace("AT", &read)).await? == trees[2], "the snapshot itself differs");
    pipe(ctx, &format!("other/{fs}-1"), "", &format!("file/{fs}-back-1")).await?;
    pipe(ctx, &format!("other/{fs}-2"), &format!("--from {fs}-1"), &format!("file/{fs}-back-2")).await?;
    let back = attach(ctx, &format!("file/{fs}-back-2")).await?;
    ensure!(ctx.machine.sh(&TREE.replace("AT", &back)).await? == trees[2], "the snapshot that was sent back differs");
    for view in json(ctx, &["tenant", "ls"]).await?.as_array().into_iter().flatten() {
        json(ctx, &["tenant", "rm", view["name"].as_str().context("no name")?]).await?;
    }
    // The log of an XFS is only replayed at its first mount.
    let never_mounted = if fs == "xfs" { &[][..] } else { &["1"] };
    for name in [&["2", "1-other", "2-other"], never_mounted].concat() {
        json(ctx, &["volume", "check", &format!("other/{fs}-{name}")]).await?;
    }
    Ok(())
}

/// Kills a receiver, truncates a stream and damages one; received data is kept, and the rest is sent later.
async fn interrupted(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    ctx.machine.sh(&format!("{program} volume send file/ext4-2 > {STREAMS}/whole")).await?;
    ctx.machine.sh(&DAMAGE.replace("STREAMS", STREAMS)).await?;
    let receive = |input: &str| format!("{input} | {program} volume receive other/again");
    // Kill a receiver that waits for more data.
    let fed =
        format!("(head -c 20000000 {STREAMS}/whole; tail -f /dev/null) | exec {program} volume receive other/again");
    let feeding = ctx.machine.spawn(&["bash", "-c", &fed], &[]).await?;
    ctx.machine
        .catch("a staging file", Duration::from_secs(60), async || {
            let blocks = format!("[ $(stat -c %b {OTHER}/again.part) -gt 2048 ]");
            let asked = ctx.machine.run(&["bash", "-c", &blocks]).await?;
            Ok((asked.status == ExitStatus::Code(0)).then_some(()))
        })
        .await?;
    let second = receive(&format!("cat {STREAMS}/whole"));
    refused_as(ctx, 5, &["another process is writing to", "again.part"], &["bash", "-c", &second]).await?;
    refused(ctx, 5, &["another process is writing to"], &["volume", "receive", "other/again", "--abort"]).await?;
    refused(ctx, 5, &["has", "volumes"], &["pool", "rm", "other"]).await?;
    ctx.machine.sh("pkill -9 -f '[v]olume receive other/again'").await?;
    // It may have ended already, because its pipe was closed.
    ctx.machine.sh("pkill -f '[t]ail -f /dev/null' || true").await?;
    feeding.wait(Duration::from_secs(60)).await?;
    // Then the stream is truncated, damaged, and too long.
    let cut = receive(&format!("head -c 12345678 {STREAMS}/whole"));
    refused_as(ctx, 10, &["is truncated", "--token"], &["bash", "-c", &cut]).await?;
    let reached = offset(&token(ctx).await?)?;
    ensure!(reached > 8 << 20, "only {reached} bytes were kept");
    let findings = json(ctx, &["pool", "inspect", "other"]).await?["findings"].clone();
    let mut all = findings.as_array().into_iter().flatten();
    let is_reported = all.any(|found| found["id"] == "receive_unfinished" && found["object"] == "volume other/again");
    ensure!(is_reported, "findings of the pool: {findings}");
    let flipped = receive(&format!("cat {STREAMS}/flipped"));
    refused_as(ctx, 10, &["altered in transit", "checksum"], &["bash", "-c", &flipped]).await?;
    let further = offset(&token(ctx).await?)?;
    ensure!(further > reached, "no progress from {reached} to {further}");
    refused_as(ctx, 10, &["after the end"], &["bash", "-c", &receive(&format!("cat {STREAMS}/longer"))]).await?;
    // The resume token identifies the stream, and the missing rest can be sent.
    let token = token(ctx).await?;
    let other = ["volume", "send", "file/ext4-1", "--resume", &token];
    refused(ctx, 2, &["the resume token is of", "--abort"], &other).await?;
    let based = ["volume", "send", "file/ext4-2", "--from", "ext4-1", "--resume", &token];
    refused(ctx, 2, &["of a transfer with another base", "--from"], &based).await?;
    let rest = format!(
        "{program} volume send file/ext4-2 --resume {token} | tee {STREAMS}/rest | {program} volume receive other/again"
    );
    ctx.machine.sh(&rest).await?;
    let sizes = ctx.machine.sh(&format!("stat -c %s {STREAMS}/whole {STREAMS}/rest")).await?;
    let sizes: Vec<u64> = sizes.lines().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(sizes[1] < sizes[0] / 2, "too much was sent again: {sizes:?}");
    let at = attach(ctx, "other/again").await?;
    let origin = attach(ctx, "file/ext4-2").await?;
    let (here, there) = (TREE.replace("AT", &origin), TREE.replace("AT", &at));
    ensure!(ctx.machine.sh(&here).await? == ctx.machine.sh(&there).await?, "the resumed snapshot differs");
    for tenant in ["other-again", "file-ext4-2"] {
        json(ctx, &["tenant", "rm", tenant]).await?;
    }
    Ok(())
}

/// Snapshots and streams that cannot be sent or received are refused, and leave nothing behind.
async fn refusals(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    refused(ctx, 2, &["not a snapshot", "volume snapshot file/ext4"], &["volume", "send", "file/ext4"]).await?;
    refused(ctx, 3, &["nothing has been received"], &["volume", "receive", "other/x", "--token"]).await?;
    refused(ctx, 2, &["not a valid resume token", "--token"], &["volume", "send", "file/ext4-1", "--resume", "x:y"])
        .await?;
    let receive = |input: &str, to: &str| format!("cat {STREAMS}/{input} | {program} volume receive {to}");
    for (input, to, code, words) in [
        ("noise", "other/x", 10, &["not a snapshot stream"][..]),
        ("newer", "other/x", 10, &["version 2", "reads version 1", "that sent it"]),
        ("whole", "other/ext4-1", 4, &["a volume of that name"]),
        ("whole", "thin/x", 8, &["LVM pools cannot import"]),
        ("whole", "nowhere/x", 3, &["nowhere"]),
        ("whole", "x", 2, &["POOL/"]),
    ] {
        refused_as(ctx, code, words, &["bash", "-c", &receive(input, to)]).await?;
    }
    refused_as(ctx, 10, &["is truncated"], &["bash", "-c", &format!("{program} volume receive other/x < /dev/null")])
        .await?;
    // The base of the stream is missing.
    ctx.machine.sh(&format!("{program} volume send file/ext4-2 --from ext4-1 > {STREAMS}/step")).await?;
    for name in ["ext4-1", "ext4-2", "ext4-1-other", "ext4-2-other", "again"] {
        json(ctx, &["volume", "rm", &format!("other/{name}")]).await?;
    }
    refused_as(
        ctx,
        3,
        &["is to depend on, is missing", "without `--from`"],
        &["bash", "-c", &receive("step", "other/x")],
    )
    .await?;
    // Not enough space.
    ctx.machine.sh("cd /run/filepool; n=$(stat -f -c '%a * %S' .); fallocate -l $((n - 10000000)) fill").await?;
    refused_as(ctx, 7, &["is needed, but the pool has"], &["bash", "-c", &receive("whole", "other/x")]).await?;
    ctx.machine.sh("rm /run/filepool/fill").await?;
    let plan = cli(ctx, &["volume", "send", "file/ext4-1", "--dry-run"]).await?;
    ensure!(plan.status == ExitStatus::Code(0) && plan.stdout.contains("would create layer"), "dry run: {plan:?}");
    let plan = ctx.machine.sh(&format!("{program} volume receive other/x --dry-run < {STREAMS}/whole")).await?;
    ensure!(plan.contains("would create staging file"), "dry run: {plan}");
    let left = ctx.machine.sh(&format!("ls {OTHER} | grep -c 'part$\\|x.img' || true")).await?;
    ensure!(left.trim() == "0", "something was left: {left}");
    Ok(())
}

/// Sends two snapshots of a volume that changed and grew in between: the first in two parts, the second incrementally.
async fn of_a_thin_pool(ctx: &Ctx) -> Result<()> {
    json(ctx, &["volume", "create", "thin/v", "--size", "256M"]).await?;
    let at = attach(ctx, "thin/v").await?;
    ctx.machine
        .sh(&format!("cd {at}; mkdir -p a/b; head -c 30000000 /dev/urandom > a/data; truncate -s 50M a/holes; cp -r /etc a/b; sync -f ."))
        .await?;
    json(ctx, &["volume", "snapshot", "thin/v", "a"]).await?;
    json(ctx, &["volume", "resize", "thin/v", "--size", "320M"]).await?;
    let change = "cd AT; rm -r a/b/etc; head -c 3000000 /dev/urandom > new; fallocate -p -o 8M -l 9M a/data; \
                  dd if=/dev/zero of=a/data bs=1M seek=2 count=3 conv=notrunc status=none; sync -f .; fstrim .";
    ctx.machine.sh(&change.replace("AT", &at)).await?;
    json(ctx, &["volume", "snapshot", "thin/v", "b"]).await?;
    ctx.machine.sh(&format!("cd {at}; rm -r a; sync -f .; fstrim .")).await?;
    // A snapshot that was never sent is still writable, and a dry run does not change that.
    let step = ["volume", "send", "thin/b", "--from", "a"];
    let plan = cli(ctx, &["volume", "send", "thin/a", "--dry-run"]).await?;
    ensure!(plan.status == ExitStatus::Code(0) && plan.stdout.contains("/a read-only"), "dry run: {plan:?}");
    refused(ctx, 2, &["ever been sent", "--from"], &step).await?;
    refused(ctx, 2, &["not a snapshot", "volume snapshot thin/v"], &["volume", "send", "thin/v"]).await?;
    for (volume, fs) in [("thin/x", "xfs"), ("thick/v", "ext4")] {
        json(ctx, &["volume", "create", volume, "--size", "320M", "--fs", fs]).await?;
    }
    json(ctx, &["volume", "snapshot", "thin/x", "y"]).await?;
    refused(ctx, 8, &["an XFS snapshot", "use ext4"], &["volume", "send", "thin/y"]).await?;
    refused(ctx, 8, &["thick lvm pools have no snapshots", "--thin-pool"], &["volume", "send", "thick/v"]).await?;

    let program = ctx.program("bulkhead");
    ctx.machine.sh(&format!("{program} volume send thin/a > {STREAMS}/whole")).await?;
    let receive = format!("{program} volume receive other/again");
    let cut = format!("head -c 12345678 {STREAMS}/whole | {receive}");
    refused_as(ctx, 10, &["is truncated", "--token"], &["bash", "-c", &cut]).await?;
    let token = token(ctx).await?;
    ensure!(offset(&token)? > 8 << 20, "little was kept: {token}");
    // A killed sender leaves nothing open; the next one releases its reservation.
    ctx.machine
        .sh(&format!("timeout -s KILL 2 {program} volume send thin/a | (sleep 4; cat > /dev/null) || true"))
        .await?;
    // Devices that no process has open need not exist.
    ctx.machine.sh("for name in a b; do dmsetup remove bulkhead--thin-$name; done").await?;
    ctx.machine
        .sh(&format!("{program} volume send thin/a --resume {token} > {STREAMS}/rest; {receive} < {STREAMS}/rest"))
        .await?;
    let second = pipe(ctx, "thin/b", "--from a", "other/b").await?;
    let sizes = ctx.machine.sh(&format!("stat -c %s {STREAMS}/whole {STREAMS}/rest")).await?;
    let sizes: Vec<u64> = sizes.lines().map(str::parse).collect::<Result<_, _>>()?;
    ctx.log(format!("thin: {} bytes, of which {} after the cut, then {second}", sizes[0], sizes[1]));
    ensure!(sizes[1] < sizes[0] && second < sizes[0] / 2, "too much was sent: {sizes:?}, {second}");
    let reserved = ctx.machine.sh("ls /var/lib/bulkhead/thin; dmsetup status --target thin-pool").await?;
    ensure!(reserved.starts_with("locks\n") && reserved.contains(" - rw "), "metadata are left reserved: {reserved}");

    for (snapshot, received) in [("thin/a", "other/again"), ("thin/b", "other/b")] {
        let (here, there) = (attach(ctx, snapshot).await?, attach(ctx, received).await?);
        let trees =
            [ctx.machine.sh(&TREE.replace("AT", &here)).await?, ctx.machine.sh(&TREE.replace("AT", &there)).await?];
        ensure!(trees[0] == trees[1] && trees[0].contains("a/data"), "it differs:\n{}\n{}", trees[0], trees[1]);
        for name in [snapshot, received] {
            json(ctx, &["tenant", "rm", &name.replace('/', "-")]).await?;
            json(ctx, &["volume", "check", name]).await?;
        }
    }
    // A sent snapshot can be cloned, and the clone written to.
    json(ctx, &["volume", "clone", "thin/a", "c"]).await?;
    let clone = attach(ctx, "thin/c").await?;
    ctx.machine.sh(&format!("head -c 100000 /dev/urandom > {clone}/more; sync -f {clone}")).await?;
    for tenant in ["thin-c", "thin-v"] {
        json(ctx, &["tenant", "rm", tenant]).await?;
    }
    Ok(())
}

/// Sends a snapshot through a pipe; returns the size of the stream.
async fn pipe(ctx: &Ctx, snapshot: &str, options: &str, to: &str) -> Result<u64> {
    let program = ctx.program("bulkhead");
    let command = format!(
        "set -o pipefail; {program} volume send {snapshot} {options} | tee >(wc -c > /run/sent) | {program} volume receive {to}"
    );
    ctx.machine.sh(&command).await?;
    let counted = ctx.machine.wait_until("the count", Duration::from_secs(10), async || {
        Ok(ctx.machine.sh("cat /run/sent").await?.trim().parse().ok())
    });
    let sent = counted.await?;
    ctx.machine.sh("rm /run/sent").await?;
    Ok(sent)
}

async fn token(ctx: &Ctx) -> Result<String> {
    let printed = cli(ctx, &["volume", "receive", "other/again", "--token"]).await?;
    ensure!(printed.status == ExitStatus::Code(0), "no token: {printed:?}");
    Ok(printed.stdout.trim().to_owned())
}

/// The offset in a resume token.
fn offset(token: &str) -> Result<u64> {
    Ok(token.rsplit(':').next().context("no offset")?.parse()?)
}

/// Mounts a volume for a tenant of the same name; returns the mount point.
async fn attach(ctx: &Ctx, volume: &str) -> Result<String> {
    json(ctx, &["tenant", "create", &volume.replace('/', "-"), "--volume", volume]).await?;
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    Ok(view["mounted_at"].as_str().context("not mounted")?.to_owned())
}
