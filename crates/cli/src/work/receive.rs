//! Reads a snapshot from a client's stream into a staging file that the daemon created.

use std::io::{BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_blockd::transfer::{Receiver, Target, TransferError};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{Outcome, ReceiveTask};
use bulkhead_formats::layer::LayerError;
use bulkhead_sys::process;

use super::{Daemon, transfer};

/// How long a worker whose client was killed may take to save its progress and to release the staging file.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(task: &ReceiveTask, daemon: &mut Daemon) -> Result<Outcome, Fault> {
    let ReceiveTask { volume, header, staging_file: part } = task;
    let target = open(part, header).map_err(|error| transfer::fault(&error, volume, &resume_hint(volume)))?;
    let stream = daemon.stream()?;
    receive(stream, volume, header, &target, |bytes| daemon.report_progress(bytes, Some(header.data_bytes)))?;
    Ok(Outcome::Received)
}

fn resume_hint(volume: &VolumeRef) -> String {
    format!("`bulkhead volume receive {volume} --token` prints the resume token")
}

fn open(part: &Path, header: &StreamHeader) -> Result<Target, TransferError> {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match Target::open(part, header) {
            Err(TransferError::Staging(LayerError::StagingLocked { .. })) if Instant::now() < deadline => {
                process::pause(PAUSE)
            }
            opened => return opened,
        }
    }
}

/// Receives the stream, whose header must be the one that the client sent in its request and the staging file was created for.
fn receive(
    stream: impl Read,
    volume: &VolumeRef,
    header: &StreamHeader,
    target: &Target,
    progress: impl FnMut(Bytes),
) -> Result<(), Fault> {
    let fault = |error: &TransferError| transfer::fault(error, volume, &resume_hint(volume));
    let mut receiver = Receiver::open(BufReader::new(stream)).map_err(|error| fault(&error))?;
    if receiver.header() != header {
        let cause = "the header of the stream differs from the one in the request";
        return Err(Fault::new(Code::InvalidArgument, format!("volume {volume}"), cause)
            .hint("repeat the request with the header of the stream"));
    }
    receiver.receive(target, progress).map_err(|error| fault(&error))
}

#[cfg(test)]
mod tests {
    use bulkhead_core::model::VolumeFs;
    use bulkhead_formats::staging;
    use bulkhead_formats::stream::encode_header;
    use uuid::Uuid;

    use super::*;

    fn header() -> StreamHeader {
        StreamHeader {
            content: Uuid::from_u128(7),
            base: None,
            size_bytes: Bytes(1 << 20),
            start_bytes: Bytes(0),
            data_bytes: Bytes(0),
            fs: VolumeFs::Ext4,
            snapshot: "p/s".to_owned(),
        }
    }

    #[test]
    fn a_stream_with_another_header_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, volume) = (dir.path().join("v.part"), "p/v".parse().unwrap());
        staging::create(&path, header().content, None, header().size_bytes).unwrap();
        let before = staging::state(&path).unwrap();
        let target = open(&path, &header()).unwrap();
        let code = |stream: &[u8]| receive(stream, &volume, &header(), &target, |_| ()).unwrap_err().code;
        let larger = StreamHeader { size_bytes: Bytes(1 << 40), ..header() };
        let other = StreamHeader { content: Uuid::from_u128(8), ..header() };
        for lie in [larger, other] {
            assert_eq!(code(&encode_header(&lie).unwrap()), Code::InvalidArgument, "{lie:?}");
        }
        // Nor is anything else that is not a stream, or a truncated one.
        assert_eq!(code(b"just text, and as long as a preamble"), Code::Corrupt);
        assert_eq!(code(&encode_header(&header()).unwrap()), Code::Corrupt);
        assert_eq!(staging::state(&path).unwrap(), before);
    }
}
