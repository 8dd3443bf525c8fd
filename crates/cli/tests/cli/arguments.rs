//! Help, and invalid arguments that are refused without a daemon.

use std::path::Path;
use std::process::Stdio;

use expect_test::{expect, expect_file};

use crate::{NO_SOCKET, bulkhead, check, screen};

/// All commands, as listed by the help of each one.
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

/// Its options do not clash with the global ones.
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
    expect_file!["../help.txt"].assert_eq(&all);
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
            error: tenant: the name is 300 bytes long: at most 64 are allowed
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
            error: --size: a volume cannot have size 0: specify a size such as 10G
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
            hint: specify --share, --limit, --no-limits, --fsync-p99, --attach or --detach
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
fn run_refuses_invalid_arguments_without_a_daemon() {
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
            error: directory /nonexistent: it does not exist
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

#[test]
fn a_csi_driver_is_refused_without_the_directories_that_it_is_to_use() {
    let dir = tempfile::tempdir().unwrap();
    let at = |below: &str| dir.path().join(below).display().to_string();
    std::fs::write(at("file"), "").unwrap();
    let (here, none, file) = (at("csi.sock"), at("none"), at("file"));
    let below_none = at("none/csi.sock");
    let dir_text = dir.path().display().to_string();
    let mut shown = String::new();
    for [mode, endpoint, kubelet, registration] in [
        ["node", &here, &none, &dir_text],
        ["all", &here, &file, &dir_text],
        ["all", &here, "kubelet", &dir_text],
        ["controller", &below_none, &none, &dir_text],
        ["controller", &here, &none, &none],
    ] {
        let args = ["csi", "--node-id", "n", "--mode", mode, "--endpoint", endpoint, "--kubelet-dir", kubelet];
        let args = [&args[..], &["--registration-dir", registration]].concat();
        shown += &screen(bulkhead(Path::new(NO_SOCKET), &args)).replace(&dir_text, "DIR");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was created");
    expect![[r#"
        exit 2
        ----- stderr
        error: --kubelet-dir: there is no directory DIR/none
        hint: start the kubelet first, or specify its --root-dir with --kubelet-dir; in a container, mount it at the same path
        exit 2
        ----- stderr
        error: --kubelet-dir: DIR/file is not a directory
        hint: start the kubelet first, or specify its --root-dir with --kubelet-dir; in a container, mount it at the same path
        exit 2
        ----- stderr
        error: --kubelet-dir: kubelet is not an absolute path
        hint: start the kubelet first, or specify its --root-dir with --kubelet-dir; in a container, mount it at the same path
        exit 2
        ----- stderr
        error: --endpoint: there is no directory DIR/none
        hint: create it, or choose another path with --endpoint
        exit 2
        ----- stderr
        error: --registration-dir: there is no directory DIR/none
        hint: start the kubelet first, or specify the plugins_registry below its --root-dir with --registration-dir
    "#]].assert_eq(&shown);
}

#[test]
fn an_http_endpoint_of_the_csi_driver_is_refused_before_anything_is_created() {
    let dir = tempfile::tempdir().unwrap();
    let (dir_text, socket) = (dir.path().display().to_string(), dir.path().join("csi.sock").display().to_string());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let mut shown = String::new();
    for more in [&["--http-endpoint", "localhost:9478"][..], &["--daemon-metrics"], &["--http-endpoint", &taken]] {
        let args = ["csi", "--node-id", "n", "--mode", "all", "--endpoint", &socket, "--kubelet-dir", &dir_text];
        shown += &screen(bulkhead(Path::new(NO_SOCKET), &[&args[..], more].concat())).replace(&taken, "ADDRESS");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something was created");
    expect![[r#"
        exit 2
        ----- stderr
        error: invalid value 'localhost:9478' for '--http-endpoint <[IP]:PORT>': an address is IP:PORT, such as 127.0.0.1:9478 or [::1]:9478, or :PORT

        For more information, try '--help'.
        exit 2
        ----- stderr
        error: the following required arguments were not provided:
          --http-endpoint <[IP]:PORT>

        Usage: bulkhead csi --endpoint <unix:///PATH> --mode <MODE> --node-id <NODE> --http-endpoint <[IP]:PORT> --kubelet-dir <DIR> --daemon-metrics --socket <PATH>

        For more information, try '--help'.
        exit 5
        ----- stderr
        error: address ADDRESS: cannot listen for HTTP (Address already in use (os error 98))
        hint: choose another address with --http-endpoint
    "#]].assert_eq(&shown);
}
