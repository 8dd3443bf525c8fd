use super::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::kill_process;

/// Role of a run of this test program; see [`helper`].
const ROLE: &str = "BULKHEAD_TEST_ROLE";

fn sh(script: &str) -> SuperviseSpec {
    SuperviseSpec {
        program: "/bin/sh".into(),
        arg0: "sh".into(),
        args: vec!["-c".into(), script.into()],
        death_signal: Some(Signal::KILL),
    }
}

/// Not a test by itself: the tests below run it in a separate process. It is not that process's main thread, which therefore starts
/// with the signals blocked (see `run_helper`); here they are unblocked, as in an ordinary process.
#[test]
fn helper() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (role, argument) = role.split_once(' ').unwrap();
    SignalSet::from_signals(&[]).unwrap().install().unwrap();
    match role {
        "supervise" => {
            let outcome = supervise(&sh(argument)).unwrap();
            println!("\nended {} {:?}", outcome.code, outcome.signal);
        }
        "enter" => {
            let base = Path::new(argument);
            let error = enter_and_exec(&EnterSpec {
                binds: vec![Bind { source: base.join("volume"), target: base.join("view"), readonly: true }],
                cwd: Some(base.join("view")),
                argv: ["sh", "-c", "echo; pwd; cat file; echo $GREETING; touch x || echo read-only; env | wc -l"]
                    .map(OsString::from)
                    .to_vec(),
                env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("GREETING".into(), "hello".into())],
            })
            .unwrap_err();
            println!("\nskipped: {error:?}");
        }
        other => panic!("{other}"),
    }
}

#[expect(clippy::disallowed_methods, reason = "the test needs a process of its own")]
fn run_helper(role: &str) -> Child {
    let blocked = SignalSet::from_signals(&FORWARDED).unwrap();
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "namespace::tests::helper", "--nocapture"]).env(ROLE, role);
    command.process_group(0).stdout(Stdio::piped());
    // SAFETY: the closure makes a few system calls between fork and exec; it neither allocates, locks nor unwinds.
    unsafe {
        command.pre_exec(move || {
            // A shell's background job ignores some of them, and a shell cannot trap signals that were ignored when it started.
            FORWARDED.into_iter().try_for_each(raw::reset_disposition)?;
            blocked.install()
        })
    };
    command.spawn().unwrap()
}

fn lines_of(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap)
}

fn pid_of(line: &str) -> Pid {
    Pid::from_raw(line.strip_prefix("ready ").unwrap().parse().unwrap()).unwrap()
}

#[test]
fn exit_codes_and_signals_are_reported() {
    for (script, line) in [
        ("exit 7", "ended 7 None"),
        ("kill -9 $$", "ended 137 Some(9)"),
        // The payload has the supervisor's original mask: the signal is not blocked.
        ("kill -TERM $$; exit 3", "ended 143 Some(15)"),
        // A signal from the payload itself is not sent back to it.
        ("trap 'echo again' TERM; kill -TERM $PPID; sleep 0.2; exit 5", "ended 5 None"),
    ] {
        let mut child = run_helper(&format!("supervise {script}"));
        let lines: Vec<String> = lines_of(&mut child).collect();
        assert!(lines.iter().any(|found| found == line), "{script}: {lines:?}");
        assert!(!lines.iter().any(|found| found == "again"), "{script}: {lines:?}");
        child.wait().unwrap();
    }
}

#[test]
fn all_signals_are_forwarded() {
    let script = "for s in TERM INT HUP QUIT USR1 USR2; do trap \"echo got $s\" $s; done; trap 'exit 9' ALRM; \
                  echo; echo ready $$; while :; do sleep 0.05; done";
    let mut child = run_helper(&format!("supervise {script}"));
    let supervisor = Pid::from_child(&child);
    let mut lines = lines_of(&mut child);
    let payload = pid_of(&lines.by_ref().find(|line| line.starts_with("ready")).unwrap());
    for (signal, name) in FORWARDED.into_iter().zip(["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]) {
        kill_process(supervisor, signal).unwrap();
        assert_eq!(lines.next().unwrap(), format!("got {name}"));
    }
    kill_process(payload, Signal::ALARM).unwrap();
    assert_eq!(lines.find(|line| line.starts_with("ended")).unwrap(), "ended 9 None");
    child.wait().unwrap();
}

#[test]
fn the_payload_dies_with_its_supervisor() {
    let mut child = run_helper("supervise echo; echo ready $$; exec sleep 600");
    let supervisor = Pid::from_child(&child);
    let mut lines = lines_of(&mut child);
    let payload = pid_of(&lines.by_ref().find(|line| line.starts_with("ready")).unwrap());
    let watched = pidfd_open(payload, PidfdFlags::empty()).unwrap();
    kill_process(supervisor, Signal::KILL).unwrap();
    child.wait().unwrap();
    let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&watched, PollFlags::IN)], Some(&limit)), Ok(1));
}

#[test]
fn signals_of_the_terminal_are_not_delivered_twice() {
    let info = |code, sender| SignalInfo { signal: Signal::INT.as_raw(), code, sender };
    let (si_user, si_queue, si_tkill) = (0, -1, -6);
    let below_a_shell = Terminal { in_our_group: true, we_lead: false };
    let leading = Terminal { we_lead: true, ..below_a_shell };
    assert!(!is_for_child(info(SI_KERNEL, 0), 50, below_a_shell));
    assert!(!is_for_child(info(SI_KERNEL, 0), 50, leading));
    // The payload moved to its own process group (an interactive shell): it did not receive the terminal's signal.
    assert!(is_for_child(info(SI_KERNEL, 0), 50, Terminal { in_our_group: false, ..below_a_shell }));
    let hang_up = SignalInfo { signal: Signal::HUP.as_raw(), ..info(SI_KERNEL, 0) };
    assert!(!is_for_child(hang_up, 50, below_a_shell));
    // Only the session leader receives it.
    assert!(is_for_child(hang_up, 50, leading));
    // Sent from outside our PID namespace.
    assert!(is_for_child(info(si_user, 0), 50, below_a_shell));
    for code in [si_user, si_queue, si_tkill] {
        assert!(is_for_child(info(code, 7), 50, below_a_shell));
        assert!(!is_for_child(info(code, 50), 50, below_a_shell));
    }
}

#[test]
fn signalfd_records_are_parsed() {
    let mut record = [0u8; SIGNALFD_SIGINFO_BYTES];
    record[0..4].copy_from_slice(&15i32.to_ne_bytes());
    record[8..12].copy_from_slice(&(-6i32).to_ne_bytes());
    record[12..16].copy_from_slice(&4242u32.to_ne_bytes());
    assert_eq!(parse_signal(&record), SignalInfo { signal: 15, code: -6, sender: 4242 });
}

#[test]
fn root_the_payload_sees_its_volume_and_only_its_environment() {
    let base = tempfile::tempdir().unwrap();
    for dir in ["volume", "view"] {
        fs::create_dir(base.path().join(dir)).unwrap();
    }
    fs::write(base.path().join("volume/file"), "content\n").unwrap();
    let mut child = run_helper(&format!("enter {}", base.path().display()));
    let lines: Vec<String> = lines_of(&mut child).collect();
    child.wait().unwrap();
    if let Some(why) = lines.iter().find(|line| line.contains("Unshare")) {
        return println!("{why}");
    }
    let view = base.path().join("view").display().to_string();
    let start = lines.iter().position(|line| *line == view).unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(lines[start + 1..start + 4], ["content", "hello", "read-only"]);
    // GREETING, PATH, and PWD, OLDPWD or _ that the shell itself may add.
    assert!(lines[start + 4].trim().parse::<u32>().unwrap() <= 5, "{lines:?}");
    // The bind is not visible outside.
    assert!(fs::read_dir(base.path().join("view")).unwrap().next().is_none());
}

#[test]
fn failures_have_the_exit_codes_of_shells() {
    let exec = |program: &str| EnterError::Exec { program: program.into(), source: exec(program.as_ref(), &[], &[]) };
    assert_eq!(exec("/nonexistent").exit_code(), 127);
    assert_eq!(exec("/etc").exit_code(), 126);
    let error = enter_and_exec(&EnterSpec::default()).unwrap_err();
    assert_eq!((error.exit_code(), error.to_string().as_str()), (125, "no command to run"));
}
