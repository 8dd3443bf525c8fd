//! `cargo xtask`: the development commands of this repository. Each command is a module; this file dispatches.
#![forbid(unsafe_code)]

mod chart;
mod check;
mod deb;
mod demo;
mod evidence;
mod fuzz;
mod lab;
mod licences;
mod test;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development commands of Bulkhead")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Formatting, lints, tests and licences: everything that runs without a virtual machine.
    Check,
    /// Checks with Helm that the chart in contrib/helm renders the manifests in contrib/kubernetes, and records the result, which `check` relies
    /// on until they change.
    Chart,
    /// Checks licences and sources of the dependencies with cargo-deny and records the result, which `check` relies on until they change;
    /// collects the licences of what is shipped.
    Deny,
    /// Builds the Debian package in target/debian.
    Deb(deb::Arguments),
    /// Runs the before/after demonstration in a virtual machine; the report goes to target/demo.
    Demo,
    /// Runs an experiment, writes docs/evidence/NAME.{json,svg,md}, and says whether its targets are met.
    Evidence(evidence::Arguments),
    /// Fuzzes the parsers of untrusted input: streams, indexes, layer attributes, packets, archives, OCI layouts.
    Fuzz(fuzz::Arguments),
    /// Boots virtual machines with stock kernels and simulated disks: acceptance cases, a shell, single commands.
    #[command(subcommand)]
    Lab(lab::Command),
    /// Runs the checks and the quick cases of the lab side by side; CI runs this for every change.
    Test,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Check => check::run().map(|()| ExitCode::SUCCESS),
        Command::Chart => chart::record().map(|()| ExitCode::SUCCESS),
        Command::Deny => check::record_dependencies().map(|()| ExitCode::SUCCESS),
        Command::Deb(arguments) => deb::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Demo => demo::run(),
        Command::Evidence(arguments) => evidence::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Lab(command) => lab::run(command),
        Command::Test => test::run(),
    };
    result.unwrap_or_else(|error| {
        // There is no way to report a closed standard error.
        let _ = writeln!(std::io::stderr(), "error: {error:#}");
        ExitCode::FAILURE
    })
}
