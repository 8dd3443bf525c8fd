//! The commands that copy volumes to their planned places. They are printed, never run: which processes have to stop, and when, is not known here.

use bulkhead_advise::fleet::FleetFile;
use bulkhead_advise::place::Placement;
use bulkhead_core::model::VolumeRef;

use super::report::place_name;

/// A shell script, as lines.
pub(super) fn of(file: &FleetFile, placement: &Placement) -> Vec<String> {
    let fleet = &file.fleet;
    let mut lines = vec![
        "#!/bin/sh".to_owned(),
        "# Review before use: stop each workload before its last copy, and start it at its new place.".to_owned(),
        "set -eu".to_owned(),
    ];
    let n_before = lines.len();
    for (at, workload) in fleet.workloads.iter().enumerate() {
        let (Some(now), to) = (workload.now, placement.places[at]) else { continue };
        if now == to {
            continue;
        }
        lines.push(String::new());
        lines.push(format!("# {}: from {} to {}", workload.name, place_name(fleet, now), place_name(fleet, to)));
        let (from, target) = (&fleet.machines[now.machine].name, &fleet.machines[to.machine].name);
        if file.volumes[at].is_empty() {
            lines.push("#   its volumes are not known: add the key `volumes`".to_owned());
        }
        for volume in &file.volumes[at] {
            let known: Option<VolumeRef> = volume.parse().ok();
            let (Some(volume), Some(pool)) = (known, &file.pools[to.machine][to.device]) else {
                lines.push(format!("#   {volume}: the device has no key `pool`, or this is not POOL/VOLUME"));
                continue;
            };
            let (snapshot, copy) = (format!("{volume}-move"), format!("{pool}/{}", volume.name));
            lines.push(format!("ssh {from} bulkhead volume snapshot {volume} {}-move", volume.name));
            lines.push(format!(
                "ssh {from} bulkhead volume send {snapshot} | ssh {target} bulkhead volume receive {copy}-move"
            ));
            lines.push(format!("ssh {target} bulkhead volume clone {copy}-move {}", volume.name));
        }
    }
    if lines.len() == n_before {
        lines.push("# Nothing has to be moved.".to_owned());
    }
    lines
}
