use super::*;
use std::time::Instant;

#[test]
fn output_and_exit_code_are_returned() {
    let output = Tool::new("printf").arg("%s").arg("a b").run().unwrap();
    assert_eq!((output.code, output.stdout.as_str()), (0, "a b"));
}

#[test]
fn a_helper_has_the_default_limit_on_open_files() {
    process::raise_open_files().unwrap();
    let output = Tool::new("sh").args(["-c", "ulimit -Sn"]).run().unwrap();
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    assert_eq!(output.stdout.trim(), most.min(1024).to_string());
}

#[test]
fn a_failure_includes_the_command_and_its_error_output() {
    let error = Tool::new("ls").arg("/nonexistent").run().unwrap_err().to_string();
    assert!(error.contains("ls /nonexistent") && error.contains("No such file"), "{error}");
    assert_eq!(Tool::new("ls").arg("/nonexistent").ok_codes(&[0, 2]).run().unwrap().code, 2);
}

#[test]
fn a_missing_program_names_its_package() {
    let error = Tool::new("xfs_no_such_program").run().unwrap_err().to_string();
    assert_eq!(error, "xfs_no_such_program is not installed (Debian package xfsprogs)");
}

#[test]
fn a_program_is_killed_at_its_time_limit() {
    let started = Instant::now();
    let result = Tool::new("sleep").arg("60").limit(Duration::from_millis(50)).run();
    assert!(matches!(result, Err(ToolError::TimedOut { .. })), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_program_is_killed_when_its_condition_fails() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let reader =
        rustix::fs::open(&pipe, rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK, rustix::fs::Mode::empty());
    let writer = format!("exec 3>{}; exec sleep 60", pipe.display());
    let checks = std::cell::Cell::new(0);
    let condition = || {
        checks.set(checks.get() + 1);
        if checks.get() < 3 { Ok(()) } else { Err("enough") }
    };
    assert_eq!(Tool::new("sh").arg("-c").arg(writer).run_while(condition).unwrap_err(), "enough");
    // The pipe is closed when its writer has exited.
    let mut reader = std::fs::File::from(reader.unwrap());
    rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty()).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    let ended = Tool::new("printf").arg("x").run_while(|| Ok::<(), ()>(())).unwrap();
    assert_eq!(ended.unwrap().stdout, "x");
}

#[test]
fn a_program_that_dies_with_its_parent_has_exited_when_run_while_returns() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pid");
    let tool = Tool::new("sh").arg("-c").arg(format!("echo $$ > {}; exec sleep 60", path.display())).dies_with_parent();
    for _ in 0..20 {
        let pid = || std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
        let condition = || pid().map_or(Ok(()), Err);
        let pid = tool.run_while(condition).unwrap_err();
        assert!(!std::path::Path::new("/proc").join(pid.trim()).exists(), "{pid}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_program_without_a_time_limit_is_not_killed() {
    let tool = Tool::new("sleep").arg("0.2");
    assert!(tool.clone().limit(Duration::ZERO).run().is_err());
    assert_eq!(tool.unlimited().run().unwrap().code, 0);
}

#[test]
fn a_program_that_dies_with_its_parent_is_killed_when_its_thread_exits() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let tool = Tool::new("tee").arg(&pipe).dies_with_parent();
    // The thread exits after starting it, as in a process that is killed.
    let child = thread::spawn(move || tool.command().spawn().unwrap()).join().unwrap();
    let mut child = child;
    assert!(process::wait_until_ended(Pid::from_child(&child), Duration::from_secs(30)).unwrap());
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_helper_has_its_own_process_group() {
    // proc_pid_stat(5): fields 1 and 5 are the process and its process group.
    let output = Tool::new("cut").args(["-d", " ", "-f1,5", "/proc/self/stat"]).run().unwrap();
    let (pid, group) = output.stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}
