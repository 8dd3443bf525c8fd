//! The socket: calls as clients send them, also malformed, large, slow and many.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_sys::process::raise_open_files;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::{LIMIT, Mode, Stack, capability, map, request};
use crate::identity::Driver;
use crate::metrics::Metrics;
use crate::node::{Node, Settings};
use crate::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use crate::proto::{
    ControllerModifyVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, CreateVolumeResponse,
    GetPluginInfoRequest, GetPluginInfoResponse, NodeExpandVolumeRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest,
};
use crate::registration::{self, Registration};
use crate::server::{Limits, MAX_REQUEST_BYTES, Services, serve};

const GET_PLUGIN_INFO: &str = "/csi.v1.Identity/GetPluginInfo";
pub(super) const CREATE_VOLUME: &str = "/csi.v1.Controller/CreateVolume";

/// A driver on a socket, in front of a daemon on the simulated host.
pub(super) struct Served {
    pub(super) stack: Stack,
    pub(super) socket: PathBuf,
    pub(super) metrics: Metrics,
    stop: oneshot::Sender<()>,
    task: JoinHandle<io::Result<()>>,
}

impl Served {
    pub(super) async fn start(limits: Limits) -> Self {
        let stack = Stack::start().await;
        let socket = stack.dir.path().join("csi.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let driver = Driver { daemon: stack.daemon.clone(), has_controller: true };
        let settings =
            Settings { node: "node-1".to_owned(), kubelet_dir: stack.dir.path().to_owned(), patience: LIMIT };
        let node = Some(Node::new(stack.daemon.clone(), settings));
        let services = Services { driver, controller: Some(stack.controller.clone()), node };
        let (metrics, (stop, stopped)) = (Metrics::default(), oneshot::channel());
        let task = tokio::spawn(serve(listener, services.routes(), metrics.clone(), limits, async move {
            let _ = stopped.await;
        }));
        Self { stack, socket, metrics, stop, task }
    }

    pub(super) async fn connect(&self) -> Connection {
        Connection::open(&self.socket).await
    }

    /// Whether calls on a new connection are answered.
    async fn answers(&self) {
        let mut connection = self.connect().await;
        let info: GetPluginInfoResponse = connection.call(GET_PLUGIN_INFO, &GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.name, crate::DRIVER);
    }
}

pub(super) struct Connection {
    /// The host that its requests name.
    authority: String,
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Connection {
    async fn open(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Self { authority: "localhost".to_owned(), sender, task }
    }

    pub(super) async fn call<T: Message + Default>(&mut self, path: &str, request: &impl Message) -> Result<T, Status> {
        let answer = self.send(path, "POST", framed(&request.encode_to_vec())).await?;
        Ok(T::decode(&answer[5..]).unwrap())
    }

    /// The body of the answer to a request, or its error.
    pub(super) async fn send(&mut self, path: &str, method: &str, body: Vec<u8>) -> Result<Bytes, Status> {
        let request = hyper::Request::builder().method(method).uri(format!("http://{}{path}", self.authority));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let exchange = self.sender.send_request(request.body(Full::new(Bytes::from(body))).unwrap());
        let answer = tokio::time::timeout(LIMIT, exchange).await.unwrap().unwrap();
        if let Some(status) = Status::from_header_map(answer.headers()).filter(|status| status.code() != Code::Ok) {
            return Err(status);
        }
        let answer = tokio::time::timeout(LIMIT, answer.into_body().collect()).await.unwrap().unwrap();
        let status = Status::from_header_map(answer.trailers().unwrap()).unwrap();
        if status.code() == Code::Ok { Ok(answer.to_bytes()) } else { Err(status) }
    }
}

/// A message as gRPC frames it: not compressed, with its length.
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    framed
}

fn short(limit: Duration) -> Limits {
    Limits { connections: 4, patience: limit, call: limit }
}

#[tokio::test]
async fn calls_are_answered_on_one_connection_and_on_many() {
    let served = Served::start(Limits { connections: 8, ..Limits::default() }).await;
    let mut connection = served.connect().await;
    let created: CreateVolumeResponse = connection.call(CREATE_VOLUME, &request("v", 32)).await.unwrap();
    assert_eq!(created.volume.unwrap().volume_id, "fast/v");
    let refused = connection.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("v", 33)).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    for _ in 0..300 {
        served.answers().await;
    }
}

/// 10 000 connections, of which the kernel keeps some hundreds in the socket's queue at a time.
#[tokio::test]
async fn clients_that_fill_the_socket_s_queue_take_no_place_from_one_with_a_call() {
    raise_open_files().unwrap();
    let served = Served::start(Limits { connections: 32, ..Limits::default() }).await;
    let mut early = served.connect().await;
    let mut n_opened = 0;
    while n_opened < 10_000 {
        let mut clients = Vec::new();
        let refused = loop {
            match UnixStream::connect(&served.socket).await {
                Ok(mut stream) => {
                    // Every other one begins a request.
                    if clients.len() % 2 == 0 {
                        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
                    }
                    clients.push(stream);
                }
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}, after {} clients", clients.len());
        let info: GetPluginInfoResponse = early.call(GET_PLUGIN_INFO, &GetPluginInfoRequest {}).await.unwrap();
        assert_eq!(info.name, crate::DRIVER);
        n_opened += clients.len();
    }
    let created: CreateVolumeResponse = early.call(CREATE_VOLUME, &request("v", 32)).await.unwrap();
    assert_eq!(created.volume.unwrap().volume_id, "fast/v");
    served.answers().await;
}

#[tokio::test]
async fn malformed_unknown_and_oversized_requests_are_refused() {
    let served = Served::start(Limits::default()).await;
    let mut connection = served.connect().await;
    let mut sent = async |path: &str, body: Vec<u8>| connection.send(path, "POST", body).await.unwrap_err().code();
    assert_eq!(sent("/csi.v1.Identity/Shutdown", framed(&[])).await, Code::Unimplemented);
    assert_eq!(sent("/csi.v1.Node/NodeFormatVolume", framed(&[])).await, Code::Unimplemented);
    assert_eq!(sent("/csi.v1.GroupController/CreateVolumeGroupSnapshot", framed(&[])).await, Code::Unimplemented);
    assert_eq!(sent("/", framed(&[])).await, Code::Unimplemented);
    let other_method = connection.send(CREATE_VOLUME, "GET", framed(&request("v", 32).encode_to_vec())).await;
    assert_eq!(other_method.unwrap_err().code(), Code::Unimplemented);
    let mut sent = async |path: &str, body: Vec<u8>| connection.send(path, "POST", body).await.unwrap_err().code();
    assert_eq!(sent(CREATE_VOLUME, framed(&[0xff; 64])).await, Code::Internal);
    assert_eq!(sent(CREATE_VOLUME, vec![]).await, Code::Internal);
    assert_eq!(sent(CREATE_VOLUME, vec![0, 0, 0, 0, 9, 1]).await, Code::Internal);
    let large = framed(&vec![0; MAX_REQUEST_BYTES + 1]);
    assert_eq!(sent(CREATE_VOLUME, large).await, Code::OutOfRange);
    // Nor does one that only claims to be large need memory.
    assert_eq!(sent(CREATE_VOLUME, vec![0, 0xff, 0xff, 0xff, 0xff, 1]).await, Code::OutOfRange);

    // No gRPC at all: the connection ends.
    let mut stream = UnixStream::connect(&served.socket).await.unwrap();
    stream.write_all(b"POST /VolumeDriver.Create HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
    served.answers().await;
    assert!(served.stack.daemon.volume_list(None).await.unwrap().is_empty());
}

#[tokio::test]
async fn slow_and_silent_clients_take_no_place_for_long() {
    let served = Served::start(short(Duration::from_millis(300))).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(UnixStream::connect(&served.socket).await.unwrap());
    }
    // With the preface, but no request.
    silent[1].write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    tokio::time::timeout(LIMIT, served.answers()).await.unwrap();
    for stream in &mut silent {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await.expect("it is closed");
    }

    // A body that does not end, on a connection that has been used.
    let stream = UnixStream::connect(&served.socket).await.unwrap();
    let handshake = http2::handshake::<_, _, Endless>(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let request = hyper::Request::post(format!("http://localhost{CREATE_VOLUME}"));
    let request = request.header("content-type", "application/grpc").body(Endless).unwrap();
    let answer = tokio::time::timeout(LIMIT, sender.send_request(request)).await.unwrap().unwrap();
    assert_eq!(Status::from_header_map(answer.headers()).unwrap().code(), Code::DeadlineExceeded);
}

/// A request's body of which nothing ever arrives.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, io::Error>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test]
async fn a_stop_answers_what_was_asked_and_closes_the_rest() {
    let served = Served::start(Limits::default()).await;
    let (mut idle, mut busy) = (served.connect().await, served.connect().await);
    let _: GetPluginInfoResponse = idle.call(GET_PLUGIN_INFO, &GetPluginInfoRequest {}).await.unwrap();
    let call = tokio::spawn(async move {
        let created: Result<CreateVolumeResponse, _> = busy.call(CREATE_VOLUME, &request("v", 32)).await;
        (created, busy)
    });
    while served.stack.daemon.volume_list(None).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    served.stop.send(()).unwrap();
    tokio::time::timeout(LIMIT, served.task).await.unwrap().unwrap().unwrap();
    assert_eq!(call.await.unwrap().0.unwrap().volume.unwrap().volume_id, "fast/v");
    tokio::time::timeout(LIMIT, idle.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_kubelet_is_told_what_the_driver_is_and_its_refusal_is_heard() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(registration::SOCKET);
    let registration = Registration::new("/csi/csi.sock".into());
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(serve(listener, registration.routes(), Metrics::default(), Limits::default(), std::future::pending()));
    let mut connection = Connection::open(&socket).await;
    // As the kubelet's client of gRPC names it.
    connection.authority = format!("/var/lib/kubelet/plugins_registry/{}", registration::SOCKET).replace('/', "%2F");
    let info: PluginInfo = connection.call("/pluginregistration.Registration/GetInfo", &InfoRequest {}).await.unwrap();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "csi.bulkhead.dev"));
    assert_eq!((info.endpoint.as_str(), info.supported_versions), ("/csi/csi.sock", vec!["1.0.0".to_owned()]));

    const NOTIFY: &str = "/pluginregistration.Registration/NotifyRegistrationStatus";
    let status = |plugin_registered, error: &str| RegistrationStatus { plugin_registered, error: error.to_owned() };
    let _: RegistrationStatusResponse = connection.call(NOTIFY, &status(true, "")).await.unwrap();
    let refused = tokio::spawn({
        let registration = registration.clone();
        async move { registration.refused().await }
    });
    let _: RegistrationStatusResponse = connection.call(NOTIFY, &status(false, "no such driver")).await.unwrap();
    assert_eq!(tokio::time::timeout(LIMIT, refused).await.unwrap().unwrap(), "no such driver");
}

#[tokio::test]
async fn secrets_of_requests_are_never_logged() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer({
            let log = log.clone();
            move || log.clone()
        })
        .finish();
    // A second one: with a single one, an event that another thread meets first is disabled for all threads.
    let _other = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber);
    let served = Served::start(Limits::default()).await;
    let mut connection = served.connect().await;
    let secret = "correct-horse-battery";
    let secrets = || map(&[("password", secret)]);
    let sound = CreateVolumeRequest { secrets: secrets(), ..request("v", 32) };
    let _: CreateVolumeResponse = connection.call(CREATE_VOLUME, &sound).await.unwrap();
    let refused = CreateVolumeRequest { parameters: map(&[("poool", "fast")]), ..sound.clone() };
    let mut malformed = sound.encode_to_vec();
    malformed.push(0xff);
    let (id, path) = ("fast/none".to_owned(), "/elsewhere".to_owned());
    let capability = || Some(capability(Mode::SingleNodeWriter, ""));
    for (call, message) in [
        ("Controller/CreateVolume", refused.encode_to_vec()),
        ("Controller/CreateVolume", malformed),
        ("Controller/CreateSnapshot", {
            let (name, source_volume_id, secrets) = ("s".to_owned(), id.clone(), secrets());
            CreateSnapshotRequest { name, source_volume_id, secrets, ..Default::default() }.encode_to_vec()
        }),
        ("Controller/ControllerModifyVolume", {
            let (volume_id, secrets) = (id.clone(), secrets());
            ControllerModifyVolumeRequest { volume_id, secrets, ..Default::default() }.encode_to_vec()
        }),
        ("Node/NodeStageVolume", {
            let (volume_id, staging_target_path, volume_capability) = (id.clone(), path.clone(), capability());
            let request =
                NodeStageVolumeRequest { volume_id, staging_target_path, volume_capability, ..Default::default() };
            NodeStageVolumeRequest { secrets: secrets(), ..request }.encode_to_vec()
        }),
        ("Node/NodeExpandVolume", {
            let (volume_id, volume_path, secrets) = (id.clone(), path.clone(), secrets());
            NodeExpandVolumeRequest { volume_id, volume_path, secrets, ..Default::default() }.encode_to_vec()
        }),
        ("Node/NodePublishVolume", {
            let (volume_id, target_path, volume_capability) = (id.clone(), path.clone(), capability());
            let request = NodePublishVolumeRequest { volume_id, target_path, volume_capability, ..Default::default() };
            NodePublishVolumeRequest { secrets: secrets(), ..request }.encode_to_vec()
        }),
    ] {
        let error = connection.send(&format!("/csi.v1.{call}"), "POST", framed(&message)).await.unwrap_err();
        assert!(!error.message().contains(secret) && error.code() != Code::Unimplemented, "{error}");
    }
    let logged = log.text();
    for shown in ["CreateVolume", "poool", "NodePublishVolume"] {
        assert!(logged.contains(shown), "{logged}");
    }
    assert!(!logged.contains(secret));
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
