//! The command line from outside: help, errors, and commands against a daemon on the simulated host.
//!
//! Each expectation is the exit code, standard output and standard error in one text.

#![expect(clippy::unwrap_used, reason = "these are tests, and their helpers too")]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::model::FsKind;
use bulkhead_core::stream::{StreamHeader, encode_header};
use bulkhead_core::units::Bytes;
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use expect_test::{Expect, expect, expect_file};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::sync::oneshot;

const NO_SOCKET: &str = "/nonexistent/bulkhead.sock";

#[expect(clippy::disallowed_methods, reason = "the program under test")]
fn bulkhead(socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
    command.env_clear().env("BULKHEAD_SOCKET", socket).args(args).stdin(Stdio::null());
    command
}

fn screen(mut command: Command) -> String {
    let output = command.output().unwrap();
    let stream = |name: &str, bytes: &[u8]| {
        if bytes.is_empty() { String::new() } else { format!("----- {name}\n{}", String::from_utf8_lossy(bytes)) }
    };
    let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    format!("exit {code}\n{}{}", stream("stdout", &output.stdout), stream("stderr", &output.stderr))
}

fn check(args: &[&str], expected: &Expect) {
    expected.assert_eq(&screen(bulkhead(Path::new(NO_SOCKET), args)));
}

/// The commands, as the help of each one lists them.
fn commands(path: &[String]) -> Vec<Vec<String>> {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let help = screen(bulkhead(Path::new(NO_SOCKET), &args));
    let listed = help.split("Commands:\n").nth(1).map(|rest| rest.split("\n\n").next().unwrap_or_default());
    let mut found = vec![path.to_vec()];
    for line in listed.unwrap_or_default().lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
        let name = line.split_whitespace().next().unwrap().to_owned();
        found.extend(commands(&[path, &[name]].concat()));
    }
    found
}

/// Its options are read beside the global ones, which have names of their own.
#[test]
fn a_load_runs() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["__load", "mkdirs", "--dir", dir.path().to_str().unwrap(), "--seconds", "0.05"];
    let output = bulkhead(Path::new(NO_SOCKET), &args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!output.stdout.is_empty());
}

#[test]
fn help_of_every_command() {
    let mut all = String::new();
    let commands = commands(&[]);
    assert!(commands.len() >= 30, "{commands:?}");
    for path in commands {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let help = screen(bulkhead(Path::new(NO_SOCKET), &args));
        assert!(help.starts_with("exit 0\n----- stdout\n") && !help.contains("stderr"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        all += &format!("$ bulkhead {}\n{help}\n", args.join(" "));
    }
    expect_file!["help.txt"].assert_eq(&all);
}

#[test]
fn without_a_daemon() {
    check(
        &["pool", "ls"],
        &expect![[r#"
            exit 11
            ----- stderr
            error: daemon: it is not running: there is no socket /nonexistent/bulkhead.sock
            hint: start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal
        "#]],
    );
    check(
        &["tenant", "rm", "db", "--output", "json"],
        &expect![[r#"
            exit 11
            ----- stderr
            {"code":"unavailable","object":"daemon","cause":"it is not running: there is no socket /nonexistent/bulkhead.sock","hint":"start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal","reason":{"reason":"daemon_unreachable"}}
        "#]],
    );
}

#[test]
fn bad_names() {
    check(
        &["pool", "inspect", "a/b"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: pool: name "a/b" contains '/': only letters, digits, '_', '.' and '-' are allowed
    "#]],
    );
    check(
        &["pool", "inspect", ".."],
        &expect![[r#"
        exit 2
        ----- stderr
        error: pool: name ".." starts with '.' or '-': start it with a letter, a digit or '_'
    "#]],
    );
    check(
        &["tenant", "create", "a\u{1b}[31mb"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: tenant: name "a\u{1b}[31mb" contains '\u{1b}': only letters, digits, '_', '.' and '-' are allowed
    "#]],
    );
    check(
        &["volume", "inspect", "../../etc/passwd"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: volume: name ".." starts with '.' or '-': start it with a letter, a digit or '_'
    "#]],
    );
    check(
        &["volume", "rm", "fast/a\nb"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: volume: name "a\nb" contains '\n': only letters, digits, '_', '.' and '-' are allowed
    "#]],
    );
    check(
        &["volume", "create", "db", "--size", "1G"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: volume: "db" does not name a volume: write POOL/VOLUME
    "#]],
    );
    check(
        &["tenant", "inspect", &"n".repeat(300)],
        &expect![[r#"
        exit 2
        ----- stderr
        error: tenant: the name is 300 bytes long: at most 63 are allowed
    "#]],
    );
    check(
        &["tenant", "inspect", "--", "-rf"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: tenant: name "-rf" starts with '.' or '-': start it with a letter, a digit or '_'
    "#]],
    );
    check(
        &["-o", "json", "tenant", "inspect", "a\u{7}"],
        &expect![[r#"
        exit 2
        ----- stderr
        {"code":"invalid_argument","object":"tenant","cause":"name \"a\\u{7}\" contains '\\u{7}': only letters, digits, '_', '.' and '-' are allowed"}
    "#]],
    );
}

#[test]
fn bad_numbers() {
    for size in ["0", "-5G", "huge", "1.5X", "9999999999T", "", "1e9", "NaN"] {
        let screen = screen(bulkhead(Path::new(NO_SOCKET), &["volume", "create", "p/v", "--size", size]));
        assert!(screen.starts_with("exit 2\n----- stderr\nerror: --size: "), "{size:?}: {screen}");
    }
    check(
        &["volume", "create", "p/v", "--size", "0"],
        &expect![[r#"
            exit 2
            ----- stderr
            error: --size: a volume cannot have size 0: give a size such as 10G
        "#]],
    );
    check(
        &["volume", "resize", "p/v", "--size", "-5G"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: --size: "-5G" is out of range: a size is between 0 and 8 EiB - 1
    "#]],
    );
    check(
        &["volume", "create", "p/v", "--size", "big"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: --size: "big" has an unknown unit: use K, M, G, T or KiB, MiB, GiB, TiB
    "#]],
    );
    check(
        &["tenant", "create", "db", "--share", "0"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: --share: share 0 is out of range: a share is a whole number from 1 to 10000 (100 is the default)
    "#]],
    );
    check(
        &["tenant", "create", "db", "--share", "-1"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: --share: share -1 is out of range: a share is a whole number from 1 to 10000 (100 is the default)
    "#]],
    );
    check(
        &["tenant", "create", "db", "--limit", "vda:speed=9"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: limit "vda:speed=9": "speed" cannot be limited, only rbps, wbps, riops and wiops can
        hint: write it like vda:wbps=50M,riops=100
    "#]],
    );
}

#[test]
fn bad_combinations() {
    check(
        &["tenant", "set", "db"],
        &expect![[r#"
            exit 2
            ----- stderr
            error: tenant db: nothing to change
            hint: specify --share, --limit, --no-limits, --attach or --detach
        "#]],
    );
    check(
        &["tenant", "set", "db", "--limit", "vda:rbps=1M", "--no-limits"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: the argument '--limit <DEV:KEY=N,…>' cannot be used with '--no-limits'

        Usage: bulkhead tenant set --limit <DEV:KEY=N,…> --socket <PATH> <NAME>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["pool", "create", "p"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <--dir <PATH>|--vg <VG>|--device <DEV>>

        Usage: bulkhead pool create --socket <PATH> <--dir <PATH>|--vg <VG>|--device <DEV>> <NAME>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["pool", "create", "p", "--dir", "/srv", "--vg", "vg"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: the argument '--dir <PATH>' cannot be used with '--vg <VG>'

        Usage: bulkhead pool create --socket <PATH> <--dir <PATH>|--vg <VG>|--device <DEV>> <NAME>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["pool", "create", "p", "--dir", "/srv", "--thin"],
        &expect![[r#"
            exit 2
            ----- stderr
            error: the argument '--dir <PATH>' cannot be used with '--thin'

            Usage: bulkhead pool create --socket <PATH> <--dir <PATH>|--vg <VG>|--device <DEV>> <NAME>

            For more information, try '--help'.
        "#]],
    );
    check(
        &["device", "control", "vda"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <--policy <POLICY>|--restore>

        Usage: bulkhead device control --socket <PATH> <--policy <POLICY>|--restore> <DEVICE>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["volume", "frobnicate\u{1b}[0m"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: unrecognized subcommand 'frobnicate'

        Usage: bulkhead volume [OPTIONS] <COMMAND>

        For more information, try '--help'.
    "#]],
    );
    check(
        &["volume", "frobnicate", "--output", "json"],
        &expect![[r#"
            exit 2
            ----- stderr
            {"code":"invalid_argument","object":"command line","cause":"unrecognized subcommand 'frobnicate'","hint":"`--help` shows the valid arguments"}
        "#]],
    );
}

#[test]
fn run_refuses_before_it_asks_the_daemon() {
    check(
        &["run", "--tenant", "db"],
        &expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <COMMAND>...

        Usage: bulkhead run --tenant <TENANT> --socket <PATH> <COMMAND>...

        For more information, try '--help'.
    "#]],
    );
    check(
        &["run", "--tenant", "db", "--volume", "data:relative", "--", "true"],
        &expect![[r#"
        exit 125
        ----- stderr
        error: --volume "data:relative": the directory is not an absolute path
        hint: write it like data:/var/lib/mysql or data:/srv:ro
    "#]],
    );
    check(
        &["run", "--tenant", "db", "--volume", "data:/nonexistent", "--", "true"],
        &expect![[r#"
            exit 125
            ----- stderr
            error: directory /nonexistent: there is no such directory to mount the volume on
            hint: create it first: `mkdir -p /nonexistent`
        "#]],
    );
    check(
        &["run", "--tenant", "db", "--volume", "data:/dev/null", "--", "true"],
        &expect![[r#"
            exit 125
            ----- stderr
            error: directory /dev/null: it is not a directory
            hint: volumes are mounted on directories
        "#]],
    );
    check(
        &["run", "--tenant", "db", "-v", "a:/srv", "-v", "b:/srv", "--", "true"],
        &expect![[r#"
            exit 125
            ----- stderr
            error: directory /srv: two volumes would be mounted there
        "#]],
    );
    check(
        &["run", "--tenant", "db", "--", "true", "--help"],
        &expect![[r#"
            exit 125
            ----- stderr
            error: daemon: it is not running: there is no socket /nonexistent/bulkhead.sock
            hint: start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal
        "#]],
    );
    check(
        &["__enter", "--output", "json", "--tenant", "db", "--run", "7", "--", "true"],
        &expect![[r#"
            exit 125
            ----- stderr
            {"code":"unavailable","object":"daemon","cause":"it is not running: there is no socket /nonexistent/bulkhead.sock","hint":"start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal","reason":{"reason":"daemon_unreachable"}}
        "#]],
    );
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    for args in [&["completions", "bash"][..], &["--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bulkhead(Path::new(NO_SOCKET), args).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]), "{args:?}");
    }
}

/// A daemon on the simulated host, in a thread of this program.
struct Daemon {
    dir: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = DaemonOptions {
            dirs: Dirs { state: dir.path().join("state"), run: dir.path().join("run") },
            socket: dir.path().join("sock"),
            socket_group: None,
            metrics: None,
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

    fn screen(&self, args: &[&str]) -> String {
        let directory = self.dir.path().display().to_string();
        screen(bulkhead(&self.dir.path().join("sock"), args)).replace(&directory, "[DIR]")
    }

    fn check(&self, args: &[&str], expected: &Expect) {
        expected.assert_eq(&self.screen(args));
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

#[test]
fn a_day_with_the_daemon() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["host"],
        expect![[r#"
        exit 0
        ----- stdout
        version:            0.1.0
        cgroup controllers: cpu, io, memory
        cgroup mode:        v2
        is root:            yes
        kernel release:     6.12.0-simulated
        programs fio:       -
        programs lvm:       /usr/sbin/lvm
        findings:
          - warning[cpu_controller_missing]: host: no cpu controller on cgroup v2
            hint: boot with one
    "#]],
    );
    check(
        &["pool", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no pools; `bulkhead pool create` creates one
        "#]],
    );
    check(
        &["pool", "ls", "--output", "json"],
        expect![[r#"
        exit 0
        ----- stdout
        []
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/pool", "--dry-run"],
        expect![[r#"
        exit 0
        ----- stdout
        would make directory /srv/pool
        would write pool record /srv/pool/bulkhead-pool
        would write pool record [DIR]/state/pools/files
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: created
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: nothing to do
    "#]],
    );
    check(
        &["pool", "create", "files", "--dir", "/srv/other"],
        expect![[r#"
            exit 4
            ----- stderr
            error: pool files: a pool of that name already exists, on /srv/pool
            hint: choose another name
        "#]],
    );
    check(
        &["pool", "create", "fast", "--vg", "tvg", "--thin-pool", "thin"],
        expect![[r#"
        exit 0
        ----- stderr
        pool fast: created
    "#]],
    );
    check(
        &["pool", "create", "dev", "--device", "/dev/sdb"],
        expect![[r#"
            exit 6
            ----- stderr
            error: device /dev/sdb: it contains data: ext4
            hint: if that data may be lost, confirm with exactly `--erase /dev/sdb`
        "#]],
    );
    check(
        &["pool", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME   KIND      SOURCE     SIZE   FREE     VOLUMES  ON
        fast   lvm-thin  tvg/thin   1 GiB  512 MiB  0        sda
        files  file      /srv/pool  1 GiB  512 MiB  0        sda
    "#]],
    );
    check(
        &["pool", "inspect", "files"],
        expect![[r#"
        exit 0
        ----- stdout
        name:             files
        kind:             file
        source:           /srv/pool
        size:             1 GiB
        free:             512 MiB
        volumes:          0
        physical devices: sda
    "#]],
    );

    check(
        &["volume", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no volumes; `bulkhead volume create` creates one
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M", "--dry-run"],
        expect![[r#"
            exit 0
            ----- stdout
            would write volume record /srv/pool/data.volume
            would create image /srv/pool/data.img of 64 MiB, provision full
            would serve image /srv/pool/data.img with direct I/O
            would make ext4 on block device of /srv/pool/data.img
            would remove the block device of /srv/pool/data.img
            would write volume record /srv/pool/data.volume
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/data: created
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "64M"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/data: nothing to do
        "#]],
    );
    check(
        &["volume", "create", "files/data", "--size", "1G"],
        expect![[r#"
            exit 4
            ----- stderr
            error: volume files/data: a volume of that name already exists (64 MiB ext4)
            hint: choose another name
        "#]],
    );
    check(
        &["volume", "create", "fast/data", "--size", "100M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/data: created
    "#]],
    );
    check(
        &["volume", "create", "fast/big", "--size", "2T"],
        expect![[r#"
            exit 7
            ----- stderr
            error: volume fast/big: 2 TiB is larger than the whole pool (1 GiB)
            hint: request less, or use a larger pool
        "#]],
    );
    check(
        &["volume", "create", "fast/logs", "--size", "300M", "--fs", "xfs"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: created
    "#]],
    );
    check(
        &["volume", "resize", "data", "--size", "128M"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume data: more than one pool has a volume of that name: fast/data, files/data
        hint: write it with its pool: POOL/VOLUME
    "#]],
    );
    check(
        &["volume", "resize", "fast/data", "--size", "64M"],
        expect![[r#"
            exit 2
            ----- stderr
            error: volume fast/data: 64 MiB is less than its current size of 100 MiB
            hint: add `--shrink` if the volume is to shrink
        "#]],
    );
    check(
        &["volume", "resize", "logs", "--size", "400M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: resized
    "#]],
    );
    check(
        &["volume", "snapshot", "fast/data", "before"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/before: created
    "#]],
    );
    check(
        &["volume", "clone", "files/data", "copy"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/copy: created
        "#]],
    );
    check(
        &["volume", "rm", "files/copy"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/copy: removed
    "#]],
    );
    check(
        &["volume", "check", "logs"],
        expect![[r#"
            exit 0
            ----- stderr
            volume fast/logs: check passed
        "#]],
    );
    check(
        &["volume", "inspect", "nothing"],
        expect![[r#"
            exit 3
            ----- stderr
            error: volume nothing: no pool has a volume of that name
            hint: `bulkhead volume ls` lists the volumes
        "#]],
    );

    check(
        &["tenant", "ls"],
        expect![[r#"
            exit 0
            ----- stderr
            no tenants; `bulkhead tenant create` creates one
        "#]],
    );
    let create =
        ["tenant", "create", "db", "--share", "300", "--volume", "fast/data", "--limit", "sdb:wbps=50M,riops=100"];
    check(
        &create,
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: created
    "#]],
    );
    check(
        &create,
        expect![[r#"
            exit 0
            ----- stderr
            tenant db: created
        "#]],
    );
    check(
        &["tenant", "create", "web", "--volume", "fast/data"],
        expect![[r#"
        exit 5
        ----- stderr
        error: volume fast/data: it is mounted for tenant db; a volume belongs to one tenant at a time
        hint: detach it first: `bulkhead tenant set db --detach fast/data`
    "#]],
    );
    check(
        &["tenant", "set", "db", "--share", "400", "--attach", "logs", "--dry-run"],
        expect![[r#"
            exit 0
            ----- stdout
            would write tenant record [DIR]/state/tenants/db
            would create cgroup bulkhead.slice/bulkhead-db.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice
            would create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice
            would write "default 400" to bulkhead.slice/bulkhead-db.slice/io.weight
            would write "8:16 rbps=max wbps=52428800 riops=100 wiops=max" to bulkhead.slice/bulkhead-db.slice/io.max
            would enable controller cpu below cgroup /
            would enable controller cpu below cgroup bulkhead.slice
            would enable controller cpu below cgroup bulkhead.slice/bulkhead-db.slice
            would write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice/cpu.weight
            would write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice/cpu.weight
            would activate tvg/logs
            would make directory [DIR]/run/mnt/fast/logs
            would mount xfs of /dev/tvg/logs at [DIR]/run/mnt/fast/logs (nosuid,nodev,noatime)
            would move the journal thread of /dev/tvg/logs to bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice
        "#]],
    );
    check(
        &["tenant", "set", "db", "--share", "400", "--attach", "logs", "--no-limits"],
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: changed
    "#]],
    );
    check(
        &["tenant", "inspect", "db"],
        expect![[r#"
            exit 0
            ----- stdout
            name:        db
            share:       400
            limits:      -
            volumes:     fast/data, fast/logs
            slice:       bulkhead.slice/bulkhead-db.slice
            processes:   0
            payload I/O: 0 B read, 0 B written
            journal I/O: 0 B read, 0 B written
            server I/O:  0 B read, 0 B written
        "#]],
    );
    check(
        &["tenant", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME  SHARE  PROCESSES  READ  WRITTEN  JOURNAL  VOLUMES
        db    400    0          0 B   0 B      0 B      fast/data, fast/logs
    "#]],
    );
    check(
        &["volume", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        VOLUME       SIZE     FS       STATE  TENANT  JOURNAL  DEVICE
        fast/before  100 MiB  ext4 ro  ready  -       -        /dev/tvg/before
        fast/data    100 MiB  ext4     ready  db      charged  /dev/tvg/data
        fast/logs    400 MiB  xfs      ready  db      charged  /dev/tvg/logs
        files/data   64 MiB   ext4     ready  -       -        -
    "#]],
    );
    check(
        &["volume", "rm", "logs"],
        expect![[r#"
        exit 5
        ----- stderr
        error: volume fast/logs: it is mounted for tenant db
        hint: detach it: `bulkhead tenant set db --detach fast/logs`, or remove it with `--force`
    "#]],
    );
    check(
        &["volume", "rm", "logs", "--force"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: removed
    "#]],
    );
    check(
        &["volume", "rm", "fast/logs"],
        expect![[r#"
        exit 0
        ----- stderr
        volume fast/logs: nothing to do
    "#]],
    );
    check(
        &["run", "--tenant", "nobody", "--", "true"],
        expect![[r#"
            exit 125
            ----- stderr
            error: tenant nobody: there is no tenant of that name
            hint: `bulkhead tenant ls` lists the tenants, `bulkhead tenant create nobody` creates one
        "#]],
    );

    check(
        &["device", "ls"],
        expect![[r#"
        exit 0
        ----- stdout
        NAME  DEV    SIZE   SCHEDULER    POLICY  SHARES WORK  ON
        sda   8:0    1 GiB  mq-deadline  none    no           sda
        dm-0  252:0  1 GiB  -            none    no           sda
    "#]],
    );
    check(
        &["device", "control", "sda", "--policy", "iocost"],
        expect![[r#"
            exit 8
            ----- stderr
            error: device sda: it has no calibration, and io.cost with a guessed model costs throughput
            hint: `bulkhead device calibrate sda` measures a model
        "#]],
    );
    check(
        &["device", "calibrate", "sda", "--model", "ctrl=user model=linear", "--qos", "enable=1 ctrl=user"],
        expect![[r#"
            exit 0
            ----- stderr
            device sda: calibrated
            note: given on the command line, not measured
            warning[no_controller]: device sda: neither io.cost nor bfq is active (scheduler mq-deadline): weights are accepted but have no effect
            hint: enable one: `bulkhead device control sda --policy iocost`, or bfq
        "#]],
    );
    check(
        &["device", "control", "/dev/sda", "--policy", "iocost"],
        expect![[r#"
            exit 0
            ----- stderr
            device /dev/sda: changed
            note: given on the command line, not measured
        "#]],
    );
    check(
        &["device", "inspect", "sda"],
        expect![[r#"
            exit 0
            ----- stdout
            name:             sda
            dev:              8:0
            size:             1 GiB
            rotational:       yes
            scheduler:        mq-deadline
            physical devices: sda
            policy:           iocost
            shares work:      yes: io.cost is enabled with a model set by hand or calibration
            io.cost.model:    ctrl=user model=linear
            io.cost.qos:      enable=1 ctrl=user
            calibrated model: ctrl=user model=linear
            calibrated qos:   enable=1 ctrl=user
            notes:
              - given on the command line, not measured
        "#]],
    );
    check(
        &["device", "control", "sda", "--restore"],
        expect![[r#"
            exit 0
            ----- stderr
            device sda: changed
            note: given on the command line, not measured
            warning[no_controller]: device sda: neither io.cost nor bfq is active (scheduler mq-deadline): weights are accepted but have no effect
            hint: enable one: `bulkhead device control sda --policy iocost`, or bfq
        "#]],
    );
    check(
        &["device", "inspect", "../etc"],
        expect![[r#"
            exit 3
            ----- stderr
            error: device ../etc: there is no block device of that name
            hint: `bulkhead device ls` lists the devices by kernel name
        "#]],
    );

    check(
        &["tenant", "rm", "db"],
        expect![[r#"
        exit 0
        ----- stderr
        tenant db: removed
    "#]],
    );
    check(
        &["tenant", "inspect", "db"],
        expect![[r#"
            exit 3
            ----- stderr
            error: tenant db: there is no tenant of that name
            hint: `bulkhead tenant ls` lists the tenants, `bulkhead tenant create db` creates one
        "#]],
    );
    check(
        &["pool", "rm", "fast"],
        expect![[r#"
        exit 5
        ----- stderr
        error: pool fast: it has 2 volumes
        hint: remove them first: `bulkhead volume ls --pool fast`, `bulkhead volume rm fast/VOLUME`
    "#]],
    );
    check(
        &["volume", "ls", "--pool", "nothing"],
        expect![[r#"
            exit 3
            ----- stderr
            error: pool nothing: there is no pool of that name
            hint: `bulkhead pool ls` lists the pools, `bulkhead pool create nothing --dir PATH` creates one
        "#]],
    );
}

#[test]
fn an_import_is_refused_before_anything_is_unpacked() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["pool", "create", "files", "--dir", "/srv/pool"],
        expect![[r#"
        exit 0
        ----- stderr
        pool files: created
    "#]],
    );
    check(
        &["volume", "create", "files/taken", "--size", "64M"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/taken: created
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "base"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume: "base" does not name a volume: write POOL/VOLUME
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--size", "0"],
        expect![[r#"
            exit 2
            ----- stderr
            error: --size: a volume cannot have size 0: give a size such as 10G
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--platform", "amd64"],
        expect![[r#"
        exit 2
        ----- stderr
        error: --platform: "amd64" is no platform: write OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, for example linux/arm64
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/taken"],
        expect![[r#"
            exit 4
            ----- stderr
            error: volume files/taken: a volume of that name already exists
            hint: choose another name
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/base", "--size", "1M"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume files/base: a size of 1 MiB is too small for ext4
        hint: give it at least 16 MiB
    "#]],
    );
    check(
        &["image", "import", "/nowhere", "elsewhere/base", "-o", "json"],
        expect![[r#"
            exit 3
            ----- stderr
            {"code":"not_found","object":"pool elsewhere","cause":"there is no pool of that name","hint":"`bulkhead pool ls` lists the pools, `bulkhead pool create elsewhere --dir PATH` creates one","reason":{"reason":"no_such_pool","pool":"elsewhere"}}
        "#]],
    );
}

/// The simulated workers send a text, take in whatever comes, and make the same base of everything.
#[test]
fn streams_go_through_the_command_line() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    for args in [
        &["pool", "create", "files", "--dir", "/srv/pool"][..],
        &["volume", "create", "files/v", "--size", "64M"],
        &["volume", "snapshot", "files/v", "s"],
    ] {
        assert!(daemon.screen(args).starts_with("exit 0"), "{args:?}");
    }
    check(
        &["volume", "send", "files/s"],
        expect![[r#"
            exit 0
            ----- stdout
            what the snapshot holds
            ----- stderr
            volume files/s: sent, 24 B read
        "#]],
    );
    check(
        &["volume", "send", "files/v"],
        expect![[r#"
            exit 2
            ----- stderr
            error: volume files/v: it is not a snapshot, and may change while it is sent
            hint: create a snapshot first, and use that: `bulkhead volume snapshot files/v NAME`
        "#]],
    );
    let header = StreamHeader {
        content: uuid::Uuid::from_u128(7),
        base: None,
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(0),
        data_bytes: Bytes(0),
        fs: FsKind::Ext4,
        snapshot: "elsewhere/s".to_owned(),
    };
    let stream = daemon.dir.path().join("stream");
    let more = vec![7; 1 << 20];
    std::fs::write(&stream, [encode_header(&header).unwrap(), more].concat()).unwrap();
    let mut receive = bulkhead(&daemon.dir.path().join("sock"), &["volume", "receive", "files/r"]);
    receive.stdin(std::fs::File::open(&stream).unwrap());
    expect![[r#"
        exit 0
        ----- stderr
        volume files/r: received, with the content of elsewhere/s
    "#]]
    .assert_eq(&screen(receive));
    let tree = daemon.dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "x").unwrap();
    check(
        &["image", "import", tree.to_str().unwrap(), "files/base", "--staging", "/var/tmp"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/base: imported 7 entries as base 1d693a3c-4e0d-8f6e-9b55-b07c6a5e0001
        "#]],
    );
    check(
        &["image", "import", "/nowhere", "files/other"],
        expect![[r#"
            exit 3
            ----- stderr
            error: source /nowhere: cannot find /nowhere: No such file or directory (os error 2)
            hint: look for the path
        "#]],
    );
    check(
        &["device", "calibrate", "sda"],
        expect![[r#"
            exit 0
            ----- stderr
            small load alone: fsync 5.0 ms
            device sda: calibrated
        "#]],
    );
}

#[test]
fn json_is_what_the_api_says() {
    let daemon = Daemon::start();
    daemon.screen(&["pool", "create", "p", "--vg", "vg"]);
    daemon.screen(&["volume", "create", "p/v", "--size", "64M"]);
    let screen = daemon.screen(&["volume", "inspect", "v", "--output", "json"]);
    let json = screen.strip_prefix("exit 0\n----- stdout\n").unwrap();
    let view: bulkhead_core::wire::VolumeView = serde_json::from_str(json).unwrap();
    assert_eq!((view.volume.to_string(), view.size_bytes.0), ("p/v".to_owned(), 64 << 20));
    daemon.check(&["pool", "inspect", "q", "-o", "json"], &expect![[r#"
        exit 3
        ----- stderr
        {"code":"not_found","object":"pool q","cause":"there is no pool of that name","hint":"`bulkhead pool ls` lists the pools, `bulkhead pool create q --dir PATH` creates one","reason":{"reason":"no_such_pool","pool":"q"}}
    "#]]);
}

#[test]
fn what_is_observed_is_shown_per_second_and_by_culprit() {
    let daemon = Daemon::start();
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["top", "--once", "--interval", "0.2"],
        expect![[r#"
            exit 0
            ----- stdout
            CONTAINER               KIND    READ  WRITTEN     JOURNAL     DEVICE  SHARE   FSYNC   P50      P99      WAITED   MOSTLY FOR
            noise\u{1b}[2J.service  unit    -     90.0 MiB/s  3.00 MiB/s  90 %    95/- %  -       -        -        -
            db                      tenant  -     160 KiB/s   40.0 KiB/s  5 %     5/80 %  10.0/s  30.7 ms  30.7 ms  0.270 s  noise\u{1b}[2J.service
            ----- stderr
            1.0 s: 11.0 commits/s, journal 3.04 MiB/s, 0.1 % of it unattributed
        "#]],
    );
    check(
        &["top", "--once", "--interval", "0.2", "--sort", "fsync"],
        expect![[r#"
            exit 0
            ----- stdout
            CONTAINER               KIND    READ  WRITTEN     JOURNAL     DEVICE  SHARE   FSYNC   P50      P99      WAITED   MOSTLY FOR
            db                      tenant  -     160 KiB/s   40.0 KiB/s  5 %     5/80 %  10.0/s  30.7 ms  30.7 ms  0.270 s  noise\u{1b}[2J.service
            noise\u{1b}[2J.service  unit    -     90.0 MiB/s  3.00 MiB/s  90 %    95/- %  -       -        -        -
            ----- stderr
            1.0 s: 11.0 commits/s, journal 3.04 MiB/s, 0.1 % of it unattributed
        "#]],
    );
    check(
        &["blame", "--for", "0.2"],
        expect![[r#"
            exit 0
            ----- stdout
            VICTIM  WAITED   ITSELF   noise\u{1b}[2J.service  OTHERS  UNKNOWN
            db      0.300 s  0.020 s  0.270 s                 -       0.010 s
            ----- stderr
            watching for 0.2 s
        "#]],
    );
    check(
        &["blame", "--waits", "--for", "0.2"],
        expect![[r#"
            exit 0
            ----- stdout
            AGO   WAITED   VICTIM                  ON   DEVICE  COMMIT  TRANSACTION  LOCKED  FLUSHING  LOGGING  BECAUSE OF
            12 s  900 ms   db                      /    80 %    19 %    4710         200 us  100 ms    ?        noise\u{1b}[2J.service (queue 72 %, journal 17 %)
                                                                        4711         200 us  125 ms    350 ms   itself (journal 10 %)
            70 s  40.0 ms  noise\u{1b}[2J.service  vdb  100 %   0 %     none                                    itself (flush 100 %)
            ----- stderr
            watching for 0.2 s
            9 more waits, of all containers, are omitted; the longest took 30.0 ms
        "#]],
    );
    check(
        &["blame", "--waits", "--last", "60", "db"],
        expect![[r#"
            exit 0
            ----- stdout
            AGO   WAITED  VICTIM  ON  DEVICE  COMMIT  TRANSACTION  LOCKED  FLUSHING  LOGGING  BECAUSE OF
            12 s  900 ms  db      /   80 %    19 %    4710         200 us  100 ms    ?        noise\u{1b}[2J.service (queue 72 %, journal 17 %)
                                                      4711         200 us  125 ms    350 ms   itself (journal 10 %)
            ----- stderr
            9 more waits, of all containers, are omitted; the longest took 30.0 ms
        "#]],
    );
    check(
        &["blame", "--waits", "--last", "301"],
        expect![[r#"
        exit 2
        ----- stderr
        error: invalid value '301' for '--last <SECONDS>': waits are remembered for 300 seconds

        For more information, try '--help'.
    "#]],
    );
    check(
        &["blame", "--last", "5"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          --waits

        Usage: bulkhead blame --waits --last <SECONDS> --socket <PATH> [VICTIM]

        For more information, try '--help'.
    "#]],
    );
    check(
        &["blame", "--for", "0.2", "nobody"],
        expect![[r#"
            exit 3
            ----- stderr
            watching for 0.2 s
            error: container nobody: no container with that name was active in this interval
            hint: `bulkhead top --once` lists the active ones
        "#]],
    );
    check(
        &["top"],
        expect![[r#"
        exit 2
        ----- stderr
        error: top: it needs a terminal
        hint: `--once` prints one table, and `--output json` the figures
    "#]],
    );
    check(
        &["top", "--interval", "0"],
        expect![[r#"
            exit 2
            ----- stderr
            error: invalid value '0' for '--interval <SECONDS>': it is not between 0.2 and 86400 seconds

            For more information, try '--help'.
        "#]],
    );
    let json = daemon.screen(&["blame", "--for", "0.2", "db", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(json.strip_prefix("exit 0\n----- stdout\n").unwrap()).unwrap();
    assert_eq!(json[1]["culprit"]["kind"], "unit");
    assert_eq!(json[1]["seconds"].as_f64().map(|seconds| (seconds * 100.0).round()), Some(27.0));
}

#[test]
fn following_ends_when_nobody_reads_any_more() {
    let daemon = Daemon::start();
    for format in ["table", "json"] {
        let args = ["blame", "--follow", "--for", "0.2", "--output", format];
        let mut child = bulkhead(&daemon.dir.path().join("sock"), &args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        // The reader is gone; without noticing it would go on for ever.
        let (done, ended) = mpsc::channel();
        let pid = child.id();
        thread::spawn(move || done.send(child.wait_with_output().unwrap()));
        let Ok(output) = ended.recv_timeout(Duration::from_secs(20)) else {
            kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
            panic!("{format}: it goes on without a reader");
        };
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""), "{format}");
    }
}

#[test]
fn volumes_are_trimmed_where_it_is_of_use() {
    let daemon = Daemon::start();
    for args in [
        &["pool", "create", "files", "--dir", "/srv/pool"][..],
        &["volume", "create", "files/full", "--size", "64M"],
        &["volume", "create", "files/sparse", "--size", "64M", "--provision", "on-demand"],
        &["volume", "create", "files/detached", "--size", "64M", "--provision", "on-demand"],
        &["tenant", "create", "db", "--volume", "full", "--volume", "sparse"],
    ] {
        assert!(daemon.screen(args).starts_with("exit 0\n"), "{}", daemon.screen(args));
    }
    let check = |args: &[&str], expected: Expect| daemon.check(args, &expected);
    check(
        &["volume", "trim", "sparse", "--dry-run"],
        expect![[r#"
        exit 0
        ----- stdout
        would trim the file system at [DIR]/run/mnt/files/sparse from 0 B to 64 MiB
    "#]],
    );
    check(
        &["volume", "trim", "sparse"],
        expect![[r#"
        exit 0
        ----- stderr
        volume files/sparse: 1 MiB of free space trimmed
    "#]],
    );
    check(
        &["volume", "trim", "sparse", "full", "detached"],
        expect![[r#"
            exit 8
            ----- stderr
            volume files/sparse: 1 MiB of free space trimmed
            warning: volume files/detached: it is not mounted, and only a mounted file system knows what is free in it
            error: volume files/full: it was written in advance, so that no write changes metadata that all tenants share: a hole would defeat that
        "#]],
    );
    check(
        &["volume", "trim", "--all"],
        expect![[r#"
            exit 0
            ----- stderr
            volume files/sparse: 1 MiB of free space trimmed
            volumes trimmed: 1; skipped (not mounted, or cannot be trimmed): 2
        "#]],
    );
    check(
        &["volume", "trim", "--all", "--output", "json"],
        expect![[r#"
            exit 0
            ----- stdout
            {
              "trimmed": [
                {
                  "object": {
                    "volume": "files/sparse",
                    "trimmed_bytes": 1048576
                  },
                  "steps": [
                    {
                      "action": {
                        "action": "trim_fs",
                        "target": "[DIR]/run/mnt/files/sparse",
                        "cgroup": "bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice",
                        "start_bytes": 0,
                        "length_bytes": 67108864
                      },
                      "changed": true,
                      "discarded_bytes": 1048576
                    }
                  ],
                  "dry_run": false
                }
              ],
              "passed_over": [
                {
                  "code": "invalid_argument",
                  "object": "volume files/detached",
                  "cause": "it is not mounted, and only a mounted file system knows what is free in it",
                  "hint": "attach files/detached to a tenant first",
                  "reason": {
                    "reason": "volume_not_attached",
                    "volume": "files/detached"
                  }
                },
                {
                  "code": "unsupported",
                  "object": "volume files/full",
                  "cause": "it was written in advance, so that no write changes metadata that all tenants share: a hole would defeat that"
                }
              ]
            }
        "#]],
    );
    check(
        &["volume", "trim", "none"],
        expect![[r#"
            exit 3
            ----- stderr
            error: volume none: no pool has a volume of that name
            hint: `bulkhead volume ls` lists the volumes
        "#]],
    );
    check(
        &["volume", "trim", "a b"],
        expect![[r#"
        exit 2
        ----- stderr
        error: volume: name "a b" contains ' ': only letters, digits, '_', '.' and '-' are allowed
    "#]],
    );
    check(
        &["volume", "trim"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          <VOLUME>...

        Usage: bulkhead volume trim --socket <PATH> <VOLUME>...

        For more information, try '--help'.
    "#]],
    );
    check(
        &["volume", "trim", "sparse", "--all"],
        expect![[r#"
        exit 2
        ----- stderr
        error: the argument '[VOLUME]...' cannot be used with '--all'

        Usage: bulkhead volume trim --socket <PATH> <VOLUME>...

        For more information, try '--help'.
    "#]],
    );
}
