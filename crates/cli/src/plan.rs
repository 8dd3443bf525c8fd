//! `bulkhead plan`: which workload belongs on which device of which host, with reasons.
//!
//! Owns: reading the fleet file, and what is printed. Does not: predict or place (`bulkhead_advise`), or change anything.

mod commands;
mod report;

use std::path::{Path, PathBuf};

use bulkhead_advise::fleet::{FleetFile, parse};
use bulkhead_advise::place::{self, Fleet, Place};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::read_limited;

use crate::args::PlanArgs;
use crate::output::Output;
use crate::parse::invalid;

/// Limit of the size of a fleet file, and of each file that it names.
const LIMIT: Bytes = Bytes::mib(64);

/// Plans, and prints the plan.
///
/// # Errors
/// `InvalidArgument` for a fleet file that cannot be used, and if constraints cannot hold, after the plan was printed.
pub(crate) fn run(args: &PlanArgs, output: &Output) -> Result<(), Fault> {
    let file = read(&args.fleet)?;
    let fleet = &file.fleet;
    let today: Option<Vec<Place>> = fleet.workloads.iter().map(|workload| workload.now).collect();
    let placement = if args.today {
        let missing = fleet.workloads.iter().find(|workload| workload.now.is_none());
        match today {
            Some(places) => place::judge(fleet, places),
            None => {
                let name = missing.map_or("", |workload| &workload.name);
                return Err(invalid(
                    args.fleet.display(),
                    format!("workload {name:?} has no key `on`: --today needs it"),
                ));
            }
        }
    } else {
        place::place(fleet)
    };
    if let Some(name) = &args.one_more {
        return report::one_more(fleet, &placement, find(fleet, args, name)?, output);
    }
    if args.commands {
        return output.lines(&commands::of(&file, &placement));
    }
    report::plan(&file, &placement, !args.today, output)?;
    if placement.broken.is_empty() {
        return Ok(());
    }
    let first = report::broken(fleet, &placement.broken[0]);
    let cause = match placement.broken.len() {
        1 => first,
        n => format!("{first}; and {} more", n - 1),
    };
    let what = if args.today {
        "today's places break constraints"
    } else {
        "no placement was found that keeps all constraints"
    };
    Err(Fault::new(Code::InvalidArgument, args.fleet.display(), format!("{what}: {cause}")).hint(if args.today {
        "without --today, a placement that keeps them is looked for"
    } else {
        "add hosts or space, lower floors, or allow more hosts"
    }))
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

fn find(fleet: &Fleet, args: &PlanArgs, name: &str) -> Result<usize, Fault> {
    fleet.workloads.iter().position(|workload| workload.name == name).ok_or_else(|| {
        let known: Vec<&str> = fleet.workloads.iter().take(10).map(|workload| workload.name.as_str()).collect();
        Fault::new(Code::NotFound, args.fleet.display(), format!("it has no workload {name:?}"))
            .hint(format!("it has {}", known.join(", ")))
    })
}
