//! The best placement of few workloads, by trying all sets of them on each host.
//!
//! The best of the first hosts with a set of workloads is the best, over all parts of the set, of the last of them with this part and the
//! others with the rest: dynamic programming over sets, in 3^n steps for each host in place of the (hosts)^n placements.

use super::mixes::Mixes;
use super::value::{Value, host_value};
use super::{Apart, Place};

/// Most workloads, and most mixes to predict.
const MAX_WORKLOADS: usize = 12;
const MAX_MIXES: usize = 60_000;
/// The best places; `None` if there are too many to try.
pub(super) fn best(mixes: &mut Mixes<'_>) -> Option<Vec<Place>> {
    let fleet = mixes.fleet;
    let (n_workloads, n_machines) = (fleet.workloads.len(), fleet.machines.len());
    // Members of a group on hosts of one domain depend on each other across hosts.
    let spans_hosts = fleet.groups.iter().any(|group| group.apart == Apart::Domains);
    if n_workloads > MAX_WORKLOADS || spans_hosts || n_machines > 64 {
        return None;
    }
    let power = u32::try_from(n_workloads).ok()?;
    let n_mixes = mixes.kinds.iter().try_fold(0usize, |sum, machine| {
        sum.checked_add((1 + fleet.machines[*machine].devices.len()).checked_pow(power)?)
    })?;
    if n_mixes > MAX_MIXES {
        return None;
    }
    let n_sets = 1usize << n_workloads;
    // For each number of hosts: the value of each set, and the part of it on the last host with its devices.
    let mut values = vec![Value::WORST; n_sets];
    values[0] = Value::NONE;
    let mut choices: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut known: Vec<Vec<(Value, usize)>> = Vec::new();
    let mut known_for: Vec<usize> = Vec::new();
    for machine in 0..n_machines {
        let alone = match (0..known.len()).find(|index| is_interchangeable(mixes, known_for[*index], machine)) {
            Some(index) => index,
            None => {
                known.push((0..n_sets).map(|set| best_devices(mixes, machine, set)).collect());
                known_for.push(machine);
                known.len() - 1
            }
        };
        let alone = &known[alone];
        let mut next = vec![Value::WORST; n_sets];
        let mut choice = vec![(0, 0); n_sets];
        for set in 0..n_sets {
            let mut part = set;
            loop {
                let (value, devices) = alone[part];
                let whole = value.plus(values[set & !part]);
                if whole.is_better_than(next[set]) || (part == 0 && next[set] == Value::WORST) {
                    next[set] = whole;
                    choice[set] = (part, devices);
                }
                if part == 0 {
                    break;
                }
                part = (part - 1) & set;
            }
        }
        values = next;
        choices.push(choice);
    }
    let mut places = vec![Place { machine: 0, device: 0 }; n_workloads];
    let mut set = n_sets - 1;
    for (machine, choice) in choices.iter().enumerate().rev() {
        let (part, mut devices) = choice[set];
        for workload in (0..n_workloads).filter(|workload| part >> workload & 1 == 1) {
            let n_devices = fleet.machines[machine].devices.len();
            places[workload] = Place { machine, device: devices % n_devices };
            devices /= n_devices;
        }
        set &= !part;
    }
    Some(places)
}

/// Whether any set does as well on one host as on the other.
fn is_interchangeable(mixes: &Mixes<'_>, a: usize, b: usize) -> bool {
    let fleet = mixes.fleet;
    let is_new_to_all =
        |machine: usize| !fleet.workloads.iter().any(|workload| workload.now.is_some_and(|now| now.machine == machine));
    let spaces = |machine: usize| fleet.machines[machine].devices.iter().map(|device| device.space).collect::<Vec<_>>();
    let allowed = |machine: usize| {
        (0..fleet.workloads.len()).map(|workload| mixes.may_be_on(workload, machine)).collect::<Vec<_>>()
    };
    mixes.kind_of[a] == mixes.kind_of[b]
        && is_new_to_all(a)
        && is_new_to_all(b)
        && spaces(a) == spaces(b)
        && allowed(a) == allowed(b)
}

/// The best devices of a host for a set of workloads, as digits in the order of the workloads.
fn best_devices(mixes: &mut Mixes<'_>, machine: usize, set: usize) -> (Value, usize) {
    let workloads: Vec<usize> = (0..mixes.fleet.workloads.len()).filter(|workload| set >> workload & 1 == 1).collect();
    let n_devices = mixes.fleet.machines[machine].devices.len();
    let Some(n_choices) = u32::try_from(workloads.len()).ok().and_then(|n| n_devices.checked_pow(n)) else {
        return (Value::WORST, 0);
    };
    let mut best = (Value::WORST, 0);
    for devices in 0..n_choices {
        let mut rest = devices;
        let on: Vec<(usize, usize)> = workloads
            .iter()
            .map(|workload| {
                let device = rest % n_devices;
                rest /= n_devices;
                (*workload, device)
            })
            .collect();
        let value = host_value(mixes, machine, &on);
        if value.is_better_than(best.0) {
            best = (value, devices);
        }
    }
    best
}
