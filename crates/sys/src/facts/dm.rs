//! The state of device-mapper devices, as facts (`dmsetup status`, without a flush of thin pools' metadata).

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use bulkhead_core::facts::{Paths, ThinPool};
use bulkhead_core::identity::printable;

use crate::roots::Roots;
use crate::tool::Tool;

/// Time limit of `dmsetup`, less than that of a look.
const LIMIT: Duration = Duration::from_millis(1500);

/// The state of a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// The type of its first target.
    pub(super) target: String,
    pub(super) thin_pool: Option<ThinPool>,
    pub(super) paths: Option<Paths>,
}

/// The state of all devices, by name.
pub(super) fn read(roots: &Roots) -> Result<HashMap<String, Status>, String> {
    let entries = fs::read_dir(roots.sys.join("class/block")).into_iter().flatten().flatten();
    if !entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("dm-")) {
        return Ok(HashMap::new());
    }
    let output =
        Tool::new("dmsetup").args(["status", "--noflush"]).limit(LIMIT).run().map_err(|error| error.to_string())?;
    Ok(parse(&output.stdout))
}

fn parse(text: &str) -> HashMap<String, Status> {
    let mut found = HashMap::new();
    for line in text.lines() {
        // `NAME: BEGIN LENGTH TARGET …`, a line for each target of a device. Names have no white space, but can have a colon.
        let Some((name, rest)) = line.split_once(": ") else { continue };
        let words: Vec<&str> = rest.split_whitespace().collect();
        let [_, _, target, ref state @ ..] = words[..] else { continue };
        found.entry(name.to_owned()).or_insert_with(|| Status {
            target: printable(target),
            thin_pool: (target == "thin-pool").then(|| thin_pool(state)).flatten(),
            paths: (target == "multipath").then(|| paths(state)),
        });
    }
    found
}

/// `ID META/META DATA/DATA ROOT MODE DISCARD QUEUE CHECK …`, or `Fail` or `Error` alone.
fn thin_pool(words: &[&str]) -> Option<ThinPool> {
    if let [state] = words {
        return Some(ThinPool { state: printable(state), ..ThinPool::default() });
    }
    let part = |text: &str| {
        let (used, total) = text.split_once('/')?;
        Some((used.parse().ok()?, total.parse().ok()?))
    };
    let [_, metadata, data, _, state, ref rest @ ..] = words[..] else { return None };
    Some(ThinPool {
        data: part(data)?,
        metadata: part(metadata)?,
        state: printable(state),
        needs_check: rest.contains(&"needs_check"),
        queues: rest.contains(&"queue_if_no_space"),
    })
}

/// Each path is a device number and `A` (active) or `F` (failed), among other words.
fn paths(words: &[&str]) -> Paths {
    let mut paths = Paths::default();
    for pair in words.windows(2) {
        let is_device = pair[0]
            .split_once(':')
            .is_some_and(|(major, minor)| major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok());
        match pair[1] {
            "A" if is_device => paths.usable += 1,
            "F" if is_device => paths.failed += 1,
            _ => (),
        }
    }
    paths
}

/// Whether LVM extends thin pools (lvm.conf(5), `thin_pool_autoextend_threshold`); `None` without LVM's configuration.
pub(super) fn thin_autoextend(roots: &Roots) -> Option<bool> {
    let main = fs::read_to_string(roots.base.join("etc/lvm/lvm.conf")).ok()?;
    let local = fs::read_to_string(roots.base.join("etc/lvm/lvmlocal.conf")).unwrap_or_default();
    let threshold = |text: &str| {
        let value = |line: &str| {
            line.trim().strip_prefix("thin_pool_autoextend_threshold")?.trim().strip_prefix('=').map(str::to_owned)
        };
        text.lines().filter_map(value).next_back()?.split('#').next()?.trim().parse::<u32>().ok()
    };
    Some(threshold(&local).or_else(|| threshold(&main)).is_some_and(|percent| percent < 100))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_thin_pools_is_parsed() {
        let found = parse(
            "vg-pool-tpool: 0 8192 thin-pool 1 11/1024 5/256 - rw no_discard_passdown queue_if_no_space - 1024\n\
             vg-full-tpool: 0 8192 thin-pool 7 1/8 256/256 - out_of_data_space discard_passdown error_if_no_space needs_check 1024\n\
             vg-bad-tpool: 0 8192 thin-pool Fail\n\
             vg-db: 0 409600 linear \nvg-db: 409600 8 striped 2 8:0 8:16 1 AA\nNo devices found\n",
        );
        let pool = |name: &str| found[name].thin_pool.clone().unwrap();
        let healthy =
            ThinPool { data: (5, 256), metadata: (11, 1024), state: "rw".to_owned(), needs_check: false, queues: true };
        assert_eq!(pool("vg-pool-tpool"), healthy);
        let full = pool("vg-full-tpool");
        assert_eq!((full.state.as_str(), full.needs_check, full.queues), ("out_of_data_space", true, false));
        assert_eq!(pool("vg-bad-tpool").state, "Fail");
        assert_eq!((found["vg-db"].target.as_str(), found.len()), ("linear", 4));
    }

    #[test]
    fn failed_paths_are_counted() {
        let found = parse(
            "mpatha: 0 2097152 multipath 2 0 0 0 2 1 A 0 1 2 8:0 A 0 0 1 E 0 1 2 8:16 F 3 0 1\nmpathb: 0 8 multipath 2 0 0 0 0 0\n",
        );
        assert_eq!(found["mpatha"].paths, Some(Paths { usable: 1, failed: 1 }));
        assert_eq!(found["mpathb"].paths, Some(Paths::default()));
    }

    #[test]
    fn the_threshold_of_lvm_is_read() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        assert_eq!(thin_autoextend(&roots), None);
        let directory = base.path().join("etc/lvm");
        fs::create_dir_all(&directory).unwrap();
        let set = |file: &str, text: &str| {
            fs::write(directory.join(file), text).unwrap();
            thin_autoextend(&roots)
        };
        assert_eq!(set("lvm.conf", "activation {\n\t# thin_pool_autoextend_threshold = 70\n}\n"), Some(false));
        assert_eq!(set("lvm.conf", "\tthin_pool_autoextend_threshold = 80 # percent\n"), Some(true));
        assert_eq!(set("lvmlocal.conf", "thin_pool_autoextend_threshold=100\n"), Some(false));
    }
}
