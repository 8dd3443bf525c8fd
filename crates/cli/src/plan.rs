//! `bulkhead plan`: which workload belongs on which device of which host, with reasons.
//!
//! Owns: reading the fleet file or the daemon's report, and what is printed. Does not: predict or place (`bulkhead_advise`), or change anything.

mod commands;
mod report;

use std::path::{Path, PathBuf};

use bulkhead_advise::fleet::{FleetFile, parse};
use bulkhead_advise::place::{self, Fleet, Place, Workload};
use bulkhead_api::client::Client;
use bulkhead_core::demand::Demand;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::read_limited;

use crate::args::PlanArgs;
use crate::block_on;
use crate::output::Output;
use crate::parse::invalid;

/// Limit of the size of a fleet file, and of each file that it names.
const LIMIT: Bytes = Bytes::mib(64);

/// What messages call the fleet of this host alone.
const HERE: &str = "this host";

/// Plans, and prints the plan.
///
/// # Errors
/// `InvalidArgument` for a fleet file that cannot be used, errors of the daemon, and if constraints cannot hold, after the plan was printed.
pub(crate) fn run(args: &PlanArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let (source, mut file) = match &args.fleet {
        Some(path) => (path.display().to_string(), read(path)?),
        None => (HERE.to_owned(), here(client)?),
    };
    let new = args.one_more.as_deref().map(|name| newcomer(&mut file, args, &source, name)).transpose()?;
    let fleet = &file.fleet;
    let today: Option<Vec<Place>> = fleet.workloads.iter().map(|workload| workload.now).collect();
    // A host asked about one more is not planned again.
    let is_today = args.today || (args.here && new.is_some());
    let placement = if is_today {
        let missing = fleet.workloads.iter().find(|workload| workload.now.is_none());
        match today {
            Some(places) => place::judge(fleet, places),
            None => {
                let name = missing.map_or("", |workload| &workload.name);
                return Err(invalid(source, format!("workload {name:?} has no key `on`: --today needs it")));
            }
        }
    } else {
        place::place(fleet)
    };
    if let Some(new) = &new {
        report::one_more(&file, &placement, new, output)?;
        report::unknown(&file, output);
        return Ok(());
    }
    if args.commands {
        return output.lines(&commands::of(&file, &placement));
    }
    report::plan(&file, &placement, !args.today, output)?;
    if placement.broken.is_empty() {
        return Ok(());
    }
    let first = report::broken(fleet, &placement.broken[0], None);
    let cause = match placement.broken.len() {
        1 => first,
        n => format!("{first}; and {} more", n - 1),
    };
    let what = if args.today {
        "today's places break constraints"
    } else {
        "no placement was found that keeps all constraints"
    };
    Err(Fault::new(Code::InvalidArgument, source, format!("{what}: {cause}")).hint(if args.today {
        "without --today, a placement that keeps them is looked for"
    } else {
        "add hosts or space, lower floors, or allow more hosts"
    }))
}

/// The fleet of this host alone, as its daemon reports it.
fn here(client: &Client) -> Result<FleetFile, Fault> {
    let report = block_on(client.host_report())?;
    if report.devices.iter().all(|device| device.costs.is_none()) {
        let cause = if report.devices.is_empty() { "it has no pools" } else { "no device has costs" };
        return Err(Fault::new(Code::NotFound, HERE, format!("{cause}: nothing can be predicted"))
            .hint("run `bulkhead device costs DIRECTORY --save` with a directory of each pool's file system"));
    }
    let text = serde_json::to_string(&report).map_err(|error| Fault::new(Code::Internal, HERE, error))?;
    parse("[[host]]\nname = \"here\"\nreport = \"the daemon's report\"\n", &|_| Ok(text.clone()))
        .map_err(|error| invalid(HERE, error))
}

/// The one more workload: a copy of one of the fleet, or one with the given demand, which the fleet has from then on.
fn newcomer(file: &mut FleetFile, args: &PlanArgs, source: &str, name: &str) -> Result<Workload, Fault> {
    let Some(path) = &args.demand else {
        return find(&file.fleet, source, name).map(|at| file.fleet.workloads[at].clone());
    };
    let bytes = read_limited(path, LIMIT)
        .map_err(|error| Fault::new(Code::NotFound, path.display(), format!("cannot read it ({error})")))?;
    let demand: Demand = serde_json::from_slice(&bytes).map_err(|error| invalid(path.display(), error))?;
    demand.check().map_err(|error| invalid(path.display(), error))?;
    file.fleet.demands.push(demand);
    Ok(Workload::new(name, file.fleet.demands.len() - 1))
}

fn read(path: &Path) -> Result<FleetFile, Fault> {
    let unreadable =
        |error: &dyn std::fmt::Display| Fault::new(Code::NotFound, path.display(), format!("cannot read it ({error})"));
    let bytes = read_limited(path, LIMIT).map_err(|error| unreadable(&error))?;
    let text = String::from_utf8(bytes).map_err(|_| invalid(path.display(), "it is not UTF-8"))?;
    let dir = path.parent().map(Path::to_owned).unwrap_or_default();
    let beside = |named: &Path| -> Result<String, String> {
        let named: PathBuf = dir.join(named);
        let bytes = read_limited(&named, LIMIT).map_err(|error| format!("cannot read {}: {error}", named.display()))?;
        String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", named.display()))
    };
    parse(&text, &beside).map_err(|error| invalid(path.display(), error))
}

fn find(fleet: &Fleet, source: &str, name: &str) -> Result<usize, Fault> {
    fleet.workloads.iter().position(|workload| workload.name == name).ok_or_else(|| {
        let known: Vec<&str> = fleet.workloads.iter().take(10).map(|workload| workload.name.as_str()).collect();
        let has = if known.is_empty() { "no workload with a demand".to_owned() } else { known.join(", ") };
        Fault::new(Code::NotFound, source, format!("it has no workload {name:?}"))
            .hint(format!("it has {has}; a new one needs `--demand FILE`"))
    })
}
