//! MariaDB as a tenant's database, and sysbench as its clients.
//!
//! Owns: the server's options, its lifetime (it is always ended), and parsing sysbench's output. The server starts in an empty data directory without
//! grant tables (`--skip-grant-tables`), which does not require `mariadb-install-db`, and listens on a Unix socket only.
//!
//! The options make the disk the bottleneck and results stable: a small buffer pool; a redo log so small that preparing the tables has written
//! all of it (a new one would need a journal commit for each write); the binary log with `sync_binlog=1`, the default of MySQL 8, whose appends
//! need journal commits, as in the paper's MySQL 5.7, which calls fsync where MariaDB calls fdatasync.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_sys::spawn::{Running, SpawnSpec, Stdout, spawn};
use bulkhead_sys::tool::{Tool, find_program};

use crate::cgroup_run::{Cancel, wait_until};

/// Time limit for the server to answer after its start, and to end: emulated CPUs are slow.
const START_LIMIT: Duration = Duration::from_secs(180);
const STOP_LIMIT: Duration = Duration::from_secs(120);
/// Interval between polls of whether it answers.
const ASK: Duration = Duration::from_millis(500);
/// Tables and rows that sysbench prepares.
const TABLES: u32 = 4;
const ROWS: u32 = 2500;

/// A running server. Killed on drop; [`Server::stop`] ends it in order.
#[derive(Debug)]
pub struct Server {
    child: Running,
    socket: PathBuf,
}

/// Checks that the programs are installed.
///
/// # Errors
/// The missing program, with its Debian package.
pub fn check_programs() -> Result<()> {
    for program in ["mariadbd", "mariadb-admin", "mariadb", "sysbench"] {
        if find_program(program).is_none() {
            bail!("{program} is not installed (Debian package {})", bulkhead_sys::tool::package_of(program));
        }
    }
    Ok(())
}

/// The server's command line.
#[must_use]
pub fn server_args(data: &Path, socket: &Path) -> Vec<String> {
    let path = |name: &str, value: &Path| format!("--{name}={}", value.display());
    let mut args: Vec<String> = [
        "--no-defaults",
        "--user=root",
        "--skip-grant-tables",
        "--skip-networking",
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=4M",
        "--innodb-flush-method=O_DIRECT",
        "--innodb-flush-log-at-trx-commit=1",
        "--innodb-undo-tablespaces=0",
        "--innodb-buffer-pool-dump-at-shutdown=0",
        "--innodb-use-native-aio=1",
        "--log-bin=binlog",
        "--server-id=1",
        "--sync-binlog=1",
        "--binlog-expire-logs-seconds=0",
        "--performance-schema=0",
    ]
    .map(str::to_owned)
    .into();
    args.extend([path("datadir", data), path("socket", socket), path("pid-file", &data.join("pid"))]);
    args
}

impl Server {
    /// Starts a server in a cgroup, with its data in `data`, and waits until it answers.
    ///
    /// # Errors
    /// When it does not start or does not answer.
    pub fn start(data: &Path, cgroup: &Path, cancel: &Cancel) -> Result<Self> {
        let mariadbd = find_program("mariadbd").context("mariadbd is not installed (Debian package mariadb-server)")?;
        fs::create_dir_all(data).with_context(|| format!("cannot create {}", data.display()))?;
        // Not in the data directory, whose path can be too long for a socket.
        let socket = PathBuf::from(crate::cleanup::RUN_DIR).join("mariadb.sock");
        let spec = SpawnSpec {
            program: mariadbd,
            args: server_args(data, &socket).into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cgroup: Some(cgroup.to_owned()),
        };
        let mut server = Self { child: spawn(&spec)?, socket };
        let deadline = Instant::now() + START_LIMIT;
        while server.tool("mariadb-admin").arg("ping").run().is_err() {
            if let Some(code) = server.child.wait(Duration::ZERO)? {
                bail!("mariadbd ended with code {code}: {}", server.child.stderr());
            }
            if Instant::now() >= deadline {
                bail!("mariadbd does not answer after {} s: {}", START_LIMIT.as_secs(), server.child.stderr());
            }
            wait_until(Instant::now() + ASK, cancel)?;
        }
        Ok(server)
    }

    /// Creates and fills sysbench's tables.
    ///
    /// # Errors
    /// When the server or sysbench refuses.
    pub fn prepare(&self) -> Result<()> {
        self.tool("mariadb").args(["-e", "CREATE DATABASE IF NOT EXISTS sbtest"]).run()?;
        Tool::new("sysbench").args(self.sysbench_args("prepare", 1, 0)).limit(Duration::from_secs(600)).run()?;
        Ok(())
    }

    /// Starts clients that insert rows one by one, for a number of seconds.
    ///
    /// # Errors
    /// When sysbench cannot be started.
    pub fn clients(&self, n_clients: u32, seconds: u32) -> Result<Clients> {
        let sysbench = find_program("sysbench").context("sysbench is not installed")?;
        let args = self.sysbench_args("run", n_clients, seconds).into_iter().map(Into::into).collect();
        let spec = SpawnSpec { program: sysbench, args, env: Vec::new(), cgroup: None };
        Ok(Clients { child: spawn(&spec)?, intervals: Vec::new() })
    }

    /// Ids of its threads.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn threads(&self) -> Result<Vec<u32>> {
        let dir = format!("/proc/{}/task", self.child.pid());
        let entries = fs::read_dir(&dir).with_context(|| format!("cannot read {dir}"))?;
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// When it does not end, or reports a failure.
    pub fn stop(mut self) -> Result<()> {
        self.child.terminate()?;
        match self.child.wait(STOP_LIMIT)? {
            Some(0) => Ok(()),
            Some(code) => bail!("mariadbd ended with code {code}: {}", self.child.stderr()),
            None => bail!("mariadbd did not end within {} s", STOP_LIMIT.as_secs()),
        }
    }

    fn tool(&self, program: &'static str) -> Tool {
        let socket = format!("--socket={}", self.socket.display());
        Tool::new(program).arg("--no-defaults").arg(socket).limit(Duration::from_secs(60))
    }

    fn sysbench_args(&self, command: &str, n_clients: u32, seconds: u32) -> Vec<String> {
        vec![
            "oltp_insert".to_owned(),
            "--db-driver=mysql".to_owned(),
            "--mysql-user=root".to_owned(),
            format!("--mysql-socket={}", self.socket.display()),
            format!("--tables={TABLES}"),
            format!("--table-size={ROWS}"),
            format!("--threads={n_clients}"),
            format!("--time={seconds}"),
            "--report-interval=1".to_owned(),
            command.to_owned(),
        ]
    }
}

/// One line of sysbench's report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// End of the interval, in seconds after the start.
    pub at_seconds: u32,
    /// Inserts per second.
    pub inserts_per_s: f64,
    /// 95th percentile of their latency.
    pub p95_ms: f64,
}

/// Running clients.
#[derive(Debug)]
pub struct Clients {
    child: Running,
    intervals: Vec<Interval>,
}

impl Clients {
    /// Waits until all clients are connected and insert.
    ///
    /// # Errors
    /// When sysbench fails, or the experiment is cancelled.
    pub fn await_start(&mut self, cancel: &Cancel) -> Result<()> {
        self.listen(cancel, Duration::from_secs(120), |line| line.starts_with("Threads started"))
    }

    /// Waits for the end and returns the report, second by second.
    ///
    /// # Errors
    /// As [`Clients::await_start`].
    pub fn finish(mut self, cancel: &Cancel) -> Result<Vec<Interval>> {
        self.listen(cancel, Duration::from_secs(300), |line| line.trim_start().starts_with("execution time"))?;
        match self.child.wait(Duration::from_secs(60))? {
            Some(0) => Ok(self.intervals),
            code => bail!("sysbench ended with code {code:?}: {}", self.child.stderr()),
        }
    }

    fn listen(&mut self, cancel: &Cancel, limit: Duration, includes: impl Fn(&str) -> bool) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            cancel.check()?;
            match self.child.read_line(Duration::from_millis(200)) {
                Stdout::Line(line) => {
                    self.intervals.extend(parse_interval(&line));
                    if includes(&line) {
                        return Ok(());
                    }
                }
                Stdout::Closed => bail!("sysbench ended early: {}", self.child.stderr()),
                Stdout::Timeout if Instant::now() >= deadline => bail!("sysbench says nothing more"),
                Stdout::Timeout => {}
            }
        }
    }
}

/// `[ 3s ] thds: 2 tps: 123.00 qps: 123.00 (r/w/o: …) lat (ms,95%): 12.30 err/s: 0.00 reconn/s: 0.00`
fn parse_interval(line: &str) -> Option<Interval> {
    let (at, rest) = line.trim().strip_prefix('[')?.split_once(']')?;
    let after = |key: &str| -> Option<f64> {
        let (_, value) = rest.split_once(key)?;
        value.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(Interval {
        at_seconds: at.trim().strip_suffix('s')?.parse().ok()?,
        inserts_per_s: after("tps: ")?,
        p95_ms: after("lat (ms,95%): ")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysbench_reports_are_read() {
        let line = "[ 3s ] thds: 2 tps: 123.05 qps: 123.05 (r/w/o: 0.00/123.05/0.00) lat (ms,95%): 12.30 err/s: 0.00 reconn/s: 0.00";
        assert_eq!(parse_interval(line), Some(Interval { at_seconds: 3, inserts_per_s: 123.05, p95_ms: 12.3 }));
        assert_eq!(parse_interval("Threads started!"), None);
        assert_eq!(parse_interval("[ x ] tps: 1"), None);
    }

    #[test]
    fn the_server_listens_on_no_network_and_writes_through() {
        let args = server_args(Path::new("/mnt/a/db"), Path::new("/run/x/s"));
        for wanted in
            ["--skip-networking", "--innodb-flush-method=O_DIRECT", "--datadir=/mnt/a/db", "--socket=/run/x/s"]
        {
            assert!(args.iter().any(|arg| arg == wanted), "{wanted}");
        }
        assert_eq!(args[0], "--no-defaults");
    }
}
