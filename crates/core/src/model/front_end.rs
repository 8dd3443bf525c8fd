//! Front ends: other software through which objects are requested.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Software through which a volume, a tenant or a lease was requested, where that is not an operator at a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FrontEnd {
    /// Docker, through the volume plugin; of volumes and tenants also Podman, which has the same plugin and the same names.
    Docker,
    /// Podman, through the volume plugin, as the user of a volume.
    Podman,
    /// Kubernetes or another orchestrator, through the CSI driver.
    Csi,
    /// `bulkhead device calibrate`, for its scratch volumes and tenants.
    Calibration,
    /// `bulkhead sweep`, for the tenants and volumes of its copies.
    Sweep,
}

impl FrontEnd {
    /// All front ends.
    pub const ALL: [Self; 5] = [Self::Docker, Self::Podman, Self::Csi, Self::Calibration, Self::Sweep];

    /// Its word in LVM tags and output.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Csi => "csi",
            Self::Calibration => "calibration",
            Self::Sweep => "sweep",
        }
    }

    /// The front end that an LVM tag names; `None` when it is not one.
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|front_end| front_end.as_str() == tag)
    }
}

impl fmt::Display for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
