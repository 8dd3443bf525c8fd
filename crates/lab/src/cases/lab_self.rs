//! Self-tests of the lab: the guest provides what other cases rely on, disks match their models and survive a crash.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::HDD_SSD_FAULTY;
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;
use crate::sealed::{SealedSpec, run_sealed};

const PROFILE: Profile = Profile {
    name: "lab",
    clock: Clock::Wall,
    init: Init::Script,
    disks: HDD_SSD_FAULTY,
    memory_mib: 2048,
    cpus: 2,
    kernel_arguments: "",
};
const LIMIT: Duration = Duration::from_secs(300);
/// One processor, as in measurements.
const VIRTUAL: Profile = Profile {
    name: "virtual",
    clock: Clock::Virtual,
    init: Init::Script,
    disks: &[DiskSpec::new(DiskModel::Hdd, 1024), DiskSpec::new(DiskModel::Fast, 64)],
    memory_mib: 1024,
    cpus: 1,
    kernel_arguments: "",
};

const LOSING: Profile =
    Profile { name: "losing", disks: &[DiskSpec::new(DiskModel::Hdd, 64).losing()], memory_mib: 512, ..VIRTUAL };

pub(super) const CASES: &[Case] = &[
    Case {
        name: "lab_self",
        about: "cgroup controllers, disks, schedulers, LVM and loop devices work in the guest",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: LIMIT,
        run: |ctx| Box::pin(guest_is_complete(ctx)),
    },
    Case {
        name: "lab_self_processes",
        about: "programs in the guest can be started, given input and signalled, and their exit status is reported",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: LIMIT,
        run: |ctx| Box::pin(processes_are_controlled(ctx)),
    },
    Case {
        name: "lab_self_fault",
        about: "a faulty disk returns I/O errors while a fault is enabled, and only then",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: LIMIT,
        run: |ctx| Box::pin(faults_are_switched(ctx)),
    },
    Case {
        name: "lab_self_virtual",
        about: "in virtual time idle time costs nothing, the same work takes the same time, and a disk takes the time \
                of its model",
        kernels: &[Kernel::V6_12, Kernel::Backport],
        // Its subject is that clock.
        profile: VIRTUAL,
        limit: LIMIT,
        run: |ctx| Box::pin(virtual_time_is_exact(ctx)),
    },
    Case {
        name: "lab_self_sealed",
        about: "two runs of a sealed machine are identical, to the nanosecond and to the random number; without its \
                disk server it ends with the reason",
        kernels: &[Kernel::V6_12],
        // Its subject is that clock; the machine of the case itself is not used.
        profile: VIRTUAL,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(sealed_machines_repeat(ctx)),
    },
    Case {
        name: "lab_self_loss",
        about: "at a power cut a disk with a volatile cache keeps flushed data, and loses some unflushed blocks as a \
                whole",
        kernels: &[Kernel::V6_12],
        // Only in virtual time can a disk have a cache that is lost with the machine.
        profile: LOSING,
        limit: LIMIT,
        run: |ctx| Box::pin(unflushed_data_is_lost(ctx)),
    },
    Case {
        name: "lab_self_crash",
        about: "data flushed before a power cut is on the disk after it",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: LIMIT,
        run: |ctx| Box::pin(flushed_data_survives_a_crash(ctx)),
    },
];

async fn guest_is_complete(ctx: &mut Ctx) -> Result<Outcome> {
    let machine = &ctx.machine;
    let release = machine.sh("uname -r").await?;
    ensure!(release.trim() == machine.kernel().version, "kernel {} is running", release.trim());
    ctx.log(format!("kernel {}, booted in {:.1} s", release.trim(), machine.boot_time().as_secs_f64()));

    let controllers = machine.read_text("/sys/fs/cgroup/cgroup.controllers").await?;
    for wanted in ["io", "memory", "cpu"] {
        ensure!(controllers.split_whitespace().any(|found| found == wanted), "no {wanted} controller: {controllers}");
    }
    machine.read_file("/sys/fs/cgroup/io.cost.qos").await.context("no io.cost")?;
    machine.read_file("/sys/kernel/btf/vmlinux").await.context("no BTF")?;

    for (index, spec) in HDD_SSD_FAULTY.iter().enumerate() {
        let name = machine.disk(index).await?.replace("/dev/", "");
        let sectors: u64 = machine.read_text(&format!("/sys/block/{name}/size")).await?.trim().parse()?;
        ensure!(sectors * 512 == u64::from(spec.size_mib) * 1024 * 1024, "disk {index} has {sectors} sectors");
        let rotates = machine.read_text(&format!("/sys/block/{name}/queue/rotational")).await?.trim() == "1";
        ensure!(rotates == (spec.model == DiskModel::Hdd), "disk {index} ({}) rotates: {rotates}", spec.model);
    }

    let hdd = machine.disk(0).await?;
    let script = format!(
        "modprobe -a bfq dm_thin_pool xfs ext4 null_blk\n\
         queue=/sys/block/{name}/queue/scheduler\n\
         before=$(sed 's/.*\\[\\(.*\\)\\].*/\\1/' $queue)\n\
         echo bfq > $queue\n\
         grep -F '[bfq]' $queue\n\
         echo $before > $queue\n",
        name = hdd.replace("/dev/", "")
    );
    machine.sh(&script).await?;
    machine.sh(LVM_SCRIPT.replace("DISK", &machine.disk(1).await?).as_str()).await?;
    machine.sh(LOOP_SCRIPT).await?;
    Ok(Outcome::Passed)
}

/// Prints random numbers, a random UUID, and times that depend on the disk; then writes a result and exits with a code
/// other than 0.
const SEALED_SCRIPT: &str = "
head -c 16 /dev/urandom | od -An -tx1
mke2fs -q -t ext4 \"$1\"
blkid \"$1\"
fio --name=x --filename=\"$1\" --size=64m --rw=randwrite --bs=4k --fsync=4 --numjobs=2 --time_based --runtime=3 --output-format=json >/tmp/fio
md5sum /tmp/fio /proc/stat
grep -m 2 iops /tmp/fio
date +%s.%N
echo result >/lab/out/result
exit 7
";

async fn sealed_machines_repeat(ctx: &mut Ctx) -> Result<Outcome> {
    // While its time is held, it would occupy a processor of the host.
    ctx.machine.power_off().await;
    let command = ["bash", "-c", SEALED_SCRIPT, "bash", "{disk}"].map(str::to_owned).to_vec();
    let disk = DiskSpec::new(DiskModel::Hdd, 1024);
    let spec = SealedSpec { kernel: Kernel::V6_12, disk, memory_mib: 1024, command, limit: LIMIT, shown: false };
    let first = run_sealed(&ctx.lab, &spec, &ctx.artifacts).await?;
    let result = std::fs::read_to_string(ctx.artifacts.join("out/result")).context("the command's result")?;
    ensure!((first.code, result.as_str()) == (7, "result\n"), "exit code {}, {result:?}", first.code);
    ensure!(first.output.contains("\"iops\""), "no output of fio: {}", first.output);
    let second = run_sealed(&ctx.lab, &spec, &ctx.artifacts).await?;
    let differs = first.output.lines().zip(second.output.lines()).find(|(one, other)| one != other);
    ensure!(first == second, "two runs differ: {differs:?}");

    let command = ["bash", "-c", "pkill -KILL -f '[b]ulkhead-lab-disk serve'; sleep 600"].map(str::to_owned).to_vec();
    let lost = run_sealed(&ctx.lab, &SealedSpec { command, ..spec }, &ctx.artifacts).await;
    let why = lost.err().context("a sealed machine continues without its disk server")?.to_string();
    ensure!(why.starts_with("the disk server in the machine ended"), "{why}");
    Ok(Outcome::Passed)
}

const LVM_SCRIPT: &str = "
vgcreate lab_vg DISK
lvcreate --yes --wipesignatures y --name plain --size 256M lab_vg
lvcreate --type thin-pool --name pool --size 512M lab_vg
lvcreate --thin --name thin --virtualsize 1G lab_vg/pool
for volume in plain thin; do
    mkfs.ext4 -q /dev/lab_vg/$volume
    mkdir -p /run/lab_mount
    mount /dev/lab_vg/$volume /run/lab_mount
    echo $volume > /run/lab_mount/file
    sync -f /run/lab_mount/file
    umount /run/lab_mount
    rmdir /run/lab_mount
done
vgremove --force lab_vg
pvremove DISK";

const LOOP_SCRIPT: &str = "
truncate -s 400M /run/lab_loop
device=$(losetup --find --show /run/lab_loop)
mkfs.xfs -q $device
mkdir /run/lab_mount
mount $device /run/lab_mount
touch /run/lab_mount/file
umount /run/lab_mount
rmdir /run/lab_mount
losetup --detach $device
rm /run/lab_loop";

async fn processes_are_controlled(ctx: &mut Ctx) -> Result<Outcome> {
    let machine = &ctx.machine;
    let short = Duration::from_secs(30);
    let fed = machine.spawn_with_input(&["sha1sum"], &[], &[0xff, 0x00, 0xfe]).await?.wait(short).await?;
    ensure!(fed.stdout.starts_with("c4bb3f39"), "sha1sum of three bytes: {}", fed.stdout);
    let failing = machine.run(&["bash", "-c", "echo good; echo bad >&2; exit 7"]).await?;
    let seen = (failing.status, failing.stdout.as_str(), failing.stderr.as_str());
    ensure!(seen == (ExitStatus::Code(7), "good\n", "bad\n"), "{failing:?}");
    ensure!(machine.run(&["/no/such/program"]).await.is_err(), "a program that does not exist was started");

    let sleeper = machine.spawn(&["sleep", "1000"], &[]).await?;
    let greeting = machine.spawn(&["bash", "-c", "echo $WHO"], &[("WHO", "host")]).await?;
    ensure!(greeting.wait(short).await?.stdout == "host\n", "the environment was not passed");
    sleeper.kill(15).await?;
    let ended = sleeper.wait(short).await?;
    ensure!(ended.status == ExitStatus::Signal(15), "sleep ended with {}", ended.status);

    let stuck = machine.run_within(&["bash", "-c", "sleep 1000 & wait"], Duration::from_secs(2)).await;
    ensure!(stuck.is_err(), "a deadline was not enforced");
    machine.write_file("/run/lab_file", &[0, 159, 146, 150]).await?;
    ensure!(machine.read_file("/run/lab_file").await? == [0, 159, 146, 150], "bytes were changed in transit");
    let large = machine.sh("rm /run/lab_file; head -c 3000000 /dev/zero | tr '\\0' x").await?;
    ensure!(large.len() == 3_000_000, "{} of 3000000 bytes arrived", large.len());
    Ok(Outcome::Passed)
}

async fn faults_are_switched(ctx: &mut Ctx) -> Result<Outcome> {
    let machine = &ctx.machine;
    let node = machine.disk(2).await?;
    let write = format!("of={node}");
    let attempt = ["dd", "if=/dev/zero", &write, "bs=4k", "count=1", "oflag=direct"];
    ensure!(machine.run(&attempt).await?.status.success(), "the disk fails without a fault enabled");
    machine.set_disk_faulty(2, true).await?;
    let failed = machine.run(&attempt).await?;
    machine.set_disk_faulty(2, false).await?;
    ensure!(failed.stderr.contains("Input/output error"), "no I/O error: {failed:?}");
    ensure!(machine.run(&attempt).await?.status.success(), "the disk does not recover");
    Ok(Outcome::Passed)
}

/// Random reads of the whole disk, one at a time; prints their mean latency in nanoseconds.
const RANDOM_READS: &str = "
fio --name=r --filename=DISK --direct=1 --rw=randread --bs=4k --randrepeat=1 --norandommap --time_based --runtime=20 \
    --output-format=json | python3 -c 'import json, sys; print(json.load(sys.stdin)[\"jobs\"][0][\"read\"][\"clat_ns\"][\"mean\"])'";

async fn virtual_time_is_exact(ctx: &mut Ctx) -> Result<Outcome> {
    let machine = &ctx.machine;
    let uptime = async || -> Result<f64> {
        let text = machine.read_text("/proc/uptime").await?;
        Ok(text.split(' ').next().context("no uptime")?.parse()?)
    };
    let (before, begin) = (uptime().await?, Instant::now());
    machine.sh_within("sleep 3000", Duration::from_secs(200)).await?;
    let (slept, took) = (uptime().await? - before, begin.elapsed().as_secs_f64());
    ctx.log(format!("{slept:.0} s of the guest took {took:.1} s"));
    ensure!((3000.0..3060.0).contains(&slept), "a sleep of 3000 s took {slept} s of the guest's time");

    // Between two requests, guest time must advance little.
    let before = uptime().await?;
    let idle = uptime().await? - before;
    ensure!(idle < 5.0, "{idle} s passed in the guest between two requests");

    let reads = RANDOM_READS.replace("DISK", &machine.disk(0).await?);
    let mut means = Vec::new();
    for _ in 0..2 {
        means.push(machine.sh(&reads).await?.trim().parse::<f64>()? / 1e6);
    }
    let (mean, again) = (means[0], means[1]);
    ctx.log(format!(
        "random reads take {mean:.3} and {again:.3} ms; {}",
        machine.command_disk(0, "stats").await?.trim()
    ));
    // 7.4 ms of seek time, half a revolution, 0.5 ms of overhead: crates/disk/src/parameters.rs.
    ensure!((11.0..13.2).contains(&mean), "a random read takes {mean} ms");
    ensure!((mean / again - 1.0).abs() < 0.02, "the same reads take {mean} and {again} ms");
    Ok(Outcome::Passed)
}

/// Fills the first MiB of the disk with direct writes of 64 KiB, followed by a flush if the last argument is `flush`.
const FILL: &str = r#"
import mmap, os, sys
disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
room = mmap.mmap(-1, 65536)
room.write(sys.argv[2].encode() * 65536)
for n in range(16):
    assert os.pwrite(disk, room, n * 65536) == 65536
if sys.argv[3] == "flush":
    os.fsync(disk)
"#;

/// Prints the content of each block: its letter, or `?` if it is mixed.
const READ_BLOCKS: &str = r#"
import sys
with open(sys.argv[1], "rb") as disk:
    blocks = [set(disk.read(4096)) for n in range(256)]
print("".join(chr(block.pop()) if len(block) == 1 else "?" for block in blocks))
"#;

async fn unflushed_data_is_lost(ctx: &mut Ctx) -> Result<Outcome> {
    let node = ctx.machine.disk(0).await?;
    let fill = async |ctx: &Ctx, letter: &str, then: &str| {
        ctx.machine.run(&["python3", "-c", FILL, &node, letter, then]).await?.success("writing to the disk")
    };
    fill(ctx, "a", "flush").await?;
    fill(ctx, "b", "no flush").await?;
    let read_blocks = async |ctx: &Ctx| {
        let node = ctx.machine.disk(0).await?;
        ctx.machine.run(&["python3", "-c", READ_BLOCKS, &node]).await?.success("reading the disk")
    };
    let before = read_blocks(ctx).await?.stdout;
    ensure!(before.trim() == "b".repeat(256), "the written data is not read back: {before}");
    ctx.crash_and_reboot().await?;
    let after = read_blocks(ctx).await?.stdout;
    ctx.log(format!("after the power cut: {}", after.trim()));
    ensure!(after.trim().chars().all(|block| block == 'a' || block == 'b'), "a block contains neither value: {after}");
    let torn =
        after.trim().as_bytes().chunks(16).filter(|write| write.contains(&b'a') && write.contains(&b'b')).count();
    ensure!(torn > 8, "only {torn} of 16 writes of 64 KiB are torn: {after}");
    fill(ctx, "c", "flush").await?;
    ctx.crash_and_reboot().await?;
    let flushed = read_blocks(ctx).await?.stdout;
    ensure!(flushed.trim() == "c".repeat(256), "flushed data is lost: {flushed}");
    Ok(Outcome::Passed)
}

async fn flushed_data_survives_a_crash(ctx: &mut Ctx) -> Result<Outcome> {
    let node = ctx.machine.disk(1).await?;
    let setup = format!(
        "mkfs.ext4 -q {node}; mkdir -p /run/lab_mount; mount {node} /run/lab_mount\n\
         echo flushed > /run/lab_mount/flushed; sync -f /run/lab_mount/flushed\n\
         echo lost > /run/lab_mount/cached"
    );
    ctx.machine.sh(&setup).await?;
    ctx.crash_and_reboot().await?;
    ctx.log(format!("booted again in {:.1} s", ctx.machine.boot_time().as_secs_f64()));
    let node = ctx.machine.disk(1).await?;
    let check = format!(
        "mkdir -p /run/lab_mount; mount {node} /run/lab_mount\n\
         cat /run/lab_mount/flushed; test ! -s /run/lab_mount/cached\n\
         umount /run/lab_mount; rmdir /run/lab_mount"
    );
    let found = ctx.machine.sh(&check).await?;
    ensure!(found == "flushed\n", "expected the flushed file after the crash, found {found:?}");
    Ok(Outcome::Passed)
}
