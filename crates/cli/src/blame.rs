//! `bulkhead blame`: whose writes made whose fsync slow.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::observe::identity::Identity;
use bulkhead_core::observe::view::{BlameView, Observation};

use crate::args::BlameArgs;
use crate::observe::{self, Source, waited};
use crate::output::{Output, columns};

/// Most culprits that get a column of their own.
const MAX_COLUMNS: usize = 8;

/// Watches and prints.
///
/// # Errors
/// Those of the source, `NotFound` when the victim is not there.
pub(crate) fn run(args: &BlameArgs, source: &Source, output: &Output) -> Result<(), Fault> {
    if args.total {
        return print(args, source.observe()?, output);
    }
    loop {
        if !output.is_json() && !args.follow {
            output.say(&format!("watching for {} s", args.watch));
        }
        print(args, source.watch(args.watch)?, output)?;
        if !args.follow {
            return Ok(());
        }
    }
}

fn print(args: &BlameArgs, mut seen: Observation, output: &Output) -> Result<(), Fault> {
    if let Some(victim) = &args.victim {
        let is_known = seen.containers.iter().any(|view| view.identity.name == *victim);
        seen.blame.retain(|view| view.victim.name == *victim);
        if seen.blame.is_empty() && !is_known && !args.follow {
            let cause = "no container of that name did anything in this time";
            return Err(Fault::new(Code::NotFound, format!("container {victim}"), cause)
                .cure("`bulkhead top --once` lists those that did"));
        }
    }
    if output.is_json() {
        return output.json(&seen.blame);
    }
    for line in observe::warnings(&seen) {
        output.say(&format!("note: {line}"));
    }
    if seen.blame.is_empty() {
        output.say("nobody waited in fsync on an ext4 file system");
        return Ok(());
    }
    output.lines(&matrix(&seen.blame))
}

/// One line for each victim, one column for each culprit, those with most seconds first.
fn matrix(blame: &[BlameView]) -> Vec<String> {
    let by_victim = ranked(blame, |view| Some(&view.victim));
    let mut culprits = ranked(blame, |view| view.culprit.as_ref().filter(|culprit| **culprit != view.victim));
    culprits.truncate(MAX_COLUMNS);
    let mut head = vec!["VICTIM".to_owned(), "WAITED".to_owned(), "ITSELF".to_owned()];
    head.extend(culprits.iter().map(|culprit| culprit.name.clone()));
    head.extend(["OTHERS".to_owned(), "UNKNOWN".to_owned()]);
    let rows =
        by_victim.iter().map(|victim| {
            let sum = |wanted: &dyn Fn(Option<&Identity>) -> bool| -> String {
                let of_victim = blame.iter().filter(|view| view.victim == **victim);
                waited(of_victim.filter(|view| wanted(view.culprit.as_ref())).map(|view| view.seconds).sum())
            };
            let mut row = vec![victim.name.clone(), sum(&|_| true), sum(&|culprit| culprit == Some(*victim))];
            row.extend(culprits.iter().map(|column| {
                if column == victim { "\"".to_owned() } else { sum(&|culprit| culprit == Some(*column)) }
            }));
            let is_other = |culprit: Option<&Identity>| {
                culprit.is_some_and(|culprit| culprit != *victim && !culprits.contains(&culprit))
            };
            row.extend([sum(&is_other), sum(&|culprit| culprit.is_none())]);
            row
        });
    columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// Those that `of` names, by their seconds.
fn ranked<'a>(blame: &'a [BlameView], of: impl Fn(&'a BlameView) -> Option<&'a Identity>) -> Vec<&'a Identity> {
    let mut sums: Vec<(&Identity, f64)> = Vec::new();
    for view in blame {
        let Some(identity) = of(view) else { continue };
        match sums.iter_mut().find(|(other, _)| *other == identity) {
            Some((_, sum)) => *sum += view.seconds,
            None => sums.push((identity, view.seconds)),
        }
    }
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.into_iter().map(|(identity, _)| identity).collect()
}
