//! The driver of the Container Storage Interface: its calls become requests to the daemon.
//!
//! The driver is a process of its own and a client of the daemon like any other: it parses what orchestrators send, and has no state.
//! [`controller`] has the calls that create, change and list volumes and snapshots, [`node`] those that make a volume usable for containers,
//! [`identity`] those about the driver itself; [`calls`] carries them out once;
//! [`names`], [`parameters`], [`capability`] and [`capacity`] read what requests contain, [`status`] words errors, [`server`] has the
//! socket and counts its calls ([`metrics`]), and [`diagnostics`] is the HTTP endpoint for metrics and [`probes`].
//!
//! Source: <https://github.com/container-storage-interface/spec>, version 1.13.

#![forbid(unsafe_code)]

pub mod calls;
pub mod capability;
pub mod capacity;
pub mod controller;
pub mod diagnostics;
pub mod health;
pub mod identity;
pub mod metrics;
pub mod names;
pub mod node;
pub mod parameters;
pub mod probes;
pub mod registration;
pub mod server;
pub mod status;

#[cfg(test)]
mod tests;

/// The protocol, as the build script generates it.
#[expect(
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated from proto/csi.proto; its style is not ours"
)]
pub mod proto {
    tonic::include_proto!("csi.v1");
}

/// The kubelet's protocol of registration, as the build script generates it.
#[expect(clippy::allow_attributes_without_reason, reason = "generated from proto/pluginregistration.proto")]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// The driver's name, as StorageClasses name it.
pub const DRIVER: &str = "csi.bulkhead.dev";

/// The topology key whose value is the node that has a volume.
pub const TOPOLOGY: &str = "topology.bulkhead.dev/node";
