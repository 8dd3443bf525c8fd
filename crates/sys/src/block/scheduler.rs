//! I/O schedulers of a request queue (`queue/scheduler`).

use std::fs;

use bulkhead_core::units::DevNo;

use super::{BlockError, device_dir, parent_disk, read_optional};
use crate::roots::Roots;
use crate::tool::Tool;

/// The I/O schedulers of a request queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// The active one; `none` is a scheduler too.
    pub active: String,
    /// Those that can be set without loading a module, including `active`.
    pub available: Vec<String>,
}

/// Sets the I/O scheduler of a device's queue (of the disk, for a partition) and reads it back; returns the old one.
///
/// If the kernel does not list it, its module is loaded first (`bfq`, `kyber-iosched`, `mq-deadline`).
///
/// # Errors
/// [`BlockError::SchedulerUnavailable`], [`BlockError::SchedulerNotActive`], [`BlockError::Write`], and those of [`inspect`].
pub fn set_scheduler(roots: &Roots, dev: DevNo, wanted: &str) -> Result<String, BlockError> {
    let disk = parent_disk(&device_dir(roots, dev)?)?.unwrap_or(dev);
    let path = device_dir(roots, disk)?.join("queue/scheduler");
    let unavailable = |available: Vec<String>, source| BlockError::SchedulerUnavailable {
        dev: disk,
        wanted: wanted.to_owned(),
        available,
        source,
    };
    let current = || -> Result<Scheduler, BlockError> {
        let text = read_optional(&path)?.unwrap_or_default();
        parse_scheduler(&text).ok_or_else(|| unavailable(Vec::new(), None))
    };
    let mut before = current()?;
    if before.active == wanted {
        return Ok(before.active);
    }
    if !before.available.iter().any(|name| name == wanted) {
        let module = match wanted {
            "bfq" => "bfq",
            "kyber" => "kyber-iosched",
            "mq-deadline" => "mq-deadline",
            _ => return Err(unavailable(before.available, None)),
        };
        if let Err(error) = Tool::new("modprobe").arg(module).run() {
            return Err(unavailable(before.available, Some(Box::new(error))));
        }
        before = current()?;
        if !before.available.iter().any(|name| name == wanted) {
            return Err(unavailable(before.available, None));
        }
    }
    fs::write(&path, wanted).map_err(|source| BlockError::Write {
        path: path.clone(),
        value: wanted.to_owned(),
        source,
    })?;
    let now = current()?.active;
    if now == wanted {
        Ok(before.active)
    } else {
        Err(BlockError::SchedulerNotActive { dev: disk, wanted: wanted.to_owned(), found: now })
    }
}

/// `mq-deadline [none]`; a device with a single scheduler shows one word without brackets.
pub(super) fn parse_scheduler(text: &str) -> Option<Scheduler> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let bracketed = words.iter().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let active = match (bracketed, words.as_slice()) {
        (Some(active), _) => active,
        (None, [only]) => only,
        _ => return None,
    };
    let available = words.iter().map(|word| word.trim_matches(['[', ']']).to_owned()).collect();
    Some(Scheduler { active: active.to_owned(), available })
}
