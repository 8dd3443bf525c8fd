//! Unix sockets at a path: created with the right permissions, and never in place of one that is in use.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use tokio::net::{UnixListener, UnixStream};

use crate::daemon::io_fault;

/// Who can open a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Its owner, root.
    Owner,
    /// Its owner and the members of a group, by default that of the process.
    Group(Option<u32>),
}

/// Listens on a socket. A stale socket is replaced atomically, so that there is never one
/// with wrong permissions at that path.
///
/// # Errors
/// `InUse` when another process answers on it, `HasData` when something else has that path, and those of creating it.
pub async fn listen(socket: &Path, access: Access) -> Result<UnixListener, Fault> {
    let object = format!("socket {}", socket.display());
    let fault = |what: &'static str| {
        let object = object.clone();
        move |error: io::Error| io_fault(&error, object, what)
    };
    match std::fs::symlink_metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Fault::new(Code::HasData, object, "it is not a socket")
                .reason(Reason::SocketTaken { socket: socket.to_owned() }));
        }
        Ok(_) if UnixStream::connect(socket).await.is_ok() => {
            return Err(Fault::new(Code::InUse, object, "another process answers on it")
                .reason(Reason::DaemonRunning { socket: socket.to_owned() }));
        }
        Ok(_) => tracing::info!(socket = %socket.display(), "replacing a socket on which no process answers"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fault("examine it")(error)),
    }
    let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let private = parent.join(format!(".bulkhead-{}", std::process::id()));
    std::fs::create_dir(&private).map_err(fault("create a directory next to it"))?;
    let made = private_socket(&private, access).and_then(|(made, listener)| {
        std::fs::rename(made, socket)?;
        Ok(listener)
    });
    // Also removes what a failure left in it; an error here has no consequences.
    let _ = std::fs::remove_dir_all(&private);
    made.map_err(fault("create it"))
}

fn private_socket(dir: &Path, access: Access) -> io::Result<(PathBuf, UnixListener)> {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
    let path = dir.join("s");
    let listener = UnixListener::bind(&path)?;
    let (group, mode) = match access {
        Access::Owner => (None, 0o600),
        Access::Group(group) => (group, 0o660),
    };
    chown(&path, None, group)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
    Ok((path, listener))
}

/// Removes a socket; a failure is only logged.
pub fn remove(socket: &Path) {
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::warn!(socket = %socket.display(), %error, "the socket could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_of_its_owner_is_for_no_one_else_and_replaces_only_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = listen(&path, Access::Owner).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(listen(&path, Access::Owner).await.unwrap_err().code, Code::InUse);
        drop(listener);
        drop(listen(&path, Access::Owner).await.unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(listen(&path, Access::Owner).await.unwrap_err().code, Code::HasData);
    }
}
