//! Trimming a volume, which may take long: each part claims the volume separately, and other operations can claim it in between.

use std::sync::Arc;

use bulkhead_api::wire::{Done, TrimView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;

use super::{Service, Terms, blocking};
use crate::engine::Engine;
use crate::jobs::{JobSpec, Running};
use crate::locks::Claim;
use crate::trim::Trimming;

impl Service {
    /// Trims a mounted volume. Ends when the client disconnects; the parts trimmed by then stay trimmed.
    ///
    /// # Errors
    /// `Unsupported` for a volume that must not be trimmed; `InvalidArgument` for one that is not mounted, or was detached
    /// meanwhile; `Cancelled`.
    pub async fn volume_trim(&self, volume: VolumeRef, terms: Terms) -> Result<Done<TrimView>, Fault> {
        let operation = format!("trim volume {volume}");
        let spec = JobSpec { operation, request: terms.request, wait_limit: Some(terms.wait) };
        let running = self.0.engine.shared.jobs.begin(spec)?;
        let _wanted = running.cancel_on_drop();
        let service = self.clone();
        // A task of its own: the current part is waited for even after the client has disconnected.
        let trimming = tokio::spawn(async move {
            let running = running.begun();
            let outcome = service.trim_in_parts(&running, volume, terms.dry_run).await;
            running.end(&outcome);
            outcome
        });
        trimming.await.unwrap_or_else(|error| Err(Fault::new(Code::Internal, "daemon", error)))
    }

    async fn trim_in_parts(
        &self,
        running: &Running,
        volume: VolumeRef,
        dry_run: bool,
    ) -> Result<Done<TrimView>, Fault> {
        let engine = self.0.engine.for_job(running.job());
        let claim = Claim::default().volume(&volume);
        let find = Arc::new(move |_: &Engine| Ok(claim.clone()));
        let mut trimming = Trimming::default();
        loop {
            let ended = |fault| trimming.ended(fault);
            running.job().begin_part().map_err(ended)?;
            let held = self.claim(running, &engine, Arc::clone(&find)).await.map_err(ended)?;
            let (engine, volume, mut so_far) = (engine.clone(), volume.clone(), trimming);
            let done = blocking(move || {
                let done = engine.trim_next(&volume, &mut so_far, dry_run).map_err(|fault| so_far.ended(fault));
                drop(held);
                Ok((done?, so_far))
            });
            match done.await? {
                (Some(done), _) => return Ok(done),
                (None, so_far) => trimming = so_far,
            }
        }
    }
}

#[cfg(test)]
mod tests;
