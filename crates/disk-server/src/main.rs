//! `bulkhead-lab-disk`: serves a simulated disk of the lab through ublk, in a guest and on the guest's clock. Owns the
//! command line; does not serve (`server`).
#![forbid(unsafe_code)]

mod server;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Simulated disks of the lab.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a disk until the process is killed; print its device node when it is ready
    Serve(Serve),
    /// Send a command to a running disk server, and print its answer
    Send {
        /// Name of the disk, as passed to `serve`
        name: String,
        #[arg(value_enum)]
        command: server::Command,
    },
}

/// Arguments of `serve`.
#[derive(Debug, clap::Args)]
struct Serve {
    /// Name of the disk, and of its control socket
    name: String,
    /// Disk model: hdd, hdd-nocache, hdd-slow, ssd, ssd-slow, nvme, nvme-slow, fast or faulty
    #[arg(long)]
    model: String,
    /// PCI memory that stores the data (`resourceN` in sysfs)
    #[arg(long)]
    memory: PathBuf,
    /// Size of the disk, in bytes
    #[arg(long)]
    bytes: u64,
    /// The memory was never written to, and reads as zeroes
    #[arg(long)]
    new: bool,
    /// Simulate a volatile write cache: at a power cut unflushed blocks are kept or lost at random, from this seed
    #[arg(long, value_name = "SEED")]
    loses: Option<u64>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(serve) => server::serve(&serve),
        Command::Send { name, command } => server::send(&name, command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If this fails, there is nowhere left to report it.
            let _ = writeln!(std::io::stderr(), "bulkhead-lab-disk: {error:#}");
            ExitCode::FAILURE
        }
    }
}
