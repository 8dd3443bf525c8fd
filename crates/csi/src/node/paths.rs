//! The paths of requests.

use std::path::Path;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{FrontEnd, LeaseUser};
use bulkhead_sys::mount::{Place, PlaceError, PlacesBelow};

use super::Settings;
use crate::names;

/// Longest path that is a lease's user itself; of a longer one, the hash is.
const MAX_USER_BYTES: usize = 255;

/// The user of the lease of a volume that is staged at a path.
pub(super) fn staged_by(staging_path: &str) -> LeaseUser {
    let id = match staging_path.len() {
        ..=MAX_USER_BYTES => staging_path.to_owned(),
        _ => format!("sha256:{}", names::hash(staging_path)),
    };
    LeaseUser { front_end: FrontEnd::Csi, id }
}

/// The place that a field of a request names; `None` if a directory above it does not exist.
pub(super) fn place(settings: &Settings, field: &'static str, path: &str) -> Result<Option<Place>, Fault> {
    let places = open(settings)?;
    places.place(Path::new(path)).map_err(|error| fault(field, &error))
}

/// The directory that contains all places.
pub(super) fn open(settings: &Settings) -> Result<PlacesBelow, Fault> {
    PlacesBelow::open(&settings.kubelet_dir).map_err(|error| {
        Fault::new(Code::Unsupported, "the kubelet's directory", described(&error))
            .hint("set `--kubelet-dir` to the kubelet's --root-dir; in a container, mount it at the same path")
    })
}

/// What a place refuses, as an error of the field that names it.
pub(super) fn fault(field: &str, error: &PlaceError) -> Fault {
    let code = match error {
        PlaceError::Outside { .. } | PlaceError::Link { .. } | PlaceError::OtherMount { .. } => Code::InvalidArgument,
        PlaceError::NotADirectory { .. }
        | PlaceError::NotAFile { .. }
        | PlaceError::NotADevice { .. }
        | PlaceError::HasFiles { .. }
        | PlaceError::Busy { .. } => Code::InUse,
        PlaceError::Failed { .. } => Code::Internal,
    };
    let fault = Fault::new(code, field, described(error));
    match error {
        PlaceError::HasFiles { .. } => fault.hint("move them away: only the volume belongs there"),
        PlaceError::Busy { .. } => fault.hint("stop the containers that use it"),
        PlaceError::NotADirectory { .. } | PlaceError::NotAFile { .. } => fault.hint("remove what is there"),
        PlaceError::Failed { source, .. } if source.raw_os_error() == Some(PERMISSION) => {
            fault.hint("mounting needs the capability CAP_SYS_ADMIN")
        }
        _ => fault,
    }
}

/// `EPERM`.
const PERMISSION: i32 = 1;

fn described(error: &PlaceError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error} ({source})"),
        None => error.to_string(),
    }
}
