//! Many calls to the CSI driver at once, while driver and daemon are killed and the clock jumps.

use std::time::Duration;

use anyhow::Result;

use super::KUBELET;
use crate::case::{Ctx, Outcome};
use crate::cases::crowd::Crowd;

/// gRPC for the clients, with the libraries that the guest does not have.
const PACKAGES: [&str; 4] = ["python3-grpcio", "libabsl20240722", "libcares2", "libre2-11"];

pub(super) async fn csi_parallel(ctx: &mut Ctx, n_volumes: usize, n_kills: usize, limit: Duration) -> Result<Outcome> {
    let ctx = &*ctx;
    let (mut modules, mut libraries) = (Vec::new(), Vec::new());
    for name in PACKAGES {
        match ctx.lab.package(name).await {
            Ok(package) => {
                modules.push(package.path("usr/lib/python3/dist-packages"));
                libraries.push(package.path("usr/lib/x86_64-linux-gnu"));
            }
            Err(error) => return Ok(Outcome::Skipped(format!("Debian's {name} is not available: {error:#}"))),
        }
    }
    let env = format!("PYTHONPATH={} LD_LIBRARY_PATH={}", modules.join(":"), libraries.join(":"));
    let (script, logs) = (include_str!("parallel.py"), ["daemon", "driver"]);
    Crowd { script, env: &env, logs, n_volumes, n_kills, limit }.run(ctx).await?;
    ctx.machine.sh(&format!("rm -r {KUBELET}")).await?;
    Ok(Outcome::Passed)
}
