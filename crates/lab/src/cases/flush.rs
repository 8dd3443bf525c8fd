//! Durability of an fsync in a volume, on disks that lose unflushed writes at chosen moments.
//!
//! Most of the lab's disks keep all completed writes, so a power cut does not test flushes. The kernel's dm-log-writes
//! target logs writes in the order in which flushes make them durable, and marks; the durable contents at a mark are
//! rebuilt from that log on another disk.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::{PROFILE, json, nothing_is_critical, start_daemon_as};
use super::layers::{POOL, attach, kill_server};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "volume_flushes",
    about: "data synced in a volume and in a clone of it is in the durable contents of the disk at the end of the \
            sync, and the file systems are clean there (dm-log-writes)",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(1200),
    run: |ctx| Box::pin(flushes(ctx)),
}];

/// Writes and changes files without syncing, so that there is data to lose.
const NOISE: &str = "cd AT; n=0; until [ -e /run/stop ]; do n=$((n + 1)); mkdir -p noise/$((n % 50)); \
                     head -c $((RANDOM * 4)) /dev/urandom > noise/$((n % 50))/$((n % 7)); mv noise/$((n % 50))/$((n % 7)) noise/moved; done";

/// Writes a new file and the middle of an old one, syncs both and their directory, and records their checksums.
const SYNCED: &str = "cd AT; head -c 150000 /dev/urandom > NAME; [ -e old ] || head -c 400000 /dev/zero > old; \
                      dd if=/dev/urandom of=old bs=4096 count=5 seek=$((RANDOM % 90)) conv=notrunc status=none; sync NAME old .; \
                      md5sum old [0-9]* > /run/sums/VOLUME.NAME";

/// Replays a log to a device, from the end of the last call up to a mark.
const REPLAY: &str = r#"
import os, struct, sys
log, target, mark, state = sys.argv[1:]
source, out = os.open(log, os.O_RDONLY), os.open(target, os.O_WRONLY)
magic, version, entries, unit = struct.unpack("<QQQI", os.pread(source, 28, 0))
assert (magic, version) == (0x6a736677736872, 1), "no log of dm-log-writes"
number, at = map(int, open(state).read().split()) if os.path.exists(state) else (0, unit)
while number < entries:
    sector, count, flags, length = struct.unpack("<QQQQ", os.pread(source, 32, at))
    number, data, at = number + 1, at + unit, at + unit
    if flags & 8:
        if os.pread(source, length, data - unit + 32).decode() == mark:
            os.fsync(out)
            open(state, "w").write(f"{number} {at}")
            print(number)
            sys.exit()
    elif not flags & 4:
        at += count * unit
        while data < at:
            part = os.pread(source, min(at - data, 1 << 20), data)
            os.pwrite(out, part, sector * unit + count * unit - (at - data))
            data += len(part)
sys.exit(f"the log of {entries} entries has no mark {mark}")
"#;

/// Mounts the contents of a disk at a mark through a dm snapshot, so that the disk itself stays unchanged.
const MOUNT_SNAPSHOT: &str = "truncate -s 1G /run/cow; dmsetup create look --table \"0 $(blockdev --getsz DISK) snapshot DISK $(losetup -f --show /run/cow) N 8\"; \
                    mount /dev/mapper/look /run/filepool";
const UNMOUNT_SNAPSHOT: &str = "umount /run/filepool; e2fsck -fn /dev/mapper/look > /run/fsck || { cat /run/fsck >&2; exit 1; }; dmsetup remove look; \
                         losetup -d $(losetup -n -O NAME -j /run/cow); rm /run/cow /run/fsck";

/// Rounds of writes, and the number of them before there is a clone.
const ROUNDS: usize = 5;
const ALONE: usize = 2;

async fn flushes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    if ctx.machine.run(&["modprobe", "dm-log-writes"]).await?.status != ExitStatus::Code(0) {
        return Ok(Outcome::Skipped("this kernel has no dm-log-writes".to_owned()));
    }
    let (disk, log, other) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?, ctx.machine.disk(2).await?);
    let program = ctx.program("bulkhead");
    let daemon = [program.as_str(), "daemon", "--state-dir", "/run/filepool/state"];
    ctx.machine
        .sh(&format!(
            "mkdir /run/sums /run/filepool; dmsetup create logged --table \"0 $(blockdev --getsz {disk}) log-writes {disk} {log}\"; \
             mkfs.ext4 -q /dev/mapper/logged; mount /dev/mapper/logged /run/filepool"
        ))
        .await?;
    let running = start_daemon_as(ctx, &daemon, &[]).await?;
    json(ctx, &["pool", "create", "file", "--dir", POOL]).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M"]).await?;
    let mut volumes = vec![("v", attach(ctx, "v").await?)];
    let mut noises = vec![noise(ctx, &volumes[0].1).await?];
    let mut marks = Vec::new();
    for round in 0..ROUNDS {
        if round == ALONE {
            json(ctx, &["volume", "snapshot", "file/v", "s"]).await?;
            json(ctx, &["volume", "clone", "file/s", "c"]).await?;
            volumes.push(("c", attach(ctx, "c").await?));
            noises.push(noise(ctx, &volumes[1].1).await?);
        }
        if round + 1 == ROUNDS {
            kill_server(ctx, "v").await?;
        }
        for (volume, at) in &volumes {
            let script = SYNCED.replace("AT", at).replace("NAME", &round.to_string()).replace("VOLUME", volume);
            ctx.machine.sh(&script).await?;
        }
        ctx.machine.sh(&format!("dmsetup message logged 0 mark round{round}")).await?;
        marks.push((round, volumes.iter().map(|(volume, _)| *volume).collect::<Vec<_>>()));
    }
    ctx.machine.sh("touch /run/stop").await?;
    for noise in noises {
        let ended = noise.wait(Duration::from_secs(60)).await?;
        ensure!(ended.status == ExitStatus::Code(0), "writing failed: {}", ended.stderr);
    }
    for (volume, _) in &volumes {
        json(ctx, &["tenant", "rm", volume]).await?;
    }
    running.stop().await?;
    ctx.machine.sh("umount /run/filepool; dmsetup remove logged; rm /run/stop").await?;

    for (round, volumes) in marks {
        let mark = format!("round{round}");
        let replay = ["python3", "-c", REPLAY, &log, &other, &mark, "/run/replayed"];
        let replayed = ctx.machine.run_within(&replay, Duration::from_secs(120)).await?;
        ensure!(replayed.status == ExitStatus::Code(0), "{mark}: {}", replayed.stderr);
        ctx.machine.sh(&MOUNT_SNAPSHOT.replace("DISK", &other)).await?;
        let running = start_daemon_as(ctx, &daemon, &[]).await?;
        nothing_is_critical(ctx, &mark).await?;
        for volume in &volumes {
            let at = ctx
                .machine
                .wait_until("the volume is mounted", Duration::from_secs(30), async || {
                    let view = json(ctx, &["volume", "inspect", &format!("file/{volume}")]).await?;
                    Ok(view["mounted_at"].as_str().map(str::to_owned))
                })
                .await?;
            let checked = ctx.machine.sh(&format!("cd {at}; md5sum --quiet -c /run/sums/{volume}.{round}")).await;
            ensure!(checked.is_ok(), "{mark}: data synced in {volume} is missing: {checked:?}");
            json(ctx, &["tenant", "rm", volume]).await?;
            json(ctx, &["volume", "check", &format!("file/{volume}")]).await?;
        }
        running.stop().await?;
        ctx.machine.sh(UNMOUNT_SNAPSHOT).await?;
        ctx.log(format!("{mark}: {volumes:?} after {} entries of the log", replayed.stdout.trim()));
    }
    ctx.machine.sh(&format!("wipefs -qa {disk} {other}; rm -r /run/sums /run/replayed; rmdir /run/filepool")).await?;
    Ok(Outcome::Passed)
}

async fn noise(ctx: &Ctx, at: &str) -> Result<Process> {
    ctx.machine.spawn(&["bash", "-c", &NOISE.replace("AT", at)], &[]).await
}
