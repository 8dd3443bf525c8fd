//! A sum that no placement can exceed.
//!
//! A linear program that forgets which host is which: each class of workloads may be split over all kinds of hosts, runs as fast as it does
//! alone there, and uses no more of processors and devices than it must, as long as all hosts of a kind together have that much (asymptotic
//! bounds of a closed network; Muntz and Wong 1974). What it forgets, that mixes wait for each other, only lowers sums.

use good_lp::{Expression, ProblemVariables, Solution as _, SolverModel as _, Variable, constraint, microlp, variable};

use super::Fleet;
use super::mixes::Mixes;
use crate::predict::least_use;

/// The upper bound of [`super::Placement::sum`]; `None` if it could not be computed.
#[must_use]
pub fn upper_bound(fleet: &Fleet) -> Option<f64> {
    let mixes = Mixes::new(fleet);
    let mut variables = ProblemVariables::new();
    // Copies of each class on each device of each kind of hosts.
    let mut parts: Vec<(usize, usize, usize, Variable)> = Vec::new();
    for class in 0..mixes.classes.len() {
        for (kind, machine) in mixes.kinds.iter().enumerate() {
            for device in 0..fleet.machines[*machine].devices.len() {
                parts.push((class, kind, device, variables.add(variable().min(0.0))));
            }
        }
    }
    let rate = |class: usize, kind: usize, device: usize| mixes.alone[class][kind][device].achieved[0].per_s;
    let worth = |&(class, kind, device, part): &(usize, usize, usize, Variable)| {
        part * (mixes.workload_of(class).importance * rate(class, kind, device) / mixes.reference[class])
    };
    let objective: Expression = parts.iter().map(worth).sum();
    let mut model = variables.maximise(&objective).using(microlp);
    for class in 0..mixes.classes.len() {
        let n_copies = mixes.class_of.iter().filter(|its| **its == class).count() as f64;
        let all: Expression = parts.iter().filter(|part| part.0 == class).map(|part| part.3 * 1.0).sum();
        model = model.with(constraint!(all <= n_copies));
    }
    for (kind, machine) in mixes.kinds.iter().enumerate() {
        let machine = &fleet.machines[*machine];
        let n_machines = mixes.kind_of.iter().filter(|its| **its == kind).count() as f64;
        let here = || parts.iter().filter(|part| part.1 == kind);
        let of_cpus = |&(class, kind, device, part): &(usize, usize, usize, Variable)| {
            part * (rate(class, kind, device) * fleet.demands[mixes.workload_of(class).demand].cpu_seconds)
        };
        let cpus: Expression = here().map(of_cpus).sum();
        model = model.with(constraint!(cpus <= n_machines * machine.cpus));
        for (index, device) in machine.devices.iter().enumerate() {
            let costs = &fleet.costs[device.costs];
            let across = costs.read_write_sharing;
            let (mut reads, mut writes) = (Expression::from(0.0), Expression::from(0.0));
            for &(class, kind, device, part) in here().filter(|part| part.2 == index) {
                let (read, write) = least_use(&fleet.demands[mixes.workload_of(class).demand], costs);
                let rate = rate(class, kind, device);
                reads += part * (rate * (read + across * write));
                writes += part * (rate * (write + across * read));
            }
            model = model.with(constraint!(reads <= n_machines)).with(constraint!(writes <= n_machines));
        }
    }
    let solution = model.solve().ok()?;
    Some(solution.eval(&objective))
}
