//! The I/O settings of cgroup v2, as facts.

use std::collections::HashMap;
use std::fs;

use bulkhead_core::facts::{CgroupSettings, Cgroups};
use bulkhead_core::identity::printable;
use bulkhead_core::units::DevNo;

use crate::cgroup::{self, Mode};
use crate::roots::Roots;

/// Most cgroups that are kept: a host with more has the same settings in many of them.
const MAX_KEPT: usize = 1000;

pub(super) fn read(roots: &Roots) -> Result<Option<Cgroups>, String> {
    if !matches!(cgroup::mode(roots), Mode::V2 | Mode::Hybrid) {
        return Ok(None);
    }
    let root = cgroup::v2_root(roots);
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).map_err(|error| error.to_string())?;
    let mut paths: Vec<String> =
        cgroup::all_ids(roots).map_err(|error| error.to_string())?.into_iter().map(|(_, path)| path).collect();
    paths.sort();
    let mut children: HashMap<&str, u64> = HashMap::new();
    for (parent, _) in paths.iter().filter(|path| *path != "/").filter_map(|path| path.rsplit_once('/')) {
        *children.entry(parent).or_default() += 1;
    }
    let of = |path: &String| {
        let read =
            |file: &str| fs::read_to_string(root.join(path.trim_start_matches('/')).join(file)).unwrap_or_default();
        let settings = CgroupSettings {
            path: printable(path),
            weight: own_weight(&read("io.weight")),
            bfq_weight: own_weight(&read("io.bfq.weight")),
            limited: read("io.max").lines().filter_map(device_of).collect(),
            siblings: path.rsplit_once('/').and_then(|(parent, _)| children.get(parent)).map(|count| count - 1),
        };
        let is_plain = settings.weight.is_none() && settings.bfq_weight.is_none() && settings.limited.is_empty();
        (!is_plain).then_some(settings)
    };
    Ok(Some(Cgroups {
        enabled: enabled.split_whitespace().map(printable).collect(),
        settings: paths.iter().filter_map(of).take(MAX_KEPT).collect(),
    }))
}

/// The default weight in a weight file, if it is not 100. BFQ's file has a number alone on some kernels.
fn own_weight(text: &str) -> Option<u32> {
    let first = text.lines().next()?;
    first.strip_prefix("default ").unwrap_or(first).trim().parse().ok().filter(|weight| *weight != 100)
}

/// The device of a line in `io.max`.
fn device_of(line: &str) -> Option<DevNo> {
    line.split(' ').next()?.parse().ok()
}
