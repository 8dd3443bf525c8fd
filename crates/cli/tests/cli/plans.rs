//! The commands of docs/plan.md print what the page shows, and bad fleet files are refused (`BULKHEAD_BLESS=1` rewrites the page).

use std::path::{Path, PathBuf};
use std::process::Output;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{CostsStore, ProfileStore};

use crate::{Daemon, NO_SOCKET, bulkhead};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn run(dir: &Path, args: &[&str]) -> Output {
    bulkhead(Path::new(NO_SOCKET), args).current_dir(dir).output().unwrap()
}

#[test]
fn the_pages_commands_print_what_it_shows() {
    let path = docs().join("plan.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut expected = String::new();
    let mut n_commands = 0;
    for (index, part) in page.split("```").enumerate() {
        let Some(block) = part.strip_prefix("console\n").filter(|_| index % 2 == 1) else {
            expected.push_str(part);
            expected.push_str("```");
            continue;
        };
        let line = block.lines().next().unwrap();
        let words: Vec<&str> = line.strip_prefix("$ bulkhead ").unwrap().split(' ').collect();
        let output = run(&docs().join("plan"), &words);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let (data, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        expected.push_str(&format!("console\n{line}\n{data}{said}```"));
        n_commands += 1;
    }
    expected.truncate(expected.len() - 3);
    assert!(n_commands >= 3);
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert!(page == expected, "docs/plan.md is stale: run this test with BULKHEAD_BLESS=1");
}

#[test]
fn bad_fleets_are_refused_with_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["ssd.json", "hdd.json", "mysql.json", "search.json", "web.json", "backup.json"] {
        std::fs::copy(docs().join("plan").join(name), dir.path().join(name)).unwrap();
    }
    let good = std::fs::read_to_string(docs().join("plan/fleet.toml")).unwrap();
    let refused = |text: &str, args: &[&str]| {
        std::fs::write(dir.path().join("fleet.toml"), text).unwrap();
        let output = run(dir.path(), &[&["plan", "fleet.toml"], args].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let invalid = Some(2);
    let (code, said) = refused(&good.replace("\"mysql.json\"", "\"nothing.json\""), &[]);
    assert!(code == invalid && said.contains("workload \"shop\": demand: cannot read nothing.json"), "{said}");
    std::fs::write(dir.path().join("idle.json"), r#"{"clients": 1, "cpu-seconds": 0}"#).unwrap();
    let (code, said) = refused(&good.replace("\"web.json\"", "\"idle.json\""), &[]);
    assert!(code == invalid && said.contains("it was idle when it was measured"), "{said}");
    std::fs::write(dir.path().join("old.json"), r#"{"clients": 1, "cpu-second": 0}"#).unwrap();
    let (code, said) = refused(&good.replace("\"web.json\"", "\"old.json\""), &[]);
    assert!(code == invalid && said.contains("old.json: unknown field `cpu-second`"), "{said}");
    let (code, said) = refused(&good.replace("floor = 0.25", "floor = 0.9"), &[]);
    assert!(
        code == invalid && said.contains("no placement was found that keeps all constraints: backup-1 keeps"),
        "{said}"
    );
    let (code, said) = refused(&good.replace("space = \"1T\"", "space = \"9T\""), &[]);
    assert!(code == invalid && said.contains("lacks"), "{said}");
    let (code, said) = refused(&good.replace("on = \"attic/sda\"", ""), &["--today"]);
    assert!(code == invalid && said.contains("workload \"backup-1\" has no key `on`"), "{said}");
    let (code, said) = refused("", &[]);
    assert!(code == invalid && said.contains("line 1: host: the fleet has none"), "{said}");
    let (code, said) = refused(&good, &["--one-more", "shopp"]);
    assert!(code == Some(3) && said.contains("it has no workload \"shopp\""), "{said}");
}

#[test]
fn this_host_is_planned_from_its_daemon() {
    let daemon = Daemon::start();
    let demand = docs().join("plan/mysql.json").display().to_string();
    let one_more = ["plan", "--here", "--one-more", "shop", "--demand", &demand];
    let said = daemon.screen(&one_more);
    assert!(said.contains("this host: it has no pools: nothing can be predicted"), "{said}");
    daemon.create_pools();
    daemon.create_volumes();
    daemon.create_tenant();
    let said = daemon.screen(&one_more);
    assert!(
        said.contains("no device has costs") && said.contains("`bulkhead device costs DIRECTORY --save`"),
        "{said}"
    );
    let read = |name: &str| std::fs::read(docs().join("plan").join(name)).unwrap();
    let client = Client::new(daemon.dir.path().join("sock"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let costs = CostsStore { directory: "/srv/pool".into(), costs: serde_json::from_slice(&read("ssd.json")).unwrap() };
    runtime.block_on(client.costs_store(&costs, false)).unwrap();
    // With no file but the demand.
    let said = daemon.screen(&one_more);
    assert!(said.starts_with("exit 0") && said.contains("here/sda  100 %    0 %"), "{said}");
    assert!(
        said.contains("without db on here, whose demand is not known: run `bulkhead profile db --save` there"),
        "{said}"
    );
    let demand = serde_json::from_slice(&read("backup.json")).unwrap();
    let profile = ProfileStore { workload: None, demand, alone_per_s: None };
    runtime.block_on(client.profile_store(&"db".parse().unwrap(), &profile, false)).unwrap();
    let said = daemon.screen(&one_more);
    assert!(said.starts_with("exit 0") && !said.contains("without db") && said.contains("db from 100 %"), "{said}");
    assert!(daemon.screen(&["plan", "--here"]).contains("db        here/sda"));
    let said = daemon.screen(&["plan", "--here", "--one-more", "dbb"]);
    assert!(said.contains("exit 3") && said.contains("it has db; a new one needs `--demand FILE`"), "{said}");
    // The report as a file of a fleet.
    let report = daemon.screen(&["host", "report"]).replace("exit 0\n----- stdout\n", "");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("node-1.json"), &report).unwrap();
    std::fs::write(dir.path().join("fleet.toml"), "[[host]]\nname = \"node-1\"\nreport = \"node-1.json\"\n").unwrap();
    let output = run(dir.path(), &["plan", "fleet.toml", "--today"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("db        node-1/sda"), "{text}");
    std::fs::write(dir.path().join("node-1.json"), report.replace("\"clients\": ", "\"clients\": -")).unwrap();
    let output = run(dir.path(), &["plan", "fleet.toml"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("host \"node-1\": report: node-1.json: workload db: profile: clients: -"), "{said}");
}
