//! Third-party suites on file systems in Bulkhead's volumes: fsx, pjdfstest, fio and stress-ng with verification.
//!
//! Owns: the choice of suites, and their verdict. Does not: run them in the guest (`suites.sh`). The case runs each
//! suite once; `soak` runs them in rounds while servers are killed.

mod soak;

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub(super) use self::soak::soak;
use super::host::{FILE_POOL, SMP, json, kernel_is_silent, make_file_pool, start_daemon, unmake_file_pool};
use crate::case::{Case, Ctx, Outcome};
use crate::crate_tool::CrateTool;
use crate::kernels::Kernel;
use crate::process::Process;

pub(super) const CASES: &[Case] = &[Case {
    name: "suites_on_volumes",
    about: "fsx, pjdfstest, fio --verify and stress-ng --verify pass on a volume, its clone, the clone's clone and an \
            XFS volume at the same time; pjdfstest gives the same results as on a disk",
    kernels: &[Kernel::V6_12],
    profile: SMP,
    limit: Duration::from_secs(1200),
    run: |ctx| Box::pin(suites_on_volumes(ctx)),
}];

/// The suites. Each volume starts with a different one.
const SUITES: [&str; 4] = ["fsx", "pjdfstest", "fio", "stress-ng"];

/// stress-ng's file system tests that verify their results.
const STRESSORS: [&str; 20] = [
    "access",
    "aio",
    "chmod",
    "dentry",
    "dir",
    "fallocate",
    "fpunch",
    "hdd",
    "iomix",
    "link",
    "metamix",
    "mmap",
    "msync",
    "pseek",
    "rename",
    "revio",
    "seek",
    "symlink",
    "touch",
    "xattr",
];

/// Tests of pjdfstest in a short run, by parts of their names: all but `link::link_count_max`, whose 65 000 links take
/// longer than all others.
const SHORT: &str = "::chmod:: ::chown:: ::ftruncate:: ::link::c ::link::e ::link::r ::link::s ::link::u ::mkdir:: ::mkfifo:: ::mknod:: \
                     ::open:: ::posix_fallocate:: ::rename:: ::rmdir:: ::symlink:: ::truncate:: ::unlink:: ::utimensat::";

/// Size of the volumes: more than the minimum of XFS, and more than the suites fill.
const SIZE: &str = "320M";

/// Directory of everything that the suites need.
const BASE: &str = "/run/suites";

/// Time limit of a suite of length 1 under emulation while all run at once.
const SUITE_LIMIT: Duration = Duration::from_secs(250);

/// A file system that suites run on, mounted at `/run/suites/NAME/at`.
#[derive(Debug)]
struct Place {
    name: String,
    fs: &'static str,
}

impl Place {
    fn new(name: impl Into<String>, fs: &'static str) -> Self {
        Self { name: name.into(), fs }
    }

    fn at(&self) -> String {
        format!("{BASE}/{}/at", self.name)
    }

    fn volume(&self) -> String {
        format!("file/{}", self.name)
    }

    /// The disk that its results are compared with.
    fn reference(&self) -> Self {
        Self::new(format!("disk-{}", self.fs), self.fs)
    }
}

async fn suites_on_volumes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    if let Some(why) = prepare(ctx).await? {
        return Ok(Outcome::Skipped(why));
    }
    if let Err(error) = once(ctx).await {
        save_evidence(ctx).await;
        return Err(error);
    }
    Ok(Outcome::Passed)
}

/// Each suite once on each volume.
async fn once(ctx: &Ctx) -> Result<()> {
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    let origin = create(ctx, "origin", "ext4").await?;
    let first = clone(ctx, &origin, "first").await?;
    let second = clone(ctx, &first, "second").await?;
    let xfs = create(ctx, "xfs", "xfs").await?;
    mount_references(ctx, &[&origin, &xfs]).await?;
    let places = [origin, first, second, xfs];
    // The references run concurrently with the others.
    let mut running = Vec::new();
    for reference in [places[0].reference(), places[3].reference()] {
        running.push(start(ctx, &reference, 1, 1, &SUITES[1..2]).await?);
    }
    for (n, place) in places.iter().enumerate() {
        let mut suites = SUITES;
        suites.rotate_left(n);
        running.push(start(ctx, place, 1, 1, &suites).await?);
    }
    finish(ctx, running, 1).await?;
    for place in &places {
        check(ctx, place).await?;
    }
    no_complaints(ctx).await?;
    for place in &places {
        remove(ctx, place).await?;
    }
    unmount_references(ctx, &[&places[0], &places[3]]).await?;
    clean_up(ctx).await?;
    unmake_file_pool(ctx).await?;
    daemon.stop().await.map(drop)
}

/// Copies the programs and their input to the guest; returns the reason if one is not available.
async fn prepare(ctx: &Ctx) -> Result<Option<String>> {
    for tool in CrateTool::ALL {
        match ctx.lab.crate_tool(tool).await {
            Ok(program) => ctx.machine.bring(&program).await?,
            Err(error) => return Ok(Some(format!("{error:#}"))),
        }
    }
    ctx.machine.sh(&format!("mkdir {BASE}")).await?;
    for (name, text) in [
        ("suites.sh", include_str!("suites/suites.sh")),
        ("fsx.toml", include_str!("suites/fsx.toml")),
        ("pjdfstest.toml", include_str!("suites/pjdfstest.toml")),
        ("stressors", STRESSORS.map(|name| format!("--{name} 1 ")).concat().as_str()),
        ("short", SHORT),
    ] {
        ctx.machine.write_file(&format!("{BASE}/{name}"), text.as_bytes()).await?;
    }
    let listed = ctx.machine.sh("stress-ng --verifiable").await?;
    let (verifiable, _) =
        listed.split_once("Verification not implemented").context("no list of what stress-ng verifies")?;
    let blind: Vec<&str> =
        STRESSORS.into_iter().filter(|name| !verifiable.split_whitespace().any(|other| other == *name)).collect();
    ensure!(blind.is_empty(), "stress-ng does not verify {blind:?}: {listed}");
    Ok(None)
}

/// Creates a volume with files that its clones will share, ready for suites.
async fn create(ctx: &Ctx, name: &str, fs: &'static str) -> Result<Place> {
    let place = Place::new(name, fs);
    json(ctx, &["volume", "create", &place.volume(), "--size", SIZE, "--fs", fs, "--provision", "on-demand"]).await?;
    attach(ctx, &place).await?;
    ctx.machine
        .sh(&format!(
            "cd {}; head -c 20000000 /dev/urandom > data; head -c 33554432 /dev/urandom > fio; sync -f .; md5sum data > {BASE}/{fs}.sum",
            place.at()
        ))
        .await?;
    Ok(place)
}

/// Clones a volume, which may be in use, ready for suites.
async fn clone(ctx: &Ctx, of: &Place, name: &str) -> Result<Place> {
    let place = Place::new(name, of.fs);
    json(ctx, &["volume", "clone", &of.volume(), name]).await?;
    attach(ctx, &place).await?;
    Ok(place)
}

/// Mounts a volume for a tenant of the same name, and again where users other than root have access.
async fn attach(ctx: &Ctx, place: &Place) -> Result<()> {
    json(ctx, &["tenant", "create", &place.name, "--volume", &place.volume()]).await?;
    let view = json(ctx, &["volume", "inspect", &place.volume()]).await?;
    ensure!(view["accounting"]["way"] == "server", "{} has no block server: {view}", place.name);
    let from = view["mounted_at"].as_str().context("not mounted")?;
    ctx.machine.sh(&format!("mkdir -p {0}; mount --bind {from} {0}", place.at())).await?;
    Ok(())
}

/// Removes a volume's tenant; its file system must be clean.
async fn detach(ctx: &Ctx, place: &Place) -> Result<()> {
    ctx.machine.sh(&format!("umount {}", place.at())).await?;
    json(ctx, &["tenant", "rm", &place.name]).await?;
    json(ctx, &["volume", "check", &place.volume()]).await?;
    Ok(())
}

/// Removes a volume's tenant, checks the volume and removes it.
async fn remove(ctx: &Ctx, place: &Place) -> Result<()> {
    detach(ctx, place).await?;
    json(ctx, &["volume", "rm", &place.volume()]).await?;
    Ok(())
}

/// Creates file systems like those of these volumes on disks 1 and 2, and mounts them with the same options.
async fn mount_references(ctx: &Ctx, places: &[&Place]) -> Result<()> {
    for (n, place) in places.iter().enumerate() {
        let (disk, at) = (ctx.machine.disk(n + 1).await?, place.reference().at());
        let mkfs = match place.fs {
            "ext4" => format!("mkfs.ext4 -q -b 4096 -m 0 -E lazy_itable_init=0,lazy_journal_init=0 {disk} {SIZE}"),
            _ => format!("mkfs.xfs -q -d size=$((${{size%M}} << 20)) {disk}"),
        };
        ctx.machine
            .sh(&format!(
                "size={SIZE}; {mkfs}; mkdir -p {at}; mount -o $(findmnt --noheadings --output VFS-OPTIONS {}) {disk} {at}",
                place.at()
            ))
            .await?;
    }
    Ok(())
}

async fn unmount_references(ctx: &Ctx, places: &[&Place]) -> Result<()> {
    for (n, place) in places.iter().enumerate() {
        let disk = ctx.machine.disk(n + 1).await?;
        ctx.machine.sh(&format!("umount {}; wipefs -qa {disk}", place.reference().at())).await?;
    }
    Ok(())
}

/// Starts suites, which run in turn, in a place.
async fn start(ctx: &Ctx, place: &Place, seed: u64, length: u32, suites: &[&str]) -> Result<Process> {
    let (seed, length) = (seed.to_string(), length.to_string());
    let script = format!("{BASE}/suites.sh");
    let argv = [&["bash", &script, &place.name, &seed, &length], suites].concat();
    ctx.machine.spawn(&argv, &[]).await
}

/// Waits until all suites have ended; none may have failed.
async fn finish(ctx: &Ctx, running: Vec<Process>, length: u32) -> Result<()> {
    let count = u32::try_from(SUITES.len()).context("too many suites")?;
    for process in running {
        let ended = process.wait(SUITE_LIMIT * count * length).await?;
        ended.success("suites.sh")?;
    }
    let failed = ctx.machine.sh(&format!("cat {BASE}/failed 2> /dev/null || true")).await?;
    ensure!(failed.is_empty(), "failed: {}", failed.trim());
    Ok(())
}

/// Checks that all suites have passed in a volume, pjdfstest with the same results as on the disk, and that its earlier
/// files are unchanged.
async fn check(ctx: &Ctx, place: &Place) -> Result<()> {
    let dir = format!("{BASE}/{}", place.name);
    let mut passed = Vec::new();
    for suite in SUITES {
        let seconds = ctx.machine.read_text(&format!("{dir}/{suite}.passed")).await;
        let seconds = seconds.with_context(|| format!("{suite} has not passed in {}", place.name))?;
        passed.push(format!("{suite} {} s", seconds.trim()));
    }
    let reference = format!("{BASE}/{}", place.reference().name);
    let differs = ctx.machine.sh(&format!("diff {reference}/pjdfstest.failed {dir}/pjdfstest.failed || true")).await?;
    if !differs.is_empty() {
        bail!("pjdfstest has other failures in {} than on a disk (<): {differs}", place.name);
    }
    let summary = ctx.machine.sh(&format!("grep ^Summary: {dir}/pjdfstest.log")).await?;
    ctx.log(format!("{}: {}; pjdfstest, same results as on a disk: {}", place.name, passed.join(", "), summary.trim()));
    ctx.machine.sh(&format!("cd {dir}/at; md5sum --quiet -c {BASE}/{}.sum", place.fs)).await?;
    Ok(())
}

/// Collects evidence of a failed suite for the artifacts.
const EVIDENCE: &str = "
mkdir -p /lab/out/evidence
cd /run/suites
for place in */; do mkdir /lab/out/evidence/$place; cp $place/*.* $place/at/fsx /lab/out/evidence/$place || true; done
dmesg > /lab/out/evidence/dmesg.txt
cat /run/bulkhead/blockd/*.log > /lab/out/evidence/servers.log || true
ls -ls /run/filepool/pool > /lab/out/evidence/pool.txt
bulkhead --output json volume ls > /lab/out/evidence/volumes.json";

/// Saves evidence of a failed suite in the artifacts.
async fn save_evidence(ctx: &Ctx) {
    if let Err(error) = ctx.machine.sh(EVIDENCE).await {
        ctx.log(format!("not all evidence could be saved: {error:#}"));
    }
}

/// Checks that no layers are left, and removes the suites.
async fn clean_up(ctx: &Ctx) -> Result<()> {
    let left = ctx.machine.sh(&format!("ls {FILE_POOL}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "layers are left: {left}");
    ctx.machine.sh(&format!("rm -r {BASE}")).await?;
    Ok(())
}

/// Checks that neither the servers nor the kernel log errors, before the tenants are removed, and the servers' logs
/// with them.
async fn no_complaints(ctx: &Ctx) -> Result<()> {
    let servers = ctx.machine.sh("cat /run/bulkhead/blockd/*.log").await?;
    ensure!(!servers.contains("ERROR"), "a server logged an error: {servers}");
    kernel_is_silent(ctx).await
}
