//! A Kubernetes of one node in the guest: its programs, and its objects. Does not: define cases.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::images;
use crate::case::{Ctx, Outcome};
use crate::go_tool::{GoModule, GoPrograms};

/// The packages of its container runtime, and of the program of its pods.
const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "busybox-static"];

/// Time limit of one step: all of Kubernetes is emulated.
pub(super) const LIMIT: Duration = Duration::from_secs(900);

/// Time limit of a question.
const ASK_LIMIT: Duration = Duration::from_secs(180);

/// Starts it.
const START: &str = include_str!("cluster.sh");

/// A Kubernetes in the guest.
pub(super) struct Cluster {
    sidecars: GoPrograms,
}

impl Cluster {
    /// Starts it, and waits until its node is ready; the reason for a skip if a part of it is not available.
    pub(super) async fn start(ctx: &Ctx) -> Result<std::result::Result<Self, Outcome>> {
        let mut modules = Vec::new();
        for module in [GoModule::KUBERNETES, GoModule::PROVISIONER, GoModule::SIDECARS] {
            match ctx.lab.go_programs(module).await {
                Ok(programs) => modules.push(programs),
                Err(error) => return Ok(Err(Outcome::Skipped(format!("{module} is not available: {error:#}")))),
            }
        }
        // Copies: the guest's clock leaps while it reads files of the host.
        for name in PACKAGES {
            let files = match ctx.lab.package(name).await {
                Ok(package) => package.path("usr"),
                Err(error) => {
                    return Ok(Err(Outcome::Skipped(format!("Debian's {name} is not available: {error:#}"))));
                }
            };
            ctx.machine.sh_within(&format!("cp -a --keep-directory-symlink {files} /"), LIMIT).await?;
        }
        for program in modules.iter().map(GoPrograms::all).collect::<Result<Vec<_>>>()?.concat() {
            let shown = ctx.machine.show(&program)?;
            ctx.machine.sh_within(&format!("install {shown} /usr/local/bin/"), LIMIT).await?;
        }
        ctx.log("starting Kubernetes");
        ctx.machine.sh_within(START, LIMIT).await?;
        let sidecars = modules.pop().context("there are no modules")?;
        let cluster = Self { sidecars };
        images::import_box(ctx).await?;
        ctx.machine
            .wait_until("the node is there", LIMIT, async || Ok(cluster.ask(ctx, "get node node-1").await.ok()))
            .await?;
        cluster.wait(ctx, "--for=condition=Ready node/node-1").await?;
        ctx.log("Kubernetes is ready");
        Ok(Ok(cluster))
    }

    /// Starts the snapshot-controller, which belongs to a cluster and not to a driver.
    pub(super) async fn start_snapshots(&self, ctx: &Ctx) -> Result<()> {
        let mut definitions = String::new();
        for file in self.sidecars.files()? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("snapshot.") {
                definitions += &format!(" -f {}", ctx.machine.show(&file)?);
            }
        }
        self.run(ctx, &format!("create{definitions}")).await?;
        self.wait(ctx, "--for=condition=Established crd --all").await?;
        let start = "/var/lib/kubernetes/start snapshot-controller 'snapshot-controller --leader-election=false \
                     --kubeconfig=/var/lib/kubernetes/admin.conf --enable-distributed-snapshotting'";
        ctx.machine.sh(start).await.map(drop)
    }

    /// Starts its services after a boot, and waits until it answers.
    pub(super) async fn start_again(&self, ctx: &Ctx) -> Result<()> {
        let start = "cd /var/lib/kubernetes/programs; systemctl start *";
        ctx.machine.sh_within(start, LIMIT).await?;
        let ready = async || Ok(self.ask(ctx, "get --raw=/readyz").await.ok());
        ctx.machine.wait_until("the API server is ready", LIMIT, ready).await.map(drop)
    }

    /// Ends the kubelet and starts another one; returns when it answers.
    pub(super) async fn restart_kubelet(&self, ctx: &Ctx) -> Result<()> {
        let restart = "cd /var/lib/kubernetes; read pid < kubelet.pid; kill $pid; while [ -e /proc/$pid ]; do sleep 0.1; done; \
                       setsid programs/kubelet > /dev/null 2>&1 < /dev/null & echo $! > kubelet.pid";
        ctx.machine.sh_within(restart, LIMIT).await?;
        let exec = async || Ok(self.ask(ctx, "exec writer -- id").await.ok());
        ctx.machine.wait_until("the kubelet answers", LIMIT, exec).await.map(drop)
    }

    /// Runs `kubectl`.
    pub(super) async fn run(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("kubectl --kubeconfig=/var/lib/kubernetes/admin.conf {words}"), LIMIT).await
    }

    /// Runs `kubectl` with a question.
    pub(super) async fn ask(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("kubectl --kubeconfig=/var/lib/kubernetes/admin.conf {words}"), ASK_LIMIT).await
    }

    /// Creates or changes objects.
    pub(super) async fn apply(&self, ctx: &Ctx, manifest: &str) -> Result<()> {
        ctx.machine.write_file("/tmp/manifest.yaml", manifest.as_bytes()).await?;
        self.run(ctx, "apply -f /tmp/manifest.yaml").await.map(drop)
    }

    /// Waits until all pods of a workload are ready, in its current version.
    pub(super) async fn rolled_out(&self, ctx: &Ctx, workload: &str) -> Result<()> {
        self.patiently(ctx, &format!("rollout status {workload}")).await
    }

    /// Waits for a state, as `kubectl wait` names it.
    pub(super) async fn wait(&self, ctx: &Ctx, what: &str) -> Result<()> {
        self.patiently(ctx, &format!("wait {what}")).await
    }

    /// Runs a `kubectl` that waits, and that ends before the limit of its own accord, so that it tells why.
    async fn patiently(&self, ctx: &Ctx, words: &str) -> Result<()> {
        let limit = LIMIT.as_secs() - 60;
        self.run(ctx, &format!("{words} --timeout={limit}s")).await.map(drop)
    }

    /// What an operator would look at after a failure.
    pub(super) async fn report(&self, ctx: &Ctx) -> Result<String> {
        let report = "exec 2>&1; export KUBECONFIG=/var/lib/kubernetes/admin.conf; kubectl get -A pods,pvc,pv,events,csinodes,csistoragecapacities -o wide; \
                      kubectl describe -A pods; for c in driver csi-provisioner csi-resizer csi-snapshotter; do echo \"== $c\"; \
                      kubectl -n bulkhead logs ds/bulkhead-csi -c $c --tail=60; done; bulkhead volume ls; bulkhead job ls; grep bulkhead /proc/mounts; \
                      ps axo pid,ppid,stat,wchan:20,rss,args | cut -c1-200; free -m; tail -n 200 /var/lib/kubernetes/log/*";
        ctx.machine.sh_within(&format!("({report}) || true"), LIMIT).await
    }
}
