//! An empty whole device, for experiments on the device itself.
//!
//! Owns: the exclusive claim, and the settings of its queue in that time. Does not: measure.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::DevNo;
use bulkhead_engine::engine::Engine;
use bulkhead_measure::cleanup::{lock, with_removal};
use bulkhead_measure::layout::{Target, private_engine, record_scheduler, remove_all, remove_leftovers};
use bulkhead_sys::file::LockFile;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, fsutil, iocost};
use rustix::fs::{Mode, OFlags};

/// An empty whole device: claimed, signatures erased, without scheduler and io.cost. Released on drop; [`Raw::release`] does the same and returns
/// errors.
#[derive(Debug)]
pub(crate) struct Raw {
    engine: Engine,
    roots: Roots,
    path: PathBuf,
    device: String,
    dev: DevNo,
    is_given_back: bool,
    // No other process may mount it in this time.
    _claim: OwnedFd,
    _lock: LockFile,
}

impl Raw {
    /// Removes leftovers of a killed run, then claims the device.
    ///
    /// # Errors
    /// If it is not a whole device, may not be erased or is in use; if another run is in progress, or this host has tenants of Bulkhead.
    pub(crate) fn take(target: &Target, program: &Path) -> Result<Self> {
        let Target::Device { path, erase: true } = target else {
            bail!("this needs a whole device that may be erased");
        };
        let roots = Roots::host();
        let lock = lock()?;
        let engine = private_engine(program)?;
        remove_leftovers(&engine, &roots)?;
        let found = block::by_path(&roots, path).context("the device")?;
        if found.partition_of.is_some() {
            bail!("{} is a partition: a whole device is needed", path.display());
        }
        fsutil::wipe(path).context("the device")?;
        let claim = rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())
            .with_context(|| format!("cannot claim {}", path.display()))?;
        let scheduler = found.scheduler.map(|scheduler| scheduler.active);
        record_scheduler(&found.name, scheduler)?;
        let raw = Self {
            engine,
            roots,
            path: path.clone(),
            device: found.name,
            dev: found.dev,
            is_given_back: false,
            _claim: claim,
            _lock: lock,
        };
        let bared = raw.bare();
        match bared {
            Ok(()) => Ok(raw),
            Err(error) => with_removal(Err(error), raw.release()),
        }
    }

    fn bare(&self) -> Result<()> {
        iocost::disable(&self.roots, self.dev).context("cannot switch io.cost off")?;
        block::set_scheduler(&self.roots, self.dev, "none").context("cannot take the scheduler away")?;
        Ok(())
    }

    /// Its device node, as specified.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its kernel name.
    pub(crate) fn device(&self) -> &str {
        &self.device
    }

    /// Its number.
    pub(crate) fn dev(&self) -> DevNo {
        self.dev
    }

    /// Restores its scheduler.
    ///
    /// # Errors
    /// If the kernel refuses; the next run tries again.
    pub(crate) fn release(mut self) -> Result<()> {
        self.is_given_back = true;
        remove_all(&self.engine, &self.roots).context("cannot restore the device's queue")
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.is_given_back
            && let Err(error) = remove_all(&self.engine, &self.roots)
        {
            tracing::error!(
                error = format!("{error:#}"),
                "the device's queue was not restored; the next run tries again"
            );
        }
    }
}
