//! Looks after block servers: one that died has a successor at once, whatever else the daemon is doing.
//!
//! It is a thread of its own because who waits for a volume's I/O may be the daemon itself, with all that waits for it.

use std::io;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use bulkhead_core::backend::device_owner;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_sys::process::Handle;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::service::{self, Service, Watch};
use bulkhead_sys::ublk::{Control, State};

use crate::kernel::Kernel;

/// How long the daemon waits for the first successors before it goes on without them.
const FIRST_LIMIT: Duration = Duration::from_secs(20);

/// After how long a server that could not be started is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Starts successors for the servers that are gone now, and a thread that does so for those that will be, as long as this process
/// lives.
///
/// # Errors
/// `Internal` when the servers cannot be watched.
pub fn look_after() -> Result<(), Fault> {
    let failed =
        |error: io::Error| Fault::new(Code::Internal, "block servers", format!("they cannot be watched: {error}"));
    let servers = Servers { roots: Roots::host(), kernel: Kernel::host() };
    let watch = Watch::new(&servers.roots).map_err(failed)?;
    let thread = thread::Builder::new().name("servers".to_owned());
    let (settled, hears) = channel();
    let look = move || {
        loop {
            let found = servers.settle();
            // Only the first time somebody waits for that.
            let _ = settled.send(());
            watch.wait(&found.alive, found.gone.then_some(AGAIN));
        }
    };
    thread.spawn(look).map_err(failed)?;
    if hears.recv_timeout(FIRST_LIMIT).is_err() {
        tracing::warn!("a block server that is gone has no successor yet: what asks for its volume waits");
    }
    Ok(())
}

struct Servers {
    roots: Roots,
    kernel: Kernel,
}

/// What was found of the servers.
struct Found {
    alive: Vec<Handle>,
    /// Whether one has no successor.
    gone: bool,
}

impl Servers {
    /// Looks at all devices, and starts successors.
    fn settle(&self) -> Found {
        let mut found = Found { alive: Vec::new(), gone: false };
        let told = service::all(&self.roots).unwrap_or_else(|error| {
            tracing::error!(%error, "the block servers cannot be listed");
            Vec::new()
        });
        for (id, service) in told {
            match self.server(id, &service) {
                Ok(server) => found.alive.extend(server),
                Err(why) => {
                    tracing::error!(image = %service.image.display(), why, "a block server is gone and has no successor");
                    found.gone = true;
                }
            }
        }
        found
    }

    /// The server of a device, or its successor; `None` when the device is gone, or going.
    fn server(&self, id: u32, service: &Service) -> Result<Option<Handle>, String> {
        for started in [false, true] {
            let device = Control::open(&self.roots).and_then(|mut control| control.info(id)).map_err(|e| chain(&e))?;
            let is_ours = |owner| owner == device_owner(service.volume);
            let Some(device) = device.filter(|device| is_ours(device.owner) && device.state != State::Dead) else {
                return Ok(None);
            };
            if let Some(server) = device.server().map_err(|e| e.to_string())? {
                return Ok(Some(server));
            }
            if !started {
                let pid = device.server_pid;
                tracing::warn!(image = %service.image.display(), pid, "a block server is gone: another takes over");
                self.start(service)?;
            }
        }
        Err("it ended again".to_owned())
    }

    fn start(&self, service: &Service) -> Result<(), String> {
        // The tenant may be gone with its cgroups; whoever has the volume now puts the server into its own.
        let is_there = |cgroup: &String| self.roots.cgroup.join(cgroup).is_dir();
        let service = Service { cgroup: service.cgroup.clone().filter(is_there), ..service.clone() };
        self.kernel.succeed(&service).map_err(|fault| fault.cause)
    }
}
