//! The scheduler extender: pods go where their disks can serve them, by the reports of nodes.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json as value};

use super::cluster::{Cluster, LIMIT};
use super::{finish, images};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, make_file_pool, start_daemon};
use crate::protocol::ExitStatus;

/// The manifests, by name.
const MANIFESTS: [(&str, &str); 5] = [
    ("kustomization.yaml", include_str!("../../../../../contrib/kubernetes/scheduler/kustomization.yaml")),
    ("nodereports.yaml", include_str!("../../../../../contrib/kubernetes/scheduler/nodereports.yaml")),
    ("rbac.yaml", include_str!("../../../../../contrib/kubernetes/scheduler/rbac.yaml")),
    ("reporter.yaml", include_str!("../../../../../contrib/kubernetes/scheduler/reporter.yaml")),
    ("scheduler.yaml", include_str!("../../../../../contrib/kubernetes/scheduler/scheduler.yaml")),
];

/// Nodes that are objects only.
const NODES: &str = include_str!("nodes.yaml");

/// A pod.
const POD: &str = include_str!("scheduled.yaml");

/// Stores the costs of the devices below a directory.
const STORE_COSTS: &str = r#"python3 - <<'END'
import http.client, socket, sys
daemon = http.client.HTTPConnection("localhost")
daemon.sock = socket.socket(socket.AF_UNIX)
daemon.sock.connect("/run/bulkhead/bulkhead.sock")
daemon.request("POST", "/v1/costs", open("/run/costs.json").read(), {"Content-Type": "application/json"})
answer = daemon.getresponse()
text = answer.read().decode()
if answer.status >= 300:
    sys.exit(f"{answer.status}: {text}")
END"#;

/// Copies of the workload on the node whose disk is busy.
const BUSY: usize = 8;

pub(super) async fn kubernetes_scheduler(ctx: &mut Ctx) -> Result<Outcome> {
    let cluster = match Cluster::start(ctx).await? {
        Ok(cluster) => cluster,
        Err(skipped) => return Ok(skipped),
    };
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    if let Err(error) = live(ctx, &cluster).await {
        let report = cluster.report(ctx).await?;
        let logs = "exec 2>&1; export KUBECONFIG=/var/lib/kubernetes/admin.conf; kubectl get nodereports -o yaml; \
                    for c in scheduler extender proxy; do echo \"== $c\"; kubectl -n bulkhead logs deploy/bulkhead-scheduler -c $c --tail=60; done; \
                    for c in reporter proxy; do echo \"== $c\"; kubectl -n bulkhead logs ds/bulkhead-reporter -c $c --tail=60; done";
        let logs = ctx.machine.sh_within(&format!("({logs}) || true"), LIMIT).await?;
        ctx.save("failed.log", &format!("{report}{logs}"))?;
        return Err(error);
    }
    finish(ctx, daemon).await
}

async fn live(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    deploy(ctx, cluster).await?;
    know_the_node(ctx).await?;
    let report = published(ctx, cluster).await?;
    ctx.log(format!("node-1 reports {report}"));
    add_nodes(ctx, cluster, &report).await?;

    let by = async |scheduler: &str, name: &str| {
        place(ctx, cluster, scheduler, name).await?;
        placed(ctx, cluster, name).await
    };
    let usual = by("default-scheduler", "usual").await?;
    ensure!(
        usual == "node-2",
        "the default scheduler placed the pod on {usual}, where this case expects the busy disk"
    );
    let ours = by("bulkhead-scheduler", "ours").await?;
    ensure!(ours == "node-3", "the pod was placed on {ours}, and not with the idle disk");
    ctx.log("the default scheduler chose the node with the busy disk, the extender the one with the idle disk");

    remove(ctx, cluster).await
}

/// Installs the extender as docs/scheduler.md says.
async fn deploy(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    let program = ctx.lab.config().agent.with_file_name("bulkhead-extender");
    ctx.machine.bring(&program).await?;
    cluster.run(ctx, "create namespace bulkhead").await?;
    ctx.machine.sh("mkdir -p /tmp/scheduler").await?;
    for (name, text) in MANIFESTS {
        ctx.machine.write_file(&format!("/tmp/scheduler/{name}"), text.as_bytes()).await?;
    }
    let images = MANIFESTS.iter().flat_map(|(_, text)| text.lines());
    let mut images: Vec<&str> = images.filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    images.sort_unstable();
    images.dedup();
    for image in images {
        let program = match image.rsplit('/').next().and_then(|name| name.split_once(':')) {
            Some(("bulkhead-extender", _)) => ctx.program("bulkhead-extender"),
            Some((name, _)) => format!("/usr/local/bin/{name}"),
            None => anyhow::bail!("{image} has no tag"),
        };
        images::import_program(ctx, &program, &[], image).await?;
    }
    cluster.run(ctx, "label node node-1 bulkhead.dev/daemon=true").await?;
    cluster.run(ctx, "apply --validate=strict -k /tmp/scheduler").await?;
    cluster.rolled_out(ctx, "-n bulkhead daemonset/bulkhead-reporter").await?;
    cluster.rolled_out(ctx, "-n bulkhead deployment/bulkhead-scheduler").await?;
    ctx.log("reporter, scheduler and extender run");
    Ok(())
}

/// Gives the daemon the costs of an SSD, as measured elsewhere (the case `plan_costs` measures them), and profiles a tenant that runs the workload.
async fn know_the_node(ctx: &Ctx) -> Result<()> {
    let program = ctx.program("bulkhead");
    let costs: Value = serde_json::from_str(include_str!("../../../../../docs/plan/ssd.json"))?;
    let request = value!({"directory": "/run/filepool", "costs": costs});
    ctx.machine.write_file("/run/costs.json", request.to_string().as_bytes()).await?;
    ctx.machine.sh(STORE_COSTS).await?;
    json(ctx, &["volume", "create", "file/db", "--size", "256M"]).await?;
    json(ctx, &["tenant", "create", "db", "--volume", "file/db"]).await?;
    let load = format!(
        "exec {program} run --tenant db --volume file/db:/mnt -- fio --name=db --directory=/mnt --size=32M --rw=randwrite --bs=4k --fdatasync=1 \
         --numjobs=2 --thread --time_based --runtime=3000 > /run/db.log 2>&1"
    );
    let load = ctx.machine.spawn(&["sh", "-c", &load], &[]).await?;
    let begun = async || {
        let found = ctx.machine.run(&["pgrep", "-x", "fio"]).await?;
        Ok(found.status.success().then_some(()))
    };
    ctx.machine.wait_until("the load runs", LIMIT, begun).await?;
    let profile = [program.as_str(), "profile", "db", "--for", "60", "--save", "--workload", "db", "--alone"];
    let output = ctx.machine.run_within(&profile, LIMIT).await?;
    load.kill(2).await?;
    load.wait(Duration::from_secs(60)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}{}", output.status, output.stdout, output.stderr);
    ctx.log(format!("profile: {}", output.stdout.trim()));
    Ok(())
}

/// The report of node-1, once it has the costs and the profile.
async fn published(ctx: &Ctx, cluster: &Cluster) -> Result<Value> {
    ctx.machine
        .wait_until("the report of node-1 has costs and a profile", LIMIT, async || {
            let found = cluster.ask(ctx, "get nodereport node-1 -o 'jsonpath={.report}'").await.unwrap_or_default();
            let report: Option<Value> = serde_json::from_str(&found).ok();
            Ok(report.filter(|report| {
                report["devices"][0]["costs"].is_object() && report["workloads"][0]["profile"]["workload"] == "db"
            }))
        })
        .await
}

/// Adds nodes with disks as that of node-1: one with many processors and many copies of the workload, and an idle one with fewer.
async fn add_nodes(ctx: &Ctx, cluster: &Cluster, report: &Value) -> Result<()> {
    cluster.apply(ctx, NODES).await?;
    let own = &report["workloads"][0];
    let copies: Vec<Value> = (0..BUSY)
        .map(|copy| {
            let mut workload = own.clone();
            workload["name"] = value!(format!("db-{copy}"));
            workload
        })
        .collect();
    for (node, cpus, workloads) in [("node-2", 64, copies), ("node-3", 8, Vec::new())] {
        let resources =
            value!({"cpu": cpus.to_string(), "memory": "64Gi", "pods": "100", "ephemeral-storage": "100Gi"});
        let condition = value!({"type": "Ready", "status": "True", "reason": "Lab", "message": "an object only"});
        let status = value!({"status": {"capacity": resources, "allocatable": resources, "conditions": [condition]}});
        cluster.run(ctx, &format!("patch node {node} --subresource=status --type=merge -p '{status}'")).await?;
        let mut its = report.clone();
        its["cpus"] = value!(cpus);
        its["workloads"] = value!(workloads);
        let object = value!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "NodeReport", "metadata": {"name": node}, "report": its,
        });
        cluster.apply(ctx, &object.to_string()).await?;
    }
    ctx.machine
        .wait_until("the extender knows three nodes, and the schedulers may use them", LIMIT, async || {
            let metrics = "-n bulkhead exec deploy/bulkhead-scheduler -c extender -- /usr/bin/bulkhead-extender probe --path=/readyz";
            let ready = cluster.ask(ctx, metrics).await.is_ok();
            let taints = cluster.ask(ctx, "get node node-2 node-3 -o 'jsonpath={.items[*].spec.taints[*].key}'").await?;
            Ok((ready && !taints.contains("not-ready")).then_some(()))
        })
        .await
}

/// Creates a pod of the workload.
async fn place(ctx: &Ctx, cluster: &Cluster, scheduler: &str, name: &str) -> Result<()> {
    cluster.apply(ctx, &POD.replace("NAME", name).replace("SCHEDULER", scheduler)).await
}

/// The node of a pod, once it is bound.
async fn placed(ctx: &Ctx, cluster: &Cluster, name: &str) -> Result<String> {
    ctx.machine
        .wait_until(&format!("the pod {name} is scheduled"), LIMIT, async || {
            let node = cluster.ask(ctx, &format!("get pod {name} -o 'jsonpath={{.spec.nodeName}}'")).await?;
            Ok(Some(node.trim().to_owned()).filter(|node| !node.is_empty()))
        })
        .await
}

async fn remove(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.run(ctx, "delete pod --all --force --grace-period=0").await?;
    cluster.run(ctx, "delete -k /tmp/scheduler").await?;
    cluster.run(ctx, "delete node node-2 node-3").await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "file/db"]).await?;
    ctx.machine.sh("rm -r /tmp/scheduler /run/db.log /run/costs.json").await.map(drop)
}
