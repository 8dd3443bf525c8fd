//! The CSI driver in front of a real daemon and kernel.

mod parallel;
mod selinux;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::crowd::PARALLEL;
use super::host::{PROFILE, kernel_is_silent, make_pools, nothing_is_left, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::go_tool::GoTool;
use crate::kernels::Kernel;
use crate::process::Process;

pub(super) const CASES: &[Case] = &[
    CSI_SANITY,
    Case {
        name: "csi_sanity_thick",
        about: "the same on volumes of a volume group, without the specs that copy a volume",
        run: |ctx| Box::pin(csi_sanity(ctx, "thick", "mount")),
        ..CSI_SANITY
    },
    Case {
        name: "csi_sanity_block",
        about: "the same on raw volumes of a directory pool",
        run: |ctx| Box::pin(csi_sanity(ctx, "file", "block")),
        ..CSI_SANITY
    },
    CSI_PARALLEL,
    Case {
        name: "csi_selinux",
        about: "a volume is mounted with the SELinux context that the kubelet passes, which all of its files have: also after a restart of the \
                daemon, and when the mount is lost; while it is staged, another context is refused; an unknown one always",
        kernels: &[Kernel::V6_12],
        profile: SELINUX,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(selinux::csi_selinux(ctx)),
    },
];

/// A kernel that uses SELinux in place of AppArmor, and enforces nothing. In virtual time: one call at a time.
const SELINUX: Profile = Profile {
    name: "selinux",
    disks: &[DiskSpec::new(DiskModel::Fast, 4096)],
    kernel_arguments: "security=selinux",
    ..PROFILE
};

const CSI_SANITY: Case = Case {
    name: "csi_sanity",
    about: "csi-sanity finds no fault with the CSI driver on volumes of a directory pool, skips only what the driver does not announce, and \
                leaves no volume, tenant, lease or mount",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(csi_sanity(ctx, "file", "mount")),
};

const CSI_PARALLEL: Case = Case {
    name: "csi_parallel",
    about: "16 clients of the CSI driver at once create, stage, publish twice, unpublish, unstage and delete a volume each, every call twice, \
            while driver or daemon are killed 6 times and the clock jumps: all succeed, some after repeating a call, and nothing is left",
    kernels: &[Kernel::V6_12],
    profile: PARALLEL,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(parallel::csi_parallel(ctx, 16, 6, Duration::from_secs(900))),
};

/// Run by name only: a hundred kills take too long for every run.
pub(super) const SOAK: &[Case] = &[Case {
    name: "csi_parallel_100",
    about: "the same with 100 clients, in rounds, and 100 kills",
    limit: Duration::from_secs(14_400),
    run: |ctx| Box::pin(parallel::csi_parallel(ctx, 100, 100, Duration::from_secs(14_400))),
    ..CSI_PARALLEL
}];

/// The driver's socket.
const SOCKET: &str = "/run/csi.sock";

/// In place of the kubelet's directory.
const KUBELET: &str = "/run/kubelet";

/// Sizes of its volumes and of expanded ones, in bytes.
const SIZES: [&str; 2] = ["67108864", "134217728"];

/// What the driver does not announce, in csi-sanity's words. docs/kubernetes.md has the reasons.
const UNANNOUNCED: [&str; 7] = [
    "Controller Publish, UnpublishVolume",
    "ControllerExpandVolume",
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "GroupControllerService",
    "NodeGetStorageHealth",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS",
];

/// The specs that copy a volume, which a pool of thick logical volumes cannot: by parts of their names.
const COPIES: &str = "from an existing source|CreateSnapshot .* should (succeed|fail when requesting)|DeleteSnapshot .* should return|\
                      GetSnapshot .* should return snapshot|ListSnapshots .* (check the presence|should return (snapshots|next token))";

/// Time limit of the suite under emulation.
const SUITE_LIMIT: Duration = Duration::from_secs(600);

/// gRPC for scripts, with the libraries that the guest does not have.
const GRPC: [&str; 4] = ["python3-grpcio", "libabsl20240722", "libcares2", "libre2-11"];

/// The environment in which a script finds gRPC, as words of a shell.
///
/// # Errors
/// When a package is not available.
async fn grpc_for_python(ctx: &Ctx) -> Result<String> {
    let (mut modules, mut libraries) = (Vec::new(), Vec::new());
    for name in GRPC {
        let package = ctx.lab.package(name).await.with_context(|| format!("Debian's {name} is not available"))?;
        modules.push(package.path("usr/lib/python3/dist-packages"));
        libraries.push(package.path("usr/lib/x86_64-linux-gnu"));
    }
    Ok(format!("PYTHONPATH={} LD_LIBRARY_PATH={}", modules.join(":"), libraries.join(":")))
}

/// On volumes of this kind of pool, of this access type.
async fn csi_sanity(ctx: &Ctx, kind: &str, access: &str) -> Result<Outcome> {
    match ctx.lab.go_tool(GoTool::CSI_SANITY).await {
        Ok(program) => ctx.machine.bring(&program).await?,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    }
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &[kind]).await?;
    let driver = start_driver(ctx).await?;
    ctx.machine.write_file("/tmp/mutable.yaml", b"share: \"300\"\n").await?;
    let [size, expanded] = SIZES.map(|size| size.to_owned());
    let argv = [
        "csi-sanity",
        "--ginkgo.v",
        "--ginkgo.no-color",
        &format!("--csi.endpoint={SOCKET}"),
        &format!("--csi.mountdir={KUBELET}/mount"),
        &format!("--csi.stagingdir={KUBELET}/staging"),
        &format!("--csi.testvolumeaccesstype={access}"),
        &format!("--csi.testvolumesize={size}"),
        &format!("--csi.testvolumeexpandsize={expanded}"),
        "--csi.testvolumemutableparameters=/tmp/mutable.yaml",
    ];
    let skip = format!("--ginkgo.skip={COPIES}");
    let skipped: &[&str] = if kind == "thick" { &[&skip] } else { &[] };
    let argv = [&argv[..], skipped].concat();
    let suite = ctx.machine.run_within(&argv, SUITE_LIMIT).await?;
    let ran = suite.stdout.lines().find(|line| line.starts_with("Ran ")).context("csi-sanity has not ended")?;
    ctx.log(ran);
    ctx.machine.write_file("/lab/out/csi-sanity.txt", suite.stdout.as_bytes()).await?;
    let summary = suite.stdout.lines().find(|line| line.contains(" Passed | ")).context("csi-sanity has not ended")?;
    ensure!(suite.status.success() && summary.contains(" 0 Failed"), "{summary}\n{}", suite.stdout);

    let mut reasons = suite.stdout.lines().filter_map(|line| line.trim().strip_prefix("[SKIPPED] "));
    let is_expected = |reason: &str| {
        reason.starts_with("in [") || UNANNOUNCED.iter().any(|what| reason == format!("{what} not supported"))
    };
    if let Some(reason) = reasons.find(|reason| !is_expected(reason)) {
        bail!("a spec was skipped for another reason than what is not announced: {reason}");
    }

    nothing_is_left(ctx).await?;
    let mounts = ctx.machine.sh(&format!("grep {KUBELET} /proc/mounts || true; rm -r {KUBELET}")).await?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts}");
    driver.kill(15).await?;
    let ended = driver.wait(SUITE_LIMIT).await?.success("the driver")?;
    ensure!(!ended.stderr.contains("ERROR"), "{}", ended.stderr);
    ctx.machine.sh(&format!("! test -e {SOCKET}")).await.context("its socket is left")?;
    unmake_pools(ctx, &[kind]).await?;
    daemon.stop().await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}

async fn start_driver(ctx: &Ctx) -> Result<Process> {
    ctx.machine.sh(&format!("mkdir {KUBELET}")).await?;
    let endpoint = format!("unix://{SOCKET}");
    let program = ctx.program("bulkhead");
    let argv = [
        program.as_str(),
        "csi",
        "--endpoint",
        &endpoint,
        "--mode",
        "all",
        "--node-id",
        "node-1",
        "--kubelet-dir",
        KUBELET,
        "--size",
        "64M",
    ];
    let driver = ctx.machine.spawn(&argv, &[]).await?;
    super::host::wait_for_socket(ctx, SOCKET).await?;
    Ok(driver)
}
