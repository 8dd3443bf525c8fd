//! Directories and state files of the simulated host.

use std::path::Path;
use std::sync::Arc;

use bulkhead_core::action::{Record, StateAction};
use bulkhead_core::error::{Code, Fault};

use super::{Sim, World};
use crate::host::{Records, StateFiles};
use crate::store;

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_state(&mut self, action: &StateAction) -> Result<bool, Fault> {
        use StateAction as A;
        Ok(match action {
            A::MakeDir { path } => self.dirs.insert(path.clone()),
            A::RemoveDir { path } => self.dirs.remove(path),
            A::WriteRecord { path, record } => {
                let content = store::encode(record);
                self.files.insert(path.clone(), content.clone()) != Some(content)
            }
            A::RemoveRecord { path } => self.files.remove(path).is_some(),
        })
    }
}

impl StateFiles for Sim {
    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault> {
        let world = self.world();
        if world.unlistable.as_deref() == Some(dir) {
            return Err(Fault::new(Code::Internal, format!("directory {}", dir.display()), "cannot list it (EIO)"));
        }
        let here = world
            .files
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir) && path.to_string_lossy().ends_with(suffix));
        Ok(Arc::new(here.map(|(path, content)| (path.clone(), store::decode(path, content))).collect()))
    }

    fn record(&self, path: &Path) -> Option<Result<Record, Fault>> {
        self.world().files.get(path).map(|content| store::decode(path, content))
    }

    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault> {
        let world = self.world();
        if !world.dirs.contains(dir) {
            return Ok(None);
        }
        let names = world
            .files
            .keys()
            .chain(world.images.keys())
            .chain(world.staging_files.keys())
            .filter(|path| path.parent() == Some(dir));
        Ok(Some(names.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()))
    }

    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault> {
        Ok(directory.starts_with("/home").then(|| "/home/alice belongs to user 1000".to_owned()))
    }
}
