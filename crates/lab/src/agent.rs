//! The agent: runs in the guest as a child of process 1, and executes requests of the host from a virtio-serial port.
//!
//! Owns the processes that it starts. It exits, and thereby powers the machine off, on request or when the host
//! disconnects: no machine outlives its owner. Does not: keep state on disk.

mod hold;
mod processes;
mod snapshot;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::protocol::{Envelope, Event, PORT_NAME, Payload, Reply, Request};
use hold::{Hold, Running};
use processes::Processes;

/// Kernel messages from this level down reach the console log (warnings and worse).
const CONSOLE_LOG_LEVEL: &str = "5";
/// How long the port may report "host not connected" before the first request.
const FIRST_CONTACT: Duration = Duration::from_secs(60);

/// Pause between two checks for the host.
const CONTACT_PAUSE: Duration = Duration::from_millis(100);

/// Entry point of the agent: does not return while the host is connected.
#[must_use]
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "bulkhead-lab-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The program's name.
pub(crate) const PROGRAM: &str = "bulkhead-lab-agent";
/// The argument that makes the agent hold guest time between requests.
pub(crate) const HOLD_TIME: &str = "--hold-time";

/// The sending side of the port; one line per reply, from any thread.
#[derive(Debug, Clone)]
struct Replies {
    port: Arc<Mutex<File>>,
    hold: Hold,
}

impl Replies {
    fn send(&self, id: u64, event: Event) {
        let reply = Reply { id, event };
        let Ok(mut line) = serde_json::to_vec(&reply) else { return };
        line.push(b'\n');
        // Recorded before it is sent: the host may wait for the process as soon as it has read this.
        self.hold.record(id, &reply.event);
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        // If the host has disconnected, the reading side notices and the agent exits.
        let _ = port.write_all(&line);
    }
}

fn serve() -> Result<()> {
    // Optional: an agent that cannot set it still works.
    let _ = std::fs::write("/proc/sys/kernel/printk", CONSOLE_LOG_LEVEL);
    let path = Path::new("/dev/virtio-ports").join(PORT_NAME);
    let port = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("cannot open the port to the host {}", path.display()))?;
    let mut lines = BufReader::new(port.try_clone().context("cannot duplicate the port's descriptor")?);
    let hold = Hold::default();
    if std::env::args().nth(1).as_deref() == Some(HOLD_TIME) {
        hold.start();
    }
    let replies = Replies { port: Arc::new(Mutex::new(port)), hold: hold.clone() };
    let processes = Processes::default();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    replies.send(0, Event::Hello { kernel: kernel.trim().to_owned() });

    let started = Instant::now();
    let mut in_contact = false;
    let mut line = String::new();
    loop {
        line.clear();
        if lines.read_line(&mut line).context("cannot read from the port to the host")? == 0 {
            if in_contact || started.elapsed() > FIRST_CONTACT {
                return Ok(());
            }
            // The host has not connected yet.
            pause(CONTACT_PAUSE);
            continue;
        }
        in_contact = true;
        let envelope: Envelope = serde_json::from_str(&line).context("cannot parse a request of the host")?;
        let (id, request) = (envelope.id, envelope.request);
        if matches!(request, Request::Shutdown) {
            processes.kill_all();
            replies.send(id, Event::Done);
            return Ok(());
        }
        if let Request::Await { target, seen } = request {
            hold.run_until_event(target, seen);
            continue;
        }
        let (replies, processes, running) = (replies.clone(), processes.clone(), hold.run());
        std::thread::spawn(move || {
            if let Err(error) = answer(id, request, &replies, &processes, running) {
                replies.send(id, Event::Failed { message: format!("{error:#}") });
            }
        });
    }
}

#[expect(clippy::disallowed_methods, reason = "the host requests the pause between two probes")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn answer(id: u64, request: Request, replies: &Replies, processes: &Processes, running: Running) -> Result<()> {
    let event = match request {
        Request::Spawn { argv, env, stdin } => return processes.run(id, &argv, env, stdin, replies, running),
        Request::Signal { target, signal, group } => {
            processes.signal(target, signal, group)?;
            Event::Done
        }
        Request::ReadFile { path } => {
            let data = std::fs::read(&path).with_context(|| format!("cannot read {path} in the guest"))?;
            Event::File(Payload::new(&data))
        }
        Request::WriteFile { path, data } => {
            let data = data.into_bytes().ok_or_else(|| anyhow!("data for {path} is not valid hexadecimal"))?;
            std::fs::write(&path, data).with_context(|| format!("cannot write {path} in the guest"))?;
            Event::Done
        }
        Request::Disk { serial } => Event::Disk(find_disk(&serial)),
        Request::Snapshot => Event::Snapshot(snapshot::take()?),
        Request::Pause { milliseconds } => {
            pause(Duration::from_millis(milliseconds));
            Event::Done
        }
        Request::Await { .. } | Request::Shutdown => Event::Done,
    };
    replies.send(id, event);
    drop(running);
    Ok(())
}

/// The node in /dev of the disk with this serial number, once it is a block device.
fn find_disk(serial: &str) -> Option<String> {
    use std::os::unix::fs::FileTypeExt as _;
    let entry = std::fs::read_dir("/sys/block")
        .ok()?
        .flatten()
        .find(|entry| std::fs::read_to_string(entry.path().join("serial")).is_ok_and(|found| found.trim() == serial))?;
    let node = PathBuf::from("/dev").join(entry.file_name());
    let is_block = std::fs::metadata(&node).is_ok_and(|meta| meta.file_type().is_block_device());
    is_block.then(|| node.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_awaited_before_its_start_is_fully_sent() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let hold = Hold::default();
        let replies = Replies { port: Arc::new(Mutex::new(File::from(writer))), hold: hold.clone() };
        let sender = std::thread::spawn(move || replies.send(7, Event::Started { pid: 1 }));
        let end = Instant::now() + Duration::from_secs(10);
        while hold.reasons() == 0 {
            assert!(Instant::now() < end, "the host waits for a process that is not known yet");
            hold.run_until_event(7, 1);
            std::thread::yield_now();
        }
        // Drop the reader first, so that the sender's write returns.
        drop(reader);
        sender.join().unwrap();
    }
}
