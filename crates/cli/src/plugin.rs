//! What the processes of front ends have in common: their thread, and the signals that stop them.

use bulkhead_core::error::{Code, Fault};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a front end on this thread.
///
/// # Errors
/// Its own, and when the operating system grants no event loop; `object` names the front end.
pub(crate) fn block_on(object: &str, front_end: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Fault::new(Code::Internal, object, error))?.block_on(front_end)
}

/// From now on, `SIGTERM` and `SIGINT` resolve the result, which tells systemd so.
///
/// # Errors
/// When the signals cannot be handled; `object` names the front end.
pub(crate) fn stop(object: &str) -> Result<impl Future<Output = ()> + use<>, Fault> {
    let handled = |kind| signal(kind).map_err(|error| Fault::new(Code::Internal, object, error));
    let (mut terminate, mut interrupt) = (handled(SignalKind::terminate())?, handled(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = sd_notify::notify(&[NotifyState::Stopping]);
    })
}
