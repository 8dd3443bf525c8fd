//! Containers of a stock Docker on one file system, and nothing of Bulkhead's but the program.

use anyhow::Result;

use super::engine::Docker;
use crate::case::{Ctx, Outcome};
use crate::cases::host::kernel_is_silent;
use crate::cases::systemd::keeps_writing;
use crate::cases::tutorial;

/// Appends 4 KiB and waits for fsync, again and again, and counts.
const DB: &str = "i=0; while :; do i=$((i + 1)); dd if=/dev/zero bs=4k count=1 2> /dev/null >> /data/log; sync /data/log; \
                  echo $i > /data/new; mv /data/new /data/written; sleep .05; done";

/// Three at a time write files, and wait until each is on the disk.
const BACKUP: &str = "for i in 1 2 3; do (while :; do dd if=/dev/zero of=/data/new$i bs=1M count=16 conv=fsync 2> /dev/null; \
                      mv /data/new$i /data/$i; done) & done; wait";

pub(super) async fn which_container(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::link(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    let (disk, program) = (ctx.machine.disk(0).await?, ctx.program("bulkhead"));
    let prepare = format!(
        "mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 {disk}; mkdir -p /srv/data; mount {disk} /srv/data; \
         mkdir /srv/data/db /srv/data/backup; ln -s {program} /usr/local/bin/bulkhead"
    );
    ctx.machine.sh(&prepare).await?;
    docker.start(ctx, "").await?;
    docker.import_box(ctx).await?;
    for (name, load) in [("db", DB), ("backup", BACKUP)] {
        let start = format!("run -d --name {name} --network none -v /srv/data/{name}:/data box /bin/sh -c '{load}'");
        docker.run(ctx, &start).await?;
    }
    keeps_writing(ctx, "/srv/data/db/written", super::engine::LIMIT, "the container writes").await?;
    let n_commands = tutorial::follow(ctx, include_str!("../../../../../docs/which-container.md")).await?;
    ctx.log(format!("{n_commands} commands of docs/which-container.md"));

    docker.run(ctx, "rm -f db backup").await?;
    docker.run(ctx, "rmi box").await?;
    docker.remove(ctx).await?;
    ctx.machine.sh("rm /usr/local/bin/bulkhead; umount /srv/data; rmdir /srv/data").await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}
