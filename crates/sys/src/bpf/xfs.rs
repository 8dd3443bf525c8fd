//! The kernel's accounting of XFS logs: BPF programs on the tracepoints of xfs, in a separate object, because a kernel without
//! xfs would refuse them.
//!
//! Owns loading them, and finding mounted XFS file systems. Does not decide who is charged (`bulkhead_core::observe::log`).

use bulkhead_core::units::DevNo;
use libbpf_rs::ObjectBuilder;

use super::tracer::{Maps, Scope};
use super::{Aligned, BpfError, Method, Tracer, hint, log};
use crate::block;
use crate::roots::Roots;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/xfs.bpf.o")));

const MAPS: Maps = Maps {
    transient: &["shares", "items", "iclogs", "requesters", "inactive", "work_owners"],
    counted: &["writes", "journals"],
};

/// Devices of mounted XFS file systems, in any mount namespace.
#[must_use]
pub fn file_systems(roots: &Roots) -> Vec<DevNo> {
    // The directory also has `debug` and `stats`.
    let names = std::fs::read_dir(roots.sys.join("fs/xfs")).into_iter().flatten().flatten();
    names.filter_map(|entry| block::devno_of_name(roots, entry.file_name().to_str()?)).collect()
}

impl Tracer {
    /// Loads the programs for XFS.
    ///
    /// # Errors
    /// [`BpfError::Load`] with the kernel's reason, also if xfs is neither built in nor loaded.
    pub fn load_xfs() -> Result<Self, BpfError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let object = ObjectBuilder::default()
            .name("bulkhead_xfs")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|source| BpfError::Load { hint: hint(&source), source })?;
        let scope = Scope { method: Method::TypedTracepoints, has_ext4: false, without_functions: None };
        Self::new(object, MAPS, scope)
    }
}

#[cfg(test)]
mod tests;
