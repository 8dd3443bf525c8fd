//! `bulkhead device costs`: measures what the requests of a device cost, for `bulkhead plan`.

use bulkhead_api::client::Client;
use bulkhead_api::wire::CostsStore;
use bulkhead_core::error::{Code, Fault};
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::costs::{self, Request};

use crate::args::CostsArgs;
use crate::block_on;
use crate::demo::{check_programs, fault};
use crate::output::Output;
use crate::parse;
use crate::progress::Steps;

/// Measures, and prints the costs as JSON, the form in which a fleet file takes them; stores them if that was asked for.
///
/// # Errors
/// `NotFound` if there is no such directory, `Unsupported` without fio, and errors of the measurement and of the daemon.
pub(crate) fn run(args: &CostsArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    if !args.directory.is_dir() {
        let object = format!("directory {}", args.directory.display());
        return Err(Fault::new(Code::NotFound, object, "there is no such directory"));
    }
    check_programs(&["fio"])?;
    let directory = std::fs::canonicalize(&args.directory).map_err(|error| {
        let object = format!("directory {}", args.directory.display());
        Fault::new(Code::NotFound, object, format!("it cannot be found ({error})"))
    })?;
    if args.save {
        // Before two minutes of work whose result could not be stored.
        block_on(client.healthz())?;
    }
    let size = args.size.as_deref().map(parse::size).transpose()?;
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| fault("costs", error))?;
    let request = Request { directory: args.directory.clone(), size, cancel };
    let mut steps = Steps::new("costs", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let costs = costs::run(&request, &mut |done, of, doing| steps.step(done as u64, of as u64, doing));
    drop(steps);
    let costs = costs.map_err(|error| fault("costs", error))?;
    output.json(&costs)?;
    if args.save {
        let done = block_on(client.costs_store(&CostsStore { directory, costs }, false))?;
        let device = done.object.map(|view| view.name).unwrap_or_default();
        output.say(&format!("device {device}: costs stored"));
    }
    Ok(())
}
