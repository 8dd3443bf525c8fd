//! The daemon's part in reading from peers: it passes the root directories of mounted volumes to the peer reader, and withdraws them
//! before unmounting. The reader is a process that it starts for the first volume, and that exits after the last one.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use bulkhead_core::action::DeviceRef;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use bulkhead_formats::peers::{Answer, Hello, MAX_PACKET_BYTES};
use bulkhead_formats::servers;
use bulkhead_sys::packet;
use bulkhead_sys::process::Handle;
use bulkhead_sys::tool::Tool;
use uuid::Uuid;

use super::Kernel;
use super::act::Outcome;
use super::faults::Classify as _;
use super::servers::Attached;

/// How long the reader may need to answer: it waits for reads in progress of a volume that is to be unmounted.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// How long a killed reader may need to exit.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A reader that did not answer, or refused.
struct ReaderFailure {
    reader: Option<Handle>,
    why: String,
}

impl Kernel {
    pub(super) fn attach_peer(
        &self,
        device: &DeviceRef,
        volume: Uuid,
        target: &Path,
        domain: &str,
    ) -> Result<Outcome, Fault> {
        let object = || format!("volume with ID {volume}");
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Fault::new(Code::Internal, object(), format!("peers cannot read from it: {what}: {error}"))
                .reason(Reason::PeersUnreadable)
        };
        let DeviceRef::Image { image, .. } = device else { return Ok(Outcome::UNCHANGED) };
        let Some(Attached::Served(served)) = self.attached(image, volume)? else { return Ok(Outcome::UNCHANGED) };
        let root = File::open(target).map_err(|error| failed("its root directory cannot be opened", &error))?;
        let hello = Hello::Attach { volume, id: served.id, domain: domain.to_owned() };
        for started in [false, true] {
            match self.ask_reader(&hello, Some(&root)) {
                Ok(Some(changed)) => return Ok(Outcome::changed(changed)),
                Err(silent) if started => return Err(failed("the peer reader", &silent.why)),
                Err(silent) => self.end_reader(&silent).map_err(|error| failed("the peer reader", &error))?,
                Ok(None) if started => return Err(failed("the peer reader", &"it is not running")),
                Ok(None) => {}
            }
            Tool::bulkhead(&self.program).arg("peers").run().map_err(|error| error.fault(object()))?;
        }
        Ok(Outcome::UNCHANGED)
    }

    pub(super) fn detach_peer(&self, volume: Uuid) -> Result<Outcome, Fault> {
        match self.ask_reader(&Hello::Detach { volume }, None) {
            Ok(changed) => Ok(Outcome::changed(changed.unwrap_or(false))),
            // A read hangs. All volumes are attached to the next reader again.
            Err(silent) => self.end_reader(&silent).map(|()| Outcome::DONE).map_err(|error| {
                let cause = format!("the peer reader keeps it open ({}) and does not exit: {error}", silent.why);
                Fault::new(Code::InUse, format!("volume with ID {volume}"), cause)
                    .hint("find out what its disk is waiting for, then try again")
            }),
        }
    }

    /// Sends a message to the peer reader and returns whether it changed anything; `None` if there is no reader.
    fn ask_reader(&self, hello: &Hello, root: Option<&File>) -> Result<Option<bool>, ReaderFailure> {
        let socket = match packet::connect_to(&servers::peers_socket(&self.roots)) {
            Ok(socket) => socket,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                return Ok(None);
            }
            // The socket exists, but the reader does not accept connections.
            Err(error) => {
                tracing::warn!(%error, "the peer reader does not accept connections");
                return Ok(None);
            }
        };
        let silent = |why: String| ReaderFailure { reader: packet::peer(&socket).ok().flatten(), why };
        let asked = || {
            packet::set_receive_timeout(&socket, ANSWER_LIMIT)?;
            packet::send(&socket, &serde_json::to_vec(hello)?, root.map(|root| root.as_fd()))?;
            let mut buffer = vec![0; MAX_PACKET_BYTES];
            let (answer, _) = packet::receive(&socket, &mut buffer)?;
            // It has exited meanwhile, and released everything.
            if answer.is_empty() { Ok(None) } else { serde_json::from_slice(answer).map(Some) }.map_err(io::Error::from)
        };
        match asked() {
            Ok(None) => Ok(None),
            Ok(Some(Answer::Done { changed })) => Ok(Some(changed)),
            Ok(Some(Answer::Refused(why))) => Err(silent(why)),
            Err(error) => Err(silent(error.to_string())),
        }
    }

    fn end_reader(&self, silent: &ReaderFailure) -> io::Result<()> {
        let Some(process) = &silent.reader else { return Ok(()) };
        tracing::warn!(why = silent.why, "killing the peer reader");
        process.kill()?;
        if process.wait_until_ended(END_LIMIT)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }
}
