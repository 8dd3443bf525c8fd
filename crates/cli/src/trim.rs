//! `bulkhead volume trim`: trims one volume after the other, so that a disk is busy with only one at a time.

use bulkhead_api::client::Client;
use bulkhead_api::wire::{Done, TrimView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use serde::Serialize;

use crate::output::Output;

/// The result of the command, as JSON.
#[derive(Debug, Default, Serialize)]
struct Trimmed {
    /// One answer per trimmed volume.
    trimmed: Vec<Done<TrimView>>,
    /// With `--all`, why other volumes were skipped.
    passed_over: Vec<Fault>,
}

/// Trims these volumes, or all that are mounted and can be trimmed. A failure does not stop the others.
///
/// # Errors
/// The first fault, after all volumes have been tried; at once if the daemon does not answer or the job is cancelled.
pub(crate) async fn run(
    selected: Option<Vec<VolumeRef>>,
    dry_run: bool,
    client: &Client,
    output: &Output,
) -> Result<(), Fault> {
    let (mut outcome, mut failed) = (Trimmed::default(), None);
    let is_all = selected.is_none();
    let volumes = match selected {
        Some(volumes) => volumes,
        None => client.volume_list(None).await?.into_iter().map(|view| view.volume).collect(),
    };
    for volume in volumes {
        match client.volume_trim(&volume, dry_run).await {
            Ok(done) => {
                say(&volume, &done, output)?;
                outcome.trimmed.push(done);
            }
            Err(fault) if is_all && is_skipped(&volume, &fault, client).await => outcome.passed_over.push(fault),
            Err(fault) => {
                let is_the_end = matches!(fault.code, Code::Unavailable | Code::PermissionDenied | Code::Cancelled);
                // The command fails with the first fault.
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

/// Whether the fault is expected with `--all`: the volume cannot be trimmed, is not mounted, or was detached or removed in the meantime.
async fn is_skipped(volume: &VolumeRef, fault: &Fault, client: &Client) -> bool {
    match fault.code {
        Code::Unsupported => true,
        Code::InvalidArgument | Code::NotFound => match client.volume_inspect(volume).await {
            Ok(view) => view.mounted_at.is_none() || view.tenant.is_none(),
            Err(fault) => fault.code == Code::NotFound,
        },
        _ => false,
    }
}
