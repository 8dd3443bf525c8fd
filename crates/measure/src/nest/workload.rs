//! The workloads of the matrix: micro I/O with fio, and servers with Filebench's mixes.

use std::path::Path;
use std::time::Duration;

use bulkhead_sys::tool::Tool;

use crate::load::LoadKind;

/// Size of the file, or of the part of the device, that micro I/O uses.
const FILE_BYTES: u64 = 256 << 20;
const QUICK_FILE_BYTES: u64 = 128 << 20;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// 8 KiB by Linux AIO, with 255 in flight, as in the paper: fio's `rw`.
    Micro { name: &'static str, rw: &'static str },
    /// A server, with a number of files that one window does not read all of.
    Server { kind: LoadKind, files: u64 },
}

/// Reads first, so that writes of one do not fragment what another reads.
pub(super) const ALL: [Workload; 8] = [
    Workload::Micro { name: "sequential-read", rw: "read" },
    Workload::Micro { name: "random-read", rw: "randread" },
    Workload::Micro { name: "sequential-write", rw: "write" },
    Workload::Micro { name: "random-write", rw: "randwrite" },
    Workload::Server { kind: LoadKind::WebServer, files: 4000 },
    Workload::Server { kind: LoadKind::FileServer, files: 1000 },
    Workload::Server { kind: LoadKind::MailServer, files: 1000 },
    Workload::Server { kind: LoadKind::DatabaseServer, files: 0 },
];

impl Workload {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Micro { name, .. } => name,
            Self::Server { kind, .. } => kind.as_str(),
        }
    }

    /// Whether it needs a file system.
    #[must_use]
    pub fn needs_files(self) -> bool {
        matches!(self, Self::Server { .. })
    }

    /// Whether most of its I/O is writes.
    #[must_use]
    pub fn is_write_heavy(self) -> bool {
        match self {
            Self::Micro { rw, .. } => rw.contains("write"),
            Self::Server { kind, .. } => kind != LoadKind::WebServer,
        }
    }
}

/// fio's command line that lays out the file of micro I/O.
pub(super) fn layout(file: &Path, quick: bool, limit: Duration) -> Tool {
    common(file, quick, limit).args(["--rw=write", "--bs=1M", "--iodepth=4", "--end_fsync=1"])
}

/// fio's command line of micro I/O.
pub(super) fn micro(rw: &str, file: &Path, quick: bool, seconds: f64, limit: Duration) -> Tool {
    common(file, quick, limit).args([
        format!("--rw={rw}"),
        "--bs=8k".to_owned(),
        "--iodepth=255".to_owned(),
        // As the paper's native AIO: many requests with each system call.
        "--iodepth_batch_submit=32".to_owned(),
        "--iodepth_batch_complete_min=16".to_owned(),
        "--randrepeat=1".to_owned(),
        "--allrandrepeat=1".to_owned(),
        "--norandommap".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={seconds}"),
    ])
}

fn common(file: &Path, quick: bool, limit: Duration) -> Tool {
    let size = if quick { QUICK_FILE_BYTES } else { FILE_BYTES };
    Tool::new("fio").limit(limit).dies_with_parent().args([
        "--name=nest".to_owned(),
        // A job in a process of its own would outlive a killed run.
        "--thread".to_owned(),
        "--output-format=json".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--direct=1".to_owned(),
        "--fallocate=none".to_owned(),
        format!("--filename={}", file.display().to_string().replace(':', "\\:")),
        format!("--size={size}"),
    ])
}
