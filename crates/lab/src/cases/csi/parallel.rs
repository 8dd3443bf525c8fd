//! Many calls to the CSI driver at once, while driver and daemon are killed and the clock jumps.

use std::time::Duration;

use anyhow::Result;

use super::{KUBELET, grpc_for_python};
use crate::case::{Ctx, Outcome};
use crate::cases::crowd::Crowd;

pub(super) async fn csi_parallel(ctx: &mut Ctx, n_volumes: usize, n_kills: usize, limit: Duration) -> Result<Outcome> {
    let ctx = &*ctx;
    let env = match grpc_for_python(ctx).await {
        Ok(env) => env,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    let (script, logs) = (concat!(include_str!("messages.py"), include_str!("parallel.py")), ["daemon", "driver"]);
    Crowd { script, env: &env, logs, n_volumes, n_kills, limit }.run(ctx).await?;
    ctx.machine.sh(&format!("rm -r {KUBELET}")).await?;
    Ok(Outcome::Passed)
}
