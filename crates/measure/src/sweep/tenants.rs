//! The tenants of a sweep: one for each copy, with a volume of its own, which the daemon creates and removes at the end.
//!
//! All are recorded as created by a sweep, by which the next one identifies what a killed one has left. Nothing else is used or removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_api::wire::{PoolView, TenantCreate, VolumeCreate};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::LockFile;
use bulkhead_sys::spawn::{SpawnSpec, Stdout, spawn};

use super::file::{Sweep, Workload, copy_name};
use crate::cgroup_run::Cancel;
use crate::cleanup::{RUN_DIR, lock, with_removal};
use crate::daemon::Daemon;

/// What all tenants and volumes are recorded as created by.
const CREATOR: FrontEnd = FrontEnd::Sweep;
/// Time limit of a workload's preparation.
const PREPARE_LIMIT: Duration = Duration::from_secs(3600);
/// Interval between checks for cancellation.
const POLL: Duration = Duration::from_millis(200);

/// The tenants. Removed on drop; [`Tenants::remove`] does the same and returns errors.
pub(super) struct Tenants<'a> {
    daemon: Daemon,
    sweep: &'a Sweep,
    program: &'a Path,
    /// Where a copy's volume is mounted, for its command alone.
    dir: PathBuf,
    removed: bool,
    // Dropped last: another sweep must not see a partial removal.
    _lock: LockFile,
}

impl<'a> Tenants<'a> {
    /// Removes what a killed sweep has left, and makes a tenant with a prepared volume for as many copies as any mix has.
    ///
    /// # Errors
    /// If another experiment is in progress, something else has one of the names, the pool has not enough space, the daemon refuses, or a
    /// preparation fails.
    pub(super) fn set_up(
        daemon: Daemon,
        pool: &PoolView,
        sweep: &'a Sweep,
        program: &'a Path,
        cancel: &Cancel,
        on_step: &mut dyn FnMut(&str),
    ) -> Result<Self> {
        let lock = lock()?;
        remove_all(&daemon)?;
        let copies = most_copies(sweep);
        check_space(pool, sweep, &copies)?;
        check_unused(&daemon, sweep, &copies)?;
        let dir = Path::new(RUN_DIR).join("sweep");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let tenants = Self { daemon, sweep, program, dir, removed: false, _lock: lock };
        match tenants.make(&copies, cancel, on_step) {
            Ok(()) => Ok(tenants),
            Err(error) => with_removal(Err(error), tenants.remove()),
        }
    }

    fn make(&self, copies: &BTreeMap<usize, u32>, cancel: &Cancel, on_step: &mut dyn FnMut(&str)) -> Result<()> {
        for (index, copies) in copies {
            let workload = &self.sweep.workloads[*index];
            for number in 1..=*copies {
                cancel.check()?;
                on_step(&format!("preparing {}", copy_name(&workload.name, number)));
                self.make_copy(workload, number)?;
                if !workload.prepare.is_empty() {
                    self.prepare(workload, number, cancel)?;
                }
            }
        }
        Ok(())
    }

    fn make_copy(&self, workload: &Workload, number: u32) -> Result<()> {
        let name: Name = copy_name(&workload.name, number).parse()?;
        let volume = VolumeRef { pool: self.sweep.pool.clone(), name: name.clone() };
        let request = VolumeCreate {
            fs: workload.fs,
            created_by: Some(CREATOR),
            ..VolumeCreate::new(volume.clone(), workload.size)
        };
        self.daemon.request(async |client| client.volume_create(&request, false).await)?;
        let request = TenantCreate {
            share: workload.share,
            volumes: vec![volume],
            created_by: Some(CREATOR),
            ..TenantCreate::new(name)
        };
        self.daemon.request(async |client| client.tenant_create(&request, false).await).map(drop)
    }

    fn prepare(&self, workload: &Workload, number: u32, cancel: &Cancel) -> Result<()> {
        let what = format!("the preparation of {}", copy_name(&workload.name, number));
        let mut child = spawn(&self.spec(workload, number, &workload.prepare)).with_context(|| what.clone())?;
        child.close_stdin();
        let deadline = Instant::now() + PREPARE_LIMIT;
        // Its output is read, so that it does not wait for a reader.
        while child.read_line(POLL) != Stdout::Closed {
            cancel.check()?;
            if Instant::now() > deadline {
                bail!("{what} takes longer than {} s", PREPARE_LIMIT.as_secs());
            }
        }
        match child.wait(PREPARE_LIMIT)? {
            Some(0) => Ok(()),
            code => bail!("{what} has ended with code {code:?}: {}", child.stderr()),
        }
    }

    /// How a command is run in a copy's tenant: by `bulkhead run`, with the copy's volume mounted for it alone.
    pub(super) fn spec(&self, workload: &Workload, number: u32, command: &[String]) -> SpawnSpec {
        let name = copy_name(&workload.name, number);
        let volume = format!("{}/{name}:{}", self.sweep.pool, self.dir.display());
        let socket = self.daemon.socket().display().to_string();
        let mut args: Vec<String> =
            ["--socket", &socket, "run", "--tenant", &name, "--volume", &volume, "--"].map(str::to_owned).into();
        args.extend(Workload::words(command, &self.dir, number, self.sweep.seconds));
        SpawnSpec {
            program: self.program.to_owned(),
            args: args.into_iter().map(Into::into).collect(),
            ..SpawnSpec::default()
        }
    }

    /// Removes everything.
    ///
    /// # Errors
    /// The first failure; the next sweep tries again.
    pub(super) fn remove(mut self) -> Result<()> {
        self.removed = true;
        self.tear_down()
    }

    fn tear_down(&self) -> Result<()> {
        remove_all(&self.daemon).context("cannot remove what the sweep had set up")?;
        std::fs::remove_dir(&self.dir).with_context(|| format!("cannot remove {}", self.dir.display()))
    }
}

impl Drop for Tenants<'_> {
    fn drop(&mut self) {
        if !self.removed
            && let Err(error) = self.tear_down()
        {
            tracing::error!(error = format!("{error:#}"), "not everything could be removed; the next run tries again");
        }
    }
}

/// The most copies of each workload that run together.
fn most_copies(sweep: &Sweep) -> BTreeMap<usize, u32> {
    let mut most = BTreeMap::new();
    for (index, copies) in sweep.mixes.iter().flat_map(|mix| &mix.copies) {
        let known = most.entry(*index).or_insert(0);
        *known = (*known).max(*copies);
    }
    most
}

fn check_space(pool: &PoolView, sweep: &Sweep, copies: &BTreeMap<usize, u32>) -> Result<()> {
    let of = |(index, copies): (&usize, &u32)| sweep.workloads[*index].size.0.saturating_mul(u64::from(*copies));
    let needed = Bytes(copies.iter().map(of).fold(0, u64::saturating_add));
    match pool.free_bytes {
        Some(free) if free < needed => {
            let cause = format!("it has {free} of free space, and the volumes of all copies need {needed}");
            Err(Fault::new(Code::NoSpace, format!("pool {}", pool.name), cause)
                .hint("fewer copies, or a smaller `size` of their volumes")
                .into())
        }
        _ => Ok(()),
    }
}

/// Refuses if something that no sweep has created has one of the names: requests to create are idempotent, and would return it.
fn check_unused(daemon: &Daemon, sweep: &Sweep, copies: &BTreeMap<usize, u32>) -> Result<()> {
    let names: Vec<String> = copies
        .iter()
        .flat_map(|(index, copies)| (1..=*copies).map(|number| copy_name(&sweep.workloads[*index].name, number)))
        .collect();
    let is_one = |name: &Name| names.iter().any(|one| one == name.as_str());
    let tenants = daemon.request(async |client| client.tenant_list().await)?;
    let volumes = daemon.request(async |client| client.volume_list(None).await)?;
    let tenant = tenants.iter().find(|view| is_one(&view.name)).map(|view| format!("tenant {}", view.name));
    let volume = volumes
        .iter()
        .find(|view| view.volume.pool == sweep.pool && is_one(&view.volume.name))
        .map(|view| format!("volume {}", view.volume));
    match tenant.or(volume) {
        None => Ok(()),
        Some(object) => {
            Err(Fault::new(Code::AlreadyExists, object, "the sweep needs this name, and did not create it")
                .hint("rename the workload in the sweep file")
                .into())
        }
    }
}

fn remove_all(daemon: &Daemon) -> Result<()> {
    daemon.remove_created(CREATOR, |_| true)
}
