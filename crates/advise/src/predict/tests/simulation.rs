//! A simulation of the same network, event by event, with exponential times; those of the device can be constant.

use super::*;

/// A generator of pseudo-random numbers (xorshift64*), the same in each run.
struct Random(u64);

impl Random {
    fn exponential(&mut self, mean: f64) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let unit = (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64;
        -(1.0 - unit).ln() * mean
    }
}

/// One class: customers, thinking, processor, device and the delay behind it, seconds each.
#[derive(Clone, Copy)]
struct Class {
    customers: usize,
    think: f64,
    cpu: f64,
    device: f64,
    delay: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    Thinks,
    Cpu,
    Device,
    Delay,
}

/// Throughputs and 99th percentiles of response times over a long run. `varies` says whether the times of the device do.
fn simulate(classes: &[Class], processors: usize, varies: bool) -> Vec<(f64, f64)> {
    const END: f64 = 2000.0;
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let of_device = |random: &mut Random, mean: f64| if varies { random.exponential(mean) } else { mean };
    // The next event of each customer, by a scan: there are few.
    let customers: Vec<usize> = classes.iter().enumerate().flat_map(|(class, it)| vec![class; it.customers]).collect();
    let mut places: Vec<(At, f64)> =
        customers.iter().map(|class| (At::Thinks, random.exponential(classes[*class].think.max(1e-4)))).collect();
    let mut begun = vec![0.0; customers.len()];
    let (mut at_cpu, mut at_device) = (Vec::new(), Vec::new());
    let mut done: Vec<Vec<f64>> = vec![Vec::new(); classes.len()];
    loop {
        let next = (0..customers.len()).min_by(|a, b| places[*a].1.total_cmp(&places[*b].1)).unwrap();
        let (at, now) = places[next];
        if now > END {
            break;
        }
        let class = classes[customers[next]];
        match at {
            At::Thinks => {
                begun[next] = now;
                at_cpu.push(next);
                let starts = at_cpu.len() <= processors;
                places[next] = (At::Cpu, if starts { now + random.exponential(class.cpu) } else { f64::INFINITY });
            }
            At::Cpu | At::Device => {
                let (queue, servers) = if at == At::Cpu { (&mut at_cpu, processors) } else { (&mut at_device, 1) };
                queue.retain(|waiting| *waiting != next);
                if let Some(starts) = queue.get(servers - 1) {
                    let its = classes[customers[*starts]];
                    let seconds = match at {
                        At::Cpu => random.exponential(its.cpu),
                        _ => of_device(&mut random, its.device),
                    };
                    places[*starts].1 = now + seconds;
                }
                if at == At::Cpu {
                    let (queue, seconds) = (&mut at_device, class.device);
                    queue.push(next);
                    let starts = queue.len() == 1;
                    places[next] =
                        (At::Device, if starts { now + of_device(&mut random, seconds) } else { f64::INFINITY });
                } else {
                    places[next] = (At::Delay, now + class.delay);
                }
            }
            At::Delay => {
                if now > END / 10.0 {
                    done[customers[next]].push(now - begun[next]);
                }
                places[next] =
                    (At::Thinks, now + if class.think > 0.0 { random.exponential(class.think) } else { 0.0 });
            }
        }
    }
    done.iter_mut()
        .map(|times| {
            times.sort_by(f64::total_cmp);
            (times.len() as f64 / (END * 0.9), times[times.len() * 99 / 100])
        })
        .collect()
}

#[test]
fn throughputs_and_tails_are_near_simulated_ones() {
    // With requests of which some are ten times as large, arrivals of small ones come more often while there are no large ones.
    let cases: [(&[Class], usize, f64); 4] = [
        (&[Class { customers: 4, think: 0.01, cpu: 0.004, device: 0.003, delay: 0.002 }], 2, 5.0),
        (
            &[
                Class { customers: 2, think: 0.0, cpu: 0.001, device: 0.01, delay: 0.0 },
                Class { customers: 8, think: 0.02, cpu: 0.003, device: 0.001, delay: 0.004 },
            ],
            2,
            5.0,
        ),
        (
            &[
                Class { customers: 16, think: 0.0, cpu: 0.0005, device: 0.002, delay: 0.008 },
                Class { customers: 1, think: 0.0, cpu: 0.005, device: 0.002, delay: 0.008 },
            ],
            4,
            5.0,
        ),
        (
            &[
                Class { customers: 3, think: 0.0, cpu: 0.01, device: 0.002, delay: 0.0 },
                Class { customers: 3, think: 0.05, cpu: 0.001, device: 0.02, delay: 0.0 },
                Class { customers: 6, think: 0.0, cpu: 0.002, device: 0.002, delay: 0.001 },
            ],
            3,
            25.0,
        ),
    ];
    let all = cases.into_iter().flat_map(|case| [(case, true), (case, false)]);
    for ((classes, processors, percent), varies) in all {
        let simulated = simulate(classes, processors, varies);
        // One device with a cost for each class: sizes tell them apart.
        let mut device = DeviceCosts { variation: f64::from(varies), ..serial(0.001) };
        let (first, last) = (&classes[0], classes.last().unwrap());
        let cost = |class: &Class| Cost { latency_us: (class.device + class.delay) * 1e6, per_s: 1.0 / class.device };
        device.random_read = Costs { small: cost(first), large: cost(last) };
        if let [_, middle, _] = classes {
            device.sequential_read = Costs { small: cost(middle), large: cost(middle) };
        }
        let demands: Vec<Demand> = classes
            .iter()
            .enumerate()
            .map(|(index, class)| {
                let mut demand = Demand { think_seconds: class.think, ..reads(class.customers as f64, class.cpu) };
                let requests = &mut demand.requests[0];
                match (index, classes.len()) {
                    (0, _) => {}
                    (1, 3) => requests.access = Access::SequentialRead,
                    _ => requests.bytes = 131_072.0,
                }
                demand
            })
            .collect();
        // Streams are not disturbed in the simulation.
        device.sequential_run = 1e9;
        let loads: Vec<Load<'_>> = demands.iter().map(Load::one).collect();
        let prediction = predict(&host(&[&device], processors as f64), &loads);
        for (index, (achieved, (per_s, p99))) in prediction.achieved.iter().zip(&simulated).enumerate() {
            let what = format!("class {index} of {}, on {processors}, varies: {varies}", classes.len());
            assert_near(&what, achieved.per_s, *per_s, percent);
            assert_near(&format!("p99 of {what}"), achieved.operation.p99, *p99, 25.0);
        }
    }
}
