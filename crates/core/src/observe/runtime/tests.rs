use super::*;
use proptest::prelude::*;

/// From Docker 20.10.24, shortened.
const DOCKER: &str = r#"{"StreamConfig":{},"State":{"Running":false,"Paused":false,"Restarting":false,"OOMKilled":false,"RemovalInProgress":false,"Dead":false,"Pid":0,"ExitCode":0,"Error":"","StartedAt":"0001-01-01T00:00:00Z","FinishedAt":"0001-01-01T00:00:00Z","Health":null},"ID":"f9beb622e9072191a4e20b44c56fec6285344304fc36a133ac855b317f656305","Created":"2026-11-22T11:31:17.184315103Z","Managed":false,"Path":"/bin/true","Args":[],"Image":"sha256:75c17c34ecbb1387737bb61462f0abe3bb60215b01387ae26828509fa808ca1d","Name":"/web","Driver":"vfs","OS":"linux","RestartCount":0}"#;

/// From Podman 4.3.1: two containers, the second one created with `--rm`.
const PODMAN: &str = r#"[{"id":"e533ddddf7a8aca77fa3affaa70d4ea4276c009fa9aba34a229f71f68b1e590c","names":["web"],"image":"","layer":"e18d6c4a2334a2263a86d67c3ee3c9f176abbd5351b38981eca5c7ba6b44e7d8","metadata":"{\"image-name\":\"\",\"image-id\":\"\",\"name\":\"web\",\"created-at\":1795347072}","created":"2026-11-22T11:31:12.714044115Z","flags":{"MountLabel":"","ProcessLabel":""}},{"id":"85209c3129f2350e1c2ec45890302403c190cd9c2beef48ee98c3a7ae818ac43","names":["gone"],"image":"","layer":"08afb309c8f37419d56c92f1fa0efdeabd6d0b9dd070868a6ef821547c836504","metadata":"{\"image-name\":\"\",\"image-id\":\"\",\"name\":\"gone\",\"created-at\":1795347072}","created":"2026-11-22T11:31:12.789922987Z","flags":{"MountLabel":"","ProcessLabel":"","Volatile":true}}]"#;

fn spec(annotations: &[(&str, &str)]) -> Vec<u8> {
    let annotations: HashMap<_, _> = annotations.iter().copied().collect();
    serde_json::to_vec(&serde_json::json!({ "ociVersion": "1.0.2", "annotations": annotations })).unwrap()
}

#[test]
fn docker_and_podman_have_names() {
    assert_eq!(docker_name(DOCKER.as_bytes()).as_deref(), Some("web"));
    assert_eq!(docker_name(br#"{"Name":"\u001b[2J/x"}"#).as_deref(), Some("\\u{1b}[2J/x"));
    for nothing in ["", "{}", "[]", r#"{"Name":"/"}"#, r#"{"Name":7}"#, r#"{"Name":" "}"#] {
        assert_eq!(docker_name(nothing.as_bytes()), None, "{nothing}");
    }
    let settings =
        docker_settings(br#"{"data-root":"/mnt","debug":true,"exec-opts":["a=b","native.cgroupdriver=cgroupfs"]}"#);
    let expected = (Some("/mnt".to_owned()), None, Some("cgroupfs".to_owned()));
    assert_eq!((settings.data_root, settings.storage_driver, settings.cgroup_driver), expected);
    assert_eq!(docker_settings(b"{}"), DockerSettings::default());
    assert_eq!(docker_settings(b"["), DockerSettings::default());
    let names = storage_names(PODMAN.as_bytes());
    let by_start = |start: &str| names.iter().find(|(id, _)| id.starts_with(start)).map(|(_, name)| name.as_str());
    assert_eq!([by_start("e533"), by_start("8520")], [Some("web"), Some("gone")]);
    assert!(storage_names(br#"[{"id":"a"},{"id":"b","names":[]},{"id":"c","names":[""]}]"#).is_empty());
    assert!(storage_names(br#"{"id":"a","names":["x"]}"#).is_empty());
}

#[test]
fn annotations_name_pods_and_containers() {
    let containerd = [
        ("io.kubernetes.cri.container-name", "mariadb"),
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.sandbox-name", "db-0"),
        ("io.kubernetes.cri.sandbox-namespace", "shop"),
    ];
    assert_eq!(spec_name(&spec(&containerd)).as_deref(), Some("shop/db-0/mariadb"));
    assert_eq!(spec_name(&spec(&containerd[2..])).as_deref(), Some("shop/db-0"));
    assert_eq!(spec_name(&spec(&containerd[..3])), None);
    let crio = [
        ("io.kubernetes.cri-o.ContainerName", "k8s_mariadb_db-0_shop_uid_0"),
        ("io.kubernetes.container.name", "mariadb"),
        ("io.kubernetes.pod.name", "db-0"),
        ("io.kubernetes.pod.namespace", "shop"),
    ];
    assert_eq!(spec_name(&spec(&crio)).as_deref(), Some("shop/db-0/mariadb"));
    assert_eq!(spec_name(&spec(&[crio[2], crio[3], (crio[1].0, "POD")])).as_deref(), Some("shop/db-0"));
    assert_eq!(spec_name(&spec(&[("nerdctl/name", "web")])).as_deref(), Some("web"));
    assert_eq!(spec_name(&spec(&[("nerdctl/name", "")])), None);
    assert_eq!(spec_name(br#"{"ociVersion":"1.0.2"}"#), None);
    assert_eq!(spec_name(br#"{"annotations":{"nerdctl/name":["web"]}}"#), None);
    let long = "x".repeat(100_000);
    assert_eq!(spec_name(&spec(&[("nerdctl/name", &long)])).map(|name| name.len()), Some(MAX_NAME));
}

#[test]
fn pods_are_found_by_their_logs() {
    let uid = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";
    let found = pod_of_logs(&format!("shop_db-0_{uid}"), uid);
    assert_eq!(found, Some(("shop".to_owned(), "db-0".to_owned())));
    for other in
        ["shop_db-0_x", "shop_db-0", "_", "", uid, &format!("_{uid}"), &format!("shop_{uid}"), &format!("__{uid}")]
    {
        assert_eq!(pod_of_logs(other, uid), None, "{other}");
    }
}

#[test]
fn settings_of_the_storage_are_read() {
    let text = b"# graphroot = \"/a\"\n[storage]\ndriver = \"vfs\"\n graphroot=\"/mnt/b\" # there\n[storage.options]\nrunroot = \"/c\"";
    assert_eq!(storage_setting(text, "graphroot").as_deref(), Some("/mnt/b"));
    assert_eq!(storage_setting(text, "runroot"), None);
    assert_eq!(storage_setting(b"[storage]\ngraphroot = 7", "graphroot"), None);
    assert_eq!(storage_setting(b"[storage]\ngraphroot = \"/x", "graphroot"), None);
    assert_eq!(storage_setting(&[0xff, 0xfe], "graphroot"), None);
}

#[test]
fn truncated_files_give_no_names() {
    for cut in 0..DOCKER.len() {
        assert_eq!(docker_name(&DOCKER.as_bytes()[..cut]), None);
    }
    for cut in 0..PODMAN.len() {
        assert!(storage_names(&PODMAN.as_bytes()[..cut]).is_empty());
    }
    let deep = "[".repeat(1 << 20);
    assert_eq!((docker_name(deep.as_bytes()), spec_name(deep.as_bytes())), (None, None));
    assert!(storage_names(deep.as_bytes()).is_empty());
}

proptest! {
    #[test]
    fn any_file_content_is_displayed_safely(name: String, noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let json = serde_json::to_vec(&serde_json::json!({ "Name": name })).unwrap();
        if let Some(shown) = docker_name(&json) {
            prop_assert!(!shown.chars().any(char::is_control) && !shown.trim().is_empty());
        }
        let (_, _) = (spec_name(&noise), storage_setting(&noise, "graphroot"));
        prop_assert!(storage_names(&noise).is_empty());
    }
}

#[test]
fn the_log_of_a_running_container_of_docker_is_known() {
    let config = |running: bool| format!(r#"{{"Name":"/web","State":{{"Running":{running},"Pid":1}}}}"#).into_bytes();
    let log = |running: bool, log_config: &str| {
        docker_log(&config(running), format!(r#"{{"LogConfig":{log_config}}}"#).as_bytes())
    };
    let unlimited = DockerLog { container: "web".to_owned(), driver: "json-file".to_owned(), limited: false };
    assert_eq!(log(true, r#"{"Type":"json-file","Config":{}}"#), Some(unlimited.clone()));
    assert_eq!(log(true, r#"{"Type":"json-file","Config":null}"#), Some(unlimited));
    let limited = |log: Option<DockerLog>| log.map(|log| log.limited);
    assert_eq!(limited(log(true, r#"{"Type":"json-file","Config":{"max-size":"10m"}}"#)), Some(true));
    assert_eq!(limited(log(true, r#"{"Type":"local","Config":{}}"#)), Some(true));
    assert_eq!(log(true, r#"{"Type":"journald","Config":{}}"#), None);
    assert_eq!(log(false, r#"{"Type":"json-file","Config":{}}"#), None);
    assert_eq!(docker_log(b"{}", b"{}"), None);
}
