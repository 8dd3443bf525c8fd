//! The volume plugin for Docker and Podman: `VolumeDriver.*` requests become requests to the daemon.
//!
//! The plugin is a process of its own and a client of the daemon like any other: it parses what container engines send, and has no
//! state. Which containers use a volume is recorded by the daemon as leases ([`bulkhead_core::model::Lease`]), so that plugin, daemon and
//! engine can be restarted in any order. Start at [`plugin::Plugin`], what each request does; [`protocol`] has its bytes, [`options`] what
//! `docker volume create --opt` accepts, [`server`] the socket.
//!
//! Source: Docker's plugin API, <https://docs.docker.com/engine/extend/plugins_volume/>; Podman speaks the same protocol.

mod advice;
mod engine;
pub mod options;
pub mod plugin;
pub mod protocol;
pub mod server;
mod turns;

#[cfg(test)]
mod tests;
