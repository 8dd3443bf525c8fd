//! `bulkhead volume trim`: one volume after the other, so that there is one at a time for a disk to work on.

use bulkhead_api::client::Client;
use bulkhead_api::wire::{Done, TrimView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use serde::Serialize;

use crate::output::Output;

/// What came of it, as JSON.
#[derive(Debug, Default, Serialize)]
struct Trimmed {
    /// An answer for each volume that was trimmed.
    trimmed: Vec<Done<TrimView>>,
    /// Why others were passed over, when all were asked for.
    passed_over: Vec<Fault>,
}

/// Trims these volumes, or all that are mounted and can be trimmed. One that fails does not keep the others.
///
/// # Errors
/// The first fault, when all have been tried; at once when the daemon does not answer, or somebody cancelled it.
pub(crate) async fn run(
    asked: Option<Vec<VolumeRef>>,
    dry_run: bool,
    client: &Client,
    output: &Output,
) -> Result<(), Fault> {
    let (mut outcome, mut failed) = (Trimmed::default(), None);
    let is_all = asked.is_none();
    let volumes = match asked {
        Some(volumes) => volumes,
        None => client.volume_list(None).await?.into_iter().map(|view| view.volume).collect(),
    };
    for volume in volumes {
        match client.volume_trim(&volume, dry_run).await {
            Ok(done) => {
                say(&volume, &done, output)?;
                outcome.trimmed.push(done);
            }
            Err(fault) if is_all && is_passed_over(&volume, &fault, client).await => outcome.passed_over.push(fault),
            Err(fault) => {
                let is_the_end = matches!(fault.code, Code::Unavailable | Code::PermissionDenied | Code::Cancelled);
                // The first one is what the command ends with.
                match &failed {
                    Some(_) => output.warn(&fault),
                    None => failed = Some(fault),
                }
                if is_the_end {
                    break;
                }
            }
        }
    }
    if output.is_json() {
        output.json(&outcome)?;
    } else if is_all {
        let (trimmed, passed_over) = (outcome.trimmed.len(), outcome.passed_over.len());
        output.say(&format!("volumes trimmed: {trimmed}; skipped (not mounted, or cannot be trimmed): {passed_over}"));
    }
    failed.map_or(Ok(()), Err)
}

fn say(volume: &VolumeRef, done: &Done<TrimView>, output: &Output) -> Result<(), Fault> {
    if output.is_json() {
        return Ok(());
    }
    if let Some(view) = &done.object {
        output.say(&format!("volume {volume}: {} of free space trimmed", view.trimmed_bytes));
        return Ok(());
    }
    let steps: Vec<String> = done.steps.iter().map(|step| format!("would {}", step.action)).collect();
    output.lines(&steps)
}

/// Whether nothing is wrong: the volume is not to be trimmed, or is not mounted, or was detached or removed meanwhile.
async fn is_passed_over(volume: &VolumeRef, fault: &Fault, client: &Client) -> bool {
    match fault.code {
        Code::Unsupported => true,
        Code::InvalidArgument | Code::NotFound => match client.volume_inspect(volume).await {
            Ok(view) => view.mounted_at.is_none() || view.tenant.is_none(),
            Err(fault) => fault.code == Code::NotFound,
        },
        _ => false,
    }
}
