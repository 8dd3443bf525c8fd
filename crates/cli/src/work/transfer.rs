//! Faults and hints for errors of sending and receiving snapshots.

use std::io;

use bulkhead_blockd::ImageError;
use bulkhead_blockd::transfer::TransferError;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::reason::Reason;
use bulkhead_engine::kernel::layer_errors;
use bulkhead_formats::layer::LayerError;
use bulkhead_formats::stream::StreamError;
use bulkhead_sys::thin::ThinError;
use bulkhead_sys::tool::ToolError;

/// The fault of an error, with `hint` unless the error has one of its own.
pub(crate) fn fault(error: &TransferError, volume: &VolumeRef, hint: &str) -> Fault {
    let same = hint.to_owned();
    let (code, hint) = match (error, io_kind(error)) {
        (_, Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)) => {
            return Fault::new(Code::Cancelled, format!("volume {volume}"), "the client disconnected").hint(same);
        }
        (_, Some(io::ErrorKind::PermissionDenied)) => {
            (Code::PermissionDenied, "run it as root, which owns the pool's files".to_owned())
        }
        (_, Some(io::ErrorKind::StorageFull)) => (Code::NoSpace, format!("free up space on the file system of that file; {same}")),
        (TransferError::Stream(StreamError::Version(_)), _) => (
            Code::Corrupt,
            "receive it with the version of Bulkhead that sent it; if that is this version, the stream was altered in transit"
                .to_owned(),
        ),
        (TransferError::Base(_), _) => {
            (Code::Corrupt, "import the same image on this host, or send a snapshot of a clone".to_owned())
        }
        (TransferError::Stream(_) | TransferError::Truncated | TransferError::TooLong, _) => (Code::Corrupt, same),
        (
            TransferError::Staging(LayerError::File(_)) | TransferError::Layers(ImageError::Layers(LayerError::File(_))),
            _,
        ) => (Code::Internal, same),
        (TransferError::Staging(LayerError::StagingLocked { .. }), _) => (Code::InUse, same),
        (TransferError::Staging(error) | TransferError::Layers(ImageError::Layers(error)), _) => {
            let (code, hint) = layer_errors::code_and_hint(error);
            (code, hint.to_owned())
        }
        (TransferError::Thin(ThinError::Tool(ToolError::Missing { package, .. })), _) => {
            (Code::Unsupported, format!("apt-get install {package}"))
        }
        (TransferError::Thin(ThinError::Delta(_)), _) => {
            (Code::Unsupported, "copy its files to a new volume, and send a snapshot of that".to_owned())
        }
        (TransferError::Thin(ThinError::Reserved { pool, .. }), _) => {
            let left = format!("dmsetup message {pool} 0 release_metadata_snap");
            (Code::InUse, format!("send it again when that program has finished; `{left}` releases a metadata snapshot that is no longer used"))
        }
        (TransferError::Writable(device), _) => {
            (Code::Internal, format!("`lvchange -pr {0}; lvchange --refresh {0}`, and send it again", device.display()))
        }
        _ => (Code::Internal, same),
    };
    let fault = Fault::new(code, format!("volume {volume}"), chain(error)).hint(hint);
    match error {
        TransferError::Staging(LayerError::Discarded { .. }) => {
            fault.reason(Reason::ReceiveIncomplete { volume: volume.clone() })
        }
        TransferError::Staging(error) | TransferError::Layers(ImageError::Layers(error)) => {
            match layer_errors::reason(error) {
                Some(reason) => fault.reason(reason),
                None => fault,
            }
        }
        _ => fault,
    }
}

/// The kind of I/O error that caused an error, if one did.
pub(crate) fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    std::iter::successors(Some(error), |error| error.source())
        .find_map(|error| Some(error.downcast_ref::<io::Error>()?.kind()))
}
