//! Exact mean value analysis: of several classes over stations with one server, and of one class with several processors.

use super::*;

/// Throughputs of classes that visit the processor and the device once (Reiser and Lavenberg 1980): each value of `demands` is a class's
/// seconds at the stations.
fn several_classes(populations: &[usize], demands: &[Vec<f64>]) -> Vec<f64> {
    let n_stations = demands[0].len();
    let sizes: Vec<usize> = populations.iter().map(|n| n + 1).collect();
    let n_states: usize = sizes.iter().product();
    let mut queues = vec![vec![0.0; n_stations]; n_states];
    let mut throughputs = vec![0.0; populations.len()];
    for state in 1..n_states {
        let mut rest = state;
        let counts: Vec<usize> = sizes.iter().map(|size| (rest % size, rest /= size).0).collect();
        let mut queue = vec![0.0; n_stations];
        let mut stride = 1;
        for (class, count) in counts.iter().enumerate() {
            if *count > 0 {
                let before = &queues[state - stride];
                let residence: Vec<f64> =
                    (0..n_stations).map(|station| demands[class][station] * (1.0 + before[station])).collect();
                throughputs[class] = *count as f64 / residence.iter().sum::<f64>();
                for station in 0..n_stations {
                    queue[station] += throughputs[class] * residence[station];
                }
            } else {
                throughputs[class] = 0.0;
            }
            stride *= sizes[class];
        }
        queues[state] = queue;
    }
    throughputs
}

/// Throughput of one class with several processors and a device (load-dependent stations; Reiser 1981).
fn several_processors(population: usize, processors: usize, cpu: f64, device: f64) -> f64 {
    let mut probabilities = vec![0.0; population + 1];
    probabilities[0] = 1.0;
    let (mut at_device, mut throughput) = (0.0, 0.0);
    for n in 1..=population {
        let rate = |j: usize| j.min(processors) as f64;
        let at_cpu: f64 = (1..=n).map(|j| j as f64 / rate(j) * probabilities[j - 1]).sum::<f64>() * cpu;
        let in_device = device * (1.0 + at_device);
        throughput = n as f64 / (at_cpu + in_device);
        let mut next = vec![0.0; population + 1];
        for j in 1..=n {
            next[j] = throughput * cpu / rate(j) * probabilities[j - 1];
        }
        next[0] = 1.0 - next[1..=n].iter().sum::<f64>();
        probabilities = next;
        at_device = throughput * in_device;
    }
    throughput
}

#[test]
fn several_classes_are_within_7_percent() {
    let device = serial(0.001);
    for (populations, cpus) in
        [([1, 1], [0.001, 0.002]), ([4, 1], [0.002, 0.0005]), ([3, 9], [0.0003, 0.0012]), ([10, 10], [0.001, 0.001])]
    {
        let exact = several_classes(&populations, &[vec![cpus[0], 0.001], vec![cpus[1], 0.001]]);
        let demands = [0, 1].map(|class| reads(populations[class] as f64, cpus[class]));
        let loads: Vec<Load<'_>> = demands.iter().map(Load::one).collect();
        let prediction = predict(&host(&[&device], 1.0), &loads);
        for (achieved, exact) in prediction.achieved.iter().zip(exact) {
            assert_near(&format!("{populations:?} {cpus:?}"), achieved.per_s, exact, 7.0);
        }
    }
}

#[test]
fn several_processors_are_within_7_percent() {
    let device = serial(0.001);
    for processors in [1, 2, 4, 16] {
        for population in [1, 2, 4, 8, 16, 32] {
            for cpu in [0.0005, 0.002, 0.004, 0.016] {
                let exact = several_processors(population, processors, cpu, 0.001);
                let demand = reads(population as f64, cpu);
                let predicted = predict(&host(&[&device], processors as f64), &[Load::one(&demand)]).achieved[0].per_s;
                assert_near(&format!("{population} on {processors}, {cpu} s"), predicted, exact, 7.0);
            }
        }
    }
}
