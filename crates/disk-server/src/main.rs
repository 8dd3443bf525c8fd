//! `bulkhead-lab-disk`: serves a simulated disk of the lab through ublk, in the guest whose clock its times are measured by.
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
    /// Serves a disk until the process is killed; prints its device node when it can be used.
    Serve(Serve),
    /// Tells the server of a disk something, and prints its answer.
    Tell {
        /// The name with which it was started.
        name: String,
        #[arg(value_enum)]
        word: server::Word,
    },
}

/// What is served.
#[derive(Debug, clap::Args)]
struct Serve {
    /// By which it is told things.
    name: String,
    /// hdd, hdd-nocache, ssd, nvme, fast or faulty.
    #[arg(long)]
    model: String,
    /// The medium: memory of a PCI device, as resourceN in sysfs.
    #[arg(long)]
    memory: PathBuf,
    /// Its size in bytes.
    #[arg(long)]
    bytes: u64,
    /// The medium was never written to: it reads as zeroes.
    #[arg(long)]
    new: bool,
    /// Simulate a volatile write cache: at a power cut unflushed blocks are kept or lost at random, by this seed.
    #[arg(long, value_name = "SEED")]
    loses: Option<u64>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(serve) => server::serve(&serve),
        Command::Tell { name, word } => server::tell(&name, word),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is nobody to tell when this fails.
            let _ = writeln!(std::io::stderr(), "bulkhead-lab-disk: {error:#}");
            ExitCode::FAILURE
        }
    }
}
