//! Actions that wait for a tenant's I/O, each in a process of its own: a thread of the daemon that hangs in one could not be ended, and
//! would prevent the daemon from stopping.
//!
//! Owns: the selection of these actions, and when they are abandoned. An abandoned action continues in the kernel, which is harmless.

use std::io::Write;

use bulkhead_core::action::{Action, Applied, LayerAction, MountAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_sys::cgroup;
use bulkhead_sys::tool::Tool;

use super::Kernel;
use super::faults::Classify;
use crate::host::Mounts as _;
use crate::jobs::Job;

/// The hidden command that carries out one action, its argument, and prints the outcome.
pub const COMMAND: &str = "__act";

/// Whether an action may wait for a tenant's dirty data to be written within its limits.
fn may_wait(action: &Action) -> bool {
    matches!(
        action,
        Action::Mount(
            MountAction::SyncFs { .. }
                | MountAction::Mount { .. }
                | MountAction::Unmount { .. }
                | MountAction::TrimFs { .. }
        ) | Action::Layer(LayerAction::MergeLayers { .. })
    )
}

impl Kernel {
    /// Carries out an action, in another process if it may wait for a tenant's I/O and this host has such processes.
    pub(super) fn act_for(&self, action: &Action, job: &Job) -> Result<Applied, Fault> {
        if !self.has_processes || !may_wait(action) {
            return self.act(action);
        }
        if let Action::Mount(MountAction::Unmount { target }) = action
            && self.is_mounted(target)?
        {
            // Unmounting cannot be abandoned half-way, but writing can: dirty data is written first. Data that cannot be written, for
            // example to a full disk, does not prevent the unmount.
            let written = run_in_subprocess(&Action::Mount(MountAction::SyncFs { target: target.clone() }), job)?;
            if let Err(fault) = written {
                tracing::warn!(target = %target.display(), %fault, "not all dirty data could be written");
            }
        }
        run_in_subprocess(action, job)?
    }
}

/// Carries out an action in another process.
///
/// # Errors
/// The job's, when it stops waiting; inside, the action's.
fn run_in_subprocess(action: &Action, job: &Job) -> Result<Result<Applied, Fault>, Fault> {
    let internal = |cause: &dyn std::fmt::Display| Fault::new(Code::Internal, action, cause);
    let text = serde_json::to_string(action).map_err(|error| internal(&error))?;
    let mut tool = Tool::this_program().arg(COMMAND).arg(text);
    if matches!(action, Action::Layer(LayerAction::MergeLayers { .. }) | Action::Mount(MountAction::TrimFs { .. })) {
        // After the daemon has exited, nothing would complete the copy or count the discarded bytes.
        tool = tool.dies_with_parent();
    }
    let outcome = tool.run_while(|| job.keep_waiting())?;
    Ok(outcome.map_err(|error| error.fault(action)).and_then(|output| {
        serde_json::from_str::<Result<Applied, Fault>>(&output.stdout).unwrap_or_else(|error| Err(internal(&error)))
    }))
}

/// Carries out the action that a daemon gave this process.
///
/// # Errors
/// `InvalidArgument` for an invalid action; `Internal` when the outcome cannot be written.
pub fn act(text: &str, mut out: impl Write) -> Result<(), Fault> {
    let action: Action = serde_json::from_str(text)
        .map_err(|error| Fault::new(Code::InvalidArgument, "action", format!("it cannot be read ({error})")))?;
    let kernel = Kernel::host();
    let outcome = match &action {
        Action::Layer(LayerAction::MergeLayers { cgroup: Some(cgroup), .. }) => {
            // The tenant may be gone; then the daemon's cgroup pays.
            if let Err(fault) = join(&kernel, cgroup) {
                tracing::info!(%fault, "the copy of layers is not charged to its cgroup");
            }
            kernel.act(&action)
        }
        // Trimming is not urgent: without the tenant's cgroup it is not done.
        Action::Mount(MountAction::TrimFs { cgroup, .. }) => join(&kernel, cgroup).and_then(|()| kernel.act(&action)),
        _ => kernel.act(&action),
    };
    serde_json::to_writer(&mut out, &outcome).map_err(|error| Fault::new(Code::Internal, "action", error))
}

/// Moves this process into a cgroup, which pays for its further I/O.
fn join(kernel: &Kernel, cgroup: &CgroupPath) -> Result<(), Fault> {
    cgroup::move_pid(&kernel.roots, std::process::id(), cgroup).map_err(|error| error.fault(format!("cgroup {cgroup}")))
}
