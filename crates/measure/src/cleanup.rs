//! Mutual exclusion of runs that change the host, and records from which a run undoes the changes of a killed one.
//!
//! Owns: the lock, and the files with settings to restore. Does not: know their content.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::{self, FileError, LockFile};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Directory for mount points, sockets and the lock of a run; empty after a reboot.
pub const RUN_DIR: &str = "/run/bulkhead-bench";
/// Limit of a record's size.
const LEFTOVER_LIMIT: Bytes = Bytes(1 << 16);

/// Locks for the duration of an experiment or calibration: two at a time would measure and remove each other's objects.
///
/// # Errors
/// A fault (`InUse`) while another one is in progress.
pub fn lock() -> Result<LockFile> {
    fs::create_dir_all(RUN_DIR).with_context(|| format!("cannot create {RUN_DIR}"))?;
    lock_at(&Path::new(RUN_DIR).join("lock"))
}

fn lock_at(path: &Path) -> Result<LockFile> {
    match file::lock_exclusive(path) {
        Err(FileError::AlreadyLocked { pid, .. }) => {
            let holder = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
            let cause = format!("another experiment or calibration is under way{holder}");
            Err(Fault::new(Code::InUse, "this host", cause).hint("wait for its end").into())
        }
        locked => locked.context("the lock of experiments"),
    }
}

/// Stores settings to restore, before they are changed.
pub fn store_record(path: &Path, what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(what).context("cannot encode what is to be restored")?;
    file::write_atomic(path, &text).context("cannot record what is to be restored")
}

/// Loads the settings to restore, if there are any.
pub fn load_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = file::read_limited(path, LEFTOVER_LIMIT).context("what is to be restored")?;
    serde_json::from_slice(&text).map(Some).with_context(|| format!("cannot read {}", path.display()))
}

/// Removes the record, after the settings have been restored.
pub fn remove_record(path: &Path) -> Result<()> {
    file::remove_durable(path).map(drop).context("the record of what was to be restored")
}

/// Combines the result of some work with that of removing its set-up; keeps both errors.
pub fn with_removal<T>(worked: Result<T>, removed: Result<()>) -> Result<T> {
    match (worked, removed) {
        (Ok(value), removed) => removed.map(|()| value),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(match error.downcast::<Fault>() {
            Ok(fault) => Fault { cause: format!("{}; and {left:#}", fault.cause), ..fault }.into(),
            Err(error) => anyhow!("{error:#}; and {left:#}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_run_is_refused_until_the_first_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = lock_at(&path).unwrap();
        let fault: Fault = lock_at(&path).unwrap_err().downcast().unwrap();
        assert_eq!(fault.code, Code::InUse);
        assert!(fault.cause.ends_with(&format!("(process {})", std::process::id())), "{fault}");
        drop(first);
        // A child forked by another test also holds it, until it executes its program.
        let begin = std::time::Instant::now();
        while let Err(error) = lock_at(&path) {
            assert!(begin.elapsed() < std::time::Duration::from_secs(10), "{error:#}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn records_are_kept_until_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        assert_eq!(load_record::<u32>(&path).unwrap(), None);
        store_record(&path, &7).unwrap();
        assert_eq!(load_record::<u32>(&path).unwrap(), Some(7));
        assert!(load_record::<String>(&path).is_err());
        remove_record(&path).unwrap();
        assert_eq!(load_record::<u32>(&path).unwrap(), None);
    }

    #[test]
    fn both_errors_are_reported() {
        let fault = || Fault::new(Code::NoSpace, "pool p", "it is full");
        let left = || Err(anyhow!("busy").context("cannot unmount"));
        assert_eq!(with_removal(Ok(1), Ok(())).unwrap(), 1);
        assert_eq!(with_removal(Ok(1), left()).unwrap_err().to_string(), "cannot unmount");
        let error = with_removal::<()>(Err(anyhow!("interrupted")), left()).unwrap_err();
        assert_eq!(error.to_string(), "interrupted; and cannot unmount: busy");
        let both: Fault = with_removal::<()>(Err(fault().into()), left()).unwrap_err().downcast().unwrap();
        assert_eq!(both, Fault { cause: "it is full; and cannot unmount: busy".to_owned(), ..fault() });
    }
}
