//! Names of containers and file systems.

use std::fs;

use super::*;

#[test]
fn a_container_keeps_its_runtime_name_in_all_cgroups_and_after_its_end() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let id = "0123456789abcdef".repeat(4);
    let scope = roots.cgroup.join(format!("system.slice/docker-{id}.scope"));
    fs::create_dir_all(scope.join("init.scope")).unwrap();
    fs::write(roots.cgroup.join("cgroup.controllers"), "io").unwrap();
    let config = base.path().join("var/lib/docker/containers").join(&id);
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.v2.json"), r#"{"Name":"/web\u001b"}"#).unwrap();
    let mut namer = Namer::new(roots);
    namer.refresh(&[], &HashSet::new());
    let of_container = |namer: &Namer| {
        let names = namer.names();
        let found = names.cgroups.into_values().filter(|identity| identity.id.is_some());
        let mut found: Vec<_> = found.map(|identity| (identity.kind, identity.name)).collect();
        found.sort();
        found
    };
    let named = (ContainerKind::Docker, r"web\u{1b}".to_owned());
    assert_eq!(of_container(&namer), [named.clone(), named.clone()]);
    fs::remove_dir_all(&scope).unwrap();
    fs::remove_dir_all(&config).unwrap();
    let changes = namer.refresh(&[], &HashSet::new());
    assert_eq!(changes.tree, Some(Tree::default()));
    assert_eq!((changes.gone.len(), of_container(&namer)), (2, vec![named.clone(), named]));
}

#[test]
fn the_tree_has_active_cgroups_and_their_ancestors() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let slice = roots.cgroup.join("bulkhead.slice/bulkhead-db.slice");
    fs::create_dir_all(slice.join("bulkhead-db-payload.slice")).unwrap();
    fs::create_dir_all(roots.cgroup.join("idle.slice")).unwrap();
    fs::write(roots.cgroup.join("cgroup.controllers"), "io").unwrap();
    fs::write(roots.cgroup.join("bulkhead.slice/io.weight"), "default 100\n").unwrap();
    fs::write(slice.join("io.weight"), "default 700\n").unwrap();
    let ids: HashMap<String, CgroupId> =
        cgroup::all_ids(&roots).unwrap().into_iter().map(|(id, path)| (path, id)).collect();
    let [all, db, payload] = ["", "/bulkhead-db.slice", "/bulkhead-db.slice/bulkhead-db-payload.slice"]
        .map(|path| ids[&format!("/bulkhead.slice{path}")]);
    let mut namer = Namer::new(roots);
    let changes = namer.refresh(&[], &HashSet::from([payload]));
    let mut expected = Tree::default();
    expected.insert(all, ROOT, Weights::parse("100"));
    expected.insert(db, all, Weights::parse("700"));
    expected.insert(payload, db, None);
    assert_eq!(changes.tree, Some(expected));
}

fn evidence(changes: Changes) -> Vec<String> {
    changes.findings.into_iter().map(|finding| finding.evidence).collect()
}

/// A host with these lines in its mountinfo.
fn noted(mountinfo: &str) -> Vec<String> {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    fs::create_dir_all(&roots.cgroup).unwrap();
    fs::write(roots.cgroup.join("cgroup.controllers"), "cpu io memory").unwrap();
    // The second disk's ext4 has no journal.
    for (disk, task) in [("sda1", "57"), ("sda2", "<none>")] {
        let minor = disk.trim_start_matches("sda");
        fs::create_dir_all(roots.sys.join(format!("devices/{disk}"))).unwrap();
        fs::create_dir_all(roots.sys.join("dev/block")).unwrap();
        std::os::unix::fs::symlink(format!("../../devices/{disk}"), roots.sys.join(format!("dev/block/0:{minor}")))
            .unwrap();
        fs::create_dir_all(roots.sys.join("fs/ext4").join(disk)).unwrap();
        fs::write(roots.sys.join("fs/ext4").join(disk).join("journal_task"), format!("{task}\n")).unwrap();
    }
    fs::create_dir_all(roots.proc.join("self")).unwrap();
    fs::write(roots.proc.join("self/mountinfo"), mountinfo).unwrap();
    evidence(Namer::new(roots).refresh(&[], &HashSet::new()))
}

fn mounted(fs_type: &str, minor: u32, mount_point: &str) -> String {
    format!("{minor} 1 0:{minor} / {mount_point} rw - {fs_type} /dev/sda{minor} rw\n")
}

#[test]
fn file_systems_that_cannot_be_attributed_are_reported() {
    assert_eq!(noted(&(mounted("ext4", 1, "/") + &mounted("xfs", 2, "/srv"))), Vec::<String>::new());
    assert_eq!(
        noted(&(mounted("ext4", 1, "/") + &mounted("ext4", 2, "/srv"))),
        ["ext4 without a journal: nothing is attributed: /srv"]
    );
    // An escape of mountinfo that is one for terminals, too.
    let one = noted(&(mounted("ext4", 1, "/") + &mounted("btrfs", 2, "/b\\033[2J")));
    assert_eq!(one, ["btrfs: not attributed (copy-on-write log trees are not journal commits): /b\\u{1b}[2J"]);
    let many: String = (0..9).map(|n| mounted("btrfs", n, &format!("/b{n}"))).collect();
    assert!(noted(&many)[0].ends_with("commits): /b0, /b1, /b2 and 6 more"), "{:?}", noted(&many));
}

#[test]
fn a_host_whose_io_controller_is_in_cgroup_v1_is_findings_so() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    fs::create_dir_all(roots.cgroup.join("unified")).unwrap();
    fs::write(roots.cgroup.join("unified/cgroup.controllers"), "hugetlb").unwrap();
    let findings = evidence(Namer::new(roots).refresh(&[], &HashSet::new()));
    assert!(
        findings.last().is_some_and(|findings| findings.starts_with("cgroup v2 has no io controller")),
        "{findings:?}"
    );
}
