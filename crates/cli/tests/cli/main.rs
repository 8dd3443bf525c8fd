//! The command line from outside: help, errors, and commands against a daemon on the simulated host.
//!
//! Each expectation is the exit code, standard output and standard error in one text.

#![expect(clippy::unwrap_used, reason = "these are tests, and their helpers too")]

mod arguments;
mod devices;
mod observation;
mod plans;
mod pools;
mod streams;
mod tenants;
mod volumes;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use expect_test::{Expect, expect};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) const NO_SOCKET: &str = "/nonexistent/bulkhead.sock";

#[expect(clippy::disallowed_methods, reason = "the program under test")]
pub(crate) fn bulkhead(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
    command.env_clear().env("BULKHEAD_SOCKET", socket).args(args).stdin(Stdio::null());
    command
}

pub(crate) fn screen(mut command: Command) -> String {
    let output = command.output().unwrap();
    let stream = |name: &str, bytes: &[u8]| {
        if bytes.is_empty() { String::new() } else { format!("----- {name}\n{}", String::from_utf8_lossy(bytes)) }
    };
    let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    format!("exit {code}\n{}{}", stream("stdout", &output.stdout), stream("stderr", &output.stderr))
}

pub(crate) fn check(args: &[&str], expected: &Expect) {
    expected.assert_eq(&screen(bulkhead(Path::new(NO_SOCKET), args)));
}

/// A daemon on the simulated host, in a thread of this program.
pub(crate) struct Daemon {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = DaemonOptions {
            dirs: Dirs { state: dir.path().join("state"), run: dir.path().join("run") },
            socket: dir.path().join("sock"),
            socket_group: None,
            metrics: None,
            domain: None,
            fault_after: None,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let facts = serde_json::json!({
                "kernel_release": "6.12.0-simulated",
                "cgroup_mode": "v2",
                "cgroup_controllers": ["cpu", "io", "memory"],
                "is_root": true,
                "programs": { "fio": null, "lvm": "/usr/sbin/lvm" },
            });
            let stop = async {
                let _ = stopped.await;
            };
            let host = simulated_host();
            let evidence = "no cpu controller on cgroup v2";
            let finding = Finding::new(FindingId::CpuControllerMissing, "host", evidence).advise("boot with one");
            host.conditions().set(finding);
            runtime.block_on(run_until(options, host, simulated_observation(), facts, stop)).unwrap();
        });
        let daemon = Self { dir, stop: Some(stop), thread: Some(thread) };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !daemon.screen(&["host"]).starts_with("exit 0") {
            assert!(Instant::now() < deadline, "the daemon does not answer: {}", daemon.screen(&["host"]));
        }
        daemon
    }

    pub(crate) fn screen(&self, args: &[&str]) -> String {
        let directory = self.dir.path().display().to_string();
        screen(bulkhead(&self.dir.path().join("sock"), args)).replace(&directory, "[DIR]")
    }

    pub(crate) fn check(&self, args: &[&str], expected: &Expect) {
        expected.assert_eq(&self.screen(args));
    }

    /// Runs a command that has to succeed, to set up a test.
    pub(crate) fn run(&self, args: &[&str]) {
        let screen = self.screen(args);
        assert!(screen.starts_with("exit 0"), "{args:?}: {screen}");
    }

    /// The pools `files` and `fast`.
    pub(crate) fn create_pools(&self) {
        self.run(&["pool", "create", "files", "--dir", "/srv/pool"]);
        self.run(&["pool", "create", "fast", "--vg", "tvg", "--thin-pool", "thin"]);
    }

    /// Volumes of both file systems in these pools.
    pub(crate) fn create_volumes(&self) {
        self.run(&["volume", "create", "files/data", "--size", "64M"]);
        self.run(&["volume", "create", "fast/data", "--size", "100M"]);
        self.run(&["volume", "create", "fast/logs", "--size", "300M", "--fs", "xfs"]);
    }

    /// The same, after a growth and a snapshot.
    pub(crate) fn change_volumes(&self) {
        self.run(&["volume", "resize", "logs", "--size", "400M"]);
        self.run(&["volume", "snapshot", "fast/data", "before"]);
    }

    /// A tenant with one of them.
    pub(crate) fn create_tenant(&self) {
        let limit = "sdb:wbps=50M,riops=100";
        self.run(&["tenant", "create", "db", "--share", "300", "--volume", "fast/data", "--limit", limit]);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.stop.take());
        let outcome = self.thread.take().map(std::thread::JoinHandle::join);
        if !std::thread::panicking() {
            outcome.unwrap().unwrap();
        }
    }
}
