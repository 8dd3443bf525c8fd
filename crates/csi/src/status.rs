//! Errors of the daemon as gRPC statuses: one table.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use tonic::{Code as Grpc, Status};

/// The gRPC code for an error. Orchestrators repeat requests that end with `ABORTED` or `UNAVAILABLE`.
#[must_use]
pub fn code(fault: &Fault) -> Grpc {
    if let Some(Reason::WaitEnded { .. }) = fault.reason.as_deref() {
        return Grpc::Aborted;
    }
    match fault.code {
        Code::InvalidArgument => Grpc::InvalidArgument,
        Code::NotFound => Grpc::NotFound,
        Code::AlreadyExists | Code::HasData => Grpc::AlreadyExists,
        Code::InUse | Code::Unsupported => Grpc::FailedPrecondition,
        Code::NoSpace => Grpc::ResourceExhausted,
        Code::PermissionDenied => Grpc::PermissionDenied,
        Code::Corrupt => Grpc::DataLoss,
        Code::Unavailable => Grpc::Unavailable,
        Code::Cancelled => Grpc::Aborted,
        Code::Internal => Grpc::Internal,
    }
}

/// An error as an orchestrator shows it: object, cause, and what to do about it.
#[must_use]
pub fn of(fault: &Fault) -> Status {
    let text = if fault.hint.is_empty() { fault.to_string() } else { format!("{fault}; {}", fault.hint) };
    Status::new(code(fault), text)
}

/// A size that the request does not accept.
#[must_use]
pub fn out_of_range(object: &str, cause: &str) -> Status {
    Status::out_of_range(format!("{object}: {cause}"))
}
