//! The socket's limits.

use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_core::units::Bytes;
use bulkhead_sys::roots::Roots;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::{LIMIT, Stack};
use crate::plugin::{Defaults, Plugin};
use crate::server::{Limits, serve};

#[tokio::test]
async fn idle_connections_do_not_keep_others_from_being_answered() {
    let stack = Stack::start().await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        let mut stream = UnixStream::connect(stack.engine.socket()).await.unwrap();
        stream.write_all(b"POST /VolumeDriver.List HTTP/1.1\r\n").await.unwrap();
        idle.push(stream);
    }
    assert!(stack.listed().await.is_empty());
}

#[tokio::test]
async fn a_client_that_sends_no_request_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("plugin.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let plugin = Plugin::new(Client::new(dir.path().join("none")), Defaults { pool: None, size: Bytes::mib(64) });
    let limits = Limits { patience: Duration::from_millis(20), ..Limits::default() };
    let server =
        tokio::spawn(async move { serve(listener, plugin, &Roots::host(), limits, std::future::pending()).await });
    for sent in
        ["", "POST /VolumeDriver.List HTTP/1.1\r\n", "POST /VolumeDriver.Get HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
    {
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the connection is still open after {sent:?}");
    }
    server.abort();
}
