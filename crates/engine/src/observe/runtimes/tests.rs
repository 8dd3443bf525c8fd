//! Container runtimes whose state files exist, and others.

use std::fs;
use std::path::Path;

use bulkhead_core::identity::identify;

use super::*;

const UID: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";

fn id(digit: &str) -> String {
    digit.repeat(64)
}

fn write(base: &Path, path: &str, text: &str) {
    let path = base.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn annotated(annotations: &str) -> String {
    format!(r#"{{"ociVersion":"1.0.2","annotations":{{{annotations}}}}}"#)
}

#[test]
fn each_runtime_names_its_containers() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let pod = format!("/kubepods/burstable/pod{UID}");
    let containers = [
        (format!("/system.slice/docker-{}.scope", id("1")), "web"),
        (format!("/machine.slice/libpod-{}.scope/container", id("2")), "web"),
        (format!("/default/{}", id("3")), "proxy"),
        (format!("{pod}/{}", id("4")), "shop/db-0/mariadb"),
        (format!("{pod}/crio-{}", id("5")), "shop/db-0/exporter"),
        (format!("{pod}/{}", id("6")), "shop/db-0/666666666666"),
        (format!("/system.slice/docker-{}.scope", id("7")), "777777777777"),
    ];
    write(base.path(), &format!("var/lib/docker/containers/{}/config.v2.json", id("1")), r#"{"Name":"/web"}"#);
    let list = format!(r#"[{{"id":"{}","names":["web"]}}]"#, id("2"));
    write(base.path(), "var/lib/containers/storage/overlay-containers/volatile-containers.json", &list);
    let tasks = "run/containerd/io.containerd.runtime.v2.task";
    write(base.path(), &format!("{tasks}/default/{}/config.json", id("3")), &annotated(r#""nerdctl/name":"proxy""#));
    let cri = r#""io.kubernetes.cri.sandbox-namespace":"shop","io.kubernetes.cri.sandbox-name":"db-0",
        "io.kubernetes.cri.container-name":"mariadb""#;
    write(base.path(), &format!("{tasks}/k8s.io/{}/config.json", id("4")), &annotated(cri));
    let crio = r#""io.kubernetes.pod.namespace":"shop","io.kubernetes.pod.name":"db-0",
        "io.kubernetes.container.name":"exporter""#;
    let userdata = format!("run/containers/storage/overlay-containers/{}/userdata/config.json", id("5"));
    write(base.path(), &userdata, &annotated(crio));
    write(base.path(), &format!("var/log/pods/shop_db-0_{UID}/mariadb/0.log"), "");
    write(base.path(), &format!("var/log/pods/shop_db-0_{UID}/exporter/0.log"), "");
    let identities: HashSet<Identity> = containers.iter().map(|(path, _)| identify(path)).collect();
    assert_eq!(identities.len(), containers.len());
    let mut names = RuntimeNames::default();
    names.refresh(&roots, &identities, Instant::now());
    for (path, expected) in &containers {
        let identity = identify(path);
        assert_eq!(names.name(&identity).unwrap_or(&identity.name), *expected, "{path}");
    }
    // A pod with one container identifies it.
    fs::remove_dir_all(base.path().join(format!("var/log/pods/shop_db-0_{UID}/exporter"))).unwrap();
    let mut names = RuntimeNames::default();
    names.refresh(&roots, &identities, Instant::now());
    assert_eq!(names.name(&identify(&containers[5].0)), Some("shop/db-0/mariadb"));
}

#[test]
fn a_name_is_looked_up_once_and_a_missing_one_a_limited_number_of_times() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    let (early, late) = (identify(&format!("/docker/{}", id("1"))), identify(&format!("/docker/{}", id("2"))));
    let both = HashSet::from([early.clone(), late.clone()]);
    let config = |id: &str, name: &str| {
        let path = format!("var/lib/docker/containers/{id}/config.v2.json");
        write(base.path(), &path, &format!(r#"{{"Name":"/{name}"}}"#));
    };
    config(&id("1"), "early");
    let (mut names, start) = (RuntimeNames::default(), Instant::now());
    names.refresh(&roots, &both, start);
    config(&id("1"), "renamed");
    config(&id("2"), "late");
    names.refresh(&roots, &both, start + RETRY / 2);
    assert_eq!((names.name(&early), names.name(&late)), (Some("early"), None), "it is not due yet");
    names.refresh(&roots, &both, start + RETRY);
    assert_eq!((names.name(&early), names.name(&late)), (Some("early"), Some("late")));
    // Containers that are gone are evicted.
    names.refresh(&roots, &HashSet::from([late.clone()]), start + RETRY);
    assert_eq!((names.name(&early), names.name(&late)), (None, Some("late")));
    let nowhere = HashSet::from([identify(&format!("/docker/{}", id("3")))]);
    let mut at = start;
    for _ in 0..100 {
        at += Duration::from_secs(3600);
        names.refresh(&roots, &nowhere, at);
    }
    assert!(matches!(names.by_id[&id("3")], Entry::Missing { tries: MAX_TRIES, .. }));
}
