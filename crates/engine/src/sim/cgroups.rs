//! Cgroups of the simulated host, and the journal threads in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use bulkhead_api::wire::IoBytes;
use bulkhead_core::action::CgroupAction;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::{Identity, identify};
use bulkhead_core::model::{IoMax, RateLimit};
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;

use super::{Sim, World};
use crate::host::{Cgroups, JournalFacts};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_cgroup(&mut self, action: &CgroupAction) -> Result<bool, Fault> {
        use CgroupAction as A;
        Ok(match action {
            A::CreateCgroup { cgroup } => {
                let is_new = !self.cgroups.contains_key(cgroup);
                for path in cgroup.ancestors().into_iter().skip(1).chain([cgroup.clone()]) {
                    self.cgroups.entry(path).or_default();
                }
                is_new
            }
            // Processes are not simulated.
            A::MoveProcesses { .. } => false,
            A::EnableController { cgroup, controller } => {
                assert_eq!(controller, "cpu", "io and memory come with a cgroup");
                let is_above_enabled = cgroup.parent().is_none_or(|above| self.cpu_below.contains(&above));
                if self.lacks_cpu || !is_above_enabled {
                    return Err(Fault::new(Code::Unsupported, format!("cgroup {cgroup}"), "cpu is not available"));
                }
                if self.refuses_cpu.as_ref() == Some(cgroup) {
                    return Err(Fault::new(
                        Code::Unsupported,
                        format!("cgroup {cgroup}"),
                        "a realtime process is below it",
                    ));
                }
                assert!(
                    cgroup.is_root() || self.cgroups.contains_key(cgroup),
                    "cpu was enabled below a missing cgroup"
                );
                self.cpu_below.insert(cgroup.clone())
            }
            A::WriteCgroup { cgroup, file, value } => {
                let is_above_enabled = cgroup.parent().is_none_or(|above| self.cpu_below.contains(&above));
                assert!(file != "cpu.weight" || is_above_enabled, "there is no cpu.weight in {cgroup}");
                let files = self.cgroups.get_mut(cgroup).expect("the cgroup exists");
                files.insert(file.clone(), value.clone()).as_ref() != Some(value)
            }
            A::SetWeight { cgroup, file, device, weight } => {
                let files = self.cgroups.get_mut(cgroup);
                let files =
                    files.ok_or_else(|| Fault::new(Code::NotFound, format!("cgroup {cgroup}"), "it is gone"))?;
                files.insert(format!("{file} {device}"), weight.to_string()) != Some(weight.to_string())
            }
            A::ResetWeight { cgroup, file, device } => {
                self.cgroups.get_mut(cgroup).is_some_and(|files| files.remove(&format!("{file} {device}")).is_some())
            }
            A::LimitIo { cgroup, device, limit } => match self.cgroups.get_mut(cgroup) {
                Some(files) if *limit == IoMax { ops: RateLimit::default(), bytes: Some(RateLimit::default()) } => {
                    files.remove(&format!("io.max {device}")).is_some()
                }
                Some(files) => files.insert(format!("io.max {device}"), limit.to_string()) != Some(limit.to_string()),
                None => false,
            },
            A::RemoveCgroup { cgroup } => {
                let has_children = self.cgroups.keys().any(|path| path.parent().as_ref() == Some(cgroup));
                // As the kernel's: it stays until its last tenant is gone.
                if *cgroup == slices::root() && has_children {
                    return Ok(false);
                }
                assert!(!has_children, "a cgroup with children was removed");
                let threads = self.journals.values().chain(self.adopted.values());
                let mut inside = threads.chain(self.attached.values().flatten());
                assert!(!inside.any(|c| c == cgroup), "a cgroup with a thread or a server was removed");
                self.cpu_below.remove(cgroup);
                self.cgroups.remove(cgroup).is_some()
            }
            A::PlaceJournal { device, cgroup, .. } => {
                assert!(self.cgroups.contains_key(cgroup), "a journal was put into a missing cgroup");
                let target =
                    self.mounts.iter().find(|(_, mounted)| *mounted == device).map(|(target, _)| target.clone());
                let target = target.ok_or_else(|| Fault::new(Code::Internal, device, "no journal thread"))?;
                self.journals.insert(target, cgroup.clone()).as_ref() != Some(cgroup)
            }
            A::MoveJournal { device, cgroup } => {
                assert!(
                    cgroup.is_root() || self.cgroups.contains_key(cgroup),
                    "a journal was put into a missing cgroup"
                );
                self.adopted.insert(device.clone(), cgroup.clone()).as_ref() != Some(cgroup)
            }
        })
    }
}

impl Cgroups for Sim {
    fn weight_files(&self) -> Vec<&'static str> {
        vec!["io.weight"]
    }

    fn controllers(&self) -> BTreeSet<String> {
        let all = ["cpu", "io", "memory"].into_iter().filter(|name| *name != "cpu" || !self.world().lacks_cpu);
        all.map(str::to_owned).collect()
    }

    fn containers(&self) -> Result<Vec<(CgroupPath, Identity)>, Fault> {
        Ok(self.world().cgroups.keys().map(|path| (path.clone(), identify(path.relative()))).collect())
    }

    fn weight(&self, cgroup: &CgroupPath, file: &str, _dev: DevNo) -> Result<Option<u32>, Fault> {
        let world = self.world();
        let weight = |files: &BTreeMap<String, String>| {
            let own = files.get(&format!("{file} sda")).map(String::as_str);
            own.map_or(100, |weight| weight.parse().unwrap())
        };
        Ok(world.cgroups.get(cgroup).map(weight))
    }

    fn io_max(&self, cgroup: &CgroupPath, _dev: DevNo) -> Result<Option<IoMax>, Fault> {
        let limit = |files: &BTreeMap<String, String>| {
            let line = files.get("io.max sda").map_or("", String::as_str);
            let of = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.parse().ok());
            let limit = |direction: char, unit: &str| of(&format!("{direction}{unit}="));
            let [bytes, ops] =
                ["bps", "iops"].map(|unit| RateLimit { read: limit('r', unit), write: limit('w', unit) });
            IoMax { ops, bytes: Some(bytes) }
        };
        Ok(self.world().cgroups.get(cgroup).map(limit))
    }

    fn io_bytes(&self, _cgroup: &CgroupPath) -> IoBytes {
        IoBytes::default()
    }

    fn moved_bytes(&self, cgroup: &CgroupPath, _dev: DevNo) -> u64 {
        // A quarter is journal.
        let ms = u64::try_from(self.world().busy_for.as_millis()).unwrap_or(u64::MAX);
        if cgroup.name().contains("journal:") { ms } else { 3 * ms }
    }

    fn operations(&self, _cgroup: &CgroupPath, _dev: DevNo) -> u64 {
        // One in a millisecond.
        u64::try_from(self.world().busy_for.as_millis()).unwrap_or(u64::MAX)
    }

    fn io_waited(&self, _cgroup: &CgroupPath) -> Option<Duration> {
        Some(self.world().busy_for)
    }

    fn journal_at(&self, path: &Path) -> Result<JournalFacts, Fault> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let device = name.parse().ok().filter(|_| name.starts_with("sda"));
        let device = device.ok_or_else(|| Fault::new(Code::Unsupported, name, "it has no journal thread"))?;
        let cgroup = self.world().adopted.get(&device).cloned().unwrap_or_else(CgroupPath::root);
        Ok(JournalFacts { physical: vec!["sda".to_owned()], device, cgroup })
    }
}
