//! The HTTP endpoint: probes and metrics, and clients that are malformed, large, slow and many.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tonic::Code;

use super::server::{CREATE_VOLUME, Served, framed};
use super::{LIMIT, request};
use crate::diagnostics::{Diagnostics, Limits};
use crate::metrics::Metrics;
use crate::probes::Probes;
use crate::proto::CreateVolumeResponse;
use crate::server;

const SHORT: Duration = Duration::from_millis(300);

/// An endpoint on a port of its own.
#[derive(Clone, Copy)]
struct Endpoint(SocketAddr);

impl Endpoint {
    async fn start(probes: Probes, metrics: Metrics, with_daemon: bool, limits: Limits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(Diagnostics::new(probes, metrics, with_daemon, limits).serve(listener, std::future::pending()));
        Self(address)
    }

    /// In front of a driver.
    async fn of(served: &Served, limits: Limits) -> Self {
        let probes = Probes {
            sockets: vec![served.socket.clone()],
            daemon: served.stack.daemon.clone(),
            patience: Duration::from_secs(10),
        };
        Self::start(probes, served.metrics.clone(), true, limits).await
    }

    /// In front of sockets, and of a daemon on one.
    async fn with(sockets: &[PathBuf], daemon: PathBuf) -> Self {
        let probes = Probes { sockets: sockets.to_vec(), daemon: Client::new(daemon), patience: SHORT };
        Self::start(probes, Metrics::default(), true, Limits { scrape: SHORT, ..Limits::default() }).await
    }

    async fn get(&self, path: &str) -> (u16, String) {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).await
    }

    /// Status and body of the answer to a request; status 0 if there is none.
    async fn send(&self, request: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.0).await.unwrap();
        let mut answer = Vec::new();
        let exchange = async {
            stream.write_all(request.as_bytes()).await?;
            stream.read_to_end(&mut answer).await
        };
        // The endpoint may close the connection before it has the whole request.
        let _ = tokio::time::timeout(LIMIT, exchange).await.expect("the connection ends");
        let answer = String::from_utf8(answer).unwrap();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    async fn fails(&self, path: &str, status: u16, cause: &str) {
        let (found, body) = self.get(path).await;
        assert!(found == status && body.contains(cause), "{path}: {found} {body}");
    }
}

/// Another server on a socket: it gives one client this answer, whatever it asks.
fn answer_once(socket: &Path, answer: &'static [u8]) {
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.write_all(answer).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    });
}

#[tokio::test]
async fn probes_distinguish_the_driver_from_its_daemon() {
    let served = Served::start(server::Limits::default()).await;
    let endpoint = Endpoint::of(&served, Limits::default()).await;
    assert_eq!(endpoint.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(endpoint.get("/readyz").await, (200, "ok\n".to_owned()));

    // The daemon is away, and then hangs: that is no reason to restart the driver.
    let dir = tempfile::tempdir().unwrap();
    let away = dir.path().join("bulkhead.sock");
    let endpoint = Endpoint::with(std::slice::from_ref(&served.socket), away.clone()).await;
    endpoint.fails("/readyz", 503, "it is not running: there is no socket").await;
    endpoint.fails("/metrics/daemon", 502, "it is not running").await;
    let _silent = UnixListener::bind(&away).unwrap();
    endpoint.fails("/readyz", 503, "it has not answered").await;
    endpoint.fails("/metrics/daemon", 504, "were not complete").await;
    assert_eq!(endpoint.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_driver_whose_socket_is_gone_or_does_not_answer_is_not_alive() {
    let served = Served::start(server::Limits { connections: 2, ..server::Limits::default() }).await;
    let dir = tempfile::tempdir().unwrap();
    let [silent, other] = ["silent", "other"].map(|name| dir.path().join(name));
    let daemon = served.stack.daemon.socket().to_owned();
    let endpoint = Endpoint::with(std::slice::from_ref(&served.socket), daemon.clone()).await;
    assert_eq!(endpoint.get("/healthz").await.0, 200);

    // All connections are in use: sidecars and kubelet do not get through either.
    let (mut one, mut two) = (served.connect().await, served.connect().await);
    one.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("a", 32)).await.unwrap();
    two.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("b", 32)).await.unwrap();
    endpoint.fails("/healthz", 503, "it has not answered").await;
    drop(one);
    let recovers = async {
        while endpoint.get("/healthz").await.0 != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, recovers).await.unwrap();

    let _silent = UnixListener::bind(&silent).unwrap();
    let both = Endpoint::with(&[served.socket.clone(), silent.clone()], daemon.clone()).await;
    both.fails("/healthz", 503, "it has not answered").await;
    answer_once(&other, b"HTTP/1.1 200 OK\r\n\r\n");
    Endpoint::with(std::slice::from_ref(&other), daemon)
        .await
        .fails("/healthz", 503, "what answers is not HTTP/2")
        .await;
    std::fs::remove_file(&served.socket).unwrap();
    endpoint.fails("/healthz", 503, "No such file").await;
}

#[tokio::test]
async fn calls_are_counted_by_method_and_code() {
    let served = Served::start(server::Limits::default()).await;
    let endpoint = Endpoint::of(&served, Limits::default()).await;
    let mut connection = served.connect().await;
    connection.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("v", 32)).await.unwrap();
    connection.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("v", 32)).await.unwrap();
    connection.call::<CreateVolumeResponse>(CREATE_VOLUME, &request("v", 33)).await.unwrap_err();
    // Paths that clients invent are one series.
    for path in ["/csi.v1.Node/Invented", "/\"} 1\nbulkhead", "/"] {
        let path = path.replace(['"', '}', ' ', '\n'], "%0A");
        assert_eq!(connection.send(&path, "POST", framed(&[])).await.unwrap_err().code(), Code::Unimplemented);
    }
    let (status, text) = endpoint.get("/metrics").await;
    assert_eq!(status, 200);
    let sample = |method: &str, code: &str| {
        let labels = format!("driver_name=\"csi.bulkhead.dev\",method_name=\"{method}\",grpc_status_code=\"{code}\"");
        move |sample: &str, more: &str| format!("csi_plugin_operations_seconds_{sample}{{{labels}{more}}} ")
    };
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap()
    };
    let created = sample(CREATE_VOLUME, "OK");
    assert_eq!((count(&created("count", "")), count(&created("bucket", ",le=\"+Inf\""))), (2.0, 2.0));
    assert!(count(&created("sum", "")) > 0.0 && count(&created("bucket", ",le=\"120\"")) == 2.0);
    assert_eq!(count(&sample(CREATE_VOLUME, "AlreadyExists")("count", "")), 1.0);
    assert_eq!(count(&sample("other", "Unimplemented")("count", "")), 3.0);
    assert_eq!(count(&format!("bulkhead_csi_calls_in_progress{{method_name=\"{CREATE_VOLUME}\"}} ")), 0.0);
    assert_eq!(count(&format!("bulkhead_csi_build_info{{version=\"{}\"}} ", env!("CARGO_PKG_VERSION"))), 1.0);
    assert!(!text.contains("Invented") && !text.contains("le=\"1\"} \n"), "{text}");
}

#[tokio::test]
async fn a_call_in_progress_is_shown_and_counts_as_canceled_when_its_client_leaves() {
    let metrics = Metrics::default();
    let call = metrics.begin(CREATE_VOLUME);
    let in_progress = format!("bulkhead_csi_calls_in_progress{{method_name=\"{CREATE_VOLUME}\"}} ");
    assert!(metrics.text().contains(&format!("{in_progress}1\n")));
    drop(call);
    let text = metrics.text();
    assert!(text.contains(&format!("{in_progress}0\n")) && text.contains("grpc_status_code=\"Canceled\""), "{text}");
    let call = metrics.begin(CREATE_VOLUME);
    call.end(Code::Cancelled);
    let count = format!("method_name=\"{CREATE_VOLUME}\",grpc_status_code=\"Canceled\"}} 2\n");
    assert!(metrics.text().contains(&count), "{}", metrics.text());
}

#[test]
fn every_metric_of_the_driver_is_in_the_manual() {
    let manual = include_str!("../../../../docs/monitoring.md");
    let metrics = Metrics::default();
    metrics.begin(CREATE_VOLUME).end(Code::Ok);
    let text = metrics.text();
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(names.len(), 3, "{text}");
    for name in &names {
        assert!(manual.contains(&format!("| `{name}` |")), "docs/monitoring.md lacks {name}");
    }
    let named = manual.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    for name in named.filter(|word| word.starts_with("bulkhead_csi_") || word.starts_with("csi_plugin_")) {
        let metric = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        assert!(names.contains(&metric), "docs/monitoring.md: there is no metric {name}");
    }
}

#[tokio::test]
async fn the_daemons_metrics_are_passed_on_only_on_request_and_up_to_a_size() {
    let served = Served::start(server::Limits::default()).await;
    let (status, text) = Endpoint::of(&served, Limits::default()).await.get("/metrics/daemon").await;
    assert!(status == 200 && text.contains("\nbulkhead_build_info{version="), "{status} {text}");
    let probes = Probes { sockets: Vec::new(), daemon: served.stack.daemon.clone(), patience: SHORT };
    let disabled = Endpoint::start(probes, Metrics::default(), false, Limits::default()).await;
    disabled.fails("/metrics/daemon", 404, "start the driver with --daemon-metrics").await;

    // Something that answers without end, and an error of a daemon.
    let dir = tempfile::tempdir().unwrap();
    let [endless, failing] = ["endless", "failing"].map(|name| dir.path().join(name));
    let listener = UnixListener::bind(&endless).unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        while stream.write_all(&[b'#'; 1 << 16]).await.is_ok() {}
    });
    let limits = Limits::default();
    let daemon = |socket| Probes { sockets: Vec::new(), daemon: Client::new(socket), patience: SHORT };
    let endpoint = Endpoint::start(daemon(endless), Metrics::default(), true, limits).await;
    endpoint.fails("/metrics/daemon", 502, "is longer than 16777216 bytes").await;
    answer_once(&failing, b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
    let endpoint = Endpoint::start(daemon(failing), Metrics::default(), true, limits).await;
    endpoint.fails("/metrics/daemon", 502, "is not a daemon of this version").await;
}

#[tokio::test]
async fn unknown_and_malformed_requests_are_refused() {
    let served = Served::start(server::Limits::default()).await;
    let endpoint = Endpoint::of(&served, Limits::default()).await;
    for path in ["/", "/metrics/", "/healthz/x", "/v1/volumes", "//metrics", "/metrics/daemon/.."] {
        endpoint.fails(path, 404, "there is no such path; there are /healthz, ").await;
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "BREW"] {
        let (status, _) = endpoint.send(&format!("{method} /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        assert_eq!(status, 405, "{method}");
    }
    assert_eq!(endpoint.send("GET /healthz?verbose HTTP/1.0\r\n\r\n").await.0, 200);
    let with_body = "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\nx";
    assert_eq!(endpoint.send(with_body).await.0, 200);
    let large = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    assert!(matches!(endpoint.send(&large).await.0, 0 | 431));
    let many = format!("GET /healthz HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: x\r\n".repeat(1000));
    assert_eq!(endpoint.send(&many).await.0, 431);
    for malformed in ["\r\n\r\n\r\n", "GET\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02\x00"] {
        let (status, body) = endpoint.send(&format!("{malformed}{}", "\0".repeat(100))).await;
        assert!(matches!(status, 0 | 400 | 404 | 405), "{malformed:?}: {status} {body}");
    }
    assert_eq!(endpoint.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn slow_and_many_clients_are_served_in_turn_and_for_a_limited_time() {
    let served = Served::start(server::Limits::default()).await;
    let limits = Limits { connections: 4, patience: SHORT, scrape: LIMIT, connection: 2 * SHORT };
    let endpoint = Endpoint::of(&served, limits).await;
    // Without a request, with a part of one, and with all of it but without reading the answer.
    let mut clients = Vec::new();
    for index in 0..24 {
        let mut stream = TcpStream::connect(endpoint.0).await.unwrap();
        let begin = ["", "GET /metrics HTTP/1.1\r\nHost:", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"][index % 3];
        stream.write_all(begin.as_bytes()).await.unwrap();
        clients.push(stream);
    }
    assert_eq!(endpoint.get("/healthz").await.0, 200);
    for mut stream in clients {
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut rest)).await.expect("it is closed");
    }

    // Whoever reads no answer takes the place of a scrape only until the connection ends. The daemon's metrics exceed what the kernel buffers.
    let dir = tempfile::tempdir().unwrap();
    let daemon = dir.path().join("daemon");
    let listener = UnixListener::bind(&daemon).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(large_answer(stream));
        }
    });
    let probes = Probes { sockets: Vec::new(), daemon: Client::new(daemon), patience: LIMIT };
    let limits = Limits { connection: Duration::from_secs(3), ..limits };
    let endpoint = Endpoint::start(probes, Metrics::default(), true, limits).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(endpoint.0).await.unwrap();
        stream.write_all(b"GET /metrics/daemon HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        idle.push(stream);
    }
    let answered = async { while endpoint.get("/metrics/daemon").await.1.len() != LARGE {} };
    tokio::time::timeout(LIMIT, answered).await.unwrap();
}

/// More than sockets buffer, and less than is passed on.
const LARGE: usize = 12 << 20;

async fn large_answer(mut stream: UnixStream) {
    let mut head = [0; 512];
    let _ = stream.read(&mut head).await;
    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes()).await;
    let _ = stream.write_all(&vec![b'#'; LARGE]).await;
}
