//! Tests of the driver's calls, in front of a daemon on the simulated host.

mod diagnostics;
mod node;
mod nodes;
mod raw;
mod requests;
mod selinux;
mod server;
mod volumes;

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{NewPoolSource, PoolCreate};
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;
use bulkhead_engine::daemon::{DaemonOptions, run_until, simulated_host, simulated_observation};
use bulkhead_engine::engine::Dirs;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status};

use crate::controller::{Controller, Settings};
use crate::proto::controller_server::Controller as Service;
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::proto::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};
use crate::proto::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, Snapshot, Volume, VolumeCapability, VolumeContentSource,
};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A daemon on a simulated host, and a controller in front of it.
struct Stack {
    dir: TempDir,
    daemon: Client,
    controller: Controller,
    _stop: oneshot::Sender<()>,
}

impl Stack {
    /// On `node-1`, with one pool, `fast`, on a thin pool.
    async fn start() -> Self {
        Self::start_on("node-1").await
    }

    async fn start_on(node: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (state, run) = (dir.path().join("state"), dir.path().join("run"));
        let socket = run.join("bulkhead.sock");
        let daemon = Client::new(&socket);
        let dirs = Dirs { state, run };
        let options =
            DaemonOptions { dirs, socket, socket_group: None, metrics: None, domain: None, fault_after: None };
        let (stop, stopped) = oneshot::channel();
        let facts = json!({ "kernel_release": "simulated" });
        let task = tokio::spawn(async move {
            let ended: Result<(), Fault> =
                run_until(options, simulated_host(), simulated_observation(), facts, async move {
                    let _ = stopped.await;
                })
                .await;
            ended.unwrap();
        });
        let answers = async {
            while daemon.healthz().await.is_err() {
                assert!(!task.is_finished(), "the daemon ended");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(LIMIT, answers).await.expect("the daemon answers");
        let source = NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".to_owned()) };
        daemon.pool_create(&PoolCreate { name: "fast".parse().unwrap(), source }, false).await.unwrap();
        let controller = Controller::new(daemon.clone(), Settings { node: node.to_owned(), ..settings(LIMIT) });
        Self { dir, daemon, controller, _stop: stop }
    }

    async fn create(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        answer(self.controller.create_volume(Request::new(request))).await.map(|reply| reply.volume.unwrap())
    }

    async fn snapshot(&self, name: &str, source: &str) -> Result<Snapshot, Status> {
        let request =
            CreateSnapshotRequest { name: name.to_owned(), source_volume_id: source.to_owned(), ..Default::default() };
        answer(self.controller.create_snapshot(Request::new(request))).await.map(|reply| reply.snapshot.unwrap())
    }
}

fn settings(patience: Duration) -> Settings {
    Settings { node: "node-1".to_owned(), pool: None, size: Bytes::mib(64), patience }
}

async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    tokio::time::timeout(LIMIT, call).await.expect("the driver answers").map(Response::into_inner)
}

/// The code and text of a refusal.
fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> (Code, String) {
    let status = outcome.unwrap_err();
    (status.code(), status.message().to_owned())
}

fn capability(mode: Mode, fs_type: &str) -> VolumeCapability {
    let mount = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

/// Of a raw volume.
fn block(mode: Mode) -> VolumeCapability {
    VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), ..capability(mode, "") }
}

/// A request for a volume of so many MiB (0: any).
fn request(name: &str, mib: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: mib << 20, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, "")],
        ..Default::default()
    }
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn from_snapshot(id: &str) -> Option<VolumeContentSource> {
    let source = SnapshotSource { snapshot_id: id.to_owned() };
    Some(VolumeContentSource { r#type: Some(SourceType::Snapshot(source)) })
}

fn from_volume(id: &str) -> Option<VolumeContentSource> {
    let source = VolumeSource { volume_id: id.to_owned() };
    Some(VolumeContentSource { r#type: Some(SourceType::Volume(source)) })
}
