//! What a workload demands of its host for each operation, and what the requests of a device cost: the figures that predictions
//! are made from.
//!
//! Owns: the forms, their units, and which values make sense. Does not: measure them (crate `measure`), or predict (crate `advise`).

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A kind of requests to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads at random places.
    RandomRead,
    /// Reads, each where the one before ended.
    SequentialRead,
    /// Writes at random places.
    RandomWrite,
    /// Writes, each where the one before ended.
    SequentialWrite,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RandomRead, Self::SequentialRead, Self::RandomWrite, Self::SequentialWrite];

    /// Its name in files and in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RandomRead => "random-read",
            Self::SequentialRead => "sequential-read",
            Self::RandomWrite => "random-write",
            Self::SequentialWrite => "sequential-write",
        }
    }

    /// Whether it writes.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::RandomWrite | Self::SequentialWrite)
    }

    /// Whether each request continues the one before.
    #[must_use]
    pub const fn is_sequential(self) -> bool {
        matches!(self, Self::SequentialRead | Self::SequentialWrite)
    }
}

/// Why a request is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// The operation waits for it: direct I/O.
    #[default]
    Direct,
    /// A read of a page that may be in the page cache; only a miss reaches the device, and the operation waits for it.
    Cached,
    /// Written back later: the operation does not wait for it as long as the device keeps up.
    WriteBack,
}

/// Requests of one kind that an operation makes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Requests {
    /// Their kind.
    pub access: Access,
    /// Mean size of one, bytes.
    pub bytes: f64,
    /// Number for each operation.
    pub per_operation: f64,
    /// Why they are made.
    #[serde(default)]
    pub purpose: Purpose,
}

/// Durable writes of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Durable {
    /// Number of fsyncs for each operation.
    pub per_operation: f64,
    /// Number of durable writes that each fsync makes one after the other: data, journal, commit record. 1 for an overwrite without a commit.
    pub chain: f64,
    /// Whether clients that sync at the same time share a commit.
    #[serde(default)]
    pub is_shared: bool,
}

/// One point of a [`MissRatios`] curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct MissRatio {
    /// Memory of the page cache for this workload alone, bytes.
    pub bytes: f64,
    /// Fraction of its cached reads that miss then, 0 to 1.
    pub miss: f64,
}

/// The fraction of cached reads that miss, by the memory that the workload has: straight lines between points with rising sizes and falling
/// ratios, 1 before the first point, and the last ratio behind the last point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct MissRatios(pub Vec<MissRatio>);

impl MissRatios {
    /// Reads that are spread evenly over a working set.
    #[must_use]
    pub fn uniform(working_set: Bytes) -> Self {
        let bytes = working_set.0 as f64;
        Self(vec![MissRatio { bytes: 0.0, miss: 1.0 }, MissRatio { bytes, miss: 0.0 }])
    }

    /// The miss ratio with this much memory.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let mut before = MissRatio { bytes: 0.0, miss: 1.0 };
        for point in &self.0 {
            if bytes < point.bytes {
                let part = (bytes - before.bytes) / (point.bytes - before.bytes);
                return before.miss + (point.miss - before.miss) * part;
            }
            before = *point;
        }
        before.miss
    }
}

/// What one copy of a workload demands for each of its operations, whatever runs beside it.
///
/// It is a closed system: `clients` operations are in progress or between two of them for `think_seconds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Demand {
    /// Number of operations that can be in progress at a time: clients, threads or requests in flight. At least 1.
    pub clients: f64,
    /// Time between two operations of a client in which it demands nothing of the host, seconds.
    #[serde(default)]
    pub think_seconds: f64,
    /// Processor time for each operation, seconds, without that of its requests to the device ([`DeviceCosts::cpu_us`]).
    pub cpu_seconds: f64,
    /// Requests to the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<Requests>,
    /// Durable writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<Durable>,
    /// How its cached reads depend on memory.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub miss_ratios: MissRatios,
    /// Memory that is not page cache, bytes.
    #[serde(default)]
    pub memory: Bytes,
    /// Time by which an operation took longer than predicted from all this when it was measured alone, seconds: what the model does not know.
    /// Negative if it took less.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub correction_seconds: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_empty(curve: &MissRatios) -> bool {
    curve.0.is_empty()
}

/// A value that makes no sense, named by its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {cause}")]
pub struct Senseless {
    /// The key, with the index of a list: `requests[1].bytes`.
    pub key: String,
    /// What is wrong with its value.
    pub cause: String,
}

fn senseless(key: impl Into<String>, cause: impl Into<String>) -> Senseless {
    Senseless { key: key.into(), cause: cause.into() }
}

/// Refuses what is not a number of at least `least`.
fn at_least(key: &str, value: f64, least: f64) -> Result<(), Senseless> {
    if value.is_finite() && value >= least {
        return Ok(());
    }
    Err(senseless(key, format!("{value} is not a number of at least {least}")))
}

fn above_zero(key: &str, value: f64) -> Result<(), Senseless> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(senseless(key, format!("{value} is not a number above 0")))
}

impl Demand {
    /// Refuses values that make no sense.
    ///
    /// # Errors
    /// The first such value.
    pub fn check(&self) -> Result<(), Senseless> {
        at_least("clients", self.clients, 1.0)?;
        at_least("think-seconds", self.think_seconds, 0.0)?;
        at_least("cpu-seconds", self.cpu_seconds, 0.0)?;
        at_least("correction-seconds", self.correction_seconds, f64::MIN)?;
        for (index, requests) in self.requests.iter().enumerate() {
            above_zero(&format!("requests[{index}].bytes"), requests.bytes)?;
            at_least(&format!("requests[{index}].per-operation"), requests.per_operation, 0.0)?;
            let key = format!("requests[{index}].purpose");
            match (requests.purpose, requests.access.is_write()) {
                (Purpose::Cached, true) => return Err(senseless(key, "only reads can be cached")),
                (Purpose::WriteBack, false) => return Err(senseless(key, "only writes can be written back")),
                _ => {}
            }
        }
        if let Some(durable) = &self.durable {
            at_least("durable.per-operation", durable.per_operation, 0.0)?;
            at_least("durable.chain", durable.chain, 1.0)?;
        }
        self.check_curve()?;
        let demands_nothing = self.cpu_seconds == 0.0
            && self.requests.iter().all(|requests| requests.per_operation == 0.0)
            && self.durable.as_ref().is_none_or(|durable| durable.per_operation == 0.0);
        if demands_nothing {
            return Err(senseless(
                "cpu-seconds",
                "the workload demands neither processor nor device: it was idle when it was measured",
            ));
        }
        Ok(())
    }

    fn check_curve(&self) -> Result<(), Senseless> {
        let points = &self.miss_ratios.0;
        for (index, point) in points.iter().enumerate() {
            let key = format!("miss-ratios[{index}]");
            at_least(&format!("{key}.bytes"), point.bytes, 0.0)?;
            if !(0.0..=1.0).contains(&point.miss) {
                return Err(senseless(format!("{key}.miss"), format!("{} is not between 0 and 1", point.miss)));
            }
            let Some(before) = index.checked_sub(1).map(|before| points[before]) else { continue };
            if point.bytes <= before.bytes || point.miss > before.miss {
                return Err(senseless(key, "sizes must rise and ratios fall from point to point"));
            }
        }
        let is_cached = |requests: &Requests| requests.purpose == Purpose::Cached && requests.per_operation > 0.0;
        if points.is_empty() && self.requests.iter().any(is_cached) {
            return Err(senseless("miss-ratios", "is missing, although reads are cached"));
        }
        Ok(())
    }
}

/// The costs of requests of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cost {
    /// Mean latency of one request at a time, microseconds.
    pub latency_us: f64,
    /// Requests per second with many in flight.
    pub per_s: f64,
}

/// The costs of one kind of requests at two sizes; those between and beyond lie on the straight line through both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Costs {
    /// Of 4 KiB.
    pub small: Cost,
    /// Of 128 KiB.
    pub large: Cost,
}

/// Sizes of [`Costs::small`] and [`Costs::large`], bytes.
pub const SMALL_BYTES: f64 = 4096.0;
/// See [`SMALL_BYTES`].
pub const LARGE_BYTES: f64 = 131_072.0;

/// What the requests of a device cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct DeviceCosts {
    /// Reads at random places.
    pub random_read: Costs,
    /// Sequential reads of one stream.
    pub sequential_read: Costs,
    /// Writes at random places.
    pub random_write: Costs,
    /// Sequential writes of one stream.
    pub sequential_write: Costs,
    /// A write of 4 KiB with a flush, alone and many at a time.
    pub durable_write: Cost,
    /// Fraction of the device that a read takes from writes and a write from reads: 1 on a device that does one at a time, 0 on one whose reads
    /// and writes do not disturb each other.
    pub read_write_sharing: f64,
    /// Number of requests of a sequential stream that the device serves before it turns to another, at least 1.
    pub sequential_run: f64,
    /// Processor time of a request, microseconds: of the kernel, and of a process that serves the device.
    #[serde(default)]
    pub cpu_us: f64,
    /// How much the times differ for which requests of one kind and size occupy the device: their variance by the square of their mean. 0 if
    /// all take as long, 1 as in an exponential distribution.
    #[serde(default = "one")]
    pub variation: f64,
}

const fn one() -> f64 {
    1.0
}

impl DeviceCosts {
    /// The costs of a kind of requests.
    #[must_use]
    pub const fn of(&self, access: Access) -> &Costs {
        match access {
            Access::RandomRead => &self.random_read,
            Access::SequentialRead => &self.sequential_read,
            Access::RandomWrite => &self.random_write,
            Access::SequentialWrite => &self.sequential_write,
        }
    }

    /// Refuses values that make no sense.
    ///
    /// # Errors
    /// The first such value.
    pub fn check(&self) -> Result<(), Senseless> {
        let check_cost = |key: &str, cost: &Cost| {
            above_zero(&format!("{key}.latency-us"), cost.latency_us)?;
            above_zero(&format!("{key}.per-s"), cost.per_s)
        };
        for access in Access::ALL {
            let (key, costs) = (access.as_str(), self.of(access));
            check_cost(&format!("{key}.small"), &costs.small)?;
            check_cost(&format!("{key}.large"), &costs.large)?;
        }
        check_cost("durable-write", &self.durable_write)?;
        if !(0.0..=1.0).contains(&self.read_write_sharing) {
            return Err(senseless("read-write-sharing", format!("{} is not between 0 and 1", self.read_write_sharing)));
        }
        at_least("sequential-run", self.sequential_run, 1.0)?;
        at_least("cpu-us", self.cpu_us, 0.0)?;
        at_least("variation", self.variation, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> Demand {
        let requests =
            Requests { access: Access::RandomRead, bytes: 4096.0, per_operation: 1.0, purpose: Purpose::Cached };
        Demand {
            clients: 4.0,
            think_seconds: 0.0,
            cpu_seconds: 1e-4,
            requests: vec![requests],
            durable: None,
            miss_ratios: MissRatios::uniform(Bytes::mib(64)),
            memory: Bytes(0),
            correction_seconds: 0.0,
        }
    }

    #[test]
    fn a_curve_is_read_between_and_beyond_its_points() {
        let curve = MissRatios(vec![MissRatio { bytes: 100.0, miss: 0.5 }, MissRatio { bytes: 300.0, miss: 0.1 }]);
        for (bytes, miss) in [(0.0, 1.0), (50.0, 0.75), (100.0, 0.5), (200.0, 0.3), (300.0, 0.1), (1e9, 0.1)] {
            assert!((curve.at(bytes) - miss).abs() < 1e-12, "{bytes}: {}", curve.at(bytes));
        }
        assert!((MissRatios::default().at(7.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn values_without_sense_are_refused_by_key() {
        let refused = |change: fn(&mut Demand)| {
            let mut demand = demand();
            change(&mut demand);
            demand.check().unwrap_err().to_string()
        };
        assert_eq!(demand().check(), Ok(()));
        assert_eq!(refused(|demand| demand.clients = 0.0), "clients: 0 is not a number of at least 1");
        assert_eq!(refused(|demand| demand.cpu_seconds = f64::NAN), "cpu-seconds: NaN is not a number of at least 0");
        assert_eq!(refused(|demand| demand.requests[0].bytes = -1.0), "requests[0].bytes: -1 is not a number above 0");
        assert_eq!(
            refused(|demand| demand.requests[0].access = Access::RandomWrite),
            "requests[0].purpose: only reads can be cached"
        );
        assert_eq!(
            refused(|demand| demand.miss_ratios.0.clear()),
            "miss-ratios: is missing, although reads are cached"
        );
        assert_eq!(
            refused(|demand| demand.miss_ratios.0.reverse()),
            "miss-ratios[1]: sizes must rise and ratios fall from point to point"
        );
        assert!(
            refused(|demand| {
                demand.cpu_seconds = 0.0;
                demand.requests.clear();
            })
            .contains("it was idle when it was measured")
        );
    }
}
