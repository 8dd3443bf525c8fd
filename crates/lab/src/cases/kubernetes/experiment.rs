//! A Kubernetes for an experiment.

use std::sync::Arc;

use anyhow::{Result, anyhow};

use super::cluster::{Cluster, LIMIT};
use super::{MEMORY_MIB, deploy, images};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{make_file_pool, start_daemon};
use crate::clock::Clock;
use crate::disk::DiskSpec;
use crate::kernels::Kernel;
use crate::lab::Lab;
use crate::machine::{Machine, MachineSpec};

/// Boots a machine in virtual time with one disk, and starts a Kubernetes of one node in it: the driver with its classes, a pool `file` on the
/// disk, and the images `lab/box:1` and `lab/postgres:17`.
///
/// # Errors
/// When a part of it is not available, or does not start.
pub async fn kubernetes_on(lab: Arc<Lab>, disk: DiskSpec) -> Result<Machine> {
    let spec = MachineSpec {
        clock: Clock::Virtual,
        disks: vec![disk],
        memory_mib: MEMORY_MIB,
        cpus: 1,
        ..MachineSpec::new(Kernel::V6_12)
    };
    let machine = Machine::boot(&lab, &spec, "kubernetes").await?;
    let artifacts = lab.config().artifacts.clone();
    let ctx = Ctx { machine, lab, artifacts, limit: LIMIT, case: "kubernetes" };
    let unavailable = |outcome: Outcome| anyhow!("{outcome:?}");
    let cluster = Cluster::start(&ctx).await?.map_err(unavailable)?;
    images::import_postgres(&ctx).await?.map_err(unavailable)?;
    // It ends with the machine.
    start_daemon(&ctx, &[]).await?;
    make_file_pool(&ctx).await?;
    if let Err(error) = deploy(&ctx, &cluster).await {
        ctx.save("failed.log", &cluster.report(&ctx).await?)?;
        return Err(error);
    }
    // Where helper programs are looked for.
    ctx.machine.sh("ln -s /usr/local/bin/kubectl /usr/bin/").await?;
    Ok(ctx.machine)
}
