//! `bulkhead-runtime`: an OCI runtime for Docker, Podman and containerd. It executes another runtime (runc, crun) with the same arguments;
//! before `create` and `run` it changes the parent cgroup of a container with a volume of Bulkhead to the slice of the volume's tenant, so that
//! the container's own I/O is charged to the tenant as well.
//!
//! ```text
//! engine ─▶ bulkhead-runtime create --bundle B ID ──execve──▶ runc create --bundle B ID
//!               │ B/config.json: bind mounts below /run/bulkhead/mnt/POOL/VOLUME?   (spec, volumes)
//!               │ linux.cgroupsPath: the engine's default parent?                   (parent)
//!               │ daemon: the volumes' tenant, within 5 s                           (place)
//!               └ B/config.json with another linux.cgroupsPath, by rename           (place)
//! ```
//!
//! Whatever prevents that is a line in the engine's log, and the container starts where the engine puts it. Only an invalid configuration file and
//! the absence of another runtime are errors. Start at [`place::place`].

#![forbid(unsafe_code)]

pub mod arguments;
pub mod log;
pub mod parent;
pub mod place;
pub mod real;
pub mod settings;
pub mod spec;
pub mod volumes;

#[cfg(test)]
mod tests;
