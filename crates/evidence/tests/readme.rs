//! The figures that README.md quotes are those that docs/evidence stores.

use std::fs;
use std::path::Path;

use bulkhead_measure::result::Experiment;

#[test]
fn readme_quotes_the_stored_figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let stored = fs::read_to_string(root.join("docs/evidence/dbms-consolidation.json")).unwrap();
    let stored: Vec<Experiment> = serde_json::from_str(&stored).unwrap();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    let hdd = stored.iter().find(|experiment| experiment.disk.model == "hdd").unwrap();
    let median = |(layout, controller, neighbour): (&str, &str, &str), name: &str| {
        hdd.cell(layout, controller, neighbour).and_then(|cell| cell.figure(name)).unwrap().median
    };
    let (alone, beside) = (("shared", "bfq", "none"), ("shared", "bfq", "no-fsync"));
    let held = ("own+accounting+hold", "iocost", "no-fsync");
    let (inserts, fsync) = ("inserts_per_s", "fsync_mean_ms");
    for quoted in [
        format!(
            "a MariaDB that commits {:.0} inserts a second alone commits {:.0} beside it, and an fsync takes {:.1} s",
            median(alone, inserts),
            median(beside, inserts),
            median(beside, fsync) / 1000.0
        ),
        format!(
            "the same database commits {:.0} inserts a second, and an fsync takes {:.0} ms",
            median(held, inserts),
            median(held, fsync)
        ),
    ] {
        assert!(readme.contains(&quoted), "README.md does not say: {quoted}");
    }
}
