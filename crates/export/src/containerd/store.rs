//! The client of containerd's image and content services, by gRPC on a unix socket.

use std::io;
use std::path::Path;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use super::blob_path;
use super::proto::content::content_client::ContentClient;
use super::proto::content::{InfoRequest, ReadContentRequest};
use super::proto::images::images_client::ImagesClient;
use super::proto::images::{GetImageRequest, Target};
use crate::error::{ExportError, shown};
use crate::name::{ImageName, Runtime};
use crate::unreachable;

/// Limit of a message, bytes: containerd's own.
const MAX_MESSAGE: usize = 16 << 20;

/// The metadata with the namespace.
const NAMESPACE: &str = "containerd-namespace";

/// The images and blobs of a namespace.
pub(super) struct Store {
    images: ImagesClient<Channel>,
    content: ContentClient<Channel>,
    namespace: MetadataValue<Ascii>,
}

impl Store {
    pub(super) async fn connect(image: &ImageName, socket: &Path) -> Result<Self, ExportError> {
        let namespace = image.namespace().parse().map_err(|error| ExportError::Client(io::Error::other(error)))?;
        // Errors of the connection are those of the socket only here, so it is connected before the channel asks for it.
        let stream = UnixStream::connect(socket).await;
        let mut stream = Some(stream.map_err(|source| unreachable(Runtime::Containerd, socket, source))?);
        let connector = tower::service_fn(move |_| {
            let stream = stream.take().ok_or(io::Error::from(io::ErrorKind::NotConnected));
            async move { stream.map(TokioIo::new) }
        });
        // The address is not used, but gRPC sends one.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
        let channel = channel.map_err(broken)?;
        let content = ContentClient::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
        Ok(Self { images: ImagesClient::new(channel), content, namespace })
    }

    /// Finds an image by the name that it is called by, or by its full name. Returns the name that it has, and its root.
    pub(super) async fn find(&mut self, image: &ImageName) -> Result<(String, Target), ExportError> {
        let mut absent = None;
        for name in [image.name().to_owned(), image.full_name()] {
            let request = self.request(GetImageRequest { name: name.clone() });
            match self.images.get(request).await {
                Ok(found) => {
                    let target = found.into_inner().image.and_then(|image| image.target);
                    let target = target.ok_or_else(|| ExportError::Blob {
                        digest: shown(&name),
                        cause: "it has no target descriptor".to_owned(),
                    })?;
                    return Ok((name, target));
                }
                Err(status) if status.code() == Code::NotFound => absent = Some(status),
                Err(status) => return Err(refused(status)),
            }
        }
        let message = absent.map(|status| shown(status.message())).unwrap_or_default();
        Err(ExportError::NoImage { runtime: Runtime::Containerd, message })
    }

    /// The size of a blob in bytes; `None` if it is not there.
    pub(super) async fn size(&mut self, digest: &str) -> Result<Option<u64>, ExportError> {
        blob_path(digest)?;
        let request = self.request(InfoRequest { digest: digest.to_owned() });
        match self.content.info(request).await {
            Ok(found) => {
                let size = found.into_inner().info.map_or(-1, |info| info.size);
                let bad = |_| ExportError::Blob { digest: digest.to_owned(), cause: format!("its size is {size}") };
                u64::try_from(size).map(Some).map_err(bad)
            }
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(refused(status)),
        }
    }

    /// Reads a document, of which the caller has checked the size.
    pub(super) async fn document(&mut self, digest: &str, size: u64) -> Result<Vec<u8>, ExportError> {
        let mut bytes = Vec::new();
        self.read(digest, size, |data| {
            bytes.extend_from_slice(data);
            Ok(())
        })
        .await?;
        Ok(bytes)
    }

    /// Reads a blob of `size` bytes as it arrives.
    pub(super) async fn read(
        &mut self,
        digest: &str,
        size: u64,
        mut each: impl FnMut(&[u8]) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let request = self.request(ReadContentRequest { digest: digest.to_owned() });
        let mut parts = self.content.read(request).await.map_err(refused)?.into_inner();
        let mut left = size;
        let wrong = || ExportError::Blob {
            digest: digest.to_owned(),
            cause: format!("containerd did not send exactly {size} bytes"),
        };
        while let Some(part) = parts.message().await.map_err(refused)? {
            left = left.checked_sub(part.data.len() as u64).ok_or_else(wrong)?;
            each(&part.data)?;
        }
        if left > 0 { Err(wrong()) } else { Ok(()) }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(NAMESPACE, self.namespace.clone());
        request
    }
}

fn broken(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ExportError {
    ExportError::Answer { runtime: Runtime::Containerd, source: source.into() }
}

/// An error of containerd, or of the connection to it.
fn refused(status: Status) -> ExportError {
    if std::error::Error::source(&status).is_some() {
        return broken(status);
    }
    let (status, message) = (format!("{:?}", status.code()), shown(status.message()));
    ExportError::Refused { runtime: Runtime::Containerd, status, message }
}
