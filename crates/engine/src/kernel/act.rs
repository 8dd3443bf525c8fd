//! Carries out an action, in the file of its facet. Idempotent: an action that has been carried out before is detected, and reported as unchanged.

use bulkhead_core::action::{Action, Applied};
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;

use super::Kernel;

/// The result of an action.
pub(super) struct Outcome {
    pub(super) old: Option<String>,
    pub(super) changed: bool,
    /// Set by actions that discard blocks.
    pub(super) discarded_bytes: Option<Bytes>,
}

impl Outcome {
    pub(super) const DONE: Outcome = Outcome { old: None, changed: true, discarded_bytes: None };
    pub(super) const UNCHANGED: Outcome = Outcome { old: None, changed: false, discarded_bytes: None };

    pub(super) fn changed(changed: bool) -> Self {
        Self { changed, ..Self::DONE }
    }

    pub(super) fn discarded(bytes: Bytes) -> Self {
        Self { old: None, changed: bytes > Bytes(0), discarded_bytes: Some(bytes) }
    }
}

impl Kernel {
    pub(super) fn act(&self, action: &Action) -> Result<Applied, Fault> {
        let Outcome { old, changed, discarded_bytes } = match action {
            Action::State(action) => self.act_on_state(action),
            Action::Image(action) => self.act_on_image(action),
            Action::Layer(action) => self.act_on_layer(action),
            Action::Server(action) => self.act_on_server(action),
            Action::Lvm(action) => self.act_on_lvm(action),
            Action::Fs(action) => self.act_on_fs(action),
            Action::Mount(action) => self.act_on_mount(action),
            Action::Cgroup(action) => self.act_on_cgroup(action),
            Action::Queue(action) => self.act_on_queue(action),
        }?;
        Ok(Applied { action: action.clone(), old, changed, discarded_bytes })
    }
}
