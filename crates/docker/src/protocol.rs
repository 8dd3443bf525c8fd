//! The bodies of requests and answers, as Docker names their fields.
//!
//! A request may have fields that are not named here (Podman sends empty ones), and no body at all where nothing is needed. Every answer
//! has `Err`, which is empty unless the request failed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The media type of every answer: version 1.2 of the protocol, which has `VolumeDriver.Capabilities`.
pub const MEDIA_TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// `VolumeDriver.Create`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Create {
    /// The volume's name.
    pub name: String,
    /// The options, as in `--opt KEY=VALUE`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub opts: BTreeMap<String, String>,
}

/// Requests about a volume: `Remove`, `Path`, `Get`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Named {
    /// The volume's name.
    pub name: String,
}

/// `VolumeDriver.Mount` and `VolumeDriver.Unmount`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Use {
    /// The volume's name.
    pub name: String,
    /// Who uses it: the same in both requests. Docker repeats it for a second mount by the same container (`docker cp`), Podman for all mounts.
    #[serde(rename = "ID")]
    pub id: String,
}

/// The answer to `Plugin.Activate`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Activated {
    /// Which protocols the plugin speaks.
    pub implements: [&'static str; 1],
}

/// The answer to `VolumeDriver.Capabilities`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct CapabilitiesReply {
    pub capabilities: Capabilities,
}

/// What the driver can do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Capabilities {
    /// `local`: its volumes exist on this host only, and Swarm creates one on each host.
    pub scope: &'static str,
}

/// The answer to requests that return nothing, and to all that fail.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Outcome {
    /// Why the request failed; empty when it did not.
    pub err: String,
}

/// The answer to `Mount` and `Path`.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Mounted {
    /// Where the volume is mounted on the host; empty when it is not.
    pub mountpoint: PathBuf,
    pub err: String,
}

impl Mounted {
    /// The answer of a request that succeeded.
    pub(crate) fn at(mountpoint: PathBuf) -> Self {
        Self { mountpoint, err: String::new() }
    }
}

/// The answer to `Get`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Got {
    pub volume: Volume,
    pub err: String,
}

/// The answer to `List`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listed {
    pub volumes: Vec<Volume>,
    pub err: String,
}

/// A volume as `docker volume inspect` shows it.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Volume {
    pub name: String,
    /// Where it is mounted on the host; empty when it is not.
    pub mountpoint: PathBuf,
    /// Anything else about it, shown as it is; absent in lists.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub status: BTreeMap<&'static str, serde_json::Value>,
}

fn null_is_default<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
