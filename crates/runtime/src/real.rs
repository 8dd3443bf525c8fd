//! The runtime that is executed: the first one of the settings that is there, and never this program itself.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Where programs are looked for without a `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// No runtime of the settings is there.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("found no other OCI runtime: looked for {} (PATH is {path}); install one, or name it in {}", names.join(", "), crate::settings::FILE)]
pub struct NoRuntime {
    /// The runtimes that were looked for.
    names: Vec<String>,
    /// The directories in which names were looked up.
    path: String,
}

/// Finds the runtime. `own` is this program's file, which has another name where an operator has linked it.
///
/// # Errors
/// [`NoRuntime`].
pub fn find(runtimes: &[PathBuf], path: Option<&OsStr>, own: Option<&Metadata>) -> Result<PathBuf, NoRuntime> {
    let path = path.filter(|path| !path.is_empty()).unwrap_or(OsStr::new(DEFAULT_PATH));
    let places = |runtime: &PathBuf| -> Vec<PathBuf> {
        if runtime.is_absolute() {
            return vec![runtime.clone()];
        }
        let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute());
        directories.map(|directory| directory.join(runtime)).collect()
    };
    let found = runtimes.iter().flat_map(places).find(|place| is_runtime(place, own));
    found.ok_or_else(|| NoRuntime {
        names: runtimes.iter().map(|runtime| runtime.display().to_string()).collect(),
        path: path.to_string_lossy().into_owned(),
    })
}

fn is_runtime(place: &Path, own: Option<&Metadata>) -> bool {
    let Ok(file) = place.metadata() else { return false };
    let is_own = own.is_some_and(|own| (own.dev(), own.ino()) == (file.dev(), file.ino()));
    // Root may read what nobody may execute.
    let is_program = file.is_file() && file.permissions().mode() & 0o111 != 0 && access(place, Access::EXEC_OK).is_ok();
    is_program && !is_own
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::symlink;

    #[test]
    fn the_first_runtime_that_is_there_is_executed_and_never_this_program() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (path, mode) in [("a/runc", 0o644), ("b/runc", 0o755), ("b/crun", 0o755), ("own", 0o755)] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), "").unwrap();
            fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir_all(at("a/crun")).unwrap();
        fs::create_dir_all(at("c")).unwrap();
        symlink(at("own"), at("c/runc")).unwrap();
        fs::hard_link(at("own"), at("c/crun")).unwrap();
        let own = at("own").metadata().unwrap();
        let found = |runtimes: &[&str], directories: &[&str]| {
            let path = std::env::join_paths(directories.iter().map(|name| at(name))).unwrap();
            let runtimes: Vec<PathBuf> = runtimes.iter().map(PathBuf::from).collect();
            find(&runtimes, Some(&path), Some(&own))
        };
        assert_eq!(found(&["runc", "crun"], &["a", "b", "c"]).unwrap(), at("b/runc"));
        assert_eq!(found(&["crun", "runc"], &["c", "a", "b"]).unwrap(), at("b/crun"));
        assert_eq!(found(&["none", "crun"], &["b"]).unwrap(), at("b/crun"));
        let absolute = at("b/crun");
        assert_eq!(found(&["/none", absolute.to_str().unwrap()], &["a"]).unwrap(), absolute);
        for runtimes in [&["runc", "crun"][..], &[at("own").to_str().unwrap()], &[at("c/runc").to_str().unwrap()]] {
            let error = found(runtimes, &["a", "c"]).unwrap_err().to_string();
            assert!(error.contains(runtimes[0]) && error.contains("runtime.toml"), "{error}");
        }
    }

    #[test]
    fn relative_directories_of_the_path_are_not_searched() {
        let found = |path: &str| find(&["sh".into()], Some(OsStr::new(path)), None);
        assert!(found(".:bin:../bin").is_err());
        assert!(found("").is_ok() && find(&["sh".into()], None, None).is_ok());
    }
}
