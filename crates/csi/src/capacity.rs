//! Capacity ranges.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;

use crate::proto::CapacityRange;

/// The sizes that a request accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// At least this; 0 if the request does not say.
    pub required: Bytes,
    /// At most this.
    pub limit: Option<Bytes>,
}

impl Range {
    /// Reads a range.
    ///
    /// # Errors
    /// `InvalidArgument` for negative numbers, and a limit below what is required.
    pub fn parse(range: Option<&CapacityRange>) -> Result<Self, Fault> {
        let invalid = |cause: String| Fault::new(Code::InvalidArgument, "capacity_range", cause);
        let Some(CapacityRange { required_bytes, limit_bytes }) = range else {
            return Ok(Self { required: Bytes(0), limit: None });
        };
        let bytes = |field: &str, value: i64| {
            u64::try_from(value).map(Bytes).map_err(|_| invalid(format!("{field} is {value}, which is negative")))
        };
        let required = bytes("required_bytes", *required_bytes)?;
        let limit = Some(bytes("limit_bytes", *limit_bytes)?).filter(|limit| limit.0 > 0);
        if let Some(limit) = limit
            && limit < required
        {
            return Err(invalid(format!("limit_bytes ({limit}) is less than required_bytes ({required})")));
        }
        Ok(Self { required, limit })
    }

    /// Whether a volume of this size is what was asked for.
    #[must_use]
    pub fn contains(&self, size: Bytes) -> bool {
        size >= self.required && self.limit.is_none_or(|limit| size <= limit)
    }

    /// The size of a new volume, which is at least `minimum`: the required one, or `default` within the limit.
    #[must_use]
    pub fn size(&self, default: Bytes, minimum: Bytes) -> Bytes {
        let wanted = if self.required.0 > 0 { self.required } else { default };
        self.limit.map_or(wanted, |limit| limit.min(wanted)).max(minimum)
    }
}

/// A size as CSI has it, a signed number. Sizes of volumes fit: the kernel's own limit is that of a signed offset.
#[must_use]
pub fn signed(size: Bytes) -> i64 {
    i64::try_from(size.0).unwrap_or(i64::MAX)
}
