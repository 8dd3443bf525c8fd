//! `bulkhead blockd`: starts a block server in the background, for the daemon.

use bulkhead_blockd::{peers, start};
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::serve::ServeSpec;
use bulkhead_sys::roots::Roots;

use crate::args::{BlockdArgs, LogFormat};
use crate::daemon::start_log;
use crate::output::Output;

/// Starts a server and prints its device node; the background process serves until the device is removed.
///
/// # Errors
/// When the volume cannot be served; `InvalidArgument` for a malformed specification.
pub(crate) fn run(args: &BlockdArgs, output: &Output) -> Result<(), Fault> {
    let spec = spec(&args.spec)?;
    match start(&Roots::host(), &spec, args.requests, args.successor, try_start_log) {
        Ok(Some(node)) => output.lines(&[node.display().to_string()]),
        Ok(None) => Ok(()),
        Err(error) => Err(Fault::new(Code::Internal, format!("image {}", spec.image.display()), chain(&error))),
    }
}

fn spec(text: &str) -> Result<ServeSpec, Fault> {
    serde_json::from_str(text).map_err(|error| {
        Fault::new(Code::InvalidArgument, "block server", format!("cannot parse the specification ({error})"))
    })
}

/// Starts the peer reader; the background process answers until it has no volume to read from.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn peer_reader() -> Result<(), Fault> {
    peers::start(&Roots::host(), try_start_log)
        .map_err(|error| Fault::new(Code::Internal, "peer reader", chain(&error)))
}

/// A server works without a log if none can be written.
fn try_start_log() {
    let _ = start_log(LogFormat::Text);
}

#[cfg(test)]
mod tests {
    use bulkhead_core::model::ReadFrom;
    use bulkhead_core::serve;
    use clap::Parser as _;
    use uuid::Uuid;

    use super::*;
    use crate::args::{Cli, Command};

    /// The arguments are those with which `Kernel::serve` starts a server.
    #[test]
    fn the_specification_is_parsed_whatever_its_paths_contain() {
        let wanted = ServeSpec {
            volume: Uuid::from_u128(7),
            image: "/srv/--image \"a\" \n ' b.img".into(),
            discards: true,
            layered: true,
            below: Some("/dev/vg/base".into()),
            flatten: true,
            read_from: ReadFrom::Both,
            domain: "--d".to_owned(),
            cgroup: Some("a b/server".parse().unwrap()),
        };
        let text = serde_json::to_string(&wanted).unwrap();
        let line = ["bulkhead", serve::COMMAND, &text, "--requests", "3", "--successor"];
        let Command::Blockd(args) = Cli::try_parse_from(line).unwrap().command else { panic!("another command") };
        assert_eq!((spec(&args.spec).unwrap(), args.requests, args.successor), (wanted, 3, true));
        assert_eq!(spec("{}").unwrap_err().code, Code::InvalidArgument);
    }
}
