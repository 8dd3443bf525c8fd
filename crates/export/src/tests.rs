//! The request, against a listener that answers as a test says.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use bulkhead_core::error::{Code, Fault};
use tempfile::TempDir;

use crate::{ImageName, parse, write_to};

fn image(source: &str) -> ImageName {
    parse(source).unwrap().unwrap()
}

fn read_request(stream: &mut UnixStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    String::from_utf8(request).unwrap()
}

/// Serves one request with `answer`; returns what was written, the outcome, and the request.
fn exchange(
    source: &str,
    answer: impl FnOnce(&mut UnixStream) + Send + 'static,
) -> (Vec<u8>, Result<(), Fault>, String) {
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let request = read_request(&mut stream);
        answer(&mut stream);
        request
    });
    let (image, mut out) = (image(source), Vec::new());
    let outcome = write_to(&image, &socket, &mut out).map_err(|error| error.fault(&image));
    (out, outcome, server.join().unwrap())
}

/// An answer that is sent at once, after which the connection ends.
fn sends(bytes: impl Into<Vec<u8>>) -> impl FnOnce(&mut UnixStream) + Send + 'static {
    let bytes = bytes.into();
    // The client may have closed the connection, if it refuses the answer.
    move |stream| drop(stream.write_all(&bytes))
}

fn refused(answer: impl Into<Vec<u8>>) -> Fault {
    exchange("docker-daemon:web", sends(answer)).1.unwrap_err()
}

#[test]
fn the_archive_is_passed_on_however_its_length_is_given() {
    for answer in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabcdefg",
        "HTTP/1.0 200 OK\r\n\r\nabcdefg",
    ] {
        let (out, outcome, request) = exchange("docker-daemon:library/web:1.0", sends(answer));
        assert_eq!((outcome, out.as_slice()), (Ok(()), &b"abcdefg"[..]), "{answer}");
        assert!(request.starts_with("GET /images/library/web:1.0/get HTTP/1.1\r\n"), "{request}");
    }
}

#[test]
fn a_large_archive_arrives_whole() {
    let wanted: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", wanted.len());
    let (out, outcome, _) = exchange("podman:web", sends([head.as_bytes(), &wanted].concat()));
    assert!(outcome.is_ok() && out == wanted);
}

#[test]
fn an_absent_image_is_reported_with_how_to_get_it() {
    let body = r#"{"message":"No such image: web:latest"}"#;
    let answer = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let fault = refused(answer);
    assert_eq!((fault.code, fault.object.as_str()), (Code::NotFound, "source docker-daemon:web"));
    assert!(fault.to_string().contains("Docker has no such image: No such image: web:latest"), "{fault}");
    assert!(fault.hint.starts_with("`docker pull web`"));
}

#[test]
fn a_refusal_is_reported_in_the_runtimes_words() {
    let fault = refused("HTTP/1.1 500 Internal Server Error\r\nContent-Length: 12\r\n\r\nbad \x1b storage");
    assert_eq!(fault.code, Code::Unavailable);
    assert!(fault.to_string().contains("refused the request with status 500: bad \\u{1b} stora"), "{fault}");
}

#[test]
fn a_redirect_is_not_followed() {
    let fault = refused("HTTP/1.1 301 Moved\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n");
    assert!(fault.to_string().contains("status 301"), "{fault}");
}

#[test]
fn a_huge_error_is_not_read_to_its_end() {
    let endless = |stream: &mut UnixStream| {
        stream.write_all(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        let chunk = [b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat();
        // Ends when the client has closed the connection.
        while stream.write_all(&chunk).is_ok() {}
    };
    let fault = exchange("docker-daemon:web", endless).1.unwrap_err();
    assert!(fault.to_string().contains("too long"), "{fault}");
}

#[test]
fn an_answer_that_ends_early_is_an_error() {
    for answer in [
        "",
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nabc",
        "HTTP/1.1 200 OK\r\n",
    ] {
        let fault = refused(answer);
        assert_eq!(fault.code, Code::Unavailable, "{answer:?}: {fault}");
        assert!(fault.to_string().contains("the answer ended early"), "{answer:?}: {fault}");
    }
}

#[test]
fn malformed_http_is_an_error() {
    let many: String = (0..200).map(|at| format!("X-{at}: y\r\n")).collect();
    let long = "x".repeat(2 << 20);
    for answer in [
        "SSH-2.0-OpenSSH\r\n\r\n".to_owned(),
        "HTTP/1.1 banana\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{many}\r\n"),
        format!("HTTP/1.1 200 OK\r\nX: {long}\r\n\r\n"),
    ] {
        let fault = refused(answer.clone());
        assert_eq!(fault.code, Code::Unavailable, "{:.60}: {fault}", answer);
    }
}

#[test]
fn a_socket_that_is_absent_or_unused_means_that_the_runtime_is_not_running() {
    let dir = TempDir::new().unwrap();
    let unused = dir.path().join("unused");
    drop(UnixListener::bind(&unused).unwrap());
    for (source, hint) in [
        ("docker-daemon:web", "systemctl start docker"),
        ("podman:web", "podman.socket"),
        ("containerd:web", "systemctl start containerd"),
    ] {
        for socket in [&dir.path().join("absent"), &unused] {
            let image = image(source);
            let fault = write_to(&image, socket, &mut io::sink()).unwrap_err().fault(&image);
            assert_eq!(fault.code, Code::Unavailable);
            assert!(fault.to_string().contains("is not running") && fault.hint.contains(hint));
        }
    }
}

#[test]
fn a_socket_without_permission_is_reported_as_such() {
    let source = io::Error::from(io::ErrorKind::PermissionDenied);
    let socket = PathBuf::from("/run/docker.sock");
    let image = image("docker-daemon:web");
    let fault = crate::ExportError::Connect { runtime: image.runtime(), socket, source }.fault(&image);
    assert_eq!(fault.code, Code::PermissionDenied);
    assert!(fault.hint.contains("group"));
}

#[test]
fn an_output_that_cannot_be_written_ends_the_request() {
    struct Full;
    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("docker.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    });
    let error = write_to(&image("docker-daemon:web"), &socket, &mut Full).unwrap_err();
    assert!(matches!(error, crate::ExportError::Output(_)), "{error:?}");
    server.join().unwrap();
}
