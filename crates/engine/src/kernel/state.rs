//! Directories and state files: their actions and look-ups.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::{fs, io};

use bulkhead_core::action::{Record, StateAction};
use bulkhead_core::error::{Fault, chain};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file;

use super::Kernel;
use super::act::Outcome;
use super::faults::{Classify, file as file_object};
use crate::host::{Records, StateFiles};
use crate::store;

impl Kernel {
    pub(super) fn act_on_state(&self, action: &StateAction) -> Result<Outcome, Fault> {
        use StateAction as A;
        match action {
            A::MakeDir { path } => make_dir(path),
            A::RemoveDir { path } => remove_dir(path),
            A::WriteRecord { path, record } => {
                let outcome = write_record(path, &store::encode(record))?;
                remove_leftovers(path).map(|()| outcome)
            }
            A::RemoveRecord { path } => {
                let outcome = remove_file(path)?;
                remove_leftovers(path).map(|()| outcome)
            }
        }
    }
}

impl StateFiles for Kernel {
    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault> {
        let names = self.list_dir(dir)?.unwrap_or_default();
        // A name that starts with a dot is a temporary file that a crash left; it was never the record.
        let wanted = names.into_iter().filter(|name| name.ends_with(suffix) && !name.starts_with('.'));
        Ok(self.known.list(dir, suffix, wanted.map(|name| dir.join(name)), |path| self.record(path)))
    }

    fn record(&self, path: &Path) -> Option<Result<Record, Fault>> {
        let content = match file::read_limited(path, Bytes(store::MAX_BYTES)) {
            Err(error) if error.is_not_found() => return None,
            Err(error @ file::FileError::TooLarge { .. }) => Err(store::damaged(path, chain(&error))),
            content => content.map_err(|e| e.fault(format!("state file {}", path.display()))),
        };
        Some(content.and_then(|content| store::decode(path, &content)))
    }

    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault> {
        let fault = |source: std::io::Error| {
            file::FileError::io("list", dir, source).fault(format!("directory {}", dir.display()))
        };
        match std::fs::read_dir(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fault(error)),
            Ok(entries) => {
                let names: Result<Vec<String>, _> =
                    entries.map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned())).collect();
                let mut names = names.map_err(fault)?;
                names.sort();
                Ok(Some(names))
            }
        }
    }

    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault> {
        file::who_can_replace(directory).map_err(|e| e.fault(format!("directory {}", directory.display())))
    }
}

pub(super) fn remove_file(path: &Path) -> Result<Outcome, Fault> {
    file::remove_durable(path).map(Outcome::changed).map_err(|e| e.fault(file_object(path)))
}

/// Removes what a killed daemon left of a record: records are written by the daemon alone, of which one runs.
fn remove_leftovers(path: &Path) -> Result<(), Fault> {
    file::remove_leftovers(path).map_err(|e| e.fault(file_object(path)))
}

fn make_dir(path: &Path) -> Result<Outcome, Fault> {
    if path.is_dir() {
        return Ok(Outcome::UNCHANGED);
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|e| io_fault("make", path, e)).map(|()| Outcome::DONE)
}

fn remove_dir(path: &Path) -> Result<Outcome, Fault> {
    // Checked first: on a read-only file system, removing a missing directory fails for another reason.
    if !path.exists() {
        return Ok(Outcome::UNCHANGED);
    }
    match fs::remove_dir(path) {
        Ok(()) => Ok(Outcome::DONE),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Outcome::UNCHANGED),
        // Files in it are kept. Nothing will be mounted over them.
        Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => {
            tracing::warn!(directory = %path.display(), "files are in it, so it stays");
            Ok(Outcome::UNCHANGED)
        }
        Err(e) => Err(io_fault("remove", path, e)),
    }
}

fn write_record(path: &Path, content: &[u8]) -> Result<Outcome, Fault> {
    let limit = Bytes(store::MAX_BYTES);
    if file::read_limited(path, limit).is_ok_and(|old| old == content) {
        return Ok(Outcome::UNCHANGED);
    }
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    file::write_atomic(path, content).map_err(|e| e.fault(file_object(path)))?;
    Ok(Outcome::DONE)
}

fn io_fault(operation: &'static str, path: &Path, source: io::Error) -> Fault {
    file::FileError::io(operation, path, source).fault(format!("directory {}", path.display()))
}
