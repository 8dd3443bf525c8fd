use super::*;
use expect_test::{Expect, expect};

fn check(path: &str, expected: Expect) {
    let Identity { kind, name, id, pod_uid } = identify(path);
    let id = id.map(|id| format!(" id={}…", &id[..4])).unwrap_or_default();
    let pod = pod_uid.map(|uid| format!(" pod={uid}")).unwrap_or_default();
    expected.assert_eq(&format!("{kind:?} {name}{id}{pod}"));
}

#[test]
fn a_journal_thread_next_to_a_container_is_identified_as_the_container() {
    for path in ["/system.slice/db.service", "/system.slice/docker-0123.scope", "/db"] {
        let beside = journal_beside(&path.parse().unwrap()).unwrap();
        assert_eq!(identify(&format!("/{beside}")), identify(path), "{beside}");
    }
    assert_eq!(identify("/bulkhead-journal:").kind, ContainerKind::Cgroup);
}

#[test]
fn containers_are_identified_by_their_paths() {
    let id = "0123456789abcdef".repeat(4);
    check("/", expect!["Root /"]);
    check("/bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice", expect!["Tenant db"]);
    check("/bulkhead.slice/bulkhead-my\\x2ddb.slice", expect!["Tenant my-db"]);
    check("/bulkhead.slice/db.slice/payload", expect!["Tenant db"]);
    check(&format!("/bulkhead.slice/bulkhead-db.slice/docker-{id}.scope"), expect!["Tenant db"]);
    check("/bulkhead.slice", expect!["Cgroup /bulkhead.slice"]);
    check(&format!("/system.slice/docker-{id}.scope"), expect!["Docker 0123456789ab id=0123…"]);
    check(&format!("/system.slice/docker-{id}.scope/init.scope"), expect!["Docker 0123456789ab id=0123…"]);
    check(&format!("/docker/{id}"), expect!["Docker 0123456789ab id=0123…"]);
    check(&format!("/machine.slice/libpod-{id}.scope/container"), expect!["Podman 0123456789ab id=0123…"]);
    check(
        &format!("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope"),
        expect!["Podman 0123456789ab id=0123…"],
    );
    check(
        &format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a1b2c3d_0a1b_0a1b_0a1b_0a1b2c3d4e5f.slice/cri-containerd-{id}.scope"
        ),
        expect!["Kubernetes 0123456789ab id=0123… pod=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"],
    );
    check(
        &format!("/kubepods/besteffort/pod0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f/{id}"),
        expect!["Kubernetes 0123456789ab id=0123… pod=0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"],
    );
    check(&format!("/default/{id}"), expect!["Containerd 0123456789ab id=0123…"]);
    check("/lxc.payload.web/system.slice/nginx.service", expect!["Machine web"]);
    check("/machine.slice/machine-build\\x2d1.scope/payload", expect!["Machine build-1"]);
    check("/system.slice/mariadb.service", expect!["Unit mariadb.service"]);
    check(
        "/system.slice/system-postgresql.slice/postgresql@15-main.service",
        expect!["Unit postgresql@15-main.service"],
    );
    check("/user.slice/user-0.slice/session-3.scope", expect!["Unit session-3.scope"]);
    check(
        "/user.slice/user-1000.slice/user@1000.service/app.slice/backup.service",
        expect!["Unit 1000/backup.service"],
    );
    check("/user.slice/user-1000.slice/user@1000.service/init.scope", expect!["Unit 1000/init.scope"]);
    check("/batch/job 7", expect!["Cgroup /batch/job 7"]);
}

#[test]
fn a_container_matches_its_name_or_the_start_of_its_id() {
    let id = "0123456789abcdef".repeat(4);
    let short = identify(&format!("/docker/{id}"));
    let named = Identity { name: "web".to_owned(), ..short.clone() };
    assert_eq!(named.key(), short.key());
    let other = identify(&format!("/docker/{}", id.replace('0', "f")));
    assert_ne!(Identity { name: "web".to_owned(), ..other.clone() }, named);
    assert_ne!(other.key(), short.key());
    let called: Vec<_> = ["web", &id, &id[..12], &id[..11], "we", ""].map(|text| named.matches(text)).into();
    assert_eq!(called, [true, true, true, false, false, false]);
}

#[test]
fn hostile_names_are_escaped() {
    check("/evil\u{1b}[2Jname", expect![[r"Cgroup /evil\u{1b}[2Jname"]]);
    check("/gro\u{202e}up\r", expect![[r"Cgroup /gro\u{202e}up\u{d}"]]);
    check("/docker/xyz", expect!["Cgroup /docker/xyz"]);
    check("/kubepods-pod.slice/docker-.scope", expect!["Unit docker-.scope"]);
    check("/kubepods", expect!["Cgroup /kubepods"]);
}
