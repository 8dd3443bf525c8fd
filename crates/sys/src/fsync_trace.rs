//! Duration of each fsync(2) call in ext4, by the tracepoints `ext4_sync_file_enter` and `_exit`.
//!
//! Only one trace at a time. Does not filter by caller: each call has its thread id.

use std::collections::HashMap;

use bulkhead_core::units::DevNo;

use crate::roots::Roots;
use crate::tracefs::{Instance, TraceError, kernel_dev};

/// Name of the instance: constant, so that the instance of a killed trace is found.
const INSTANCE: &str = "bulkhead";
const EVENTS: [&str; 2] = ["ext4_sync_file_enter", "ext4_sync_file_exit"];
/// Size of the ring buffer of each CPU: about 60 000 calls.
const BUFFER_KIB: u32 = 8192;

/// A call that started and returned while the trace was running.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FsyncCall {
    /// The thread that called.
    pub tid: u32,
    /// Inode number of the file.
    pub inode: u64,
    /// Whether it was fdatasync(2).
    pub datasync: bool,
    /// Duration in milliseconds.
    pub ms: f64,
}

/// A running trace.
#[derive(Debug)]
pub struct FsyncTrace {
    instance: Instance,
}

impl FsyncTrace {
    /// Starts tracing calls on one ext4 file system.
    ///
    /// # Errors
    /// If tracefs or ext4's tracepoints are missing.
    pub fn start(roots: &Roots, dev: DevNo) -> Result<Self, TraceError> {
        let instance = Instance::create(roots, INSTANCE, BUFFER_KIB)?;
        for event in EVENTS {
            instance.enable(&format!("ext4/{event}"), &format!("dev == {}", kernel_dev(dev)))?;
        }
        Ok(Self { instance })
    }

    /// Stops the trace, and returns the traced calls.
    ///
    /// # Errors
    /// If the trace cannot be read.
    pub fn stop(self) -> Result<Vec<FsyncCall>, TraceError> {
        Ok(parse(&self.instance.stop()?))
    }
}

/// Pairs the two events of each thread.
fn parse(text: &str) -> Vec<FsyncCall> {
    let mut begun: HashMap<u32, (f64, u64, bool)> = HashMap::new();
    let mut calls = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((seconds, tid, is_enter, fields)) = event(line) else { continue };
        let field = |name: &str| {
            let mut words = fields.split_ascii_whitespace();
            words.find(|word| *word == name)?;
            words.next()?.parse::<u64>().ok()
        };
        if is_enter {
            begun.insert(tid, (seconds, field("ino").unwrap_or(0), field("datasync") == Some(1)));
        } else if let Some((begin, inode, datasync)) = begun.remove(&tid) {
            calls.push(FsyncCall { tid, inode, datasync, ms: (seconds - begin) * 1e3 });
        }
    }
    calls
}

/// `comm-TID [CPU] flags SECONDS: ext4_sync_file_enter: fields`; `comm` may contain any character.
fn event(line: &str) -> Option<(f64, u32, bool, &str)> {
    let (head, is_enter, fields) = match line.split_once(": ext4_sync_file_enter: ") {
        Some((head, fields)) => (head, true, fields),
        None => line.split_once(": ext4_sync_file_exit: ").map(|(head, fields)| (head, false, fields))?,
    };
    let seconds = head.rsplit(' ').next()?.parse().ok()?;
    let tid = head.rsplit_once('[')?.0.trim_end().rsplit_once('-')?.1.parse().ok()?;
    Some((seconds, tid, is_enter, fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian's 6.12.107, with changed thread names.
    const TRACE: &str = "\
# tracer: nop
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
        mariadbd-1234    [001] .....   100.000000: ext4_sync_file_enter: dev 253,0 ino 15 parent 2 datasync 1
      odd [a-b] -77      [000] .....   100.001000: ext4_sync_file_enter: dev 253,0 ino 16 parent 2 datasync 0
        mariadbd-1234    [000] .....   100.025500: ext4_sync_file_exit: dev 253,0 ino 15 ret 0
        mariadbd-99      [000] .....   100.026000: ext4_sync_file_exit: dev 253,0 ino 15 ret 0
      odd [a-b] -77      [000] .....   100.101000: ext4_sync_file_exit: dev 253,0 ino 16 ret 0
        mariadbd-1234    [001] .....   100.200000: ext4_sync_file_enter: dev 253,0 ino 15 parent 2 datasync 1
";

    #[test]
    fn calls_are_paired_by_thread() {
        let calls = parse(TRACE);
        let round = |call: &FsyncCall| (call.tid, call.inode, call.datasync, (call.ms * 10.0).round() / 10.0);
        assert_eq!(calls.iter().map(round).collect::<Vec<_>>(), [(1234, 15, true, 25.5), (77, 16, false, 100.0)]);
    }
}
