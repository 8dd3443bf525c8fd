//! Tests of the HTTP front end, the client and the daemon, through a real socket and on the simulated host.

mod streams;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::{Method, StatusCode};
use bulkhead_api::client::{Client, Removal};
use bulkhead_api::routes::Run;
use bulkhead_api::wire::{
    DeviceControl, LeaseCreate, NewPoolSource, PoolCreate, RunStart, TenantCreate, TenantSet, VolumeCheck, VolumeCopy,
    VolumeCreate, VolumeResize,
};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Calibration, Policy, VolumeFs, VolumeRef};
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;
use tempfile::TempDir;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::daemon::{DaemonOptions, run_until};
use crate::engine::Dirs;
use crate::http::MAX_BODY_BYTES;
use crate::sim::Sim;

fn observed() -> std::sync::Arc<crate::sim::Observed> {
    std::sync::Arc::default()
}

/// A daemon that runs on the simulated host.
struct Daemon {
    client: Client,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Fault>>,
}

impl Daemon {
    async fn start(dir: &TempDir, sim: &Sim) -> Self {
        let (stop, stopped) = oneshot::channel();
        let options = options(dir);
        let client = Client::new(&options.socket);
        let facts = serde_json::json!({ "kernel_release": "simulated" });
        let task = tokio::spawn(run_until(options, std::sync::Arc::new(sim.clone()), observed(), facts, async move {
            let _ = stopped.await;
        }));
        let answers = async {
            while client.healthz().await.is_err() {
                assert!(!task.is_finished(), "the daemon ended");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), answers).await.expect("the daemon answers");
        Self { client, stop, task }
    }

    async fn stop(self) -> Result<(), Fault> {
        let _ = self.stop.send(());
        self.task.await.unwrap()
    }

    async fn raw(&self, method: Method, uri: &str, body: impl Into<Vec<u8>>) -> (u16, serde_json::Value) {
        let (status, body) = self.client.exchange(method, uri, body.into(), None).await.unwrap();
        (status.as_u16(), serde_json::from_slice(&body).unwrap())
    }

    async fn raw_or_empty(&self, method: Method, uri: &str) -> (StatusCode, String) {
        let (status, body) = self.client.exchange(method, uri, Vec::new(), None).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }
}

fn options(dir: &TempDir) -> DaemonOptions {
    DaemonOptions {
        dirs: Dirs { state: dir.path().join("state"), run: dir.path().join("run") },
        socket: dir.path().join("run/bulkhead.sock"),
        socket_group: None,
        metrics: None,
        domain: None,
        fault_after: None,
    }
}

fn dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn sim() -> Sim {
    Sim::default().with_group("tvg", &["thin"])
}

fn volume(text: &str) -> VolumeRef {
    text.parse().unwrap()
}

fn volume_create(name: &str) -> VolumeCreate {
    VolumeCreate::new(volume(name), Bytes::mib(64))
}

async fn make_pool(client: &Client) {
    let source = NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".into()) };
    client.pool_create(&PoolCreate { name: "fast".parse().unwrap(), source }, false).await.unwrap();
}

#[tokio::test]
async fn every_operation_goes_through_the_socket() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let client = &daemon.client;
    let pool = "fast".parse().unwrap();
    let db = "db".parse().unwrap();
    let data = volume("fast/data");
    assert!(client.pool_list().await.unwrap().is_empty());
    make_pool(client).await;
    assert_eq!(client.pool_list().await.unwrap(), [client.pool_inspect(&pool).await.unwrap()]);

    let planned = client.volume_create(&volume_create("fast/data"), true).await.unwrap();
    assert!(planned.dry_run && planned.object.is_none() && !planned.steps.is_empty());
    assert!(client.volume_list(None).await.unwrap().is_empty());
    let made = client.volume_create(&volume_create("fast/data"), false).await.unwrap();
    assert_eq!(made.object, Some(client.volume_inspect(&data).await.unwrap()));
    assert_eq!(client.volume_list(Some(&pool)).await.unwrap().len(), 1);
    let resize = VolumeResize { size_bytes: Some(Bytes::mib(128)), ..VolumeResize::default() };
    let resized = client.volume_resize(&data, &resize, false).await.unwrap();
    assert_eq!(resized.object.unwrap().size_bytes, Bytes::mib(128));
    let copy = VolumeCopy::new("copy".parse().unwrap(), true);
    assert!(client.volume_copy(&data, &copy, false).await.unwrap().object.unwrap().read_only);
    client.volume_check(&data, &VolumeCheck { repair: true, full: false }, false).await.unwrap();

    let tenant = TenantCreate { volumes: vec![data.clone()], ..TenantCreate::new(db) };
    client.tenant_create(&tenant, false).await.unwrap();
    let set = TenantSet { share: Some(200.try_into().unwrap()), ..TenantSet::default() };
    client.tenant_set(&tenant.name, &set, false).await.unwrap();
    let shown = client.tenant_inspect(&tenant.name).await.unwrap();
    assert_eq!((shown.share.weight(), client.tenant_list().await.unwrap()), (200, vec![shown]));

    sim.set_process(77, Some(1));
    let lease = LeaseCreate {
        tenant: tenant.name.clone(),
        volumes: vec![volume("fast/copy")],
        pid: Some(77),
        user: None,
        selinux_context: None,
    };
    let reply = client.lease_create(&lease).await.unwrap();
    let mounts = sim.leftovers().mounts;
    assert!(mounts.contains(&reply.leases[0].mounted_at), "{mounts:?}");
    for _ in 0..2 {
        client.lease_remove(reply.leases[0].id).await.unwrap();
    }
    assert!(!sim.leftovers().mounts.contains(&reply.leases[0].mounted_at));
    let reply = client.lease_create(&lease).await.unwrap();
    let run = client.run_start(&tenant.name, &RunStart { pid: 77, command_pid: 78 }).await.unwrap();
    assert_eq!(run.cgroup, "bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice/bulkhead-run-77.scope");
    for _ in 0..2 {
        client.run_end(&Run { tenant: tenant.name.clone(), pid: 77 }).await.unwrap();
    }
    let left = sim.leftovers();
    assert!(!left.mounts.contains(&reply.leases[0].mounted_at) && !left.cgroups.contains(&run.cgroup));

    assert_eq!(client.device_list().await.unwrap()[0], client.device_inspect("sda").await.unwrap());
    let bfq = DeviceControl { policy: Some(Policy::Bfq) };
    assert_eq!(client.device_control("sda", &bfq, false).await.unwrap().object.unwrap().policy, Policy::Bfq);
    let calibration =
        Calibration { model: "ctrl=user".into(), qos: "enable=1".into(), measured: vec![], isolation: None };
    let calibrated = client.device_calibrate("/dev/sda", &calibration, false).await.unwrap();
    assert_eq!(calibrated.object.unwrap().calibration, Some(calibration));

    let host = client.host().await.unwrap();
    assert_eq!((&host.facts["kernel_release"], host.findings), (&"simulated".into(), vec![]));

    assert_eq!(client.volume_remove(&data, Removal::default()).await.map_err(|f| f.code), Err(Code::InUse));
    let force = Removal { force: true, dry_run: false };
    client.volume_remove(&data, force).await.unwrap();
    client.volume_remove(&volume("fast/copy"), Removal::default()).await.unwrap();
    client.tenant_remove(&tenant.name, Removal::default()).await.unwrap();
    client.pool_remove(&pool, false).await.unwrap();
    assert!(sim.leftovers().volumes.is_empty());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn every_error_is_a_fault() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let long = "n".repeat(300);
    let cases: Vec<(Method, String, Vec<u8>, u16, &str)> = vec![
        (Method::GET, "/".into(), vec![], 404, "not_found"),
        (Method::GET, "/v1/nothing".into(), vec![], 404, "not_found"),
        (Method::GET, "/v2/pools".into(), vec![], 404, "not_found"),
        (Method::GET, "/v1/pools/none".into(), vec![], 404, "not_found"),
        (Method::PUT, "/v1/pools".into(), vec![], 405, "invalid_argument"),
        (Method::DELETE, "/v1/leases".into(), vec![], 405, "invalid_argument"),
        (Method::GET, "/v1/pools/..".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/pools/%2e%2e%2fetc".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/pools/a%00b".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/pools/%ff".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/volumes/fast/a%1b[31m".into(), vec![], 400, "invalid_argument"),
        (Method::GET, format!("/v1/tenants/{long}"), vec![], 400, "invalid_argument"),
        (Method::DELETE, "/v1/leases/7".into(), vec![], 400, "invalid_argument"),
        (Method::DELETE, "/v1/pools/p?dry_run=maybe".into(), vec![], 400, "invalid_argument"),
        (Method::DELETE, "/v1/pools/p?force=true".into(), vec![], 400, "invalid_argument"),
        (Method::DELETE, "/v1/volumes/p/v?drty_run=true".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/volumes?pool=a%2fb".into(), vec![], 400, "invalid_argument"),
        (Method::GET, "/v1/devices/..%2fsda".into(), vec![], 404, "not_found"),
        (Method::POST, "/v1/pools".into(), vec![], 400, "invalid_argument"),
        (Method::POST, "/v1/pools".into(), b"{".to_vec(), 400, "invalid_argument"),
        (Method::POST, "/v1/pools".into(), vec![0xff, 0xfe], 400, "invalid_argument"),
        (Method::POST, "/v1/tenants".into(), b"{\"name\":\"a\",\"shar\":1}".to_vec(), 400, "invalid_argument"),
        (Method::POST, "/v1/tenants".into(), b"{\"name\":\"a\",\"share\":0}".to_vec(), 400, "invalid_argument"),
        (Method::POST, "/v1/tenants".into(), b"{\"name\":\"../a\"}".to_vec(), 400, "invalid_argument"),
        (Method::POST, "/v1/tenants".into(), b"[".repeat(1000), 400, "invalid_argument"),
        (Method::POST, "/v1/tenants".into(), vec![b' '; MAX_BODY_BYTES + 1], 413, "invalid_argument"),
    ];
    for (method, uri, body, status, code) in cases {
        let (found, fault) = daemon.raw(method.clone(), &uri, body).await;
        assert_eq!((found, fault["code"].as_str()), (status, Some(code)), "{method} {uri}: {fault}");
        let fault: Fault = serde_json::from_value(fault).unwrap();
        assert!(!fault.object.is_empty() && !fault.cause.is_empty());
        assert!(!fault.to_string().chars().any(char::is_control), "{fault}");
    }
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn waits_are_listed_on_request() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let (status, seen) = daemon.raw(Method::GET, "/v1/observation", "").await;
    assert_eq!((status, seen.get("waits")), (200, None));
    let (_, seen) = daemon.raw(Method::GET, "/v1/observation?waits_seconds=10.5", "").await;
    assert_eq!(
        (&seen["waits"]["left_out"], &seen["waits"]["waits"][0]["commits"][1]["tid"]),
        (&9.into(), &4711.into())
    );
    for wrong in ["-1", "nan", "inf", "1e300", "x", ""] {
        let (status, fault) = daemon.raw(Method::GET, &format!("/v1/observation?waits_seconds={wrong}"), "").await;
        assert_eq!((status, fault["code"].as_str()), (400, Some("invalid_argument")), "{wrong}: {fault}");
    }
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn every_documented_path_exists() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let (_, document) = daemon.raw(Method::GET, "/v1/openapi.json", "").await;
    let mut n_operations = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let uri = path.replace("{name}", "x").replace("{pool}", "x").replace("{id}", "x").replace("{device}", "x");
        for method in operations.as_object().unwrap().keys() {
            n_operations += 1;
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (status, body) = daemon.raw_or_empty(method.clone(), &uri).await;
            let is_missing = status == StatusCode::METHOD_NOT_ALLOWED || body.contains("there is no path");
            assert!(!is_missing, "{method} {path}: {body}");
        }
    }
    assert_eq!(n_operations, bulkhead_api::routes::table().len());
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn the_socket_is_for_root_and_its_group() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let socket = daemon.client.socket().to_owned();
    let found = std::fs::metadata(&socket).unwrap();
    assert_eq!(found.permissions().mode() & 0o7777, 0o660);
    assert_eq!(std::fs::metadata(dir.path().join("state")).unwrap().mode() & 0o777, 0o700);
    daemon.stop().await.unwrap();
    let names: Vec<_> = std::fs::read_dir(dir.path().join("run")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["daemon.lock"], "the socket is gone, and so is the directory that it was made in");
}

#[tokio::test]
async fn two_daemons_cannot_run() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    let run = |options| {
        run_until(
            options,
            std::sync::Arc::new(sim.clone()),
            observed(),
            serde_json::Value::Null,
            std::future::pending(),
        )
    };
    let fault = run(options(&dir)).await.unwrap_err();
    assert_eq!(fault.code, Code::InUse);
    assert!(fault.cause.contains(&format!("process id {}", std::process::id())), "{fault}");
    // Nor with directories of its own on the same socket.
    let other = tempfile::tempdir().unwrap();
    let fault = run(DaemonOptions { socket: options(&dir).socket, ..options(&other) }).await.unwrap_err();
    assert_eq!((fault.code, fault.cause.as_str()), (Code::InUse, "another process answers on it"));
    daemon.client.healthz().await.unwrap();
    daemon.stop().await.unwrap();
}

#[tokio::test]
async fn an_address_in_use_is_reported() {
    let (dir, sim) = (dir(), sim());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let options = DaemonOptions { metrics: Some(address), ..options(&dir) };
    let run = run_until(options, std::sync::Arc::new(sim), observed(), serde_json::Value::Null, std::future::pending());
    let fault = run.await.unwrap_err();
    assert_eq!(fault.object, format!("address {address}"));
    assert!(fault.cause.starts_with("cannot listen for Prometheus (Address already in use"), "{fault}");
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_another_file_is_not() {
    let (dir, sim) = (dir(), sim());
    let socket = options(&dir).socket;
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&socket).unwrap());
    let fault = Client::new(&socket).healthz().await.unwrap_err();
    assert_eq!(fault.code, Code::Unavailable);
    assert!(fault.cause.contains("nothing listens"), "{fault}");
    Daemon::start(&dir, &sim).await.stop().await.unwrap();

    std::fs::write(&socket, "precious").unwrap();
    let stop = std::future::pending();
    let fault = run_until(options(&dir), std::sync::Arc::new(sim), observed(), serde_json::Value::Null, stop)
        .await
        .unwrap_err();
    assert_eq!(fault.code, Code::HasData);
    assert_eq!(std::fs::read_to_string(&socket).unwrap(), "precious");
}

#[tokio::test]
async fn the_client_reports_a_missing_daemon() {
    let fault = Client::new(PathBuf::from("/nonexistent/socket")).pool_list().await.unwrap_err();
    assert_eq!(fault.code, Code::Unavailable);
    assert!(
        fault.cause.contains("/nonexistent/socket") && fault.reason.as_deref() == Some(&Reason::DaemonUnreachable),
        "{fault:?}"
    );
}

#[tokio::test]
async fn stopping_leaves_everything_and_does_not_wait_for_idle_clients() {
    let (dir, sim) = (dir(), sim());
    let daemon = Daemon::start(&dir, &sim).await;
    make_pool(&daemon.client).await;
    daemon.client.volume_create(&volume_create("fast/data"), false).await.unwrap();
    let tenant = TenantCreate { volumes: vec![volume("fast/data")], ..TenantCreate::new("db".parse().unwrap()) };
    daemon.client.tenant_create(&tenant, false).await.unwrap();
    let before = sim.leftovers();
    let _idle = UnixStream::connect(daemon.client.socket()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), daemon.stop()).await.expect("it stops").unwrap();
    assert_eq!(sim.leftovers(), before);
    let daemon = Daemon::start(&dir, &sim).await;
    assert_eq!(daemon.client.tenant_list().await.unwrap().len(), 1);
    assert_eq!(sim.leftovers(), before);
    daemon.stop().await.unwrap();
}
