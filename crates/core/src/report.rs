//! A host's report: what `bulkhead plan` and the scheduler extender have to know of it.
//!
//! Owns: the form, its version, and how it is made smaller. Does not: collect it (the engine), or predict from it (crate `advise`). Its
//! fields are described in docs/formats/report.md.

use serde::{Deserialize, Serialize};

use crate::demand::DeviceCosts;
use crate::model::{Profile, VolumeRef};
use crate::name::Name;
use crate::units::{Bytes, Share};

/// The version that is written, and the only one that is read. Fields can be added without another version: readers ignore unknown ones.
pub const VERSION: u32 = 1;

/// Largest report that is published, in bytes of JSON.
pub const MAX_BYTES: usize = 64 << 10;

/// What is on a host, and what runs there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HostReport {
    /// Version of this form: 1.
    pub version: u32,
    /// When it was made, in seconds since the Unix epoch.
    pub unix_seconds: u64,
    /// Number of processors that are online.
    pub cpus: u32,
    /// Memory, bytes.
    pub memory_bytes: Bytes,
    /// What fails together with the host, as the daemon's `--domain` says; absent: the host alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The devices with pools on them.
    pub devices: Vec<ReportedDevice>,
    /// The tenants.
    pub workloads: Vec<ReportedWorkload>,
    /// Tenants that were omitted, to keep the report small.
    #[serde(default)]
    pub n_left_out: usize,
}

/// A device, or several below one file system or volume group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReportedDevice {
    /// Kernel name; of several devices, their names joined by `_`.
    pub name: String,
    /// What its requests cost; absent: not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub costs: Option<DeviceCosts>,
    /// Whether shares have an effect on it.
    pub shares_work: bool,
    /// The pools on it.
    pub pools: Vec<ReportedPool>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReportedPool {
    /// Its name.
    pub name: Name,
    /// Free space in it, bytes; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<Bytes>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ReportedWorkload {
    /// Name of the tenant.
    pub name: Name,
    /// Its share.
    pub share: Share,
    /// The device, by its name in the report, that has most of its volumes' space; absent: it has no volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Size of its volumes on that device, bytes.
    pub space_bytes: Bytes,
    /// Promised 99th percentile of the latency of its fsyncs, microseconds; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
    /// Its volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeRef>,
    /// What it demands; absent: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

impl ReportedWorkload {
    /// The workload that it is a copy of.
    #[must_use]
    pub fn workload(&self) -> &Name {
        self.profile.as_ref().and_then(|profile| profile.workload.as_ref()).unwrap_or(&self.name)
    }
}

/// The name in a report of a set of physical devices.
#[must_use]
pub fn device_name(physical: &[String]) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    physical.join("_").chars().map(plain).collect()
}

/// Why a report cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It is not JSON of this form.
    #[error("it is not a report of a host: {0}")]
    Malformed(String),
    /// Of another version.
    #[error("it has version {0}, this program reads version {VERSION}")]
    Version(u32),
    /// A value makes no sense.
    #[error("{object}: {cause}")]
    Senseless {
        /// The device or workload, and the key.
        object: String,
        /// What is wrong.
        cause: String,
    },
}

impl HostReport {
    /// Reads a report.
    ///
    /// # Errors
    /// The first value that cannot be used.
    pub fn parse(text: &str) -> Result<Self, ReportError> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let malformed = |error: serde_json::Error| ReportError::Malformed(error.to_string());
        let Head { version } = serde_json::from_str(text).map_err(malformed)?;
        if version != VERSION {
            return Err(ReportError::Version(version));
        }
        let report: Self = serde_json::from_str(text).map_err(malformed)?;
        report.check()?;
        Ok(report)
    }

    fn check(&self) -> Result<(), ReportError> {
        let senseless = |object: String, cause: String| Err(ReportError::Senseless { object, cause });
        if self.cpus == 0 {
            return senseless("cpus".to_owned(), "0 is not a number of at least 1".to_owned());
        }
        for (index, device) in self.devices.iter().enumerate() {
            if device.name != device_name(std::slice::from_ref(&device.name)) || device.name.is_empty() {
                return senseless(format!("devices[{index}].name"), format!("{:?} is not a name", device.name));
            }
            if self.devices[..index].iter().any(|other| other.name == device.name) {
                return senseless(format!("device {}", device.name), "it is there twice".to_owned());
            }
            if let Some(Err(error)) = device.costs.as_ref().map(DeviceCosts::check) {
                return senseless(format!("device {}: costs", device.name), error.to_string());
            }
        }
        for workload in &self.workloads {
            let object = |key: &str| format!("workload {}: {key}", workload.name);
            if let Some(device) = &workload.device
                && !self.devices.iter().any(|its| its.name == *device)
            {
                return senseless(object("device"), format!("the report has no device {device:?}"));
            }
            let Some(profile) = &workload.profile else { continue };
            if let Err(error) = profile.check() {
                return senseless(object("profile"), error.to_string());
            }
        }
        Ok(())
    }

    /// The same in at most `limit` bytes of JSON, as far as it can be: first without the names of volumes, then without the last tenants, those
    /// without a demand first.
    #[must_use]
    pub fn within(mut self, limit: usize) -> Self {
        let size = |report: &Self| serde_json::to_vec(report).map_or(0, |json| json.len());
        if size(&self) <= limit {
            return self;
        }
        self.workloads.iter_mut().for_each(|workload| workload.volumes.clear());
        // In the order in which they are kept: a stable sort.
        self.workloads.sort_by_key(|workload| workload.profile.is_none());
        let n_all = self.n_left_out + self.workloads.len();
        let (mut fits, mut too_many) = (0, self.workloads.len() + 1);
        let all = std::mem::take(&mut self.workloads);
        while too_many - fits > 1 {
            let n = fits.midpoint(too_many);
            self.workloads = all[..n].to_vec();
            self.n_left_out = n_all - n;
            if size(&self) <= limit { fits = n } else { too_many = n }
        }
        self.workloads = all[..fits].to_vec();
        self.n_left_out = n_all - fits;
        self
    }
}

#[cfg(test)]
mod tests;
