//! Argument lists of Docker, containerd, Podman and people.

use std::ffi::OsString;
use std::path::PathBuf;

use proptest::prelude::{any, proptest};

use crate::arguments::{Arguments, Container, parse};
use crate::log::{Format, Log};

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

/// Log, id, bundle and configuration of a line of arguments.
fn check(line: &str, log: Option<(&str, Format)>, container: Option<(&str, &str, &str)>) {
    let log = log.map(|(file, format)| Log { file: Some(file.into()), format }).unwrap_or_default();
    let container = container.map(|(id, bundle, config)| Container {
        id: id.into(),
        bundle: PathBuf::from(bundle),
        config: PathBuf::from(config),
    });
    assert_eq!(parse(&words(line)), Arguments { log, container }, "{line}");
}

#[test]
fn creations_by_engines_are_found() {
    // Docker 26 and containerd 1.7, through containerd-shim-runc-v2.
    check(
        "--root /var/run/docker/runtime-runc/moby --log /run/containerd/t/moby/4f/log.json --log-format json --systemd-cgroup create --bundle \
         /run/containerd/t/moby/4f --pid-file /run/containerd/t/moby/4f/init.pid --console-socket /tmp/pty1/pty.sock 4f",
        Some(("/run/containerd/t/moby/4f/log.json", Format::Json)),
        Some(("4f", "/run/containerd/t/moby/4f", "config.json")),
    );
    // Podman 5, through conmon.
    check(
        "--systemd-cgroup --root=/run/crun --log-format=json --log /c/userdata/oci-log create --bundle /c/userdata --pid-file /c/pidfile 4f",
        Some(("/c/userdata/oci-log", Format::Json)),
        Some(("4f", "/c/userdata", "config.json")),
    );
    check("--cgroup-manager=disabled create -b /b 4f", None, Some(("4f", "/b", "config.json")));
}

#[test]
fn every_spelling_of_an_option_is_read() {
    for bundle in ["--bundle /b", "--bundle=/b", "-bundle /b", "-bundle=/b", "-b /b", "-b=/b", "-b/b"] {
        check(&format!("create {bundle} c"), None, Some(("c", "/b", "config.json")));
        check(&format!("run --detach {bundle} --no-pivot c"), None, Some(("c", "/b", "config.json")));
    }
    check("run c", None, Some(("c", ".", "config.json")));
    check("create c --bundle /b", None, Some(("c", "/b", "config.json")));
    check("create --bundle /x --bundle /b --preserve-fds 3 c", None, Some(("c", "/b", "config.json")));
    check("create -f other.json c", None, Some(("c", ".", "other.json")));
    check("create --future x c", None, Some(("c", ".", "config.json")));
    check("create", None, Some(("", ".", "config.json")));
    check("create --bundle", None, Some(("", ".", "config.json")));
    check(
        "--log=a --log=b --log-format json --log-format text run c",
        Some(("b", Format::Text)),
        Some(("c", ".", "config.json")),
    );
    check("--debug --future create c", None, Some(("c", ".", "config.json")));
    check("--future x --rootless auto create c", None, Some(("c", ".", "config.json")));
    check("--future=x -l /l create c", Some(("/l", Format::Text)), Some(("c", ".", "config.json")));
}

#[test]
fn other_commands_have_no_container() {
    for line in [
        "",
        "--version",
        "-v",
        "features",
        "--log",
        "--root /r",
        "state create",
        "--root create state run",
        "--root /r exec --process /p create",
        "delete --force run",
        "--help create-not",
        "--future kill create KILL",
    ] {
        assert_eq!(parse(&words(line)).container, None, "{line}");
    }
}

proptest! {
    #[test]
    fn any_words_are_read(words in proptest::collection::vec(any::<Vec<u8>>(), 0..8)) {
        use std::os::unix::ffi::OsStringExt as _;
        let _ = parse(&words.into_iter().map(OsString::from_vec).collect::<Vec<_>>());
    }
}
