//! On facts that `bulkhead doctor --capture` has written on hosts of the lab.

use std::collections::BTreeSet;

use super::*;

/// The ids of the findings on captured facts.
fn found(text: &str) -> BTreeSet<String> {
    let facts: Facts = serde_json::from_str(text).unwrap();
    judge(&facts).into_iter().map(|finding| finding.id.word().to_owned()).collect()
}

fn words(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn well_configured_hosts_of_containers_have_no_false_findings() {
    // Overlay does not work on the root of the lab's guests, which is an overlay itself.
    let copied = words(&["images_copied_whole"]);
    assert_eq!(found(include_str!("captured/docker.json")), copied);
    assert_eq!(found(include_str!("captured/podman.json")), copied);
    // Three databases on volumes of Bulkhead's, with one processor, for which the kernel chose mq-deadline: block servers now remove it.
    assert_eq!(found(include_str!("captured/kubernetes.json")), words(&["scheduler_on_stack"]));
}

#[test]
fn all_faults_of_a_host_are_found() {
    let expected = words(&[
        "atime_always",
        "barriers_off",
        "commits_rare",
        "database_shares_journal",
        "image_cached_twice",
        "image_sparse",
        "images_copied_whole",
        "journal_nested",
        "journal_not_limited",
        "lazy_init_running",
        "logs_beside_database",
        "logs_unlimited",
        "readahead_large",
        "runtime_beside_database",
        "scheduler_on_stack",
        "weight_of_only_child",
        "weight_without_effect",
        "writeback_not_attributed",
        "writes_synchronous",
    ]);
    assert_eq!(found(include_str!("captured/faults.json")), expected);
}
