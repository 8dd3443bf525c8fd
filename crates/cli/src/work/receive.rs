//! Reads a snapshot from a client's stream, into a part that the daemon made for it.

use std::io::{BufReader, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_blockd::transfer::{Receiver, Target, TransferError};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{Outcome, ReceiveTask};
use bulkhead_sys::layer::LayerError;
use bulkhead_sys::process;

use super::{Daemon, transfer};

/// How long a worker whose client was killed may need to note how far it is, and to let go of the part.
const OTHERS_END: Duration = Duration::from_secs(2);

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) fn run(task: &ReceiveTask, daemon: &mut Daemon) -> Result<Outcome, Fault> {
    let ReceiveTask { volume, header, part } = task;
    let target = open(part, header).map_err(|error| transfer::fault(&error, volume, &again(volume)))?;
    let stream = daemon.stream()?;
    receive(stream, volume, header, &target, |bytes| daemon.has_come(bytes, Some(header.data_bytes)))?;
    Ok(Outcome::Received)
}

fn again(volume: &VolumeRef) -> String {
    format!("`bulkhead volume receive {volume} --token` prints the resume token")
}

fn open(part: &Path, header: &StreamHeader) -> Result<Target, TransferError> {
    let give_up = Instant::now() + OTHERS_END;
    loop {
        match Target::open(part, header) {
            Err(TransferError::Part(LayerError::PartLocked { .. })) if Instant::now() < give_up => {
                process::pause(PAUSE)
            }
            opened => return opened,
        }
    }
}

/// The part was made for the header that the client said: the stream must not be of another one.
fn receive(
    stream: impl Read,
    volume: &VolumeRef,
    header: &StreamHeader,
    target: &Target,
    progress: impl FnMut(Bytes),
) -> Result<(), Fault> {
    let fault = |error: &TransferError| transfer::fault(error, volume, &again(volume));
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
    use bulkhead_core::model::FsKind;
    use bulkhead_core::stream::encode_header;
    use bulkhead_sys::part;
    use uuid::Uuid;

    use super::*;

    fn header() -> StreamHeader {
        StreamHeader {
            content: Uuid::from_u128(7),
            base: None,
            size_bytes: Bytes(1 << 20),
            start_bytes: Bytes(0),
            data_bytes: Bytes(0),
            fs: FsKind::Ext4,
            snapshot: "p/s".to_owned(),
        }
    }

    #[test]
    fn a_stream_of_another_header_is_not_taken_in() {
        let dir = tempfile::tempdir().unwrap();
        let (path, volume) = (dir.path().join("v.part"), "p/v".parse().unwrap());
        part::create(&path, header().content, None, header().size_bytes).unwrap();
        let before = part::state(&path).unwrap();
        let target = open(&path, &header()).unwrap();
        let code = |stream: &[u8]| receive(stream, &volume, &header(), &target, |_| ()).unwrap_err().code;
        let larger = StreamHeader { size_bytes: Bytes(1 << 40), ..header() };
        let other = StreamHeader { content: Uuid::from_u128(8), ..header() };
        for lie in [larger, other] {
            assert_eq!(code(&encode_header(&lie).unwrap()), Code::InvalidArgument, "{lie:?}");
        }
        // Neither is what is none, nor what ends too soon.
        assert_eq!(code(b"just text, and as long as a preamble"), Code::Corrupt);
        assert_eq!(code(&encode_header(&header()).unwrap()), Code::Corrupt);
        assert_eq!(part::state(&path).unwrap(), before);
    }
}
