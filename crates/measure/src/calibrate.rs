//! `bulkhead device calibrate`: finds an io.cost model and latency targets that isolate without costing throughput.
//!
//! Owns: the order of the measurements, and the progress lines. On scratch volumes of the device, with two tenants of equal shares: fio
//! measures the six coefficients; then a small append + fsync every 100 ms runs next to greedy buffered writers, under one candidate after
//! the other. The fair throughput of the writers is their highest one observed, less the fraction of device time that the small load needs.
//! [`verify`] measures the effect of a stored calibration. Does not: store the result (the daemon does), or enable it.

pub mod fio;
mod queue;
mod scratch;
mod search;
mod verify;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Calibration, Isolation};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_sys::iocost::{self, ModelLine};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::find_program;

use crate::cgroup_run::{Cancel, Starter};
use crate::cleanup::with_removal;
use crate::load::{LoadArgs, LoadKind};
use crate::pair::measure;
use crate::report::text::rate;
pub use verify::verify;

use scratch::Scratch;
use search::{Candidate, N_AROUND, Trial, VRATES_PCT, around, choose, is_saturated};

/// Warm-up and window of the small load alone, seconds.
const IDLE: (f64, f64) = (1.0, 8.0);
/// Warm-up and window of the writers, seconds: they are greedy only when the page cache is full of dirty data.
const LOADED: (f64, f64) = (10.0, 12.0);
/// Size of the files that each writer writes and syncs in turn. Small ones give the device a pause after each sync, in which it catches up with
/// requests that were admitted too fast: with 32 MiB, a model 3 % above the speed of the lab's disk passed.
const STREAM_BYTES: u64 = 128 << 20;
/// Number of candidates that are measured a second time, so that none is selected for a lucky window.
const N_FINALISTS: usize = 2;
/// Number of bisections between the fastest vrate that does not saturate the device and the slowest that does.
const N_HALVINGS: usize = 3;

/// Parameters of io.cost for a device.
#[derive(Clone, Debug, clap::Args)]
pub struct IocostLines {
    /// Line for io.cost.model, without the device number, as shown by `device inspect`
    #[arg(long, value_name = "LINE", requires = "qos")]
    model: Option<String>,
    /// Line for io.cost.qos that belongs to this model
    #[arg(long, value_name = "LINE", requires = "model")]
    qos: Option<String>,
}

impl IocostLines {
    /// The given lines as a calibration without measurements.
    #[must_use]
    pub fn calibration(&self) -> Option<Calibration> {
        let (model, qos) = (self.model.clone()?, self.qos.clone()?);
        let measured = vec!["given on the command line, not measured".to_owned()];
        Some(Calibration { model, qos, measured, isolation: None })
    }
}

/// A calibration to perform.
#[derive(Clone, Debug)]
pub struct Request {
    /// Kernel name or path of the physical device.
    pub device: String,
    /// The pool to create scratch volumes in; `None` for the one with the most free space.
    pub pool: Option<Name>,
    /// The `bulkhead` program, for the loads.
    pub program: PathBuf,
    /// Cancels it.
    pub cancel: Cancel,
}

/// Progress of a calibration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A step begins: completed steps, total steps, and its description.
    Step(usize, usize, &'a str),
    /// A measurement, as a line of text.
    Figure(&'a str),
}

/// Called with each event.
pub type OnStep<'a> = &'a mut dyn FnMut(Event<'_>);

/// Measures, with a running daemon. Takes minutes; the set-up is removed at the end, even on failure. The caller's thread must live as long,
/// because children end with the thread that started them.
///
/// # Errors
/// Those of the daemon as [`bulkhead_core::error::Fault`]; a lack of space, fio or io.cost; cancellation.
pub fn run(client: Client, request: &Request, on_step: OnStep<'_>) -> Result<Calibration> {
    if find_program("fio").is_none() {
        return Err(Fault::new(Code::Unsupported, "fio", "it is not installed, and measures the device")
            .hint("install the Debian package fio")
            .into());
    }
    supported(&request.device)?;
    on_step(Event::Step(0, 1, "setting up volumes and tenants"));
    let scratch = Scratch::set_up(client, &request.device, request.pool.as_ref())?;
    let starter = Starter { program: request.program.clone(), cancel: request.cancel.clone() };
    let mut session = Session {
        starter,
        scratch,
        on_step,
        done: 0,
        // Each load alone once; fewer steps if a vrate saturates the device, as expected.
        of: fio::N_STEPS + 2 + VRATES_PCT.len() + N_HALVINGS + N_AROUND + N_FINALISTS,
        lines: Vec::new(),
    };
    let calibration = session.find();
    with_removal(calibration, session.scratch.remove())
}

fn millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default()
}

fn supported(device: &str) -> Result<()> {
    if !iocost::is_supported(&Roots::host()) {
        let cause = "the kernel has no io.cost (CONFIG_BLK_CGROUP_IOCOST), so there is nothing to calibrate";
        return Err(Fault::new(Code::Unsupported, format!("device {device}"), cause)
            .reason(Reason::IocostMissing)
            .into());
    }
    Ok(())
}

struct Session<'a> {
    starter: Starter,
    scratch: Scratch,
    on_step: OnStep<'a>,
    done: usize,
    of: usize,
    lines: Vec<String>,
}

impl Session<'_> {
    fn step(&mut self, doing: &str) -> Result<()> {
        self.starter.cancel.check()?;
        (self.on_step)(Event::Step(self.done, self.of, doing));
        self.done += 1;
        Ok(())
    }

    fn figure(&mut self, line: String) {
        (self.on_step)(Event::Figure(&line));
        self.lines.push(line);
    }

    fn find(&mut self) -> Result<Calibration> {
        let measured = self.coefficients()?;
        let (idle_ms, busy) = self.alone()?;
        let greedy = self.greedy()?;
        let (mut trials, fastest) = self.fastest(&measured)?;
        for candidate in around(&fastest) {
            trials.push(self.trial(&measured, candidate)?);
        }
        let most = trials.iter().map(|trial| trial.bytes_per_s).fold(greedy, f64::max);
        let fair_bytes_per_s = (1.0 - busy) * most;
        self.figure(format!("fair for the writers: {}", rate(fair_bytes_per_s)));
        let finalists = self.finalists(&measured, trials, fair_bytes_per_s)?;
        let best = choose(&finalists, fair_bytes_per_s).context("nothing was tried")?;
        self.figure(format!(
            "chosen: {}: fsync {:.1} times as long as alone, writers at {:.0} % of what is fair",
            best.candidate,
            best.mean_ms / idle_ms,
            100.0 * best.bytes_per_s / fair_bytes_per_s
        ));
        let isolation = Isolation::new(millis(idle_ms), millis(best.mean_ms));
        if !isolation.is_isolated() {
            self.figure("no speed isolates: io.cost does not suit this device".to_owned());
        }
        Ok(Calibration {
            model: best.candidate.model(&measured).parameters(),
            qos: best.candidate.qos().parameters(),
            measured: std::mem::take(&mut self.lines),
            isolation: Some(isolation),
        })
    }

    /// Tries pinned vrates. Returns all trials, and the fastest one that does not saturate the device.
    fn fastest(&mut self, measured: &ModelLine) -> Result<(Vec<Trial>, Trial)> {
        let mut trials: Vec<Trial> = Vec::new();
        let mut saturated_pct = None;
        for (index, vrate) in VRATES_PCT.into_iter().enumerate() {
            let trial = self.trial(measured, Candidate::pinned(vrate))?;
            trials.push(trial);
            if is_saturated(&trial, &trials) {
                saturated_pct = Some(vrate);
                self.of -= VRATES_PCT.len() - 1 - index;
                break;
            }
        }
        let mut fastest = *trials.iter().rfind(|trial| !is_saturated(trial, &trials)).context("nothing was tried")?;
        for _ in 0..N_HALVINGS {
            let Some(above_pct) = saturated_pct else {
                self.of -= 1;
                continue;
            };
            let middle = u32::midpoint(fastest.candidate.max_pct, above_pct);
            let trial = self.trial(measured, Candidate::pinned(middle))?;
            trials.push(trial);
            if is_saturated(&trial, &trials) {
                saturated_pct = Some(middle);
            } else {
                fastest = trial;
            }
        }
        Ok((trials, fastest))
    }

    fn coefficients(&mut self) -> Result<ModelLine> {
        let places = self.scratch.places.clone();
        let file_bytes = (256 << 20).min(self.scratch.volume.0 / 4);
        let (measured, lines) = fio::measure([&places.a, &places.b], file_bytes, &mut |doing| self.step(doing))?;
        lines.into_iter().for_each(|line| self.figure(line));
        Ok(measured)
    }

    /// Measures the small load alone: its mean latency in milliseconds, and the utilisation of the device (0 to 1).
    fn alone(&mut self) -> Result<(f64, f64)> {
        self.step("the small load alone")?;
        let measured = measure(&self.starter, &self.scratch.pair, Some(&self.probe()), None, IDLE)?;
        let mean_ms = measured.a.and_then(|load| load.tally.fsync_ms.mean()).context("the small load did nothing")?;
        let busy_pct = measured.activity.device_busy_pct;
        self.figure(format!("small load alone: fsync {mean_ms:.1} ms, device busy {busy_pct:.0} %"));
        Ok((mean_ms, (busy_pct / 100.0).min(0.9)))
    }

    /// Measures the writers alone without a controller, in bytes per second.
    fn greedy(&mut self) -> Result<f64> {
        self.step("the writers alone, without a controller")?;
        iocost::disable(&self.scratch.roots, self.scratch.dev).context("cannot switch io.cost off")?;
        let measured = measure(&self.starter, &self.scratch.pair, None, Some(&self.streams()), LOADED)?;
        let bytes_per_s = measured.activity.per_s(measured.activity.device_bytes);
        self.figure(format!("writers alone, no controller: {}", rate(bytes_per_s)));
        Ok(bytes_per_s)
    }

    /// Measures both loads under a candidate.
    fn trial(&mut self, measured: &ModelLine, candidate: Candidate) -> Result<Trial> {
        self.step(&format!("both loads: {candidate}"))?;
        let (roots, dev) = (&self.scratch.roots, self.scratch.dev);
        // Disabled in between, so that debts and vrate of the previous candidate do not affect this one.
        iocost::disable(roots, dev).context("cannot switch io.cost off")?;
        iocost::write_model(roots, dev, &candidate.model(measured)).context("io.cost does not take the model")?;
        iocost::write_qos(roots, dev, &candidate.qos()).context("io.cost does not take the latency targets")?;
        let (probe, streams) = (self.probe(), self.streams());
        let both = measure(&self.starter, &self.scratch.pair, Some(&probe), Some(&streams), LOADED)?;
        let load = both.a.context("the small load did nothing")?;
        // If none began in the window, the previous one took that long.
        let mean_ms = load.tally.fsync_ms.mean().unwrap_or(1000.0 * LOADED.1);
        let activity = &both.activity;
        let trial = Trial {
            candidate,
            mean_ms,
            p99_ms: load.tally.fsync_ms.percentile(99.0).unwrap_or(mean_ms),
            bytes_per_s: activity.per_s(activity.device_bytes.saturating_sub(activity.a_bytes())),
            device_ms: activity.device_write_ms,
        };
        self.figure(format!(
            "{candidate}: fsync {mean_ms:.1} ms (p99 {:.0}), writers {}, a write {:.1} ms in the device",
            trial.p99_ms,
            rate(trial.bytes_per_s),
            trial.device_ms
        ));
        Ok(trial)
    }

    /// Measures the best candidates again, and averages both windows.
    fn finalists(&mut self, measured: &ModelLine, mut trials: Vec<Trial>, fair_bytes_per_s: f64) -> Result<Vec<Trial>> {
        let mut finalists = Vec::new();
        for _ in 0..N_FINALISTS {
            let Some(best) = choose(&trials, fair_bytes_per_s) else { break };
            trials.retain(|trial| trial.candidate != best.candidate);
            let again = self.trial(measured, best.candidate)?;
            let mean = |of: fn(&Trial) -> f64| f64::midpoint(of(&best), of(&again));
            finalists.push(Trial {
                candidate: best.candidate,
                mean_ms: mean(|trial| trial.mean_ms),
                p99_ms: mean(|trial| trial.p99_ms),
                bytes_per_s: mean(|trial| trial.bytes_per_s),
                device_ms: mean(|trial| trial.device_ms),
            });
        }
        Ok(finalists)
    }

    fn probe(&self) -> LoadArgs {
        LoadArgs::new(LoadKind::Probe, &self.scratch.places.a, 0.0)
    }

    fn streams(&self) -> LoadArgs {
        let file_bytes = Some(STREAM_BYTES.min(self.scratch.volume.0 / 16));
        LoadArgs { file_bytes, ..LoadArgs::new(LoadKind::Streams, &self.scratch.places.b, 0.0) }
    }
}
