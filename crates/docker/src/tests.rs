//! Tests of the plugin through its socket, in front of a daemon on the simulated host.

mod options;
mod requests;
mod server;
mod volumes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{NewPoolSource, PoolCreate};
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use bulkhead_engine::host::Host;
use bulkhead_sys::roots::Roots;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::plugin::{Defaults, Plugin};
use crate::server::{Limits, serve};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A daemon on a simulated host, and a plugin in front of it.
struct Stack {
    dir: TempDir,
    host: Arc<dyn Host>,
    daemon: Client,
    /// The plugin, as Docker's client.
    engine: Client,
    limits: Limits,
    tasks: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Stack {
    /// With one pool, `fast`, on a thin pool.
    async fn start() -> Self {
        let stack = Self::start_without_pools().await;
        stack.make_pool("fast", "tvg").await;
        stack
    }

    async fn start_without_pools() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (daemon, engine) = (dir.path().join("run/bulkhead.sock"), dir.path().join("plugin.sock"));
        let (daemon, engine) = (Client::new(daemon), Client::new(engine));
        let mut stack =
            Self { dir, host: simulated_host(), daemon, engine, limits: Limits::default(), tasks: Vec::new() };
        stack.start_daemon().await;
        stack.start_plugin(None).await;
        stack
    }

    async fn start_daemon(&mut self) {
        let dirs = Dirs { state: self.dir.path().join("state"), run: self.dir.path().join("run") };
        let socket = self.daemon.socket().to_owned();
        let options =
            DaemonOptions { dirs, socket, socket_group: None, metrics: None, domain: None, fault_after: None };
        let (stop, stopped) = oneshot::channel();
        let (host, observation) = (Arc::clone(&self.host), simulated_observation());
        let facts = json!({ "kernel_release": "simulated" });
        let task = tokio::spawn(async move {
            let ended: Result<(), Fault> = run_until(options, host, observation, facts, async move {
                let _ = stopped.await;
            })
            .await;
            ended.unwrap();
        });
        let answers = async {
            while self.daemon.healthz().await.is_err() {
                assert!(!task.is_finished(), "the daemon ended");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, answers).await.expect("the daemon answers");
        self.tasks.push((stop, task));
    }

    async fn start_plugin(&mut self, pool: Option<&str>) {
        let socket = self.engine.socket().to_owned();
        self.start_plugin_at(&socket, pool, Roots::host()).await;
    }

    /// A plugin that takes this process for Podman; its client.
    async fn start_plugin_of_podman(&mut self) -> Client {
        let (socket, roots) = (self.dir.path().join("podman.sock"), Roots::under(self.dir.path()));
        let process = roots.proc.join(std::process::id().to_string());
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("comm"), "podman\n").unwrap();
        self.start_plugin_at(&socket, None, roots).await;
        Client::new(socket)
    }

    async fn start_plugin_at(&mut self, socket: &Path, pool: Option<&str>, roots: Roots) {
        let defaults = Defaults { pool: pool.map(|pool| pool.parse().unwrap()), size: Bytes::mib(64) };
        let plugin = Plugin::new(self.daemon.clone(), defaults);
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        let (stop, stopped) = oneshot::channel();
        let limits = self.limits;
        let task = tokio::spawn(async move {
            let stop = async {
                let _ = stopped.await;
            };
            serve(listener, plugin, &roots, limits, stop).await.unwrap();
        });
        self.tasks.push((stop, task));
    }

    /// Ends the plugin and the daemon, whichever was started last.
    async fn stop_last(&mut self) {
        let (stop, task) = self.tasks.pop().unwrap();
        let _ = stop.send(());
        tokio::time::timeout(LIMIT, task).await.unwrap().unwrap();
    }

    async fn make_pool(&self, name: &str, vg: &str) {
        let thin_pool = (vg == "tvg").then(|| "thin".to_owned());
        let source = NewPoolSource::VolumeGroup { vg: vg.into(), thin_pool };
        self.daemon.pool_create(&PoolCreate { name: name.parse().unwrap(), source }, false).await.unwrap();
    }

    /// The status and body of the answer to a request as a container engine sends it.
    async fn raw(&self, path: &str, body: impl Into<Vec<u8>>) -> (u16, Value) {
        let exchange = self.engine.exchange(hyper::Method::POST, path, body.into(), None);
        let (status, body) = tokio::time::timeout(LIMIT, exchange).await.unwrap().unwrap();
        (status.as_u16(), serde_json::from_slice(&body).unwrap())
    }

    /// The answer to a request, or the error in it.
    async fn ask(&self, operation: &str, request: Value) -> Result<Value, String> {
        let (status, answer) = self.raw(&format!("/VolumeDriver.{operation}"), request.to_string()).await;
        match answer["Err"].as_str().unwrap() {
            "" => {
                assert_eq!(status, 200);
                Ok(answer)
            }
            error => {
                assert_eq!(status, 500);
                Err(error.to_owned())
            }
        }
    }

    async fn create(&self, name: &str, options: &[(&str, &str)]) -> Result<(), String> {
        let options: BTreeMap<_, _> = options.iter().copied().collect();
        self.ask("Create", json!({ "Name": name, "Opts": options })).await.map(drop)
    }

    async fn mount(&self, name: &str, id: &str) -> Result<PathBuf, String> {
        let answer = self.ask("Mount", json!({ "Name": name, "ID": id })).await?;
        Ok(answer["Mountpoint"].as_str().unwrap().into())
    }

    async fn unmount(&self, name: &str, id: &str) -> Result<(), String> {
        self.ask("Unmount", json!({ "Name": name, "ID": id })).await.map(drop)
    }

    async fn remove(&self, name: &str) -> Result<(), String> {
        self.ask("Remove", json!({ "Name": name })).await.map(drop)
    }

    async fn get(&self, name: &str) -> Result<Value, String> {
        Ok(self.ask("Get", json!({ "Name": name })).await?["Volume"].clone())
    }

    async fn listed(&self) -> Vec<String> {
        let answer = self.ask("List", json!({})).await.unwrap();
        answer["Volumes"].as_array().unwrap().iter().map(|volume| volume["Name"].as_str().unwrap().to_owned()).collect()
    }

    fn is_mounted(&self, at: &Path) -> bool {
        self.host.is_mounted(at).unwrap()
    }
}
