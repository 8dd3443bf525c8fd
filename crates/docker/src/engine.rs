//! Which container engine a client of the socket is: Docker and Podman use one plugin, and each knows only its own containers.

use bulkhead_core::model::{FrontEnd, LeaseUser};
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use tokio::net::UnixStream;

/// The start of the names of Podman's processes.
const PODMAN: &str = "podman";

/// The engine at the other end of a connection: Podman by the name of its process, otherwise Docker.
pub(crate) fn of(roots: &Roots, stream: &UnixStream) -> FrontEnd {
    let pid = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok());
    match pid.and_then(|pid| process::name(roots, pid)) {
        Some(name) if name.starts_with(PODMAN) => FrontEnd::Podman,
        _ => FrontEnd::Docker,
    }
}

/// Whether a user of a volume is a container of this engine, or of the other one; `None` if it is none of either.
pub(crate) fn is_own(engine: FrontEnd, user: &LeaseUser) -> Option<bool> {
    matches!(user.front_end, FrontEnd::Docker | FrontEnd::Podman).then_some(user.front_end == engine)
}
