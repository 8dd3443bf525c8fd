//! Suites in rounds, each on a volume, a new clone of it and a clone of that, while servers are killed, snapshots
//! taken, and one of the three is flattened; on XFS and ext4 in turn, for a given time. Does not: judge the suites
//! (`super`).

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

use super::{BASE, Place, SUITES};
use crate::case::{Case, Ctx, Outcome};
use crate::cases::host::{PROFILE, json, make_file_pool, start_daemon, unmake_file_pool};
use crate::cases::layers::kill_server;
use crate::kernels::Kernel;
use crate::say;

/// Length of the suites relative to the case.
const LENGTH: u32 = 2;

/// Time allowed before the first round and after the start of the last, under emulation.
const SLACK: Duration = Duration::from_secs(3600);

/// Time limit of flattening a volume during the suites, under emulation.
const FLATTEN_LIMIT: Duration = Duration::from_secs(600);

/// The soak as a case that starts rounds for `duration`.
pub(in crate::cases) fn soak(duration: Duration) -> Case {
    Case {
        name: "soak",
        about: "fsx, pjdfstest, fio --verify and stress-ng --verify pass in rounds on volumes, clones and clones of \
                clones, while servers are killed and volumes are flattened, trimmed and snapshotted",
        kernels: &[Kernel::V6_12, Kernel::Backport],
        profile: PROFILE,
        limit: duration + SLACK,
        run: |ctx| Box::pin(rounds(ctx)),
    }
}

/// Counts of completed operations.
#[derive(Debug, Default)]
struct Tally {
    rounds: u32,
    kills: Cell<u32>,
    snapshots: Cell<u32>,
    flattened: u32,
    trims: Cell<u32>,
}

impl Tally {
    fn line(&self) -> String {
        let runs = self.rounds * 3;
        let suites: Vec<String> = SUITES.iter().map(|suite| format!("{suite} {runs}")).collect();
        format!(
            "{} rounds of three volumes passed ({}), with {} kills, {} snapshots, {} flattened, {} trims",
            self.rounds,
            suites.join(", "),
            self.kills.get(),
            self.snapshots.get(),
            self.flattened,
            self.trims.get()
        )
    }
}

fn count(cell: &Cell<u32>) {
    cell.set(cell.get() + 1);
}

async fn rounds(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    if let Some(why) = super::prepare(ctx).await? {
        return Ok(Outcome::Skipped(why));
    }
    let mut tally = Tally::default();
    let result = soaked(ctx, &mut tally).await;
    say::result(tally.line());
    if let Err(error) = result {
        super::save_evidence(ctx).await;
        return Err(error.context(format!("in round {}", tally.rounds + 1)));
    }
    Ok(Outcome::Passed)
}

async fn soaked(ctx: &Ctx, tally: &mut Tally) -> Result<()> {
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    let origins = [super::create(ctx, "xfs", "xfs").await?, super::create(ctx, "ext4", "ext4").await?];
    super::mount_references(ctx, &[&origins[0], &origins[1]]).await?;
    let mut running = Vec::new();
    for origin in &origins {
        running.push(super::start(ctx, &origin.reference(), 1, LENGTH, &["pjdfstest"]).await?);
    }
    super::finish(ctx, running, LENGTH).await?;
    let seed: u64 = ctx.machine.sh("date +%s").await?.trim().parse().context("no time")?;
    let end = Instant::now() + ctx.limit.saturating_sub(SLACK);
    while Instant::now() < end {
        let origin = &origins[tally.rounds as usize % origins.len()];
        round(ctx, origin, seed + u64::from(tally.rounds) * 10, tally).await?;
        tally.rounds += 1;
        ctx.log(tally.line());
    }
    for origin in &origins {
        super::remove(ctx, origin).await?;
    }
    super::unmount_references(ctx, &[&origins[0], &origins[1]]).await?;
    super::clean_up(ctx).await?;
    unmake_file_pool(ctx).await?;
    daemon.stop().await.map(drop)
}

/// Runs all suites on a volume, a clone, and its clone, and removes the clones at the end.
async fn round(ctx: &Ctx, origin: &Place, seed: u64, tally: &mut Tally) -> Result<()> {
    let first = super::clone(ctx, origin, &format!("first{}", tally.rounds)).await?;
    let second = super::clone(ctx, &first, &format!("second{}", tally.rounds)).await?;
    let places = [origin, &first, &second];
    ctx.log(format!("round {} on {}: seeds {seed} to {}", tally.rounds + 1, origin.fs, seed + 2));
    let mut running = Vec::new();
    for (seed, place) in (seed..).zip(places) {
        let mut suites = SUITES;
        suites.rotate_left(usize::try_from(seed % 4).context("no such suite")?);
        running.push(super::start(ctx, place, seed, LENGTH, &suites).await?);
    }
    let flattened = places[tally.rounds as usize % places.len()];
    let is_over = Cell::new(false);
    let suites = async {
        super::finish(ctx, running, LENGTH).await?;
        is_over.set(true);
        Ok(())
    };
    let ((), snapshots) = tokio::try_join!(suites, disturb(ctx, places, flattened, &is_over, tally))?;
    ctx.machine
        .wait_until("a volume lies on no layer", FLATTEN_LIMIT, async || {
            let view = json(ctx, &["volume", "inspect", &flattened.volume()]).await?;
            let is_flat = view["layers"]["below"].as_array().is_some_and(Vec::is_empty);
            Ok((is_flat && !view["findings"].to_string().contains("being copied")).then_some(()))
        })
        .await?;
    tally.flattened += 1;
    for place in places {
        super::check(ctx, place).await?;
    }
    super::no_complaints(ctx).await?;
    for place in places {
        super::detach(ctx, place).await?;
    }
    for name in snapshots {
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    for place in [&second, &first] {
        json(ctx, &["volume", "rm", &place.volume()]).await?;
    }
    super::attach(ctx, origin).await
}

/// Kills, snapshots, trims and flattens the volumes in turn until the suites have ended, each at least once. Returns
/// the snapshots.
async fn disturb(
    ctx: &Ctx,
    places: [&Place; 3],
    flattened: &Place,
    is_over: &Cell<bool>,
    tally: &Tally,
) -> Result<Vec<String>> {
    let mut snapshots = Vec::new();
    for step in 0_usize.. {
        let place = places[step % places.len()];
        if step == places.len() {
            json(ctx, &["volume", "flatten", &flattened.volume()]).await?;
        }
        if snapshots.len() < places.len() {
            let name = format!("{}-{step}", place.name);
            json(ctx, &["volume", "snapshot", &place.volume(), &name]).await?;
            snapshots.push(name);
            count(&tally.snapshots);
        }
        kill_server(ctx, &place.name).await?;
        count(&tally.kills);
        ctx.machine.sh(&format!("fstrim {}", place.at())).await?;
        count(&tally.trims);
        for place in places {
            let at = place.at();
            ctx.machine
                .sh(&format!("echo 3 > /proc/sys/vm/drop_caches; cd {at}; md5sum --quiet -c {BASE}/{}.sum", place.fs))
                .await?;
        }
        if is_over.get() && step >= places.len() {
            break;
        }
    }
    Ok(snapshots)
}
