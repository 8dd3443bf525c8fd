//! The export, from a containerd with the blobs that a test gives it.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bulkhead_core::error::{Code, Fault};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, async_trait};

use super::proto::content::content_server::{Content, ContentServer};
use super::proto::content::{Info, InfoRequest, InfoResponse, ReadContentRequest, ReadContentResponse};
use super::proto::images::images_server::{Images, ImagesServer};
use super::proto::images::{GetImageRequest, GetImageResponse, Image, Target};
use crate::{ImageName, parse, write_to};

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A containerd with one namespace.
#[derive(Clone, Default)]
struct Fake {
    namespace: String,
    images: BTreeMap<String, String>,
    blobs: BTreeMap<String, Vec<u8>>,
    /// Bytes to add to the sizes of blobs that it tells.
    lie: i64,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn blob(&mut self, bytes: impl AsRef<[u8]>) -> String {
        let hash = Sha256::digest(bytes.as_ref());
        let digest = format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        self.blobs.insert(digest.clone(), bytes.as_ref().to_vec());
        digest
    }

    fn document(&mut self, document: &Value) -> String {
        self.blob(document.to_string())
    }

    /// An image of one layer; returns the digests of its manifest and its layer.
    fn image(&mut self, content: &[u8]) -> (String, String) {
        let config = self.document(&json!({ "architecture": "amd64", "os": "linux", "of": content.len() }));
        let layer = self.blob(content);
        let manifest = json!({
            "config": { "mediaType": CONFIG, "digest": config, "size": 1 },
            "layers": [{ "mediaType": LAYER, "digest": layer, "size": content.len() }],
        });
        (self.document(&manifest), layer)
    }

    fn name(&mut self, name: &str, root: &str) {
        self.images.insert(name.to_owned(), root.to_owned());
    }

    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let namespace = request.metadata().get("containerd-namespace").and_then(|value| value.to_str().ok());
        if namespace == Some(if self.namespace.is_empty() { "default" } else { &self.namespace }) {
            Ok(())
        } else {
            Err(Status::not_found("nothing in this namespace"))
        }
    }

    fn found(&self, digest: &str) -> Result<&Vec<u8>, Status> {
        self.blobs.get(digest).ok_or_else(|| Status::not_found(format!("content {digest}: not found")))
    }

    /// Exports an image from it; returns the entries of the archive.
    fn export(self, image: &ImageName) -> Result<BTreeMap<String, Vec<u8>>, Fault> {
        let dir = TempDir::new().unwrap();
        let socket = dir.path().join("containerd.sock");
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let incoming = server.block_on(async { UnixListenerStream::new(UnixListener::bind(&socket).unwrap()) });
        let services =
            Server::builder().add_service(ImagesServer::new(self.clone())).add_service(ContentServer::new(self));
        let serving = server.spawn(services.serve_with_incoming(incoming));
        let mut out = Vec::new();
        let outcome = write_to(image, &socket, &mut out).map_err(|error| error.fault(image));
        serving.abort();
        outcome.map(|()| entries(&out))
    }
}

#[async_trait]
impl Images for Fake {
    async fn get(&self, request: Request<GetImageRequest>) -> Result<Response<GetImageResponse>, Status> {
        self.check(&request)?;
        let name = request.into_inner().name;
        self.asked.lock().unwrap().push(name.clone());
        let digest =
            self.images.get(&name).ok_or_else(|| Status::not_found(format!("image {name:?}: not found")))?.clone();
        let target = Some(Target { media_type: "application/vnd.oci.image.index.v1+json".to_owned(), digest });
        Ok(Response::new(GetImageResponse { image: Some(Image { target }) }))
    }
}

#[async_trait]
impl Content for Fake {
    type ReadStream = tokio_stream::Iter<std::vec::IntoIter<Result<ReadContentResponse, Status>>>;

    async fn info(&self, request: Request<InfoRequest>) -> Result<Response<InfoResponse>, Status> {
        self.check(&request)?;
        let size = self.found(&request.into_inner().digest)?.len() as i64 + self.lie;
        Ok(Response::new(InfoResponse { info: Some(Info { size }) }))
    }

    async fn read(&self, request: Request<ReadContentRequest>) -> Result<Response<Self::ReadStream>, Status> {
        self.check(&request)?;
        let parts: Vec<_> = self
            .found(&request.into_inner().digest)?
            .chunks(1 << 20)
            .map(|part| Ok(ReadContentResponse { data: part.to_vec() }))
            .collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}

fn entries(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut entries = BTreeMap::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        assert!(entries.insert(path, bytes).is_none(), "an entry is there twice");
    }
    entries
}

fn image(name: &str) -> ImageName {
    parse(&format!("containerd:{name}")).unwrap().unwrap()
}

fn path(digest: &str) -> String {
    digest.replace("sha256:", "blobs/sha256/")
}

#[test]
fn the_archive_is_a_layout_with_the_image_and_its_name() {
    let mut fake = Fake::default();
    let (manifest, layer) = fake.image(&vec![7; 3_000_001]);
    fake.name("registry.example/web:1", &manifest);
    let blobs = fake.blobs.clone();
    let archive = fake.export(&image("registry.example/web:1")).unwrap();
    let index: Value = serde_json::from_slice(&archive["index.json"]).unwrap();
    assert_eq!(index["manifests"][0]["digest"], manifest);
    assert_eq!(index["manifests"][0]["size"], blobs[&manifest].len());
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "registry.example/web:1");
    assert_eq!(archive["oci-layout"], br#"{"imageLayoutVersion":"1.0.0"}"#);
    assert!(archive[&path(&layer)] == blobs[&layer], "the layer differs");
    assert_eq!(archive.len(), 2 + blobs.len());
}

#[test]
fn of_several_platforms_those_that_are_complete_are_exported() {
    let mut fake = Fake::default();
    let ((here, layer), (partial, lost)) = (fake.image(b"here"), fake.image(b"partial"));
    let (attestation, _) = fake.image(b"attestation");
    fake.blobs.remove(&lost);
    let absent = format!("sha256:{}", "0".repeat(64));
    let index = fake.document(&json!({ "manifests": [
        { "digest": absent, "size": 1 }, { "digest": partial, "size": 1 }, { "digest": here, "size": 1 },
        { "digest": attestation, "size": 1, "annotations": { "vnd.docker.reference.type": "attestation-manifest" } },
        { "digest": here, "size": 1 },
    ] }));
    fake.name("docker.io/library/web:latest", &index);
    let asked = Arc::clone(&fake.asked);
    let archive = fake.export(&image("web")).unwrap();
    assert!(archive.contains_key(&path(&index)) && archive.contains_key(&path(&here)));
    assert!(archive.contains_key(&path(&layer)));
    assert!(!archive.contains_key(&path(&partial)) && !archive.contains_key(&path(&attestation)));
    assert_eq!(*asked.lock().unwrap(), ["web", "docker.io/library/web:latest"]);
}

#[test]
fn layers_that_containerd_discarded_are_reported_with_the_setting() {
    let mut fake = Fake::default();
    let (manifest, layer) = fake.image(b"layer");
    fake.blobs.remove(&layer);
    fake.name("docker.io/library/web:latest", &manifest);
    let fault = fake.export(&image("web")).unwrap_err();
    assert_eq!((fault.code, fault.object.as_str()), (Code::NotFound, "source containerd:web"));
    assert!(fault.to_string().contains(&layer) && fault.hint.contains("discard_unpacked_layers"), "{fault:?}");
}

#[test]
fn an_absent_image_is_reported_with_the_namespaces() {
    let mut fake = Fake { namespace: "k8s.io".to_owned(), ..Fake::default() };
    let (manifest, _) = fake.image(b"layer");
    fake.name("docker.io/library/web:latest", &manifest);
    let fault = fake.clone().export(&image("web")).unwrap_err();
    assert_eq!(fault.code, Code::NotFound);
    assert!(fault.hint.contains("ctr -n default images ls") && fault.hint.contains("k8s.io"), "{fault:?}");
    assert!(fake.export(&image("web").in_namespace("k8s.io").unwrap()).is_ok());
}

#[test]
fn malformed_contents_are_refused() {
    let long: String = format!("sha256:{}", "a".repeat(65));
    for (root, words) in [
        ("../../etc/passwd", "not SHA-256"),
        ("sha512:00", "not SHA-256"),
        (long.as_str(), "not SHA-256"),
        ("sha256:..", "not SHA-256"),
    ] {
        let mut fake = Fake::default();
        fake.name("web", root);
        let fault = fake.export(&image("web")).unwrap_err();
        assert_eq!(fault.code, Code::Corrupt);
        assert!(fault.to_string().contains(words), "{fault}");
    }
    for document in ["", "[]", "{\"manifests\": 1}", "{\"manifests\": [{}]}"] {
        let mut fake = Fake::default();
        let root = fake.blob(document);
        fake.name("web", &root);
        assert_eq!(fake.export(&image("web")).unwrap_err().code, Code::Corrupt, "{document}");
    }
}

#[test]
fn sizes_that_are_wrong_are_refused() {
    for (lie, words) in [(1, "did not send"), (-1, "did not send"), (-1 << 40, "its size is"), (1 << 40, "64 MiB")] {
        let mut fake = Fake { lie, ..Fake::default() };
        let (manifest, _) = fake.image(b"layer");
        fake.name("web", &manifest);
        let fault = fake.export(&image("web")).unwrap_err();
        assert_eq!(fault.code, Code::Corrupt);
        assert!(fault.to_string().contains(words), "{fault}");
    }
}

#[test]
fn nested_indexes_are_limited() {
    let mut fake = Fake::default();
    let (mut digest, _) = fake.image(b"layer");
    for depth in 1..=5 {
        digest = fake.document(&json!({ "manifests": [{ "digest": digest, "size": 1 }] }));
        fake.name(&format!("at{depth}"), &digest);
    }
    assert!(fake.clone().export(&image("at4")).is_ok());
    assert!(fake.export(&image("at5")).unwrap_err().to_string().contains("nested"));
}

#[test]
fn what_does_not_speak_grpc_is_reported() {
    let dir = TempDir::new().unwrap();
    let socket: PathBuf = dir.path().join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let other = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        // The client may have closed the connection.
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let image = image("web");
    let fault = write_to(&image, &socket, &mut std::io::sink()).unwrap_err().fault(&image);
    assert_eq!(fault.code, Code::Unavailable);
    assert!(fault.to_string().contains("the service on that socket is not containerd"), "{fault}");
    other.join().unwrap();
}
