//! What the requests of a device cost, measured with fio on a file in a directory.
//!
//! Owns: the measurements, and the figures that follow from them. The file has no name and disappears with this process, however it ends. Does
//! not: define the figures ([`bulkhead_core::demand::DeviceCosts`]), or predict.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_core::demand::{Access, Cost, Costs, DeviceCosts};
use bulkhead_core::units::Bytes;
use bulkhead_sys::tool::Tool;
use rustix::fs::{Mode, OFlags, open, statvfs};

use crate::calibrate::fio::{Job, Report, Side, parse};
use crate::cgroup_run::Cancel;

/// Smallest file: it must not fit into the caches of a drive, of which those with an arm have the smallest.
const MIN_BYTES: Bytes = Bytes::mib(256);
/// Largest file unless another size is asked for, and the part of the free space that it takes at most.
const MAX_BYTES: Bytes = Bytes::mib(4096);
const PART_OF_FREE: u64 = 4;
/// Seconds that do not count, and seconds that do.
const RAMP_SECONDS: u32 = 1;
const SECONDS: u32 = 4;
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

/// Number of measurements, with the writing of the file.
const N_STEPS: usize = 1 + 4 * 4 + 2 + 2;

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
    let mut bench = Bench { file, size, cancel: &request.cancel, on_step, done: 0 };
    bench.step("writing the file")?;
    let layout = bench.fio().args(["--rw=write", "--bs=1M", "--iodepth=8", "--end_fsync=1"]);
    bench.carry_out(&layout)?;
    let random_read = bench.costs(Access::RandomRead)?;
    let sequential_read = bench.costs(Access::SequentialRead)?;
    let random_write = bench.costs(Access::RandomWrite)?;
    let sequential_write = bench.costs(Access::SequentialWrite)?;
    Ok(DeviceCosts {
        durable_write: bench.durable()?,
        read_write_sharing: bench.sharing(&random_read, &random_write)?,
        sequential_run: bench.run_length(&random_read, &sequential_read)?,
        random_read,
        sequential_read,
        random_write,
        sequential_write,
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

    /// One direction of a measurement that must have done something.
    fn side(&self, tool: &Tool, is_write: bool) -> Result<Side> {
        let job = self.job(tool)?;
        let side = if is_write { job.write } else { job.read };
        if side.iops > 0.0 { Ok(side) } else { bail!("fio measured nothing: {}", tool.command_line()) }
    }

    fn costs(&mut self, access: Access) -> Result<Costs> {
        Ok(Costs { small: self.cost(access, "4k")?, large: self.cost(access, "128k")? })
    }

    fn cost(&mut self, access: Access, block: &str) -> Result<Cost> {
        let rw = match access {
            Access::RandomRead => "randread",
            Access::SequentialRead => "read",
            Access::RandomWrite => "randwrite",
            Access::SequentialWrite => "write",
        };
        let mut measure = |depth: u32| {
            self.step(&format!("{rw} of {block}, {depth} in flight"))?;
            let tool = self.timed().args([format!("--rw={rw}"), format!("--bs={block}"), format!("--iodepth={depth}")]);
            self.side(&tool, access.is_write())
        };
        let alone = measure(1)?;
        let latency_us = alone.clat_ns.mean.context("fio reported no latency")? / 1e3;
        // A drive can be slower with many in flight: its highest rate counts.
        Ok(Cost { latency_us, per_s: measure(MANY)?.iops.max(alone.iops) })
    }

    fn durable(&mut self) -> Result<Cost> {
        let mut measure = |writers: u32| {
            self.step(&format!("durable writes of {writers}"))?;
            let tool = self.timed().args(["--rw=randwrite", "--bs=4k", "--fdatasync=1", "--ioengine=psync"]);
            self.side(&tool.args([format!("--numjobs={writers}")]), true).map(|side| side.iops)
        };
        let (one, many) = (measure(1)?, measure(WRITERS)?);
        Ok(Cost { latency_us: 1e6 / one, per_s: many.max(one) })
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
        let both = self.side(&tool.args([format!("--offset_increment={half}"), format!("--size={half}")]), false)?.iops;
        Ok(run_of(sequential.large.per_s, random.large.per_s, both))
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
