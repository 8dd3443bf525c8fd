//! A StatefulSet of databases: it is expanded, copied by a snapshot, and one of its pods evicted, while clients insert.

use anyhow::{Context as _, Result, ensure};
use serde_json::json as value;

use super::cluster::{Cluster, LIMIT};
use super::{deploy, finish, images, journal_is_charged};
use crate::case::{Ctx, Outcome};
use crate::cases::doctor;
use crate::cases::host::{json, make_file_pool, nothing_is_left, start_daemon};

/// Three databases, each with a client.
const DATABASES: &str = include_str!("postgres.yaml");

/// A snapshot of one, and a pod with what is restored from it.
const COPY: &str = include_str!("copy.yaml");

/// The pods of the StatefulSet.
pub(super) const PODS: [&str; 3] = ["db-0", "db-1", "db-2"];

/// Rows that each client inserts between two steps.
const ROWS: u64 = 5;

pub(super) async fn kubernetes_postgres(ctx: &mut Ctx) -> Result<Outcome> {
    let cluster = match Cluster::start(ctx).await? {
        Ok(cluster) => cluster,
        Err(skipped) => return Ok(skipped),
    };
    if let Err(skipped) = images::import_postgres(ctx).await? {
        return Ok(skipped);
    }
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    if let Err(error) = live(ctx, &cluster).await {
        ctx.save("failed.log", &cluster.report(ctx).await?)?;
        return Err(error);
    }
    finish(ctx, daemon).await
}

async fn live(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    deploy(ctx, cluster).await?;
    create(ctx, cluster).await?;
    are_charged(ctx, cluster, 16 << 20).await?;
    ctx.log("three databases run");
    doctor::finds_only(ctx, &[]).await?;

    let grow = value!({"spec": {"resources": {"requests": {"storage": "192Mi"}}}});
    for pod in PODS {
        cluster.run(ctx, &format!("patch pvc data-{pod} -p '{grow}'")).await?;
    }
    for pod in PODS {
        cluster.wait(ctx, &format!("--for=jsonpath='{{.status.capacity.storage}}'=192Mi pvc/data-{pod}")).await?;
        inserts(ctx, cluster, pod, acked(ctx, cluster, pod).await?).await?;
    }
    ctx.log("three databases are expanded");

    let least = acked(ctx, cluster, "db-0").await?;
    cluster.apply(ctx, COPY).await?;
    cluster.wait(ctx, "--for=jsonpath='{.status.phase}'=Succeeded pod/copy").await?;
    let log = cluster.run(ctx, "logs copy").await?;
    let rows = log.lines().find_map(|line| {
        let (count, greatest) = line.split_once(' ')?;
        Some((count.parse::<u64>().ok()?, greatest.parse::<u64>().ok()?))
    });
    let (count, greatest) = rows.with_context(|| format!("the copy tells no rows: {log}"))?;
    ensure!(count == greatest && count >= least, "{least} rows were committed, the copy has {count} up to {greatest}");
    ctx.log(format!("a copy is recovered: {count} rows, {least} of them before the snapshot was requested"));

    let least = acked(ctx, cluster, "db-1").await?;
    let uid = "get pod db-1 -o 'jsonpath={.metadata.uid}'";
    let before = cluster.ask(ctx, uid).await?;
    let eviction =
        value!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "db-1", "namespace": "default"}});
    ctx.machine.write_file("/tmp/eviction.json", eviction.to_string().as_bytes()).await?;
    cluster.run(ctx, "create --raw /api/v1/namespaces/default/pods/db-1/eviction -f /tmp/eviction.json").await?;
    ctx.machine
        .wait_until("another pod has the name of the evicted one", LIMIT, async || {
            Ok(cluster.ask(ctx, uid).await.ok().filter(|uid| !uid.trim().is_empty() && *uid != before))
        })
        .await?;
    cluster.rolled_out(ctx, "statefulset/db").await?;
    inserts(ctx, cluster, "db-1", least).await?;
    ctx.log("an evicted database has its rows");
    remove(ctx, cluster).await
}

/// Creates the databases, and waits until they work.
pub(super) async fn create(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.apply(ctx, DATABASES).await?;
    cluster.rolled_out(ctx, "statefulset/db").await?;
    for pod in PODS {
        inserts(ctx, cluster, pod, 0).await?;
    }
    Ok(())
}

/// The number of rows whose commit a client was told of.
pub(super) async fn acked(ctx: &Ctx, cluster: &Cluster, pod: &str) -> Result<u64> {
    let line = cluster.ask(ctx, &format!("logs {pod} -c client --tail=1")).await?;
    line.trim().parse().with_context(|| format!("the client of {pod} printed {line:?}"))
}

/// Waits until a database has `ROWS` more rows than `least`, all of them consecutive.
pub(super) async fn inserts(ctx: &Ctx, cluster: &Cluster, pod: &str, least: u64) -> Result<()> {
    let more = async || Ok(acked(ctx, cluster, pod).await.ok().filter(|rows| *rows >= least + ROWS));
    ctx.machine.wait_until(&format!("the client of {pod} inserts rows"), LIMIT, more).await?;
    let count = format!("exec {pod} -c client -- psql -At -F ' ' -c 'SELECT count(*), max(n) FROM t'");
    let found = cluster.run(ctx, &count).await?;
    let rows = found.trim().split_once(' ').map(|(count, greatest)| (count.parse::<u64>(), greatest.parse::<u64>()));
    match rows {
        Some((Ok(count), Ok(greatest))) if count == greatest && count >= least => Ok(()),
        _ => anyhow::bail!("{pod}: {least} rows were committed; count and maximum are {found:?}"),
    }
}

/// Each database's I/O, at least so many bytes, is charged to the tenant of its own volume, which has the share of the claim's class.
pub(super) async fn are_charged(ctx: &Ctx, cluster: &Cluster, bytes: u64) -> Result<()> {
    for pod in PODS {
        let volume = cluster.ask(ctx, &format!("get pvc data-{pod} -o 'jsonpath={{.spec.volumeName}}'")).await?;
        let view = json(ctx, &["tenant", "inspect", volume.trim()]).await?;
        ensure!(view["server_io"]["written_bytes"].as_u64() > Some(bytes), "{pod}: {view}");
        ensure!(view["share"] == 300, "{pod}: {view}");
        journal_is_charged(ctx, &view).await.with_context(|| pod)?;
    }
    Ok(())
}

/// Removes the databases, and what was copied of them.
pub(super) async fn remove(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.run(ctx, "delete statefulset db").await?;
    cluster.run(ctx, "delete pod copy --ignore-not-found").await?;
    cluster.run(ctx, "delete volumesnapshot db --ignore-not-found").await?;
    cluster.run(ctx, "delete pvc --all").await?;
    cluster.wait(ctx, "--for=delete pv --all").await?;
    nothing_is_left(ctx).await
}
