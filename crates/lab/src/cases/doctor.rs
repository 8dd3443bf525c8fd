//! The doctor on a host in which one fault after another is made, found, fixed and gone.

mod faults;
mod power_cut;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use self::faults::{FAULTS, FIX_TOGETHER, FIXED, Fault, MAKE_TOGETHER, TOGETHER};
use super::host::{PROFILE, json};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "doctor_faults",
        about: "faults of a storage stack are made one after another; `bulkhead doctor` finds each, and no longer once it is fixed; \
            18 at once are all found, `--fix` fixes 8 of them, and `--undo` undoes that; on a host with 5000 mounts it takes less than 5 s and 100 MB",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(faults(ctx)),
    },
    Case {
        name: "doctor_power_cut",
        about: "at a power cut of a disk with a volatile cache, all files that were synced on ext2, ext3, ext4, XFS, btrfs, F2FS, ReiserFS and \
            NILFS2 are complete, and not those on JFS, which never flushes",
        kernels: &[Kernel::V6_12],
        // Only in virtual time can a disk have a cache that is lost with the machine.
        profile: Profile {
            name: "losing-two",
            disks: &[DiskSpec::new(DiskModel::Hdd, 4096).losing(), DiskSpec::new(DiskModel::Hdd, 512).losing()],
            ..PROFILE
        },
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(power_cut::loses_only_what_was_not_flushed(ctx)),
    },
];

async fn faults(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    let prepare = format!(
        "mkdir -p /srv/d /srv/i; mkfs.ext4 -q -b 4096 -E lazy_itable_init=0 {disk}; mount {disk} /srv/d; truncate -s 200M /srv/d/image; \
         losetup --find --show --sector-size 4096 --direct-io=on /srv/d/image"
    );
    let device = ctx.machine.sh(&prepare).await?.trim().to_owned();
    ctx.machine.sh(&format!("mkfs.ext4 -q -E lazy_itable_init=0 {device}; mount {device} /srv/i")).await?;
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
        ctx.machine.sh(&format!("{variables}{fix}")).await.context(*id)?;
        let left = doctor(ctx, &[]).await?;
        ensure!(!left.contains(&finding), "{finding:?} was fixed, and is still found");
        ctx.log(format!("{id}: found, fixed, gone"));
    }
    let left: Vec<_> = doctor(ctx, &[]).await?.difference(&before).cloned().collect();
    ensure!(left.is_empty(), "all is fixed, and there is {left:?}");
    ctx.machine.sh(&format!("{variables}{MAKE_TOGETHER}")).await?;
    let found = doctor(ctx, &[]).await?;
    let missing: Vec<_> = TOGETHER.iter().filter(|id| !found.iter().any(|(found, _)| found == *id)).collect();
    ensure!(missing.is_empty(), "{missing:?} are not in {found:?}");
    ctx.log(format!("{} faults found together", TOGETHER.len()));
    captured(ctx, &found).await?;
    fixed_and_undone(ctx, &found).await?;
    ctx.machine.sh(&format!("{variables}{FIX_TOGETHER}")).await?;
    let left: Vec<_> = doctor(ctx, &[]).await?.difference(&before).cloned().collect();
    ensure!(left.is_empty(), "all is fixed, and there is {left:?}");
    hostile(ctx).await?;
    many_mounts(ctx).await?;
    ctx.machine.sh("umount /srv/d; rmdir /srv/d /srv/i").await?;
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
    // It ends by itself, between any two checks.
    let lasts = |finding: &&Value| finding["id"] != "lazy_init_running";
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    Ok(found.iter().filter(lasts).map(|finding| (text(finding, "id"), text(finding, "object"))).collect())
}

/// On a well-configured host, whose first disk has a controller, the doctor finds what is expected and nothing else.
pub(super) async fn finds_only(ctx: &Ctx, expected: &[&str]) -> Result<()> {
    let disk = ctx.machine.disk(0).await?;
    let disk = disk.trim_start_matches("/dev/");
    json(ctx, &["device", "control", disk, "--policy", "bfq"]).await?;
    // The daemon sets the controller's weights a moment later.
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    let is_expected = async || {
        let found = doctor(ctx, &[]).await?;
        let ids: BTreeSet<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
        Ok((ids == expected).then(|| found.clone()))
    };
    let what = format!("the doctor finds {expected:?} and nothing else");
    match ctx.machine.wait_until(&what, Duration::from_secs(30), is_expected).await {
        Ok(found) => captured(ctx, &found).await?,
        Err(error) => {
            let found = doctor(ctx, &[]).await?;
            captured(ctx, &found).await?;
            return Err(error.context(format!("{found:?}")));
        }
    }
    ctx.log(what);
    json(ctx, &["device", "control", disk, "--restore"]).await.map(drop)
}

/// `--fix` fixes what it can and nothing else, and `--undo` takes that back.
async fn fixed_and_undone(ctx: &Ctx, found: &BTreeSet<(String, String)>) -> Result<()> {
    let program = ctx.program("bulkhead");
    let run = async |arguments: &str| {
        // The exit code is that of what is left.
        let command = format!("{program} doctor {arguments} || [ $? = 20 ]");
        ctx.machine.sh(&command).await
    };
    run("--fix --dry-run").await?;
    ensure!(doctor(ctx, &[]).await? == *found, "a dry run has changed something");
    ctx.save("fix.txt", &run("--fix").await?)?;
    let left = doctor(ctx, &[]).await?;
    let fixed: BTreeSet<&str> = found.difference(&left).map(|(id, _)| id.as_str()).collect();
    ensure!(fixed == BTreeSet::from(FIXED), "fixed: {fixed:?}");
    ensure!(left.is_subset(found), "the fixes have caused findings: {left:?}");
    ctx.save("undo.txt", &run("--undo").await?)?;
    let again = doctor(ctx, &[]).await?;
    ensure!(again == *found, "{again:?} after --undo, {found:?} before --fix");
    ctx.log(format!("{} faults fixed, and the fixes undone", FIXED.len()));
    Ok(())
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

/// Names that are no text, a file system that is frozen on a device that is suspended, and mounts that come and go meanwhile.
async fn hostile(ctx: &Ctx) -> Result<()> {
    let make = "printf -v name '/srv/h\\n\\033[31m\\377'; mkdir -p \"$name\"; truncate -s 32M /run/h; loop=$(losetup -f --show /run/h); \
                dmsetup create h --table \"0 65536 linear $loop 0\"; mkfs.ext4 -q /dev/mapper/h; mount /dev/mapper/h \"$name\"; \
                dmsetup suspend h; echo > /tmp/busy; mkdir /srv/busy; (while [ -e /tmp/busy ]; do mount --bind /srv/d /srv/busy; umount /srv/busy; done) \
                > /dev/null 2>&1 < /dev/null & echo $! > /tmp/busy.pid";
    ctx.machine.sh(make).await?;
    let program = ctx.program("bulkhead");
    let mut found = BTreeSet::new();
    for _ in 0..10 {
        found.extend(doctor(ctx, &[]).await?);
    }
    let text = ctx.machine.sh(&format!("{program} doctor --picture || [ $? = 20 ]")).await?;
    ensure!(text.contains(r"/srv/h\u{a}\u{1b}[31m") && !text.contains('\u{1b}'), "{text}");
    let fix = "rm /tmp/busy; read pid < /tmp/busy.pid; while [ -e /proc/$pid ]; do :; done; dmsetup resume h; umount /dev/mapper/h; dmsetup remove h; \
               losetup -j /run/h -n -O NAME | xargs losetup -d; rm /run/h; rmdir /srv/h* /srv/busy";
    ctx.machine.sh(fix).await?;
    ctx.log(format!("a hostile host has the findings {found:?}"));
    Ok(())
}

/// Time and memory on a host with many mounts.
async fn many_mounts(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    // Not by mount(8): 5000 processes take a minute in an emulated machine.
    let measured = format!(
        "mkdir -p /srv/m; mount -t tmpfs m /srv/m; \
         python3 -c 'import ctypes, os, resource, subprocess, time; libc = ctypes.CDLL(None); \
         paths = [\"/srv/m/%d\" % n for n in range(5000)]; [os.mkdir(path) for path in paths]; \
         assert not any([libc.mount(b\"/srv/d\", path.encode(), None, 4096, None) for path in paths]); begin = time.monotonic(); \
         subprocess.run([\"{program}\", \"doctor\"], stdout=subprocess.DEVNULL); \
         print(time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)'"
    );
    let figures = ctx.machine.sh_within(&measured, Duration::from_secs(120)).await?;
    ctx.machine.sh("umount --lazy /srv/m; rmdir /srv/m").await?;
    let (seconds, kib) = figures.trim().split_once(' ').context("no figures")?;
    let (seconds, kib): (f64, u64) = (seconds.parse()?, kib.parse()?);
    ctx.log(format!("with 5000 mounts: {seconds:.2} s, {kib} KiB"));
    ensure!(seconds < 5.0 && kib < 100_000, "{seconds} s, {kib} KiB");
    Ok(())
}
