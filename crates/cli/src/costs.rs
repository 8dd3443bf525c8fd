//! `bulkhead device costs`: measures what the requests of a device cost, for `bulkhead plan`.

use bulkhead_core::error::{Code, Fault};
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::costs::{self, Request};

use crate::args::CostsArgs;
use crate::demo::{check_programs, fault};
use crate::output::Output;
use crate::parse;
use crate::progress::Steps;

/// Measures, and prints the costs as JSON, the form in which a fleet file takes them.
///
/// # Errors
/// `NotFound` if there is no such directory, `Unsupported` without fio, and errors of the measurement.
pub(crate) fn run(args: &CostsArgs, output: &Output) -> Result<(), Fault> {
    if !args.directory.is_dir() {
        let object = format!("directory {}", args.directory.display());
        return Err(Fault::new(Code::NotFound, object, "there is no such directory"));
    }
    check_programs(&["fio"])?;
    let size = args.size.as_deref().map(parse::size).transpose()?;
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| fault("costs", error))?;
    let request = Request { directory: args.directory.clone(), size, cancel };
    let mut steps = Steps::new("costs", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let costs = costs::run(&request, &mut |done, of, doing| steps.step(done as u64, of as u64, doing));
    drop(steps);
    output.json(&costs.map_err(|error| fault("costs", error))?)
}
