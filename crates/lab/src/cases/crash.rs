//! Crashes of the daemon, between any two steps of an operation and at random moments: nothing is lost, nothing leaks.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{KINDS, PROFILE, SMP, cli, json, make_pools, nothing_is_critical, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "crash_after_each_step",
        about: "after a crash of the daemon between two steps of create, attach, resize, clone, detach or rm, the next \
                start recovers (file pool)",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(1500),
        run: |ctx| Box::pin(crash_after_each_step(ctx, "file")),
    },
    Case {
        name: "crash_at_random",
        about: "kill -9 of the daemon at 20 random moments of create, run, resize and rm: nothing lost, nothing leaked",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(1500),
        run: |ctx| Box::pin(crash_at_random(ctx, 20)),
    },
];

pub(super) const SOAK: &[Case] = &[
    Case {
        name: "crash_after_each_step_thin",
        about: "the same as crash_after_each_step on a thin pool; thick volumes have the same steps",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(3600),
        run: |ctx| Box::pin(crash_after_each_step(ctx, "thin")),
    },
    Case {
        name: "crash_at_random_200",
        about: "the same as crash_at_random with 200 kills",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(3600),
        run: |ctx| Box::pin(crash_at_random(ctx, 200)),
    },
];

/// The operations, in order, each of which is interrupted after each of its steps. Words in capitals are replaced. An
/// operation that recovery completes (a removal, a detachment) is not interrupted again; sizes differ between attempts,
/// so that resizing is interrupted at each step.
const OPERATIONS: [&[&str]; 9] = [
    &["volume", "create", "VOLUME", "--size", "32M"],
    &["tenant", "create", "db", "--volume", "VOLUME"],
    &["volume", "resize", "VOLUME", "--size", "LARGER"],
    &["volume", "clone", "VOLUME", "copy"],
    &["tenant", "set", "db", "--detach", "VOLUME"],
    &["volume", "resize", "VOLUME", "--size", "SMALLER", "--shrink"],
    &["tenant", "rm", "db"],
    &["volume", "rm", "VOLUME"],
    &["volume", "rm", "COPY"],
];

async fn crash_after_each_step(ctx: &mut Ctx, kind: &str) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &[kind]).await?;
    daemon.stop().await?;
    let mut cuts = 0;
    let volume = format!("{kind}/v");
    for words in OPERATIONS {
        for step in 0_u32.. {
            let (larger, smaller) = (format!("{}M", 64 + 4 * step), format!("{}M", 60 - 4 * step.min(8)));
            let replaced = |word: &&'static str| match *word {
                "VOLUME" => volume.clone(),
                "COPY" => format!("{kind}/copy"),
                "LARGER" => larger.clone(),
                "SMALLER" => smaller.clone(),
                word => word.to_owned(),
            };
            let words: Vec<String> = words.iter().map(replaced).collect();
            let args: Vec<&str> = words.iter().map(String::as_str).collect();
            // Each daemon recovers from the crash of the previous one, and then crashes itself.
            let daemon = start_daemon(ctx, &[("BULKHEAD_FAULT_AFTER", &step.to_string())]).await?;
            check_settled(ctx, &format!("{args:?} cut before step {step}")).await?;
            let output = cli(ctx, &args).await?;
            if output.status == ExitStatus::Code(0) {
                daemon.stop().await?;
                ensure!(step > 0, "{args:?} did nothing");
                break;
            }
            let died = daemon.ended().await.with_context(|| format!("{args:?} at step {step}: {output:?}"))?;
            ensure!(died.status == ExitStatus::Signal(6), "{args:?} at step {step}: {output:?} {}", died.status);
            cuts += 1;
        }
        ctx.log(format!("{} on {kind}: {cuts} cuts so far", words[..2].join(" ")));
    }
    ctx.log(format!("{cuts} cuts"));
    let daemon = start_daemon(ctx, &[]).await?;
    unmake_pools(ctx, &[kind]).await?;
    daemon.stop().await?;
    ensure!(cuts > 20, "only {cuts} cuts");
    Ok(Outcome::Passed)
}

/// Checks after any interruption that no finding is critical, every volume is ready, and mounted if and only if a
/// tenant has it.
async fn check_settled(ctx: &Ctx, context: &str) -> Result<()> {
    nothing_is_critical(ctx, context).await?;
    for view in json(ctx, &["volume", "ls"]).await?.as_array().into_iter().flatten() {
        ensure!(view["state"] == "ready", "{context}: {view}");
        ensure!(view["mounted_at"].is_null() == view["tenant"].is_null(), "{context}: {view}");
    }
    Ok(())
}

/// A client that requests random operations until `/run/stop` exists. It records acknowledged results: existing volumes
/// in `/run/have`, and the last number that a command wrote to each and synced in `/run/acked/`. Before each operation
/// it waits for the lock that the killer holds while there is no daemon: under emulation, failed requests would leave
/// little time for others.
const CLIENT: &str = r#"
b=/lab/bin/bulkhead
count='n=$(cat /run/target/n 2>/dev/null || echo 0); echo $((n + 1)) > /run/target/new; sync /run/target/new; mv /run/target/new /run/target/n; sync -f /run/target; echo $((n + 1))'
while [ ! -e /run/stop ]; do
    flock --shared /run/alive true
    v=$((RANDOM % 3)); n=$((RANDOM % 3)); kinds=(file thick thin); ref=${kinds[$v]}/r$n; acked=/run/acked/${kinds[$v]}-r$n
    case $((RANDOM % 5)) in
        0) $b volume create $ref --size 32M && { grep -qx "$ref" /run/have || echo $ref >> /run/have; } ;;
        1) $b volume resize $ref --size $((32 + RANDOM % 8 * 4))M --shrink ;;
        2|3) number=$($b run --tenant rt --volume $ref:/run/target -- bash -c "$count") && echo $number > $acked ;;
        4) sed -i "\\#^$ref\$#d" /run/have; rm -f $acked; $b volume rm $ref ;;
    esac
    echo "$((++done)) operations" > /run/done
done >> /run/client.log 2>&1
"#;

/// Kills the daemon repeatedly at random moments.
const KILLER: &str = r#"
b=/lab/bin/bulkhead
exec 9> /run/alive
for i in $(seq KILLS); do
    flock 9
    $b daemon > /run/daemon.log 2>&1 9>&- & pid=$!
    for t in $(seq 600); do $b host > /dev/null 2>&1 9>&- && break; kill -0 $pid || { cat /run/daemon.log; exit 1; }; done
    flock --unlock 9
    python3 -c "import time, random; time.sleep(random.random() * 4)"
    kill -9 $pid; wait $pid || true
done
"#;
/// Number of kills per line of progress.
const KILLS_A_LINE: u32 = 20;

async fn crash_at_random(ctx: &mut Ctx, n_kills: u32) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &KINDS).await?;
    json(ctx, &["tenant", "create", "rt"]).await?;
    daemon.kill().await?;
    ctx.machine
        .sh("mkdir -p /run/target /run/acked; touch /run/have; rm -f /run/stop /run/client.log; touch /run/alive")
        .await?;
    let client = ctx.machine.spawn(&["bash", "-c", CLIENT], &[]).await?;
    let mut killed = Ok(());
    for n in (KILLS_A_LINE..=n_kills).step_by(KILLS_A_LINE as usize) {
        let script = KILLER.replace("KILLS", &KILLS_A_LINE.to_string());
        killed = ctx.machine.sh_within(&script, Duration::from_secs(600)).await.map(drop);
        if killed.is_err() {
            break;
        }
        ctx.log(format!("{n} kills, {}", ctx.machine.read_text("/run/done").await?.trim()));
    }
    // The client can end at the latest when the next daemon runs.
    let daemon = start_daemon(ctx, &[]).await?;
    ctx.machine.sh("touch /run/stop").await?;
    client.wait(Duration::from_secs(120)).await?;
    killed?;
    nothing_is_critical(ctx, "after the daemon was killed").await?;
    let views = json(ctx, &["volume", "ls"]).await?;
    let names: Vec<&str> = views.as_array().into_iter().flatten().filter_map(|view| view["volume"].as_str()).collect();
    let have = ctx.machine.read_text("/run/have").await?;
    ctx.log(format!("volumes at the end: {}", names.join(" ")));
    for wanted in have.lines() {
        ensure!(names.contains(&wanted), "{wanted} was acknowledged but is lost");
    }
    for name in &names {
        let view = json(ctx, &["volume", "inspect", name]).await?;
        ensure!(view["state"] == "ready" && view["mounted_at"].is_null(), "{view}");
        json(ctx, &["volume", "check", name]).await?;
        check_number(ctx, name).await?;
        json(ctx, &["volume", "rm", name]).await?;
    }
    let log = ctx.machine.sh("cat /run/client.log | sort | uniq -c | sort -rn | head -40").await?;
    ctx.save("client.txt", &log)?;
    ctx.machine
        .sh("rmdir /run/target; rm -rf /run/acked /run/stop /run/have /run/done /run/alive /run/client.log /run/daemon.log")
        .await?;
    json(ctx, &["tenant", "rm", "rt"]).await?;
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Checks that the number in a volume is not less than the last one whose sync was acknowledged.
async fn check_number(ctx: &Ctx, volume: &str) -> Result<()> {
    let path = format!("/run/acked/{}", volume.replace('/', "-"));
    let acked = ctx.machine.sh(&format!("cat {path} 2>/dev/null || echo 0")).await?;
    let at = format!("{volume}:/run/target");
    let found =
        cli(ctx, &["run", "--tenant", "rt", "--volume", &at, "--", "sh", "-c", "cat /run/target/n || echo 0"]).await?;
    let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{volume}: {text:?} is no number"));
    let (acked, found) = (number(&acked)?, number(&found.stdout)?);
    ensure!(found >= acked, "{volume}: {acked} was synced, but {found} is present");
    Ok(())
}
