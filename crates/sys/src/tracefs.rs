//! Instances of tracefs: a ring buffer and events of our own, so that other users of tracing are not affected (kernel
//! `Documentation/trace/ftrace.rst`, "Instances").
//!
//! Owns the instance: it is removed on drop, or by the next trace of that name if this one is killed.

use std::fs;
use std::io;
use std::path::PathBuf;

use bulkhead_core::units::DevNo;
use rustix::mount::{MountFlags, mount};

use crate::roots::Roots;

/// Tracing could not be started or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {path}")]
pub struct TraceError {
    /// The file or directory of tracefs.
    path: PathBuf,
    /// The operating system's reason.
    #[source]
    source: io::Error,
}

/// An instance that traces since it was created.
#[derive(Debug)]
pub(crate) struct Instance {
    dir: PathBuf,
}

impl Instance {
    /// Creates the instance of this name, after removing that of a killed trace. `buffer_kib`: size of the ring buffer of each CPU.
    pub(crate) fn create(roots: &Roots, name: &str, buffer_kib: u32) -> Result<Self, TraceError> {
        let base = roots.sys.join("kernel/tracing");
        if !base.join("instances").exists() {
            mount("tracefs", &base, "tracefs", MountFlags::NOSUID | MountFlags::NODEV, None)
                .map_err(|errno| TraceError { path: base.clone(), source: errno.into() })?;
        }
        let instance = Self { dir: recreate(base.join("instances").join(name))? };
        instance.write("buffer_size_kb", &buffer_kib.to_string())?;
        Ok(instance)
    }

    /// Enables an event, for example `block/block_rq_issue`, for what the filter lets pass.
    pub(crate) fn enable(&self, event: &str, filter: &str) -> Result<(), TraceError> {
        self.write(&format!("events/{event}/filter"), filter)?;
        self.write(&format!("events/{event}/enable"), "1")
    }

    pub(crate) fn write(&self, file: &str, value: &str) -> Result<(), TraceError> {
        let path = self.dir.join(file);
        fs::write(&path, value).map_err(|source| TraceError { path, source })
    }

    /// Stops tracing, and returns the trace as text.
    pub(crate) fn stop(self) -> Result<String, TraceError> {
        self.write("tracing_on", "0")?;
        let path = self.dir.join("trace");
        let text = fs::read(&path).map_err(|source| TraceError { path, source })?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // An instance that cannot be removed is removed by the next trace.
        if let Err(error) = fs::remove_dir(&self.dir) {
            tracing::warn!(dir = %self.dir.display(), %error, "cannot remove a tracing instance");
        }
    }
}

/// A device's number in fields and filters of events: the kernel's `dev_t`, with 12 bits of major and 20 of minor.
pub(crate) fn kernel_dev(dev: DevNo) -> u64 {
    (u64::from(dev.major) << 20) | u64::from(dev.minor)
}

fn recreate(dir: PathBuf) -> Result<PathBuf, TraceError> {
    let removed = match fs::remove_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    match removed.and_then(|()| fs::create_dir(&dir)) {
        Ok(()) => Ok(dir),
        Err(source) => Err(TraceError { path: dir, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leftover_instance_is_recreated() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("bulkhead");
        for _ in 0..2 {
            assert_eq!(recreate(dir.clone()).unwrap(), dir);
        }
        let error = recreate(base.path().join("absent/x")).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::NotFound);
    }
}
