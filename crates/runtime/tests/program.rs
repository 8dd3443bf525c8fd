//! The program, with a script in the place of the real runtime.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "these are tests, and their helpers too")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Prints its arguments, an environment variable and what is on file descriptor 3.
const RUNTIME: &str =
    "#!/bin/sh\necho \"$0\"\nprintf '<%s>' \"$@\"\necho \"$GREETING\"\nread line <&3 && echo \"$line\"\nexit 7\n";

struct Setup {
    dir: TempDir,
}

impl Setup {
    fn new() -> Self {
        let setup = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(setup.at("runc"), RUNTIME).unwrap();
        fs::set_permissions(setup.at("runc"), Permissions::from_mode(0o755)).unwrap();
        fs::write(setup.at("three"), "from three\n").unwrap();
        setup.configure(&format!("runtimes = [{:?}]\nrun-dir = {:?}", setup.at("runc"), setup.at("run")));
        setup
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn configure(&self, text: &str) {
        fs::write(self.at("runtime.toml"), text).unwrap();
    }

    /// Runs the program with arguments, file descriptor 3 open.
    fn run(&self, arguments: &[&str]) -> Output {
        let program = env!("CARGO_BIN_EXE_bulkhead-runtime");
        Command::new("sh")
            .args(["-c", "exec \"$@\" 3< three", "sh", program])
            .args(arguments)
            .current_dir(self.dir.path())
            .env("BULKHEAD_RUNTIME_CONFIG", self.at("runtime.toml"))
            .env("GREETING", "hello")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_real_runtime_gets_the_same_words_environment_and_descriptors() {
    let setup = Setup::new();
    fs::create_dir(setup.at("b")).unwrap();
    let config = r#"{"mounts": [], "linux": {"cgroupsPath": "/docker/c"}}"#;
    fs::write(setup.at("b/config.json"), config).unwrap();
    for arguments in
        [&["--version"][..], &["--log", "l", "create", "--bundle", "b", "a b", "", "c"], &["state", "c"], &[]]
    {
        let output = setup.run(arguments);
        let words: String = arguments.iter().map(|word| format!("<{word}>")).collect();
        let words = if arguments.is_empty() { "<>".to_owned() } else { words };
        let expected = format!("{}\n{words}hello\nfrom three\n", setup.at("runc").display());
        assert_eq!((text(&output.stdout), text(&output.stderr)), (expected, String::new()));
        assert_eq!(output.status.code(), Some(7));
    }
    assert!(!setup.at("l").exists(), "there was nothing to report");
    assert_eq!(fs::read_to_string(setup.at("b/config.json")).unwrap(), config);
}

#[test]
fn a_container_that_cannot_be_placed_starts_all_the_same_and_the_log_says_why() {
    let setup = Setup::new();
    fs::create_dir_all(setup.at("run/mnt/fast/db")).unwrap();
    let config = serde_json::json!({
        "mounts": [{ "destination": "/d", "type": "bind", "source": setup.at("run/mnt/fast/db") }],
        "linux": { "cgroupsPath": "system.slice:docker:c" },
    });
    fs::write(setup.at("config.json"), config.to_string()).unwrap();
    setup.configure(&format!(
        "runtimes = [{:?}]\nrun-dir = {:?}\nsocket = {:?}",
        setup.at("runc"),
        setup.at("run"),
        setup.at("none.sock")
    ));
    let output = setup.run(&["--log", "log.json", "--log-format", "json", "create", "c"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(7), ""));
    let log = fs::read_to_string(setup.at("log.json")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&log).unwrap();
    let message = line["msg"].as_str().unwrap();
    let expected = "bulkhead-runtime: the container is not put into its tenant's slice: volume fast/db: daemon: ";
    assert!(message.starts_with(expected) && line["level"] == "warning", "{log}");

    // Without a log, as people call it; a log that cannot be written is no obstacle.
    let output = setup.run(&["run", "c"]);
    assert!(output.status.code() == Some(7) && text(&output.stderr).contains("level=warning"), "{output:?}");
    assert_eq!(setup.run(&["--log", "absent/log", "run", "c"]).status.code(), Some(7));
    assert_eq!(fs::read_to_string(setup.at("config.json")).unwrap(), config.to_string());
}

#[test]
fn an_invalid_configuration_starts_nothing() {
    let setup = Setup::new();
    let own = env!("CARGO_BIN_EXE_bulkhead-runtime");
    for (configuration, expected) in [
        ("runtime = \"runc\"".to_owned(), "runtime.toml: line 1: unknown field `runtime`"),
        ("runtimes = [\"/none\"]".to_owned(), "found no other OCI runtime: looked for /none (PATH is "),
        // Itself, which it would execute forever.
        (format!("runtimes = [{own:?}]"), "found no other OCI runtime: looked for "),
    ] {
        setup.configure(&configuration);
        let output = setup.run(&["--log", "log", "create", "c"]);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
        assert!(text(&output.stderr).contains(expected), "{output:?}");
        let log = fs::read_to_string(setup.at("log")).unwrap();
        assert!(log.lines().last().unwrap().contains("level=error msg=\"bulkhead-runtime: "), "{log}");
    }
}
