//! What file systems have synced, after a power cut of a disk that loses its cache.

use anyhow::{Context, Result, ensure};

use crate::case::{Ctx, Outcome};

/// File systems with flushes, on regions of disk 0. They share its cache, so that a flush of one is a flush of all: their files are written in turn.
const FLUSHING: [&str; 8] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "reiserfs", "nilfs2"];
/// The one without, alone on disk 1.
const NOT_FLUSHING: &str = "jfs";
/// Files of each.
const N_FILES: usize = 60;

/// Writes the files, and counts those that are complete.
const SCRIPT: &str = include_str!("power_cut.py");

pub(super) async fn loses_only_what_was_not_flushed(ctx: &mut Ctx) -> Result<Outcome> {
    prepare(ctx, true).await?;
    for (index, name) in FLUSHING.iter().enumerate() {
        let force = match *name {
            "xfs" | "btrfs" | "f2fs" | "nilfs2" => "-f",
            "reiserfs" => "-ff",
            _ => "-F",
        };
        let make = format!(
            "mkfs.{name} -q {force} /dev/mapper/r{index} > /dev/null; mkdir -p /srv/{name}; mount -t {name} /dev/mapper/r{index} /srv/{name}"
        );
        ctx.machine.sh(&make).await.with_context(|| format!("cannot make {name}"))?;
    }
    let disk = ctx.machine.disk(1).await?;
    ctx.machine
        .sh(&format!(
            "mkfs.jfs -q {disk} > /dev/null; mkdir -p /srv/jfs; mount -t jfs {disk} /srv/jfs; sync -f /srv/jfs"
        ))
        .await?;
    let at: Vec<String> = FLUSHING.iter().map(|name| format!("/srv/{name}")).collect();
    let arguments: Vec<&str> =
        ["python3", "-c", SCRIPT, "write"].into_iter().chain(at.iter().map(String::as_str)).collect();
    ctx.machine.run(&arguments).await?.success("writing and syncing")?;
    // Last, since a disk empties its cache by itself after a while.
    ctx.machine.run(&["python3", "-c", SCRIPT, "write", "/srv/jfs"]).await?.success("writing and syncing on JFS")?;
    ctx.crash_and_reboot().await?;

    prepare(ctx, false).await?;
    let disk = ctx.machine.disk(1).await?;
    let devices = (0..FLUSHING.len()).map(|index| format!("/dev/mapper/r{index}")).chain([disk]);
    for (name, device) in FLUSHING.into_iter().chain([NOT_FLUSHING]).zip(devices) {
        let check = match name {
            "ext2" => format!("e2fsck -p {device} > /dev/null || [ $? = 1 ]; "),
            NOT_FLUSHING => format!("fsck.jfs -a {device} > /dev/null || [ $? -le 1 ]; "),
            _ => String::new(),
        };
        let mounted = ctx
            .machine
            .run(&["sh", "-c", &format!("{check} mkdir -p /srv/{name}; mount -t {name} {device} /srv/{name}")])
            .await?;
        let n_whole = if mounted.status.success() {
            let counted = ctx
                .machine
                .run(&["python3", "-c", SCRIPT, "count", &format!("/srv/{name}")])
                .await?
                .success("counting")?;
            ctx.machine.sh(&format!("umount /srv/{name}; rmdir /srv/{name}")).await?;
            counted.stdout.trim().parse::<usize>()?
        } else {
            ctx.log(format!("{name} cannot be mounted: {}", mounted.stderr.trim()));
            0
        };
        ctx.log(format!("{name}: {n_whole} of {N_FILES} synced files are complete"));
        if name == NOT_FLUSHING {
            ensure!(
                n_whole < N_FILES,
                "JFS has kept everything: the rule cache_never_flushed is wrong, or the disk has lost nothing"
            );
        } else {
            ensure!(n_whole == N_FILES, "{name} has lost synced files");
        }
    }
    ctx.machine.sh("for region in /dev/mapper/r[0-9]; do dmsetup remove $region; done").await?;
    Ok(Outcome::Passed)
}

/// The regions of disk 0; they do not outlive a reboot.
async fn prepare(ctx: &Ctx, is_new: bool) -> Result<()> {
    let disk = ctx.machine.disk(0).await?;
    ensure!(is_new || !ctx.machine.sh("ls /dev/mapper").await?.contains("r0"), "the regions are still there");
    for index in 0..FLUSHING.len() {
        let sectors = 400 << 11;
        let table = format!("0 {sectors} linear {disk} {}", index * sectors);
        ctx.machine.sh(&format!("dmsetup create r{index} --table '{table}'")).await?;
    }
    Ok(())
}
