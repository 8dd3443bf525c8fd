//! Capabilities of this host: available kernel interfaces and helper programs.
//!
//! Owns probing. Reports facts only: consequences (backend, controller, findings) are decided elsewhere, and nothing is inferred from the
//! kernel's version.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::{self, HOST};
use serde::Serialize;

use crate::cgroup::{self, Mode};
use crate::iocost;
use crate::roots::Roots;
use crate::tool;

/// The helper programs that Bulkhead can use.
pub const PROGRAMS: [&str; 15] = [
    "mkfs.ext4",
    "e2fsck",
    "resize2fs",
    "tune2fs",
    "mkfs.xfs",
    "xfs_growfs",
    "xfs_repair",
    "xfs_admin",
    "lvm",
    "thin_check",
    "thin_delta",
    "dmsetup",
    "blkid",
    "wipefs",
    "fio",
];

/// Availability of a kernel interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Neither built in nor found as a module.
    Absent,
    /// A module for the running kernel is installed, but not loaded.
    Loadable,
    /// Available now.
    Ready,
}

impl Presence {
    /// Whether it is available or can be loaded.
    #[must_use]
    pub fn is_possible(self) -> bool {
        self != Self::Absent
    }
}

/// Facts about the host. A fact that could not be read counts as absent, and has a finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    /// `uname -r`; empty if it cannot be read. For reports and for locating modules, not for comparisons.
    pub kernel_release: String,
    /// How cgroups are mounted.
    pub cgroup_mode: Mode,
    /// Controllers available at the root of the v2 hierarchy.
    pub cgroup_controllers: BTreeSet<String>,
    /// Pressure stall information can be read (`/proc/pressure/io`).
    pub psi: bool,
    /// The kernel has the io.cost controller (`io.cost.qos` at the root of the hierarchy).
    pub iocost: bool,
    /// The BFQ I/O scheduler.
    pub bfq: Presence,
    /// Loop devices (`/dev/loop-control`).
    pub loopdev: Presence,
    /// The device mapper (`/dev/mapper/control`).
    pub device_mapper: Presence,
    /// The device mapper's thin provisioning target.
    pub dm_thin: Presence,
    /// ublk, block devices served by a process (`/dev/ublk-control`).
    pub ublk: Presence,
    /// The ext4 file system.
    pub ext4: Presence,
    /// The XFS file system.
    pub xfs: Presence,
    /// We run as root (effective user ID 0).
    pub is_root: bool,
    /// Path of each of [`PROGRAMS`].
    pub programs: BTreeMap<String, Option<PathBuf>>,
    /// Facts that could not be read, with the reason, and missing features. Reported separately from the facts.
    #[serde(skip)]
    pub findings: Vec<Finding>,
}

/// Probes the host. Loads no module and changes nothing.
#[must_use]
pub fn probe(roots: &Roots) -> HostFacts {
    let mut findings = Vec::new();
    let kernel_release =
        ok_or_note(&mut findings, "the kernel's release", read(&roots.proc.join("sys/kernel/osrelease")))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default();
    let cgroup_controllers =
        ok_or_note(&mut findings, "the cgroup controllers", cgroup::controllers(roots)).unwrap_or_default();
    if cgroup::mode(roots) == Mode::V2 && !cgroup_controllers.is_empty() && !cgroup_controllers.contains("cpu") {
        findings.push(health::no_cpu_controller());
    }
    let modules = Modules::read(roots, &kernel_release, &mut findings);
    let filesystems = ok_or_note(&mut findings, "the kernel's file systems", read(&roots.proc.join("filesystems")))
        .unwrap_or_default();
    let file_system = |name: &str| {
        if lists_file_system(&filesystems, name) { Presence::Ready } else { modules.presence(name) }
    };
    let device = |node: &str, module: &str| {
        if roots.dev.join(node).exists() { Presence::Ready } else { modules.presence(module) }
    };
    let schedulers = schedulers(roots, &mut findings);
    HostFacts {
        cgroup_mode: cgroup::mode(roots),
        psi: has_psi(roots, &mut findings),
        iocost: iocost::is_supported(roots),
        bfq: if schedulers.contains("bfq") { Presence::Ready } else { modules.presence("bfq") },
        // The node may exist before the module is loaded (kmod static nodes); opening it loads the module.
        loopdev: device("loop-control", "loop"),
        device_mapper: device("mapper/control", "dm_mod"),
        dm_thin: modules.presence("dm_thin_pool"),
        ublk: device("ublk-control", "ublk_drv"),
        ext4: file_system("ext4"),
        xfs: file_system("xfs"),
        is_root: rustix::process::geteuid().is_root(),
        programs: PROGRAMS.iter().map(|&name| (name.to_owned(), tool::find_program(name))).collect(),
        kernel_release,
        cgroup_controllers,
        findings,
    }
}

/// The modules of the running kernel.
#[derive(Debug)]
struct Modules {
    /// Loaded, or built in and visible (`/sys/module`).
    sys_module: PathBuf,
    built_in: BTreeSet<String>,
    installed: BTreeSet<String>,
}

impl Modules {
    fn read(roots: &Roots, release: &str, findings: &mut Vec<Finding>) -> Self {
        let mut lists = [BTreeSet::new(), BTreeSet::new()];
        // A release with a slash would escape the directory; no kernel has one.
        if !release.is_empty() && !release.contains('/') {
            let base = roots.sys.parent().unwrap_or(Path::new("/")).join("lib/modules").join(release);
            for (list, file) in lists.iter_mut().zip(["modules.builtin", "modules.dep"]) {
                let text = ok_or_note(findings, "the list of kernel modules", read(&base.join(file)));
                *list = text.map(|text| parse_modules(&text)).unwrap_or_default();
            }
        }
        let [built_in, installed] = lists;
        Self { sys_module: roots.sys.join("module"), built_in, installed }
    }

    fn presence(&self, name: &str) -> Presence {
        if self.built_in.contains(name) || self.sys_module.join(name).exists() {
            Presence::Ready
        } else if self.installed.contains(name) {
            Presence::Loadable
        } else {
            Presence::Absent
        }
    }
}

/// The names in `modules.builtin` or `modules.dep` (`kernel/block/bfq.ko.xz: …`), with `_` for `-` as in `/sys/module`.
fn parse_modules(text: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split_once(".ko").map(|(stem, _)| stem.replace('-', "_"))
    };
    text.lines().filter_map(name).collect()
}

/// The names in `/sys/block/<device>/queue/scheduler`, such as `none [mq-deadline] bfq`.
fn parse_schedulers(text: &str) -> impl Iterator<Item = String> {
    text.split_ascii_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned())
}

/// Whether `/proc/filesystems` lists it (`nodev\tproc`, `\text4`).
pub(crate) fn lists_file_system(text: &str, name: &str) -> bool {
    text.lines().any(|line| line.split('\t').next_back() == Some(name))
}

fn schedulers(roots: &Roots, findings: &mut Vec<Finding>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let entries =
        ok_or_note(findings, "the block devices", with_path(&roots.sys.join("block"), |dir| fs::read_dir(dir)));
    for entry in entries.into_iter().flatten().flatten() {
        // A device that has vanished, or has no queue, has no scheduler.
        if let Ok(text) = fs::read_to_string(entry.path().join("queue/scheduler")) {
            found.extend(parse_schedulers(&text));
        }
    }
    found
}

fn has_psi(roots: &Roots, findings: &mut Vec<Finding>) -> bool {
    // With psi=0 on the kernel command line the file may exist but be unreadable.
    let file = roots.proc.join("pressure/io");
    file.exists() && ok_or_note(findings, "pressure stall information", read(&file)).is_some()
}

fn read(path: &Path) -> io::Result<String> {
    with_path(path, |path| fs::read_to_string(path))
}

/// Adds the path to the error.
fn with_path<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    act(path).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// The value; adds a finding for an error.
fn ok_or_note<T>(findings: &mut Vec<Finding>, what: &str, result: io::Result<T>) -> Option<T> {
    let finding = |error| Finding::new(FindingId::FactUnreadable, HOST, format!("cannot read {what}: {error}"));
    result.map_err(|error| findings.push(finding(error))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn all_facts_of_a_host_are_detected() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        put(&roots.proc.join("sys/kernel/osrelease"), "6.12.0-amd64\n");
        put(&roots.proc.join("filesystems"), "nodev\tsysfs\n\text4\n");
        put(&roots.proc.join("pressure/io"), "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        put(&roots.cgroup.join("cgroup.controllers"), "cpu io memory\n");
        put(&roots.cgroup.join("io.cost.qos"), "");
        put(&roots.dev.join("loop-control"), "");
        put(&roots.sys.join("block/vda/queue/scheduler"), "none [mq-deadline] kyber\n");
        fs::create_dir_all(roots.sys.join("block/vdb")).unwrap();
        fs::create_dir_all(roots.sys.join("module/dm_mod")).unwrap();
        let modules = base.path().join("lib/modules/6.12.0-amd64");
        put(&modules.join("modules.builtin"), "kernel/fs/fuse/fuse.ko\n");
        put(
            &modules.join("modules.dep"),
            "kernel/block/bfq.ko.xz:\nkernel/drivers/md/dm-thin-pool.ko.xz: kernel/drivers/md/dm-mod.ko.xz\n\
             kernel/fs/xfs/xfs.ko.xz: kernel/lib/libcrc32c.ko.xz\n",
        );
        let facts = probe(&roots);
        assert_eq!(facts.findings, []);
        assert_eq!((facts.kernel_release.as_str(), facts.cgroup_mode), ("6.12.0-amd64", Mode::V2));
        assert!(facts.psi && facts.iocost && facts.cgroup_controllers.contains("io"));
        assert_eq!((facts.bfq, facts.dm_thin, facts.xfs), (Presence::Loadable, Presence::Loadable, Presence::Loadable));
        assert_eq!(
            (facts.loopdev, facts.device_mapper, facts.ext4),
            (Presence::Ready, Presence::Ready, Presence::Ready)
        );
        assert_eq!(facts.ublk, Presence::Absent);
        assert!(facts.ublk < facts.xfs && facts.xfs.is_possible() && !facts.ublk.is_possible());
        assert_eq!(facts.programs.len(), PROGRAMS.len());

        put(&roots.sys.join("block/vdb/queue/scheduler"), "[none] bfq\n");
        assert_eq!(probe(&roots).bfq, Presence::Ready);
        put(&roots.cgroup.join("cgroup.controllers"), "io memory\n");
        assert_eq!(probe(&roots).findings, [health::no_cpu_controller()]);
    }

    #[test]
    fn on_an_empty_host_everything_is_absent_with_reasons() {
        let base = tempfile::tempdir().unwrap();
        let facts = probe(&Roots::under(base.path()));
        assert_eq!(facts.cgroup_mode, Mode::None);
        assert!(!facts.psi && !facts.iocost);
        let all = [facts.bfq, facts.loopdev, facts.device_mapper, facts.dm_thin, facts.ublk, facts.ext4, facts.xfs];
        assert!(all.iter().all(|p| *p == Presence::Absent));
        let evidence: Vec<&String> = facts.findings.iter().map(|finding| &finding.evidence).collect();
        assert!(evidence.iter().any(|text| text.starts_with("cannot read the kernel's release: ")), "{evidence:?}");
        assert!(evidence.iter().all(|text| text.contains(&*base.path().to_string_lossy())), "{evidence:?}");
    }

    #[test]
    fn this_host_can_be_probed_and_serialised() {
        let facts = probe(&Roots::host());
        assert!(!facts.kernel_release.is_empty());
        let json = serde_json::to_value(&facts).unwrap();
        assert!(json["bfq"].is_string() && json["cgroup_mode"].is_string() && json["programs"].is_object());
        assert!(json.get("findings").is_none(), "findings are not facts");
    }

    #[test]
    fn module_lists_are_parsed() {
        let names = parse_modules("kernel/drivers/md/dm-mod.ko.zst: x\nkernel/a/b.ko\nnonsense\n\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["b", "dm_mod"]);
        assert!(lists_file_system("nodev\tproc\n\txfs\n", "xfs") && !lists_file_system("\txfsx\n", "xfs"));
    }
}
