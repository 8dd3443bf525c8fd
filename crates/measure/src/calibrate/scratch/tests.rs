//! What a calibration removes before and after, in front of a daemon on the simulated host.

use std::time::{Duration, Instant};

use bulkhead_api::wire::{NewPoolSource, PoolCreate};
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use tokio::sync::oneshot;

use super::*;

/// How long the daemon may take to start.
const LIMIT: Duration = Duration::from_secs(60);

/// Passes a client of a daemon on a simulated host with one pool, `fast`, to a test.
fn with_daemon(test: impl FnOnce(&Daemon)) {
    let dir = tempfile::tempdir().unwrap();
    let dirs = Dirs { state: dir.path().join("state"), run: dir.path().join("run") };
    let socket = dir.path().join("run/bulkhead.sock");
    let options = DaemonOptions {
        dirs,
        socket: socket.clone(),
        socket_group: None,
        metrics: None,
        domain: None,
        fault_after: None,
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (host, observation) = (simulated_host(), simulated_observation());
        runtime.block_on(run_until(options, host, observation, serde_json::json!({}), async {
            let _ = stopped.await;
        }))
    });
    let daemon = Daemon::new(Client::new(socket)).unwrap();
    let started = Instant::now();
    while let Err(error) = daemon.request(async |client| client.healthz().await) {
        assert!(!server.is_finished() && started.elapsed() < LIMIT, "the daemon does not answer: {error:#}");
        std::thread::yield_now();
    }
    let source = NewPoolSource::VolumeGroup { vg: "tvg".to_owned(), thin_pool: Some("thin".to_owned()) };
    let pool = PoolCreate { name: "fast".parse().unwrap(), source };
    daemon.request(async |client| client.pool_create(&pool, false).await).unwrap();
    test(&daemon);
    stop.send(()).unwrap();
    server.join().unwrap().unwrap();
}

/// Creates a volume with a tenant of the same name.
fn create(daemon: &Daemon, name: &str, created_by: Option<FrontEnd>) {
    let name: Name = name.parse().unwrap();
    let volume = VolumeRef { pool: "fast".parse().unwrap(), name: name.clone() };
    let request = VolumeCreate { created_by, ..VolumeCreate::new(volume.clone(), Bytes::mib(128)) };
    daemon.request(async |client| client.volume_create(&request, false).await).unwrap();
    let request = TenantCreate { volumes: vec![volume], created_by, ..TenantCreate::new(name) };
    daemon.request(async |client| client.tenant_create(&request, false).await).unwrap();
}

fn names(daemon: &Daemon) -> (Vec<String>, Vec<String>) {
    let tenants = daemon.request(async |client| client.tenant_list().await).unwrap();
    let volumes = daemon.request(async |client| client.volume_list(None).await).unwrap();
    (
        tenants.iter().map(|view| view.name.to_string()).collect(),
        volumes.iter().map(|view| view.volume.name.to_string()).collect(),
    )
}

#[test]
fn leftovers_of_a_calibration_are_removed_and_nothing_else() {
    with_daemon(|daemon| {
        create(daemon, NAMES[0], Some(CREATOR));
        create(daemon, NAMES[1], Some(CREATOR));
        create(daemon, "db", None);
        remove(daemon).unwrap();
        check_names_unused(daemon).unwrap();
        assert_eq!(names(daemon), (vec!["db".to_owned()], vec!["db".to_owned()]));
    });
}

#[test]
fn volumes_of_an_operator_with_a_name_of_calibration_are_refused_and_kept() {
    with_daemon(|daemon| {
        create(daemon, NAMES[0], None);
        remove(daemon).unwrap();
        assert_eq!(names(daemon), (vec![NAMES[0].to_owned()], vec![NAMES[0].to_owned()]));
        let error = check_names_unused(daemon).unwrap_err();
        let fault = error.downcast_ref::<Fault>().unwrap();
        assert_eq!((fault.code, fault.object.as_str()), (Code::AlreadyExists, "tenant bulkhead-calibrate-a"));
    });
}
