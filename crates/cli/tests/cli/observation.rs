//! Output of `top` and `blame`, and JSON output.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use expect_test::{Expect, expect};
use rustix::process::{Pid, Signal, kill_process};

use crate::{Daemon, bulkhead};

#[test]
fn json_output_equals_the_answer_of_the_api() {
    let daemon = Daemon::start();
    daemon.screen(&["pool", "create", "p", "--vg", "vg"]);
    daemon.screen(&["volume", "create", "p/v", "--size", "64M"]);
    let screen = daemon.screen(&["volume", "inspect", "v", "--output", "json"]);
    let json = screen.strip_prefix("exit 0\n----- stdout\n").unwrap();
    let view: bulkhead_api::wire::VolumeView = serde_json::from_str(json).unwrap();
    assert_eq!((view.volume.to_string(), view.size_bytes.0), ("p/v".to_owned(), 64 << 20));
    daemon.check(&["pool", "inspect", "q", "-o", "json"], &expect![[r#"
        exit 3
        ----- stderr
        {"code":"not_found","object":"pool q","cause":"there is no pool of that name","hint":"`bulkhead pool ls` lists the pools, `bulkhead pool create q --dir PATH` creates one","reason":{"reason":"no_such_pool","pool":"q"}}
    "#]]);
}

#[test]
fn observations_are_shown_per_second_and_by_culprit() {
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
        error: invalid value '301' for '--last <SECONDS>': waits are kept for 300 seconds

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
        error: top: a live table requires a terminal
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
fn following_ends_when_the_reader_is_gone() {
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
        // The reader is gone; a command that does not notice would run for ever.
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
