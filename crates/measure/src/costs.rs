//! What the requests of a device cost, measured with fio on a file in a directory.
//!
//! Owns: the measurements, and the figures that follow from them. The file has no name and disappears with this process, however it ends. Does
//! not: define the figures ([`bulkhead_core::demand::DeviceCosts`]), or predict.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::demand::{Access, Cost, Costs, DeviceCosts};
use bulkhead_core::units::Bytes;
use bulkhead_sys::tool::Tool;
use rustix::fs::{Mode, OFlags, open, statvfs};

use crate::calibrate::fio::{Job, Report, Side, parse};
use crate::cgroup_run::{Cancel, wait_until};
use crate::sample::busy_cpu_us;

/// Smallest file: it must not fit into the caches of a drive, of which those with an arm have the smallest.
const MIN_BYTES: Bytes = Bytes::mib(256);
/// Largest file unless another size is asked for, and the part of the free space that it takes at most.
const MAX_BYTES: Bytes = Bytes::mib(4096);
const PART_OF_FREE: u64 = 4;
/// Seconds that do not count, and seconds that do.
const RAMP_SECONDS: u32 = 1;
const SECONDS: u32 = 4;
/// Seconds after its start between which the processors are watched while fio measures: it has started, and not yet ended.
const WATCHED: (f64, f64) = (RAMP_SECONDS as f64 + 0.5, (RAMP_SECONDS + SECONDS) as f64 - 0.5);
/// Part of a request's latency that is not taken for processor time, whatever was measured.
const LEAST_PART: f64 = 0.1;
/// Requests in flight where a device is to reach its highest rate, and threads that write durably.
const MANY: u32 = 32;
const WRITERS: u32 = 16;
/// Time limit of fio: a slow disk needs that long to write the file.
const LIMIT: Duration = Duration::from_secs(600);

/// How the costs are measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// A directory on the device.
    pub directory: PathBuf,
    /// Size of the file; a part of the free space if absent.
    pub size: Option<Bytes>,
    /// Cancels it.
    pub cancel: Cancel,
}

/// Called before each measurement: completed ones, all, and what is measured next.
pub type OnStep<'a> = &'a mut dyn FnMut(usize, usize, &str);

/// Number of measurements, with the writing of the file and that of the idle host.
const N_STEPS: usize = 2 + 4 * 4 + 2 + 2;

/// Measures the costs. Takes about two minutes.
///
/// # Errors
/// If fio is missing or fails, the directory has too little space or its file system no direct I/O, or it is cancelled.
pub fn run(request: &Request, on_step: OnStep<'_>) -> Result<DeviceCosts> {
    let size = size(request)?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(&request.directory, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.with_context(|| format!("cannot create a file in {}", request.directory.display()))?);
    // fio would remove a shorter file by its name, to write a new one.
    file.set_len(size.0).with_context(|| format!("a file of {size} in {}", request.directory.display()))?;
    let mut bench = Bench { file, size, cancel: &request.cancel, on_step, done: 0, idle: 0.0 };
    bench.step("writing the file")?;
    let layout = bench.fio().args(["--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1"]);
    bench.carry_out(&layout)?;
    bench.watch_idle()?;
    let (random_read, alone) = bench.costs(Access::RandomRead)?;
    let (sequential_read, _) = bench.costs(Access::SequentialRead)?;
    let (random_write, _) = bench.costs(Access::RandomWrite)?;
    let (sequential_write, _) = bench.costs(Access::SequentialWrite)?;
    Ok(DeviceCosts {
        durable_write: bench.durable()?,
        read_write_sharing: bench.sharing(&random_read, &random_write)?,
        sequential_run: bench.run_length(&random_read, &sequential_read)?,
        random_read,
        sequential_read,
        random_write,
        sequential_write,
        cpu_us: alone.cpu_us,
        variation: alone.variation,
    })
}

fn size(request: &Request) -> Result<Bytes> {
    let directory = &request.directory;
    let stat = statvfs(directory).with_context(|| format!("cannot look at {}", directory.display()))?;
    let free = Bytes(stat.f_bavail.saturating_mul(stat.f_frsize));
    let size = request.size.unwrap_or(Bytes(free.0 / PART_OF_FREE).min(MAX_BYTES));
    if size < MIN_BYTES {
        bail!(
            "{}: a file of {size} would fit into a drive's cache: at least {MIN_BYTES} are needed",
            directory.display()
        );
    }
    if size > free {
        bail!("{}: it has {free} of space, not {size}", directory.display());
    }
    // Whole requests of the largest size.
    Ok(Bytes(size.0 / Bytes::MIB * Bytes::MIB))
}

struct Bench<'a> {
    file: File,
    size: Bytes,
    cancel: &'a Cancel,
    on_step: OnStep<'a>,
    done: usize,
    /// Processors that others keep busy.
    idle: f64,
}

/// One request at a time.
#[derive(Clone, Copy)]
struct Alone {
    /// Latency without processor time, and that time, microseconds.
    latency_us: f64,
    cpu_us: f64,
    /// As [`DeviceCosts::variation`].
    variation: f64,
}

impl Bench<'_> {
    fn step(&mut self, doing: &str) -> Result<()> {
        self.cancel.check()?;
        (self.on_step)(self.done, N_STEPS, doing);
        self.done += 1;
        Ok(())
    }

    /// What all command lines have in common.
    fn fio(&self) -> Tool {
        Tool::new("fio").limit(LIMIT).dies_with_parent().args([
            "--name=costs".to_owned(),
            // A job in a process of its own would outlive a killed run.
            "--thread".to_owned(),
            "--output-format=json".to_owned(),
            "--ioengine=libaio".to_owned(),
            "--direct=1".to_owned(),
            "--fallocate=none".to_owned(),
            "--randrepeat=1".to_owned(),
            "--allrandrepeat=1".to_owned(),
            "--norandommap".to_owned(),
            "--group_reporting".to_owned(),
            format!("--filename=/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()),
            format!("--size={}", self.size.0),
        ])
    }

    fn timed(&self) -> Tool {
        self.fio().args([
            "--time_based".to_owned(),
            format!("--runtime={SECONDS}"),
            format!("--ramp_time={RAMP_SECONDS}"),
        ])
    }

    fn carry_out(&self, tool: &Tool) -> Result<Report> {
        let output = tool.run_while(|| self.cancel.check())?.context("the device cannot be measured")?;
        parse(tool, &output.stdout)
    }

    fn job(&self, tool: &Tool) -> Result<Job> {
        self.carry_out(tool)?.jobs.into_iter().next().context("fio reported no job")
    }

    /// How many processors others keep busy, watched for a second.
    fn watch_idle(&mut self) -> Result<()> {
        self.step("the idle host")?;
        let (begin, before) = (Instant::now(), busy_cpu_us()?);
        wait_until(begin + Duration::from_secs(1), self.cancel)?;
        let busy = busy_cpu_us()?.saturating_sub(before);
        self.idle = busy as f64 / 1e6 / begin.elapsed().as_secs_f64();
        Ok(())
    }

    /// One direction of a timed measurement that must have done something, and the processors that it kept busy.
    fn watched(&self, tool: &Tool, is_write: bool) -> Result<(Side, f64)> {
        let begin = Instant::now();
        let (first, last) = (Cell::new(None), Cell::new(None));
        let watch = || {
            self.cancel.check()?;
            let seconds = begin.elapsed().as_secs_f64();
            if (WATCHED.0..WATCHED.1).contains(&seconds) {
                let sample = Some((seconds, busy_cpu_us()?));
                last.set(sample);
                first.set(first.get().or(sample));
            }
            anyhow::Ok(())
        };
        let output = tool.run_while(watch)?.context("the device cannot be measured")?;
        let job = parse(tool, &output.stdout)?.jobs.into_iter().next().context("fio reported no job")?;
        let side = if is_write { job.write } else { job.read };
        if side.iops <= 0.0 {
            bail!("fio measured nothing: {}", tool.command_line());
        }
        let (Some(first), Some(last)) = (first.get(), last.get()) else {
            bail!("fio ended too early: {}", tool.command_line());
        };
        let seconds = last.0 - first.0;
        let busy = if seconds > 0.0 { last.1.saturating_sub(first.1) as f64 / 1e6 / seconds } else { 0.0 };
        Ok((side, (busy - self.idle).max(0.0)))
    }

    /// The costs of a kind of requests, and its small ones alone.
    fn costs(&mut self, access: Access) -> Result<(Costs, Alone)> {
        let (small, alone) = self.cost(access, "4k")?;
        let (large, _) = self.cost(access, "128k")?;
        Ok((Costs { small, large }, alone))
    }

    fn cost(&mut self, access: Access, block: &str) -> Result<(Cost, Alone)> {
        let rw = match access {
            Access::RandomRead => "randread",
            Access::SequentialRead => "read",
            Access::RandomWrite => "randwrite",
            Access::SequentialWrite => "write",
        };
        let mut measure = |depth: u32| {
            self.step(&format!("{rw} of {block}, {depth} in flight"))?;
            let tool = self.timed().args([format!("--rw={rw}"), format!("--bs={block}"), format!("--iodepth={depth}")]);
            self.watched(&tool, access.is_write())
        };
        let (side, busy) = measure(1)?;
        let alone = alone(&side, busy);
        // A drive can be slower with many in flight: its highest rate counts.
        let per_s = measure(MANY)?.0.iops.max(side.iops);
        Ok((Cost { latency_us: alone.latency_us, per_s }, alone))
    }

    fn durable(&mut self) -> Result<Cost> {
        let mut measure = |writers: u32| {
            self.step(&format!("durable writes of {writers}"))?;
            let tool = self.timed().args(["--rw=randwrite", "--bs=4k", "--fdatasync=1", "--ioengine=psync"]);
            self.watched(&tool.args([format!("--numjobs={writers}")]), true)
        };
        let (one, busy) = measure(1)?;
        Ok(Cost { latency_us: alone(&one, busy).latency_us, per_s: measure(WRITERS)?.0.iops.max(one.iops) })
    }

    fn sharing(&mut self, reads: &Costs, writes: &Costs) -> Result<f64> {
        self.step("random reads and writes together")?;
        let job = self.job(&self.timed().args(["--rw=randrw", "--bs=4k", &format!("--iodepth={}", 2 * MANY)]))?;
        let parts = (job.read.iops / reads.small.per_s, job.write.iops / writes.small.per_s);
        sharing_of(parts).context("fio measured nothing for reads and writes together")
    }

    fn run_length(&mut self, random: &Costs, sequential: &Costs) -> Result<f64> {
        self.step("two sequential streams")?;
        let half = self.size.0 / 2 / Bytes::MIB * Bytes::MIB;
        let tool = self.timed().args(["--rw=read", "--bs=128k", "--iodepth=4", "--numjobs=2"]);
        let tool = tool.args([format!("--offset_increment={half}"), format!("--size={half}")]);
        Ok(run_of(sequential.large.per_s, random.large.per_s, self.watched(&tool, false)?.0.iops))
    }
}

/// Figures of one request at a time, whose processor time is a part of the time from one to the next.
fn alone(side: &Side, busy: f64) -> Alone {
    let (whole_us, mean) = (1e6 / side.iops, side.clat_ns.mean.unwrap_or_default());
    let part = side.clat_ns.stddev.map_or(1.0, |deviation| deviation / mean.max(1.0));
    Alone {
        latency_us: (1.0 - busy).max(LEAST_PART) * whole_us,
        cpu_us: busy * whole_us,
        variation: (part * part).min(1.0),
    }
}

/// The part of the device that reads and writes take from each other, if together they reach these parts of their rates alone:
/// `a + sharing b = 1` for the larger and the smaller of them. `None` if one was not served at all.
fn sharing_of((reads, writes): (f64, f64)) -> Option<f64> {
    let (most, least) = (reads.max(writes), reads.min(writes));
    (least > 0.0).then(|| ((1.0 - most) / least).clamp(0.0, 1.0))
}

/// The requests of a stream that are served before those of another, from the rates of one stream, of random requests, and of two streams
/// together: each request of the latter waits for the arm once in a run, if the request before was the other's.
fn run_of(alone: f64, at_random: f64, both: f64) -> f64 {
    let lost = 1.0 / both - 1.0 / alone;
    let seek = 1.0 / at_random - 1.0 / alone;
    if seek <= 0.0 || lost <= 0.0 {
        // Nothing is lost, or nothing could be.
        return MAX_RUN;
    }
    (0.5 * seek / lost).clamp(1.0, MAX_RUN)
}

/// The longest run: beyond, a change of streams costs nothing that could be measured.
const MAX_RUN: f64 = 1000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharing_follows_from_reads_and_writes_together() {
        assert_eq!(sharing_of((1.0, 1.0)), Some(0.0));
        assert_eq!(sharing_of((0.5, 0.5)), Some(1.0));
        assert_eq!(sharing_of((0.25, 0.875)), Some(0.5));
        // More than alone, as measured figures can be; and less than one at a time.
        assert_eq!(sharing_of((1.1, 0.5)), Some(0.0));
        assert_eq!(sharing_of((0.3, 0.3)), Some(1.0));
        assert_eq!(sharing_of((0.9, 0.0)), None);
    }

    #[test]
    fn runs_follow_from_two_streams_together() {
        // 1 ms for a request, 11 ms for a random one: half of the requests would wait 10 ms for the arm; 0.5 ms are lost, so each tenth does.
        assert!((run_of(1000.0, 1000.0 / 11.0, 1000.0 / 1.5) - 10.0).abs() < 1e-9);
        assert!((run_of(1000.0, 1000.0 / 11.0, 1000.0 / 12.0) - 1.0).abs() < 1e-9);
        assert!((run_of(1000.0, 1000.0 / 11.0, 1010.0) - MAX_RUN).abs() < 1e-9);
        assert!((run_of(1000.0, 1100.0, 900.0) - MAX_RUN).abs() < 1e-9);
    }

    #[test]
    fn a_directory_without_room_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let request = |size| Request { directory: dir.path().to_owned(), size: Some(size), cancel: Cancel::new() };
        let refused = |size| run(&request(size), &mut |_, _, _| {}).unwrap_err().to_string();
        assert!(refused(Bytes::mib(1)).contains("would fit into a drive's cache"));
        assert!(refused(Bytes(1 << 60)).contains("of space, not"));
    }
}
