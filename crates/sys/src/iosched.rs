//! The tunables of a device's I/O scheduler: `/sys/dev/block/M:m/queue/iosched/` (kernel `Documentation/block/bfq-iosched.rst`).
//!
//! Setting the scheduler resets them to their defaults. Does not choose the scheduler (see `block`).

use std::fs;
use std::io;
use std::path::PathBuf;

use bulkhead_core::units::DevNo;

use crate::roots::Roots;

/// A tunable could not be read or set; `NotFound` if the active scheduler does not have it.
#[derive(Debug, thiserror::Error)]
#[error("cannot set {path} to {value:?}")]
pub struct IoschedError {
    /// The file.
    pub path: PathBuf,
    /// The value to be written.
    pub value: String,
    /// The operating system's reason.
    #[source]
    pub source: io::Error,
}

fn path_of(roots: &Roots, dev: DevNo, tunable: &str) -> PathBuf {
    roots.sys.join("dev/block").join(dev.to_string()).join("queue/iosched").join(tunable)
}

/// A tunable of the active scheduler; `None` if it has none of that name.
#[must_use]
pub fn get(roots: &Roots, dev: DevNo, tunable: &str) -> Option<String> {
    let text = fs::read_to_string(path_of(roots, dev, tunable)).ok()?;
    Some(text.trim().to_owned())
}

/// Sets a tunable of the active scheduler and reads it back; returns the old value.
///
/// # Errors
/// [`IoschedError`]; `InvalidData` if the kernel reports another value afterwards.
pub fn set(roots: &Roots, dev: DevNo, tunable: &str, value: &str) -> Result<String, IoschedError> {
    let path = path_of(roots, dev, tunable);
    let error = |source| IoschedError { path: path.clone(), value: value.to_owned(), source };
    if tunable.is_empty() || tunable.contains(['/', '.']) {
        return Err(error(io::ErrorKind::InvalidInput.into()));
    }
    let read = || fs::read_to_string(&path).map(|text| text.trim().to_owned());
    let old = read().map_err(error)?;
    if old == value {
        return Ok(old);
    }
    fs::write(&path, value).map_err(error)?;
    if read().map_err(error)? != value {
        return Err(error(io::ErrorKind::InvalidData.into()));
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunable_is_set_and_a_missing_one_is_named() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let dir = roots.sys.join("dev/block/8:0/queue/iosched");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("low_latency"), "1\n").unwrap();
        let dev = DevNo::new(8, 0);
        assert_eq!(get(&roots, dev, "low_latency").as_deref(), Some("1"));
        assert_eq!(set(&roots, dev, "low_latency", "0").unwrap(), "1");
        assert_eq!(set(&roots, dev, "low_latency", "0").unwrap(), "0");
        assert_eq!(get(&roots, dev, "strict_guarantees"), None);
        let missing = set(&roots, dev, "strict_guarantees", "1").unwrap_err();
        assert_eq!(missing.source.kind(), io::ErrorKind::NotFound);
        assert!(missing.to_string().contains("iosched/strict_guarantees"), "{missing}");
        assert!(!dir.join("strict_guarantees").exists());
        assert_eq!(set(&roots, dev, "../scheduler", "x").unwrap_err().source.kind(), io::ErrorKind::InvalidInput);
    }
}
