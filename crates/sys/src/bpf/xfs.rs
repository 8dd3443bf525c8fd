//! The kernel's own account of XFS logs: BPF programs on the tracepoints of xfs, in an object of their own, because a kernel
//! without xfs would refuse them.
//!
//! Owns loading and attaching them, reading what they counted, and finding the XFS file systems that there are. Does not decide
//! who pays (`bulkhead_core::observe::log`).

use std::collections::HashSet;

use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use libbpf_rs::ObjectBuilder;

use super::loaded::{Loaded, Maps, programs};
use super::{Aligned, BpfError, Program, hint, log};
use crate::block;
use crate::roots::Roots;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/xfs.bpf.o")));

const MAPS: Maps = Maps {
    transient: &["shares", "items", "iclogs", "requesters", "inactive", "work_owners"],
    counted: &["writes", "journals"],
};

/// The programs in the kernel. Not attached at first.
pub struct XfsTracer {
    loaded: Loaded,
}

impl std::fmt::Debug for XfsTracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XfsTracer").field("attached", &self.loaded.is_attached()).finish_non_exhaustive()
    }
}

/// Devices of the XFS file systems that are mounted, in whatever mount namespace.
#[must_use]
pub fn file_systems(roots: &Roots) -> Vec<DevNo> {
    // Beside them are `debug` and `stats`.
    let names = std::fs::read_dir(roots.sys.join("fs/xfs")).into_iter().flatten().flatten();
    names.filter_map(|entry| block::devno_of_name(roots, entry.file_name().to_str()?)).collect()
}

impl XfsTracer {
    /// Loads the programs.
    ///
    /// # Errors
    /// [`BpfError::Load`] with the kernel's reason, also when xfs is not in the kernel and its module is not loaded.
    pub fn load() -> Result<Self, BpfError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let object = ObjectBuilder::default()
            .name("bulkhead_xfs")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|source| BpfError::Load { hint: hint(&source), source })?;
        Ok(Self { loaded: Loaded::new(object, MAPS)? })
    }

    /// The programs.
    ///
    /// # Errors
    /// [`BpfError::Read`].
    pub fn programs(&self, roots: &Roots) -> Result<Vec<Program>, BpfError> {
        programs(roots, &self.loaded.object)
    }

    /// Lets the programs run. Idempotent.
    ///
    /// # Errors
    /// [`BpfError::Attach`], and then none of them runs; [`BpfError::Map`].
    pub fn attach(&mut self) -> Result<(), BpfError> {
        self.loaded.attach().map(drop)
    }

    /// Stops the programs; what they counted stays.
    pub fn detach(&mut self) {
        self.loaded.detach();
    }

    /// Enters devices with an XFS, so that metadata written there counts before the first write to the log.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn add_file_systems(&self, devices: &[DevNo]) -> Result<(), BpfError> {
        self.loaded.add_journals(devices)
    }

    /// What happened since the last look, and the sums as they stand.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn look(&mut self) -> Result<Batch, BpfError> {
        self.loaded.look()
    }

    /// Forgets everything that was counted.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn reset(&mut self) -> Result<(), BpfError> {
        self.loaded.reset()
    }

    /// Forgets shares of checkpoints that take no more transactions.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_shares(&self, keys: &[ShareKey]) -> Result<(), BpfError> {
        self.loaded.forget_shares(keys)
    }

    /// Forgets the sums of cgroups that are gone.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_cgroups(&self, gone: &HashSet<CgroupId>) -> Result<(), BpfError> {
        self.loaded.forget_cgroups(gone)
    }
}

#[cfg(test)]
mod tests;
