//! Bundles in front of a daemon on the simulated host.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{NewPoolSource, PoolCreate, TenantCreate, VolumeCreate};
use bulkhead_core::error::chain;
use bulkhead_core::units::Bytes;
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::arguments::Container;
use crate::place::{ANSWER, place};
use crate::settings::Settings;

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

const ID: &str = "4f2a";

/// A host with the tenants `db`, which has the volumes `thick/db` and `thick/log`, and `my-web` with `thick/web`; `thick/free` has no tenant.
struct Stack {
    dir: TempDir,
    settings: Settings,
    daemon: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Stack {
    async fn start() -> Self {
        let mut stack = Self::without_daemon();
        let client = Client::new(&stack.settings.socket);
        stack.start_daemon(&client).await;
        let source = NewPoolSource::VolumeGroup { vg: "vg".into(), thin_pool: None };
        client.pool_create(&PoolCreate { name: "thick".parse().unwrap(), source }, false).await.unwrap();
        for volume in ["thick/db", "thick/log", "thick/web", "thick/free"] {
            let volume = VolumeCreate::new(volume.parse().unwrap(), Bytes::mib(64));
            client.volume_create(&volume, false).await.unwrap();
        }
        for (tenant, volumes) in [("db", &["thick/db", "thick/log"][..]), ("my-web", &["thick/web"])] {
            let volumes = volumes.iter().map(|volume| volume.parse().unwrap()).collect();
            let tenant = TenantCreate { volumes, ..TenantCreate::new(tenant.parse().unwrap()) };
            client.tenant_create(&tenant, false).await.unwrap();
        }
        stack
    }

    /// The mount points, and a bundle.
    fn without_daemon() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = dir.path().join("run");
        for path in ["db/data", "log", "web", "free", "gone"] {
            fs::create_dir_all(run_dir.join("mnt/thick").join(path)).unwrap();
        }
        fs::create_dir_all(dir.path().join("bundle/rootfs")).unwrap();
        let settings = Settings { socket: run_dir.join("bulkhead.sock"), run_dir, ..Settings::default() };
        Self { dir, settings, daemon: None }
    }

    async fn start_daemon(&mut self, client: &Client) {
        let dirs = Dirs { state: self.dir.path().join("state"), run: self.settings.run_dir.clone() };
        let socket = self.settings.socket.clone();
        let options =
            DaemonOptions { dirs, socket, socket_group: None, metrics: None, domain: None, fault_after: None };
        let (stop, stopped) = oneshot::channel();
        let facts = json!({ "kernel_release": "simulated" });
        let task = tokio::spawn(async move {
            let stop = async {
                let _ = stopped.await;
            };
            run_until(options, simulated_host(), simulated_observation(), facts, stop).await.unwrap();
        });
        let answers = async {
            while client.healthz().await.is_err() {
                assert!(!task.is_finished(), "the daemon ended");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, answers).await.expect("the daemon answers");
        self.daemon = Some((stop, task));
    }

    async fn end(&mut self) {
        let (stop, task) = self.daemon.take().unwrap();
        let _ = stop.send(());
        tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
    }

    fn bundle(&self) -> PathBuf {
        self.dir.path().join("bundle")
    }

    fn config(&self) -> PathBuf {
        self.bundle().join("config.json")
    }

    fn volume(&self, path: &str) -> String {
        self.settings.run_dir.join("mnt").join(path).to_str().unwrap().to_owned()
    }

    /// Writes the configuration of a container with these mounts in this cgroup.
    fn write(&self, cgroups_path: &Value, sources: &[&str]) {
        let mounts: Vec<Value> = sources
            .iter()
            .map(|source| json!({ "destination": "/d", "type": "bind", "source": source, "options": ["rbind"] }))
            .collect();
        let spec = json!({ "ociVersion": "1.2.0", "root": { "path": "rootfs" }, "mounts": mounts, "linux": { "cgroupsPath": cgroups_path } });
        fs::write(self.config(), spec.to_string()).unwrap();
    }

    /// The tenant of a container with the bundle, or why it has none.
    async fn place_at(&self, bundle: PathBuf, limit: Duration) -> Result<Option<String>, String> {
        let container = Container { id: ID.into(), bundle, config: "config.json".into() };
        let settings = self.settings.clone();
        let placed = tokio::task::spawn_blocking(move || place(&container, &settings, limit));
        let placed = tokio::time::timeout(LIMIT, placed).await.unwrap().unwrap();
        placed.map(|tenant| tenant.map(|tenant| tenant.to_string())).map_err(|error| chain(&error))
    }

    async fn place(&self) -> Result<Option<String>, String> {
        self.place_at(self.bundle(), ANSWER).await
    }

    fn cgroups_path(&self) -> Value {
        let text = fs::read_to_string(self.config()).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["linux"]["cgroupsPath"].clone()
    }

    /// Nothing but the configuration and the root is in the bundle.
    fn assert_no_staging_file(&self) {
        assert_eq!(fs::read_dir(self.bundle()).unwrap().count(), 2);
    }
}

fn default_path() -> Value {
    json!(format!("system.slice:docker:{ID}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_volumes_of_a_tenant_is_put_into_its_slice() {
    let mut stack = Stack::start().await;
    let (db, log, free) = (stack.volume("thick/db/data"), stack.volume("thick/log"), stack.volume("thick/free"));
    stack.write(&default_path(), &["/etc/hosts", &db, &free, &log, "/gone"]);
    fs::set_permissions(stack.config(), Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(stack.config()).unwrap();
    assert_eq!(stack.place().await, Ok(Some("db".to_owned())));
    assert_eq!(stack.cgroups_path(), format!("bulkhead-db.slice:docker:{ID}"));
    let after = fs::metadata(stack.config()).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert_ne!(after.ino(), before.ino(), "it was not replaced as a whole");
    stack.assert_no_staging_file();
    // Once more, as for a bundle that an engine uses again.
    assert_eq!(stack.place().await, Ok(None));

    // Through a link to the bundle, and with a root on a volume.
    stack.write(&json!(format!("/docker/{ID}")), &[]);
    fs::remove_dir(stack.bundle().join("rootfs")).unwrap();
    symlink(stack.volume("thick/web"), stack.bundle().join("rootfs")).unwrap();
    symlink(stack.bundle(), stack.dir.path().join("link")).unwrap();
    assert_eq!(stack.place_at(stack.dir.path().join("link"), ANSWER).await, Ok(Some("my-web".to_owned())));
    assert_eq!(stack.cgroups_path(), format!(r"/bulkhead.slice/bulkhead-my\x2dweb.slice/{ID}"));
    stack.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_stays_where_somebody_put_it_or_without_a_tenant() {
    let mut stack = Stack::start().await;
    let (db, free) = (stack.volume("thick/db"), stack.volume("thick/free"));
    for (path, sources) in [
        (json!("kubepods-burstable-pod1.slice:cri-containerd:4f2a"), &[db.as_str()][..]),
        (json!("mine.slice:docker:4f2a"), &[&db]),
        (Value::Null, &[&db]),
        (default_path(), &[]),
        (default_path(), &["/etc"]),
        (default_path(), &[&free]),
    ] {
        stack.write(&path, sources);
        let before = fs::read(stack.config()).unwrap();
        assert_eq!(stack.place().await, Ok(None), "{path} {sources:?}");
        assert_eq!(fs::read(stack.config()).unwrap(), before);
    }
    stack.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_prevents_it_is_an_error_and_changes_nothing() {
    let mut stack = Stack::start().await;
    let (db, web, gone) = (stack.volume("thick/db"), stack.volume("thick/web"), stack.volume("thick/gone"));
    for (path, sources, expected) in [
        (
            default_path(),
            &[db.as_str(), &web][..],
            "it uses volumes of two tenants, thick/db of db and thick/web of my-web",
        ),
        (default_path(), &[&gone], "volume thick/gone: volume thick/gone: "),
        (json!(1), &[&db], "config.json: it is not the configuration of a container: invalid type: integer `1`"),
    ] {
        stack.write(&path, sources);
        let before = fs::read(stack.config()).unwrap();
        let error = stack.place().await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read(stack.config()).unwrap(), before);
        stack.assert_no_staging_file();
    }
    stack.end().await;
    stack.write(&default_path(), &[&db]);
    let error = stack.place().await.unwrap_err();
    assert!(error.starts_with("volume thick/db: daemon: ") && error.contains("; start the daemon"), "{error}");
    assert_eq!(stack.cgroups_path(), default_path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_does_not_answer_is_not_waited_for() {
    let stack = Stack::without_daemon();
    stack.write(&default_path(), &[&stack.volume("thick/db")]);
    // It accepts connections, and says nothing.
    let _silent = tokio::net::UnixListener::bind(&stack.settings.socket).unwrap();
    let error = stack.place_at(stack.bundle(), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error, "the daemon does not answer within 0.05 s");
    assert_eq!(stack.cgroups_path(), default_path());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_that_is_not_an_engines_is_left_as_it_is() {
    let stack = Stack::without_daemon();
    let error = stack.place().await.unwrap_err();
    assert!(error.ends_with("config.json: cannot read it: No such file or directory (os error 2)"), "{error}");
    let error = stack.place_at("/".into(), ANSWER).await.unwrap_err();
    assert!(error.starts_with("/config.json: cannot read it"), "{error}");

    for (content, expected) in [
        (b"{".as_slice(), "it is not the configuration of a container: EOF"),
        (b"\xff", "cannot read it: stream did not contain valid UTF-8"),
        (b"[1, 2]", "it is not the configuration of a container: "),
        ("[".repeat(10_000).as_bytes(), "it is not the configuration of a container: "),
        (" ".repeat((4 << 20) + 1).as_bytes(), "it is larger than 4194304 bytes"),
    ] {
        fs::write(stack.config(), content).unwrap();
        let error = stack.place().await.unwrap_err();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read(stack.config()).unwrap(), content);
    }

    let other = stack.dir.path().join("other.json");
    fs::rename(stack.config(), &other).unwrap();
    symlink(&other, stack.config()).unwrap();
    assert!(stack.place().await.unwrap_err().ends_with("config.json: it is not a regular file"));
    fs::remove_file(stack.config()).unwrap();
    fs::create_dir(stack.config()).unwrap();
    assert!(stack.place().await.unwrap_err().ends_with("config.json: it is not a regular file"));
    fs::remove_dir(stack.config()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, stack.config(), rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert!(stack.place().await.unwrap_err().ends_with("config.json: it is not a regular file"));
    assert!(Path::new(&stack.config()).exists());
}
