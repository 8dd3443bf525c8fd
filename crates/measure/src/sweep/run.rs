//! One run: copies of commands that print their rates, until all rates are steady and known well enough.
//!
//! Owns: the copies' processes, their figures, and when a run ends. Does not: make their tenants ([`super::tenants`]), or know what they do.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_sys::spawn::{Running, SpawnSpec, Stdout, spawn};

use super::figure as f;
use super::file::{Sweep, Workload, number};
use super::host::{Sample, Watched, sample};
use super::steady::{self, Point};
use crate::cgroup_run::{Cancel, wait_until};
use crate::cleanup::with_removal;
use crate::experiment::set_figure;
use crate::result::Round;

/// Interval between looks at the copies.
const LOOK: Duration = Duration::from_millis(250);
/// Interval between samples of the host.
const SAMPLE: Duration = Duration::from_secs(1);
/// Time limit for a copy to end after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(60);

/// A copy to start.
#[derive(Clone, Debug)]
pub(super) struct Copy<'a> {
    pub(super) name: String,
    pub(super) workload: &'a Workload,
    pub(super) spec: SpawnSpec,
}

/// A copy that runs.
struct Live<'a> {
    copy: &'a Copy<'a>,
    child: Running,
    points: Vec<Point>,
    p99_ms: Vec<(f64, f64)>,
    /// The last line that it has printed.
    last: String,
    /// It has ended by itself, at this moment.
    ended: Option<f64>,
}

/// The copies' rates in their common window.
struct Rates {
    per_s: Vec<f64>,
    half: Vec<f64>,
    /// Since the start, s.
    from: f64,
    /// Whether all were steady and known well enough.
    is_steady: bool,
}

/// Runs copies together, and measures them.
///
/// # Errors
/// A copy that cannot be started, fails, or prints no rate.
pub(super) fn run(copies: &[Copy<'_>], sweep: &Sweep, watched: &Watched<'_>, cancel: &Cancel) -> Result<Round> {
    let start = Instant::now();
    let mut live: Vec<Live<'_>> = copies.iter().map(start_copy).collect::<Result<_>>()?;
    let measured = measure(&mut live, start, sweep, watched, cancel);
    // Also after an error: what a copy leaves running would disturb the next run.
    with_removal(measured, end(live))
}

fn measure(
    live: &mut [Live<'_>],
    start: Instant,
    sweep: &Sweep,
    watched: &Watched<'_>,
    cancel: &Cancel,
) -> Result<Round> {
    let mut samples = vec![sample(watched)?];
    let rates = loop {
        cancel.check()?;
        wait_until(Instant::now() + LOOK, cancel)?;
        let now = start.elapsed().as_secs_f64();
        live.iter_mut().try_for_each(|copy| copy.look(now))?;
        if samples.last().is_some_and(|last| last.at().elapsed() < SAMPLE) {
            continue;
        }
        samples.push(sample(watched)?);
        let all_ended = live.iter().all(|copy| copy.ended.is_some());
        if let Some(rates) = rates(live, sweep.within, all_ended || now >= sweep.seconds)? {
            break rates;
        }
    };
    let mut round = Round::default();
    window(&samples, start, rates.from, live, &mut round);
    set_figure(&mut round, f::OPS_PER_S, rates.per_s.iter().sum::<f64>());
    set_figure(&mut round, f::WARM_UP_S, rates.from);
    set_figure(&mut round, f::STEADY, f64::from(u8::from(rates.is_steady)));
    let p99_ms: Vec<f64> = live.iter().filter_map(|copy| copy.p99_behind(rates.from)).collect();
    if p99_ms.len() == live.len() {
        set_figure(&mut round, f::P99_MS, p99_ms.iter().sum::<f64>() / p99_ms.len() as f64);
        round.series.insert(f::P99_OF_EACH_MS.to_owned(), p99_ms);
    }
    round.series.insert(f::EACH_PER_S.to_owned(), rates.per_s);
    round.series.insert(f::HALF_OF_EACH.to_owned(), rates.half);
    Ok(round)
}

fn start_copy<'a>(copy: &'a Copy<'a>) -> Result<Live<'a>> {
    let mut child = spawn(&copy.spec).with_context(|| format!("cannot start {}", copy.name))?;
    child.close_stdin();
    Ok(Live { copy, child, points: Vec::new(), p99_ms: Vec::new(), last: String::new(), ended: None })
}

impl Live<'_> {
    /// Reads what it has printed until now.
    fn look(&mut self, now: f64) -> Result<()> {
        if self.ended.is_some() {
            return Ok(());
        }
        loop {
            match self.child.read_line(Duration::ZERO) {
                Stdout::Line(line) => {
                    let Workload { rate, p99_ms, .. } = self.copy.workload;
                    self.points.extend(number(rate, &line).map(|per_s| Point { at: now, per_s }));
                    let p99_ms = p99_ms.as_ref().and_then(|pattern| number(pattern, &line));
                    self.p99_ms.extend(p99_ms.map(|ms| (now, ms)));
                    if !line.trim().is_empty() {
                        self.last = line;
                    }
                }
                Stdout::Timeout => return Ok(()),
                Stdout::Closed => break,
            }
        }
        let name = &self.copy.name;
        let code = self.child.wait(END_LIMIT).with_context(|| name.clone())?;
        self.ended = code.map(|_| now);
        match code {
            Some(0) if self.points.is_empty() => {
                bail!("{name} has ended, and no line of its output has a rate; {}", self.said())
            }
            Some(0) => Ok(()),
            Some(code) => bail!("{name} has ended with code {code}; {}", self.said()),
            None => bail!("{name} has closed its output and does not end"),
        }
    }

    fn said(&self) -> String {
        let said = self.child.stderr();
        let error =
            if said.is_empty() { "it printed no error".to_owned() } else { format!("it printed the error {said:?}") };
        if self.last.is_empty() { error } else { format!("{error}, and its last line was {:?}", self.last) }
    }

    fn p99_behind(&self, from: f64) -> Option<f64> {
        let behind: Vec<f64> = self.p99_ms.iter().filter(|(at, _)| *at > from).map(|(_, ms)| *ms).collect();
        (!behind.is_empty()).then(|| behind.iter().sum::<f64>() / behind.len() as f64)
    }
}

/// The rates once all are known well enough; at the end of a run as they are.
fn rates(live: &[Live<'_>], within: f64, is_end: bool) -> Result<Option<Rates>> {
    let warm_ups: Vec<Option<f64>> = live.iter().map(|copy| steady::warm_up(&copy.points)).collect();
    let is_warm = warm_ups.iter().all(Option::is_some);
    if !is_warm && !is_end {
        return Ok(None);
    }
    // All are measured in the same window.
    let from = warm_ups.iter().map(|warm_up| warm_up.unwrap_or(0.0)).fold(0.0, f64::max);
    let means: Vec<Option<steady::Mean>> = live.iter().map(|copy| steady::mean(&copy.points, from)).collect();
    let is_known = means.iter().all(|mean| mean.is_some_and(|mean| mean.is_within(within)));
    if !is_known && !is_end {
        return Ok(None);
    }
    let (mut per_s, mut half) = (Vec::new(), Vec::new());
    for (copy, mean) in live.iter().zip(&means) {
        let mean = match (mean, copy.points.last()) {
            (Some(mean), _) => *mean,
            // What prints its rate once, at its end, has no warm-up of ours.
            (None, Some(last)) => steady::Mean { per_s: last.per_s, half: 0.0 },
            (None, None) => {
                bail!("{} has printed no rate in this time; {}", copy.copy.name, copy.said())
            }
        };
        per_s.push(mean.per_s);
        half.push(mean.half);
    }
    Ok(Some(Rates { per_s, half, from, is_steady: is_warm && is_known }))
}

/// The host's figures in the window, which ends with the first copy that has ended.
fn window(samples: &[Sample], start: Instant, from: f64, live: &[Live<'_>], round: &mut Round) {
    let since = |sample: &&Sample| (sample.at() - start).as_secs_f64();
    let until = live.iter().filter_map(|copy| copy.ended).fold(f64::INFINITY, f64::min);
    let first = samples.iter().find(|sample| since(sample) >= from).or(samples.first());
    let last = samples.iter().rfind(|sample| since(sample) <= until.max(from)).or(samples.last());
    if let (Some(first), Some(last)) = (first, last) {
        first.figures(last, round);
    }
}

/// Ends the copies, all at once.
fn end(live: Vec<Live<'_>>) -> Result<()> {
    for copy in live.iter().filter(|copy| copy.ended.is_none()) {
        // It fails only if the copy has just ended.
        let _ = copy.child.terminate();
    }
    for mut copy in live {
        if copy.ended.is_none() && copy.child.wait(END_LIMIT)?.is_none() {
            bail!("{} does not end within {} s of SIGTERM", copy.copy.name, END_LIMIT.as_secs());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_sys::roots::Roots;

    use super::*;
    use crate::sweep::file::parse;

    fn sweep(seconds: u32) -> Sweep {
        let text = format!(
            "pool = 'p'\nseconds = {seconds}\n[workload.w]\ncommand = ['x']\nrate = 'rate ([0-9.]+)'\nlatency-p99-ms = 'p99 ([0-9.]+)'\n\
             [[mix]]\nw = 1\n"
        );
        parse(&text).unwrap()
    }

    fn measured(seconds: u32, scripts: &[&str]) -> Result<Round> {
        let sweep = sweep(seconds);
        let copy = |script: &&str| Copy {
            name: "copy".to_owned(),
            workload: &sweep.workloads[0],
            spec: SpawnSpec { program: "sh".into(), args: vec!["-c".into(), (*script).into()], ..SpawnSpec::default() },
        };
        let copies: Vec<Copy<'_>> = scripts.iter().map(copy).collect();
        let watched = Watched { roots: &Roots::host(), devices: &[], payloads: Vec::new() };
        run(&copies, &sweep, &watched, &Cancel::new())
    }

    #[test]
    fn steady_copies_are_measured_and_ended() {
        let script = "while :; do echo rate 20 p99 3; sleep 0.1; done";
        let round = measured(600, &[script, "while :; do echo rate 30 p99 5; sleep 0.1; done"]).unwrap();
        assert!((round.figures[f::OPS_PER_S] - 50.0).abs() < 1e-9 && (round.figures[f::P99_MS] - 4.0).abs() < 1e-9);
        assert_eq!(round.series[f::EACH_PER_S], [20.0, 30.0]);
        assert!(round.figures[f::STEADY] > 0.5);
    }

    #[test]
    fn a_command_that_prints_its_rate_at_its_end_is_measured() {
        let round = measured(600, &["sleep 0.1; echo rate 7"]).unwrap();
        assert_eq!((round.figures[f::OPS_PER_S], round.figures[f::STEADY]), (7.0, 0.0));
    }

    #[test]
    fn what_fails_or_prints_nothing_is_an_error() {
        for (script, wanted) in [
            (
                "echo rate 5; echo no space >&2; exit 3",
                "copy has ended with code 3; it printed the error \"no space\", and its last line was \"rate 5\"",
            ),
            ("echo hello", "no line of its output has a rate; it printed no error, and its last line was \"hello\""),
            ("sleep 60", "copy has printed no rate in this time; it printed no error"),
        ] {
            let error = measured(5, &[script]).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
