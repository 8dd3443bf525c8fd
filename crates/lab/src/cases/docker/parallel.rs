//! Many clients of the volume plugin at once, while the daemon is killed.

use std::time::Duration;

use anyhow::Result;

use crate::case::{Ctx, Outcome};
use crate::cases::crowd::Crowd;

pub(super) async fn docker_parallel(
    ctx: &mut Ctx,
    n_volumes: usize,
    n_kills: usize,
    limit: Duration,
) -> Result<Outcome> {
    let (script, logs) = (include_str!("parallel.py"), ["daemon", "plugin"]);
    Crowd { script, env: "", logs, n_volumes, n_kills, limit }.run(ctx).await?;
    Ok(Outcome::Passed)
}
