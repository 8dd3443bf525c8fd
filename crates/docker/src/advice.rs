//! An error as Docker's users read it: hints name options of `docker volume create`.

use bulkhead_core::error::Fault;
use bulkhead_core::reason::Reason;

/// The text of an error: its object, its cause, and what to do about it.
pub(crate) fn text(fault: &Fault) -> String {
    let hint = fault.reason.as_deref().and_then(hint).unwrap_or_else(|| fault.hint.clone());
    if hint.is_empty() { fault.to_string() } else { format!("{fault}; {hint}") }
}

/// The hint for a reason whose remedy Docker has its own words for; `None`: the neutral one of the daemon.
fn hint(reason: &Reason) -> Option<String> {
    Some(match reason {
        Reason::FastCommitNeedsExt4 => "omit --opt fast-commit, or set --opt fs=ext4".to_owned(),
        Reason::OnDemandNeedsThin { .. } => "omit --opt provision=on-demand, or choose another --opt pool".to_owned(),
        Reason::NoSuchPool { .. } => "`bulkhead pool ls` lists the pools for --opt pool".to_owned(),
        Reason::DaemonUnreachable => "start it: `systemctl start bulkhead`".to_owned(),
        Reason::RemovalOfAttached { volume, tenant } => {
            format!("stop what uses it, then detach it: `bulkhead tenant set {tenant} --detach {volume}`")
        }
        _ => return None,
    })
}
