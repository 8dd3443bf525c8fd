//! The doctor on a host in which one fault after another is made, found, fixed and gone.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::PROFILE;
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "doctor_faults",
    about: "eleven faults of a storage stack are made one after another; `bulkhead doctor` finds each, and no longer once it is fixed as it says; \
            on a host with 2000 mounts it takes less than 5 s and 100 MB",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(faults(ctx)),
}];

/// A fault: the id and the object of its finding, how it is made, and how it is fixed. `$disk` and `$dev` are the name and the number of the disk
/// below `/srv/d`, `$loop` is the name of the loop device; both are also in objects.
struct Fault {
    id: &'static str,
    object: &'static str,
    make: &'static str,
    fix: &'static str,
}

const FAULTS: &[Fault] = &[
    Fault {
        id: "image_cached_twice",
        object: "device $loop",
        make: "losetup --direct-io=off /dev/$loop",
        fix: "losetup --direct-io=on /dev/$loop",
    },
    Fault {
        id: "journal_nested",
        object: "device $loop",
        make: "true",
        fix: "umount /srv/i; losetup -d /dev/$loop; while [ -e /sys/block/$loop/loop/backing_file ]; do :; done",
    },
    Fault {
        id: "weight_without_effect",
        object: "device $disk",
        make: "mkdir /sys/fs/cgroup/w; echo +io +memory > /sys/fs/cgroup/cgroup.subtree_control; echo 300 > /sys/fs/cgroup/w/io.weight",
        fix: "modprobe bfq; echo bfq > /sys/block/$disk/queue/scheduler; echo 300 > /sys/fs/cgroup/w/io.bfq.weight",
    },
    Fault {
        id: "io_cost_without_model",
        object: "device $disk",
        make: "echo $dev enable=1 > /sys/fs/cgroup/io.cost.qos",
        fix: "echo $dev ctrl=user model=linear rbps=1000000000 rseqiops=10000 rrandiops=10000 wbps=1000000000 wseqiops=10000 wrandiops=10000 \
              > /sys/fs/cgroup/io.cost.model",
    },
    Fault {
        id: "writeback_not_attributed",
        object: "host",
        make: "echo $dev enable=0 > /sys/fs/cgroup/io.cost.qos; rmdir /sys/fs/cgroup/w; echo -memory > /sys/fs/cgroup/cgroup.subtree_control",
        fix: "echo +memory > /sys/fs/cgroup/cgroup.subtree_control",
    },
    Fault {
        id: "barriers_off",
        object: "file system /srv/d",
        make: "mount -o remount,barrier=0 /srv/d",
        fix: "mount -o remount,barrier=1 /srv/d",
    },
    Fault {
        id: "atime_always",
        object: "file system /srv/d",
        make: "mount -o remount,strictatime /srv/d",
        fix: "mount -o remount,relatime /srv/d",
    },
    Fault {
        id: "data_not_ordered",
        object: "file system /srv/d",
        make: "umount /srv/d; mount -o data=writeback /dev/$disk /srv/d",
        fix: "umount /srv/d; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "file_system_errors",
        object: "file system /srv/d",
        make: "echo planted > /sys/fs/ext4/$disk/trigger_fs_error",
        fix: "umount /srv/d; e2fsck -f -y /dev/$disk > /dev/null || [ $? = 1 ]; mount /dev/$disk /srv/d",
    },
    Fault {
        id: "database_on_overlay",
        object: "database postgres",
        make: "mkdir -p /srv/o /srv/d/lower /srv/d/upper /srv/d/work; \
               mount -t overlay -o lowerdir=/srv/d/lower,upperdir=/srv/d/upper,workdir=/srv/d/work overlay /srv/o; \
               cp /bin/sleep /srv/d/postgres; cd /srv/o; setsid /srv/d/postgres 1000 > /dev/null 2>&1 < /dev/null & \
               until [ \"$(cat /proc/$!/comm)\" = postgres ]; do :; done; echo $! > /tmp/postgres.pid",
        fix: "read pid < /tmp/postgres.pid; kill $pid; while [ -e /proc/$pid ]; do :; done; umount /srv/o",
    },
    Fault {
        id: "space_not_trimmed",
        object: "file system /srv/d",
        make: "rm -f /etc/systemd/system/timers.target.wants/fstrim.timer",
        fix: "mkdir -p /etc/systemd/system/timers.target.wants; ln -s /dev/null /etc/systemd/system/timers.target.wants/fstrim.timer",
    },
];

async fn faults(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    let prepare = format!(
        "mkdir -p /srv/d /srv/i; mkfs.ext4 -q -b 4096 {disk}; mount {disk} /srv/d; truncate -s 200M /srv/d/image; \
         losetup --find --show --sector-size 4096 --direct-io=on /srv/d/image"
    );
    let device = ctx.machine.sh(&prepare).await?.trim().to_owned();
    ctx.machine.sh(&format!("mkfs.ext4 -q {device}; mount {device} /srv/i")).await?;
    let (disk, device) = (disk.trim_start_matches("/dev/"), device.trim_start_matches("/dev/"));
    let can_trim = format!(
        "[ $(cat /sys/block/{disk}/queue/discard_max_bytes) -gt 0 -a $(cat /sys/block/{disk}/queue/rotational) = 0 ]"
    );
    let can_trim = ctx.machine.run(&["sh", "-c", &can_trim]).await?.status.success();
    let variables = format!("set -e; disk={disk}; loop={device}; dev=$(cat /sys/block/{disk}/dev); ");
    let before = doctor(ctx, &[]).await?;
    for Fault { id, object, make, fix } in FAULTS {
        if *id == "space_not_trimmed" && !can_trim {
            ctx.log("the disk does not discard");
            continue;
        }
        let finding = (String::from(*id), object.replace("$disk", disk).replace("$loop", device));
        ctx.machine.sh(&format!("{variables}{make}")).await.context(*id)?;
        let found = doctor(ctx, &[]).await?;
        ensure!(found.contains(&finding), "{finding:?} is not in {found:?}");
        if *id == "journal_nested" {
            captured(ctx, &found).await?;
        }
        ctx.machine.sh(&format!("{variables}{fix}")).await.context(*id)?;
        let left = doctor(ctx, &[]).await?;
        ensure!(!left.contains(&finding), "{finding:?} was fixed, and is still found");
        ctx.log(format!("{id}: found, fixed, gone"));
    }
    let left: Vec<_> = doctor(ctx, &[]).await?.difference(&before).cloned().collect();
    ensure!(left.is_empty(), "all is fixed, and there is {left:?}");
    many_mounts(ctx).await?;
    ctx.machine.sh("umount /srv/d; rmdir /srv/d /srv/i /srv/o").await?;
    Ok(Outcome::Passed)
}

/// The findings, by id and object. The exit code is that of the most severe one.
async fn doctor(ctx: &Ctx, arguments: &[&str]) -> Result<BTreeSet<(String, String)>> {
    let program = ctx.program("bulkhead");
    let done = ctx.machine.run(&[&[&program, "--output", "json", "doctor"], arguments].concat()).await?;
    let check: Value = serde_json::from_str(&done.stdout).with_context(|| format!("{done:?}"))?;
    ensure!(check["unseen"] == Value::Array(vec![]), "something was not seen: {check}");
    let found = check["findings"].as_array().context("no findings")?;
    let has = |severity: &str| found.iter().any(|finding| finding["severity"] == severity);
    let code = if has("critical") {
        21
    } else if has("warning") {
        20
    } else {
        0
    };
    ensure!(done.status == ExitStatus::Code(code), "{:?} with {found:?}", done.status);
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    Ok(found.iter().map(|finding| (text(finding, "id"), text(finding, "object"))).collect())
}

/// Captured facts have the findings of the host.
async fn captured(ctx: &Ctx, found: &BTreeSet<(String, String)>) -> Result<()> {
    let program = ctx.program("bulkhead");
    ctx.machine.sh(&format!("rm -rf /tmp/facts; {program} doctor --capture /tmp/facts")).await?;
    ctx.save("facts.json", &ctx.machine.read_text("/tmp/facts/facts.json").await?)?;
    let again = doctor(ctx, &["--from", "/tmp/facts"]).await?;
    ensure!(again == *found, "{found:?} on the host, {again:?} in what was captured");
    Ok(())
}

/// Time and memory on a host with many mounts.
async fn many_mounts(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    // Not by mount(8): 2000 processes take a minute in an emulated machine.
    let measured = format!(
        "mkdir -p /srv/m; mount -t tmpfs m /srv/m; \
         python3 -c 'import ctypes, os, resource, subprocess, time; libc = ctypes.CDLL(None); \
         paths = [\"/srv/m/%d\" % n for n in range(2000)]; [os.mkdir(path) for path in paths]; \
         assert not any([libc.mount(b\"/srv/d\", path.encode(), None, 4096, None) for path in paths]); begin = time.monotonic(); \
         subprocess.run([\"{program}\", \"doctor\"], stdout=subprocess.DEVNULL); \
         print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)'"
    );
    let figures = ctx.machine.sh_within(&measured, Duration::from_secs(120)).await?;
    ctx.machine.sh("umount --lazy /srv/m; rmdir /srv/m").await?;
    let (seconds, kib) = figures.trim().split_once(' ').context("no figures")?;
    let (seconds, kib): (f64, u64) = (seconds.parse()?, kib.parse()?);
    ctx.log(format!("with 2000 mounts: {seconds:.2} s, {kib} KiB"));
    ensure!(seconds < 5.0 && kib < 100_000, "{seconds} s, {kib} KiB");
    Ok(())
}
