//! A base volume and its clones, created as operators do: with the experiment's own daemon and the `bulkhead` program.
//!
//! Owns: that daemon, a directory pool on a logical volume of the device under test, the base, and the mounted clones; the source of a clone's
//! shared blocks ([`Clones::make_clone`] is the only place). Everything is removed at the end, including leftovers of a killed run: the daemon's
//! records are in the same place as those of other experiments. Does not: measure.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_api::client::{Client, Removal};
use bulkhead_api::wire::{NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCopy, VolumeCreate, VolumeView};
use bulkhead_core::error::Fault;
use bulkhead_core::journal::Accounting;
pub(crate) use bulkhead_core::model::ReadFrom;
use bulkhead_core::model::{FsKind, Provision, Server, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_measure::cgroup_run::{Cancel, wait_until};
use bulkhead_measure::cleanup::{RUN_DIR, lock, with_removal};
use bulkhead_measure::layout::{HOLDER, POOL, STATE_DIR, Target, private_engine, remove_leftovers};
use bulkhead_sys::block::{self, Diskstat};
use bulkhead_sys::cgroup;
use bulkhead_sys::file::{LockFile, read_limited};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::spawn::{Running, SpawnSpec, spawn};
use bulkhead_sys::tool::Tool;

/// Name of the pool, on the volume of [`HOLDER`].
const CLONE_POOL: &str = "bench-clones";
/// Size of the logical volume that the pool is on.
const HOST: Bytes = Bytes::mib(3072);
/// Maximum size of the contents of the base.
const BASE: Bytes = Bytes::mib(384);
/// The tenant of all clones: clones that share trust each other.
const TENANT: &str = "bench-clones";
const BASE_NAME: &str = "base";
/// Time limit for the daemon to answer and to end, and for a copy of files: emulated CPUs are slow.
const DAEMON_LIMIT: Duration = Duration::from_secs(120);
const COPY_LIMIT: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(200);

/// The complete set-up. Removed on drop; [`Clones::remove`] does the same and returns errors.
pub(crate) struct Clones {
    roots: Roots,
    program: PathBuf,
    device: String,
    dev: DevNo,
    host_dir: PathBuf,
    client: Client,
    runtime: tokio::runtime::Runtime,
    // Ended before anything else reads its records.
    daemon: Option<Running>,
    has_modes: bool,
    has_images: bool,
    removed: bool,
    _lock: LockFile,
}

/// A mounted clone.
#[derive(Clone, Debug)]
pub(crate) struct Clone {
    volume: VolumeRef,
    /// Its mount point.
    pub(crate) dir: PathBuf,
    /// Its block server.
    pub(crate) server: Option<u32>,
}

impl Clones {
    /// Removes leftovers of a killed run; then starts a daemon and creates a pool on the device.
    ///
    /// # Errors
    /// If the target is not a device, another run is in progress, this host has tenants of Bulkhead, or the daemon refuses.
    pub(crate) fn set_up(target: &Target, program: &Path, cancel: &Cancel) -> Result<Self> {
        let Target::Device { path, erase } = target else {
            bail!("clones are measured on a whole device, whose reads can be counted");
        };
        let (roots, lock) = (Roots::host(), lock()?);
        remove_leftovers(&private_engine(program)?, &roots)?;
        let socket = Path::new(RUN_DIR).join("bulkhead.sock");
        let args =
            ["--socket", &socket.display().to_string(), "daemon", "--state-dir", STATE_DIR, "--run-dir", RUN_DIR];
        let spec = SpawnSpec {
            program: program.to_owned(),
            args: args.map(Into::into).into(),
            env: vec![("BULKHEAD_LOG".into(), "warn".into())],
            cgroup: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let mut clones = Self {
            roots,
            program: program.to_owned(),
            device: String::new(),
            dev: DevNo::new(0, 0),
            host_dir: PathBuf::new(),
            client: Client::new(socket),
            runtime: runtime.context("cannot start a runtime")?,
            daemon: Some(spawn(&spec).context("cannot start a daemon")?),
            has_modes: has_word(program, "volume clone --help", "--read-from"),
            has_images: has_word(program, "image import --help", "POOL/VOLUME"),
            removed: false,
            _lock: lock,
        };
        match clones.make(path, *erase, cancel) {
            Ok(()) => Ok(clones),
            Err(error) => with_removal(Err(error), clones.remove()),
        }
    }

    fn make(&mut self, device: &Path, erase: bool, cancel: &Cancel) -> Result<()> {
        self.await_daemon(cancel)?;
        let erase = erase.then(|| device.display().to_string());
        let source = NewPoolSource::Device { path: device.to_owned(), thin: false, erase };
        let pool = PoolCreate { name: name(POOL)?, source };
        let pool = self.request(async |client| client.pool_create(&pool, false).await)?;
        let pool = pool.object.context("the pool is not there after it was made")?;
        let [physical] = &pool.physical_devices[..] else { bail!("{} is not one physical device", device.display()) };
        self.device.clone_from(physical);
        self.dev = block::devno_of(&self.roots.dev.join(physical)).context("the physical device")?;
        let host = VolumeRef { pool: pool.name, name: name("host")? };
        self.create(&host, HOST, None)?;
        self.create_tenant(HOLDER, vec![host.clone()])?;
        self.host_dir = self.inspect(&host)?.mounted_at.context("the volume of the pool is not mounted")?;
        let source = NewPoolSource::Directory { path: self.host_dir.join("pool"), server: Server::Auto };
        let pool = PoolCreate { name: name(CLONE_POOL)?, source };
        self.request(async |client| client.pool_create(&pool, false).await)?;
        self.create_tenant(TENANT, Vec::new())
    }

    fn await_daemon(&mut self, cancel: &Cancel) -> Result<()> {
        let deadline = Instant::now() + DAEMON_LIMIT;
        while self.request(async |client| client.healthz().await).is_err() {
            let daemon = self.daemon.as_mut().context("there is no daemon")?;
            if let Some(code) = daemon.wait(Duration::ZERO)? {
                bail!("the daemon ended with code {code}: {}", daemon.stderr());
            }
            if Instant::now() >= deadline {
                bail!("the daemon does not answer after {} s: {}", DAEMON_LIMIT.as_secs(), daemon.stderr());
            }
            wait_until(Instant::now() + POLL, cancel)?;
        }
        Ok(())
    }

    /// Creates the base from a directory: an image with an index if this version of Bulkhead supports it, else a snapshot of a volume.
    pub(crate) fn make_base(&self, tree: &Path) -> Result<()> {
        let base = reference(BASE_NAME)?;
        if self.has_images {
            let size = format!("{}M", BASE.0 / Bytes::MIB);
            let words =
                ["image", "import", &tree.display().to_string(), &base.to_string(), "--size", &size].map(str::to_owned);
            return self.bulkhead(&words).context("cannot import the image");
        }
        let origin = reference("origin")?;
        self.create(&origin, BASE, Some(Provision::OnDemand))?;
        let dir = self.attach(&origin)?.mounted_at.context("the origin of the base is not mounted")?;
        let copy = Tool::new("cp").arg("-a").arg(tree.join(".")).arg(&dir).limit(COPY_LIMIT);
        copy.run().context("cannot fill the base")?;
        self.detach(&origin)?;
        let request = VolumeCopy::new(base.name.clone(), true);
        self.request(async |client| client.volume_copy(&origin, &request, false).await)?;
        Ok(())
    }

    /// The modes of sharing that this version of Bulkhead supports.
    pub(crate) fn modes(&self) -> Vec<ReadFrom> {
        let has = |mode: &ReadFrom| {
            *mode == ReadFrom::HostCache || self.has_modes && (self.has_images || *mode == ReadFrom::Disk)
        };
        ReadFrom::ALL.into_iter().filter(has).collect()
    }

    /// Creates and mounts clones, with empty caches as far as [`drop_caches`] can drop them.
    pub(crate) fn clones(&self, n: usize, mode: ReadFrom) -> Result<Vec<Clone>> {
        let make = |number: usize| {
            let volume = reference(&format!("{}-{number}", mode.tag()))?;
            self.make_clone(&volume, mode)?;
            let view = self.attach(&volume)?;
            let server = if let Accounting::Server { pid, .. } = view.accounting { Some(pid) } else { None };
            let dir = view.mounted_at.with_context(|| format!("clone {volume} is not mounted"))?;
            Ok(Clone { volume, dir, server })
        };
        (1..=n).map(make).collect()
    }

    /// Creates a clone with a source of shared blocks.
    fn make_clone(&self, volume: &VolumeRef, mode: ReadFrom) -> Result<()> {
        let base = reference(BASE_NAME)?.to_string();
        let mut words = ["volume", "clone", &base, volume.name.as_str()].map(str::to_owned).to_vec();
        if self.has_modes {
            words.extend(["--read-from", mode.as_str()].map(str::to_owned));
        }
        self.bulkhead(&words).with_context(|| format!("cannot make clone {volume}"))
    }

    /// Unmounts clones and removes them.
    pub(crate) fn discard(&self, clones: Vec<Clone>) -> Result<()> {
        for clone in clones {
            self.detach(&clone.volume)?;
            let how = Removal { force: true, dry_run: false };
            self.request(async |client| client.volume_remove(&clone.volume, how).await)?;
        }
        Ok(())
    }

    /// A directory on the pool's file system, for the source of the base.
    pub(crate) fn staging(&self) -> Result<PathBuf> {
        let dir = self.host_dir.join("staging");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(dir)
    }

    /// Kernel name and number of the physical device.
    pub(crate) fn device(&self) -> (&str, DevNo) {
        (&self.device, self.dev)
    }

    /// The counters of the physical device.
    pub(crate) fn disk(&self) -> Result<Diskstat> {
        block::diskstat(&self.roots, self.dev).context("the device's counters")
    }

    /// Directory of the payload cgroup of the clones' tenant.
    pub(crate) fn payload(&self) -> Result<PathBuf> {
        Ok(self.roots.cgroup_dir(&slices::payload(&name(TENANT)?)))
    }

    /// Limits the memory of the clones' tenant: processes, block servers, and their page cache.
    pub(crate) fn limit_memory(&self, limit: Option<Bytes>) -> Result<()> {
        let slice = slices::tenant(&name(TENANT)?);
        let value = limit.map_or_else(|| "max".to_owned(), |limit| limit.0.to_string());
        cgroup::write(&self.roots, &slice, "memory.max", &value).context("the tenant's memory limit")?;
        Ok(())
    }

    /// The indexes of bases.
    pub(crate) fn indexes(&self) -> Result<Vec<PathBuf>> {
        let dir = self.host_dir.join("pool");
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        Ok(paths.filter(|path| path.extension().is_some_and(|end| end == "index")).collect())
    }

    /// Size of the indexes of bases, and of the part in memory; everything if that is unknown.
    pub(crate) fn index_bytes(&self) -> Result<(u64, u64)> {
        let (mut size, mut cached) = (0, 0);
        for path in self.indexes()? {
            let all = fs::metadata(&path).with_context(|| format!("cannot inspect {}", path.display()))?.len();
            let output = Tool::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(&path).run();
            size += all;
            cached += output.ok().and_then(|output| output.stdout.trim().parse().ok()).unwrap_or(all);
        }
        Ok((size, cached))
    }

    fn create(&self, volume: &VolumeRef, size_bytes: Bytes, provision: Option<Provision>) -> Result<()> {
        let (fs, fast_commit) = (FsKind::Ext4, false);
        let request =
            VolumeCreate { fs: fs.into(), provision, fast_commit, ..VolumeCreate::new(volume.clone(), size_bytes) };
        self.request(async |client| client.volume_create(&request, false).await).map(drop)
    }

    fn create_tenant(&self, tenant: &str, volumes: Vec<VolumeRef>) -> Result<()> {
        let request = TenantCreate { volumes, ..TenantCreate::new(name(tenant)?) };
        self.request(async |client| client.tenant_create(&request, false).await).map(drop)
    }

    fn attach(&self, volume: &VolumeRef) -> Result<VolumeView> {
        let request = TenantSet { attach: vec![volume.clone()], ..TenantSet::default() };
        let tenant = name(TENANT)?;
        self.request(async |client| client.tenant_set(&tenant, &request, false).await)?;
        self.inspect(volume)
    }

    fn detach(&self, volume: &VolumeRef) -> Result<()> {
        let request = TenantSet { detach: vec![volume.clone()], ..TenantSet::default() };
        let tenant = name(TENANT)?;
        self.request(async |client| client.tenant_set(&tenant, &request, false).await).map(drop)
    }

    fn inspect(&self, volume: &VolumeRef) -> Result<VolumeView> {
        self.request(async |client| client.volume_inspect(volume).await)
    }

    fn request<T, F: Future<Output = Result<T, Fault>>>(&self, question: impl FnOnce(Client) -> F) -> Result<T> {
        Ok(self.runtime.block_on(question(self.client.clone()))?)
    }

    /// Runs the `bulkhead` program against the daemon.
    fn bulkhead(&self, words: &[String]) -> Result<()> {
        let tool =
            Tool::bulkhead(&self.program).arg("--socket").arg(self.client.socket()).args(words).limit(COPY_LIMIT);
        tool.run().map(drop).map_err(Into::into)
    }

    /// Ends the daemon and removes everything that was set up.
    ///
    /// # Errors
    /// The first failure; the next run tries again.
    pub(crate) fn remove(mut self) -> Result<()> {
        self.remove_all()
    }

    fn remove_all(&mut self) -> Result<()> {
        self.removed = true;
        if let Some(mut daemon) = self.daemon.take() {
            daemon.terminate()?;
            daemon.wait(DAEMON_LIMIT)?.context("the daemon does not end")?;
        }
        remove_leftovers(&private_engine(&self.program)?, &self.roots)
    }
}

impl Drop for Clones {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.remove_all()
        {
            tracing::error!(error = format!("{error:#}"), "not everything could be removed; the next run tries again");
        }
    }
}

/// Writes out dirty data, and drops all cached files, directories and inodes of this host.
pub(crate) fn drop_caches() -> Result<()> {
    const PATH: &str = "/proc/sys/vm/drop_caches";
    rustix::fs::sync();
    let opened = OpenOptions::new().write(true).open(PATH);
    opened.and_then(|mut file| file.write_all(b"3")).with_context(|| format!("cannot write {PATH}"))
}

/// Size of the host's page cache.
pub(crate) fn cached_bytes() -> Result<u64> {
    let text = read_limited(Path::new("/proc/meminfo"), Bytes(1 << 16)).context("/proc/meminfo")?;
    parse_cached(&String::from_utf8_lossy(&text)).context("/proc/meminfo is not understood")
}

/// `Cached:          123456 kB`
fn parse_cached(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Cached:"))?;
    Some(1024 * line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?)
}

/// Whether the help of a command has a word.
fn has_word(program: &Path, words: &str, what: &str) -> bool {
    Tool::bulkhead(program).args(words.split(' ')).run().is_ok_and(|output| output.stdout.contains(what))
}

fn name(text: &str) -> Result<Name> {
    text.parse().with_context(|| format!("{text:?} is not a valid name"))
}

fn reference(volume: &str) -> Result<VolumeRef> {
    Ok(VolumeRef { pool: name(CLONE_POOL)?, name: name(volume)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_files_have_in_the_cache_is_read() {
        assert_eq!(parse_cached("MemFree: 9 kB\nCached:   12 kB\nSwapCached: 1 kB\n"), Some(12 * 1024));
        assert_eq!(parse_cached("Cached: many"), None);
    }

    #[test]
    fn modes_keep_the_names_of_stored_evidence() {
        assert_eq!(ReadFrom::ALL.map(ReadFrom::tag), ["off", "base", "drr", "both"]);
    }
}
