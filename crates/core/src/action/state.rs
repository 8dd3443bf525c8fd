//! Actions on directories and state files.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Record;

/// Actions on directories and state files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum StateAction {
    /// Makes a directory, mode 0700, with missing parents.
    MakeDir { path: PathBuf },
    /// Removes an empty directory.
    RemoveDir { path: PathBuf },
    /// Writes a state file atomically.
    WriteRecord { path: PathBuf, record: Box<Record> },
    /// Removes a state file durably.
    RemoveRecord { path: PathBuf },
}

impl fmt::Display for StateAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use StateAction as A;
        match self {
            A::MakeDir { path } => write!(f, "make directory {}", path.display()),
            A::RemoveDir { path } => write!(f, "remove directory {}", path.display()),
            A::WriteRecord { path, record } => write!(f, "write {} record {}", record.kind(), path.display()),
            A::RemoveRecord { path } => write!(f, "remove record {}", path.display()),
        }
    }
}
