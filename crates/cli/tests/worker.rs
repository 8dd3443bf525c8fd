//! `bulkhead work` as a process, with the test in the role of the daemon.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "the test starts the worker as the daemon does, and files are its own")]

use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeFs;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{COMMAND, MAX_MESSAGE_BYTES, Order, Outcome, ReceiveTask, Report, SendTask, Task, WorkSpec};
use bulkhead_formats::staging;
use bulkhead_formats::stream::{ChecksumChain, Record, encode_head, encode_header};
use bulkhead_sys::{packet, worker};
use uuid::Uuid;

/// A worker, and the daemon's end of its socket.
struct Worker {
    child: Child,
    control: OwnedFd,
}

impl Worker {
    fn start(task: Task) -> Self {
        let (control, theirs) = packet::pair().unwrap();
        packet::set_receive_timeout(&control, Duration::from_secs(60)).unwrap();
        // This cgroup does not exist, which does not keep the worker from working.
        let spec = serde_json::to_string(&WorkSpec { cgroup: "none.slice/none".parse().unwrap(), task }).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
        command.args([COMMAND, &spec]).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        Self { child, control }
    }

    fn next_report(&self) -> Report {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        loop {
            let (packet, _) = packet::receive(&self.control, &mut buffer).unwrap();
            assert!(!packet.is_empty(), "it ended without a report");
            match serde_json::from_slice(packet).unwrap() {
                Report::Progress(_) => {}
                report => return report,
            }
        }
    }

    fn failure(&self) -> Fault {
        match self.next_report() {
            Report::Failed(fault) => fault,
            other => panic!("{other:?}"),
        }
    }

    /// Passes the stream to the worker; returns the other end.
    fn stream(&self, ahead: &[u8]) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let order = Order::Stream { ahead_bytes: Bytes(ahead.len() as u64) };
        packet::send(&self.control, &serde_json::to_vec(&order).unwrap(), Some(theirs.as_fd())).unwrap();
        ahead.chunks(100).for_each(|piece| packet::send(&self.control, piece, None).unwrap());
        ours
    }

    fn ended(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

fn header() -> StreamHeader {
    StreamHeader {
        content: Uuid::from_u128(7),
        base: None,
        size_bytes: Bytes(1 << 20),
        start_bytes: Bytes(0),
        data_bytes: Bytes(4096),
        fs: VolumeFs::Ext4,
        snapshot: "p/s".to_owned(),
    }
}

/// A stream of one block.
fn stream() -> Vec<u8> {
    let mut stream = encode_header(&header()).unwrap();
    let mut sums = ChecksumChain::after(&stream);
    for (record, data) in [(Record::Data { offset: 8192, len: 4096 }, &[7; 4096][..]), (Record::End, &[])] {
        let head = encode_head(record);
        let sum = sums.next(&head, data);
        stream.extend([&head[..], data, &sum].concat());
    }
    stream
}

fn receive(part: &Path) -> Worker {
    Worker::start(Task::Receive(ReceiveTask {
        volume: "p/v".parse().unwrap(),
        header: header(),
        staging_file: part.into(),
    }))
}

fn made_part(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("v.part");
    staging::create(&path, header().content, None, header().size_bytes).unwrap();
    path
}

#[test]
fn a_stream_is_received_however_much_of_it_was_read_ahead() {
    for ahead in [0, 10, 350, usize::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let (path, stream) = (made_part(&dir), stream());
        let worker = receive(&path);
        assert_eq!(worker.next_report(), Report::Ready);
        let (ahead, rest) = stream.split_at(ahead.min(stream.len()));
        let mut socket = worker.stream(ahead);
        socket.write_all(rest).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(worker.next_report(), Report::Done(Outcome::Received));
        worker.ended();
        assert_eq!(staging::state(&path).unwrap().unwrap().received, None);
        assert_eq!(std::fs::read(&path).unwrap()[8192..12288], [7; 4096]);
    }
}

#[test]
fn an_interrupted_stream_keeps_the_received_data_and_a_second_worker_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = made_part(&dir);
    let worker = receive(&path);
    assert_eq!(worker.next_report(), Report::Ready);
    let second = receive(&path);
    assert_eq!(second.failure().code, Code::InUse);
    second.ended();
    let stream = stream();
    let mut socket = worker.stream(&[]);
    // All but the last record.
    socket.write_all(&stream[..stream.len() - 56]).unwrap();
    worker::shut_down_stream(&socket);
    let fault = worker.failure();
    assert!(fault.code == Code::Corrupt && fault.cause.contains("is truncated"), "{fault}");
    assert!(fault.hint.contains("`bulkhead volume receive p/v --token`"), "{fault:?}");
    worker.ended();
    assert_eq!(staging::state(&path).unwrap().unwrap().received, Some(Bytes(12288)));
}

#[test]
fn a_file_that_cannot_be_opened_is_reported_before_the_stream_starts() {
    let dir = tempfile::tempdir().unwrap();
    let worker = receive(&dir.path().join("none.part"));
    assert!(matches!(worker.next_report(), Report::Failed(_)));
    worker.ended();
    let layer = dir.path().join("none.layer");
    let (volume, layers) = ("p/s".parse().unwrap(), vec![layer.clone()]);
    let task = SendTask { volume, header: header(), layers: layers.clone(), changed: layers, device: None };
    let worker = Worker::start(Task::Send(task));
    let fault = worker.failure();
    assert!(fault.object == "volume p/s" && fault.cause.contains("none.layer"), "{fault}");
    worker.ended();
}

#[test]
fn a_worker_whose_daemon_is_gone_ends() {
    let dir = tempfile::tempdir().unwrap();
    let Worker { mut child, control } = receive(&made_part(&dir));
    drop(control);
    // Before or while it waits for its stream.
    assert!(!child.wait().unwrap().success());
}
