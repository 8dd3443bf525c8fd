//! The closed list of error codes, and the error type that every front end shows.
//!
//! Front ends only translate it: HTTP status and exit code are derived here.

use std::error::Error;
use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::reason::{self, Reason};

mod line;
mod path;

pub use line::{LineError, line_of};
pub use path::PathError;

/// The kind of an error. The list is closed: a client may match on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is invalid: a wrong name, size, share or combination.
    InvalidArgument,
    /// No object of that name.
    NotFound,
    /// An object of that name exists, and differs from the requested one.
    AlreadyExists,
    /// The object is in use: mounted, attached, busy, or another operation runs on it.
    InUse,
    /// A device or directory carries data that is not Bulkhead's.
    HasData,
    /// The pool or file system has no space left.
    NoSpace,
    /// The host lacks something: a controller, a program, a kernel feature, cgroup v2.
    Unsupported,
    /// The caller has no permission (not root, not in the socket's group).
    PermissionDenied,
    /// Stored data is damaged: a torn state file, a failed fsck.
    Corrupt,
    /// The daemon does not answer, or is not running.
    Unavailable,
    /// The operation was cancelled, and its changes undone.
    Cancelled,
    /// Any other failure, of the kernel or a helper program.
    Internal,
}

impl Code {
    /// All codes, for docs and tests.
    pub const ALL: [Code; 12] = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::InUse,
        Code::HasData,
        Code::NoSpace,
        Code::Unsupported,
        Code::PermissionDenied,
        Code::Corrupt,
        Code::Unavailable,
        Code::Cancelled,
        Code::Internal,
    ];

    /// The code of an I/O error on a file or directory that a command names.
    #[must_use]
    pub const fn of_io(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::NotFound,
            io::ErrorKind::AlreadyExists => Self::AlreadyExists,
            io::ErrorKind::PermissionDenied => Self::PermissionDenied,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Internal,
        }
    }

    /// The HTTP status of the native API.
    #[must_use]
    pub const fn http_status(self) -> u16 {
        match self {
            Code::InvalidArgument => 400,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::AlreadyExists | Code::InUse | Code::HasData | Code::Cancelled => 409,
            Code::Corrupt => 422,
            Code::Unsupported => 501,
            Code::Unavailable => 503,
            Code::NoSpace => 507,
            Code::Internal => 500,
        }
    }

    /// The exit code of the command line. 1 is left to unforeseen errors and 2 to clap's usage errors.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Code::Internal => 1,
            Code::InvalidArgument => 2,
            Code::NotFound => 3,
            Code::AlreadyExists => 4,
            Code::InUse => 5,
            Code::HasData => 6,
            Code::NoSpace => 7,
            Code::Unsupported => 8,
            Code::PermissionDenied => 9,
            Code::Corrupt => 10,
            Code::Unavailable => 11,
            Code::Cancelled => 12,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Code::InvalidArgument => "invalid_argument",
            Code::NotFound => "not_found",
            Code::AlreadyExists => "already_exists",
            Code::InUse => "in_use",
            Code::HasData => "has_data",
            Code::NoSpace => "no_space",
            Code::Unsupported => "unsupported",
            Code::PermissionDenied => "permission_denied",
            Code::Corrupt => "corrupt",
            Code::Unavailable => "unavailable",
            Code::Cancelled => "cancelled",
            Code::Internal => "internal",
        })
    }
}

/// An error as an operator reads it: the object, the cause and the hint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[error("{object}: {cause}")]
pub struct Fault {
    /// What kind of error.
    pub code: Code,
    /// The object, for example `volume db/data` or `/dev/sdb`.
    pub object: String,
    /// The cause, in one sentence without a full stop.
    pub cause: String,
    /// What to do about it; empty if there is no useful hint. With a reason, its remedy in words that suit every front
    /// end.
    #[serde(default, alias = "cure", skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// The situation, if front ends word its remedy themselves. A value that this version does not know is read as
    /// `null`.
    #[serde(default, deserialize_with = "reason::if_known", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(nullable = false))]
    pub reason: Option<Box<Reason>>,
}

impl Fault {
    /// An error without a hint; add one with [`Fault::reason`] or [`Fault::hint`].
    #[must_use]
    pub fn new(code: Code, object: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self { code, object: object.to_string(), cause: cause.to_string(), hint: String::new(), reason: None }
    }

    /// The same error with another hint, which every front end shows as it is.
    #[must_use]
    pub fn hint(self, hint: impl fmt::Display) -> Self {
        Self { hint: hint.to_string(), reason: None, ..self }
    }

    /// The same error with a reason and its hint.
    #[must_use]
    pub fn reason(self, reason: Reason) -> Self {
        Self { hint: reason.remedy(), reason: Some(Box::new(reason)), ..self }
    }
}

/// The messages of an error and all its sources, in one line.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let errors = std::iter::successors(Some(error), |&error| error.source());
    errors.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn exit_codes_are_distinct_and_not_zero() {
        let codes: HashSet<u8> = Code::ALL.iter().map(|c| c.exit_code()).collect();
        assert_eq!(codes.len(), Code::ALL.len());
        assert!(!codes.contains(&0));
    }

    #[test]
    fn a_reason_sets_the_hint_and_a_hint_clears_the_reason() {
        let reason = Reason::VolumeAttached { volume: "p/v".parse().unwrap(), tenant: "db".parse().unwrap() };
        let fault = Fault::new(Code::InUse, "volume p/v", "it is mounted for tenant db").reason(reason.clone());
        assert_eq!((fault.hint.as_str(), fault.reason.as_deref()), (reason.remedy().as_str(), Some(&reason)));
        let wire = serde_json::to_value(&fault).unwrap();
        assert_eq!(wire["reason"], serde_json::json!({"reason": "volume_attached", "volume": "p/v", "tenant": "db"}));
        assert_eq!(serde_json::from_value::<Fault>(wire).unwrap(), fault);
        assert_eq!(fault.hint("wait").reason, None);
    }

    #[test]
    fn an_error_of_an_older_or_newer_version_is_read() {
        for reason in [
            "",
            r#", "reason": null"#,
            r#", "reason": {"reason": "never_heard_of", "volume": "p/v"}"#,
            r#", "reason": {"reason": "volume_attached", "volume": "p/v"}"#,
            r#", "reason": 7"#,
        ] {
            // Earlier versions wrote `cure`.
            for field in ["hint", "cure"] {
                let text = format!(
                    r#"{{"code": "in_use", "object": "volume p/v", "cause": "busy", "{field}": "wait"{reason}}}"#
                );
                let read: Fault = serde_json::from_str(&text).unwrap();
                assert_eq!(read, Fault::new(Code::InUse, "volume p/v", "busy").hint("wait"), "{field}, {reason}");
            }
        }
    }

    #[test]
    fn the_serialised_code_is_the_displayed_one() {
        for code in Code::ALL {
            let wire = serde_json::to_string(&code).expect("a unit variant serialises");
            assert_eq!(wire, format!("\"{code}\""));
        }
    }
}
