//! `bulkhead blockd`: starts a block server in the background, for the daemon.

use bulkhead_blockd::{siblings, start};
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::service::Service;

use crate::args::{BlockdArgs, LogFormat};
use crate::daemon::start_log;
use crate::output::Output;

/// Starts a server and prints its device's node; in the background, serves until the device is removed.
///
/// # Errors
/// Why the volume cannot be served.
pub(crate) fn run(args: &BlockdArgs, output: &Output) -> Result<(), Fault> {
    let object = || format!("image {}", args.image.display());
    let service = Service {
        volume: args.volume,
        image: args.image.clone(),
        discards: args.discards,
        layered: args.layered,
        below: args.below.clone(),
        flatten: args.flatten,
        share: args.share,
        domain: args.domain.clone(),
        cgroup: args.cgroup.clone(),
    };
    match start(&Roots::host(), &service, args.requests, args.successor, begin_log) {
        Ok(Some(node)) => output.lines(&[node.display().to_string()]),
        Ok(None) => Ok(()),
        Err(error) => Err(Fault::new(Code::Internal, object(), chain(&error))),
    }
}

/// Starts the sibling reader in the background; in the background, answers until it has no volume to read from.
///
/// # Errors
/// Why it cannot.
pub(crate) fn siblings() -> Result<(), Fault> {
    siblings::start(&Roots::host(), begin_log)
        .map_err(|error| Fault::new(Code::Internal, "sibling reader", chain(&error)))
}

/// Without a log it serves all the same.
fn begin_log() {
    let _ = start_log(LogFormat::Text);
}
