//! `bulkhead`: the command line. It parses arguments, sends requests to the daemon, and prints the answers.
//!
//! Owns: arguments (`args.rs`), output (`output.rs`, `show.rs`), and the commands that do their work in this process, such as the
//! daemon, `run`, `top`, `blame`, `demo` and the hidden ones that the daemon starts; `commands.rs` has those that only send a request. Does not: decide what an operation does. Standard output is data; everything else goes to standard error.

#![forbid(unsafe_code)]

mod advice;
mod args;
mod blame;
mod blockd;
mod calibrate;
mod commands;
mod costs;
mod csi;
mod daemon;
mod demo;
mod docker;
mod docs;
mod doctor;
mod heatmap;
mod hold;
mod image;
mod job;
mod journal;
mod nest;
mod observe;
mod output;
mod parse;
mod plan;
mod plugin;
mod profile;
mod progress;
mod ready;
mod run;
mod show;
mod stream;
mod sweep;
mod top;
mod transfer;
mod trim;
mod work;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_engine::kernel::subprocess;
use clap::Parser as _;

use crate::args::{Cli, Command, DeviceCommand, Format, JournalCommand};
use crate::observe::Source;
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let output = Output::new(cli.output);
    match dispatch(cli, &output) {
        Ok(code) => code,
        Err(fault) => output.fail(&fault),
    }
}

fn dispatch(cli: Cli, output: &Output) -> Result<ExitCode, Fault> {
    let client = Client::new(&cli.socket).with_wait(Duration::from_secs(cli.wait));
    match cli.command {
        Command::Daemon(args) => daemon::run(args, cli.socket).map(|()| ExitCode::SUCCESS),
        Command::Csi(args) => csi::run(&args, client).map(|()| ExitCode::SUCCESS),
        Command::DockerPlugin(args) => docker::run(&args, client).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => Ok(run::run(&args, &client, output)),
        Command::Enter(args) => Ok(run::enter(args, &client, output)),
        Command::Doctor(args) => doctor::run(&args, output),
        Command::Nest(args) => nest::run(&args, output).map(|()| ExitCode::SUCCESS),
        Command::Profile(args) => profile::run(&args, &client, output).map(|()| ExitCode::SUCCESS),
        Command::Sweep(args) => sweep::run(&args, client, output).map(|()| ExitCode::SUCCESS),
        Command::Plan(args) => plan::run(&args, &client, output).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::run(&args, output).map(|()| ExitCode::SUCCESS),
        Command::Blockd(args) => blockd::run(&args, output).map(|()| ExitCode::SUCCESS),
        Command::Peers => blockd::peer_reader().map(|()| ExitCode::SUCCESS),
        Command::Act { action } => subprocess::act(&action, std::io::stdout().lock()).map(|()| ExitCode::SUCCESS),
        Command::Work { spec } => work::run(&spec).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => bulkhead_measure::load::main(&args)
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| demo::fault("experiment", error)),
        Command::Device(DeviceCommand::Costs(args)) => costs::run(&args, &client, output).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args, cli.socket, output).map(|()| ExitCode::SUCCESS),
        Command::Blame(args) => {
            blame::run(&args, &Source::open(cli.socket, output)?, output).map(|()| ExitCode::SUCCESS)
        }
        Command::Journal(JournalCommand::Calibrate(args)) => {
            journal::calibrate(&args, output).map(|()| ExitCode::SUCCESS)
        }
        Command::Completions { shell } => docs::completions(shell, output).map(|()| ExitCode::SUCCESS),
        Command::Docs { directory } => docs::write(&directory).map(|()| ExitCode::SUCCESS),
        command => {
            let client = client.with_listener(Arc::new(job::Waiting::new(output)));
            block_on(commands::carry_out(command, &client, output)).map(|()| ExitCode::SUCCESS)
        }
    }
}

/// Runs requests to the daemon on this thread: `run` must not have other threads (see `bulkhead_sys::namespace`).
pub(crate) fn block_on<T>(request: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let failed = |error| Fault::new(Code::Internal, "bulkhead", format!("cannot wait for the daemon ({error})"));
    runtime.map_err(failed)?.block_on(request)
}

/// Prints clap's output: help and version are data, everything else is a usage error.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        };
    }
    // The arguments could not be parsed, so the output format is searched in them directly.
    let words: Vec<String> = std::env::args().collect();
    let by_option = words.iter().any(|word| matches!(word.as_str(), "--output=json" | "-ojson" | "-o=json"))
        || words.windows(2).any(|pair| matches!(pair[0].as_str(), "--output" | "-o") && pair[1] == "json");
    let by_environment = std::env::var("BULKHEAD_OUTPUT").is_ok_and(|value| value == "json");
    if by_option || by_environment {
        let text = error.render().to_string();
        let mut paragraphs = text.split("\n\n");
        let cause = paragraphs.next().unwrap_or_default().trim_start_matches("error: ").trim();
        let cause = cause.split_whitespace().collect::<Vec<_>>().join(" ");
        let fault = Fault::new(Code::InvalidArgument, "command line", cause).hint("`--help` shows the valid arguments");
        return Output::new(Format::Json).fail(&fault);
    }
    output::usage_error(&error.render().to_string())
}
