//! Workers: processes of their own for work that takes long or reads untrusted data. The daemon starts a worker as a
//! job, in the cgroup that pays for it; this is the protocol between the two.
//!
//! ```text
//! daemon                                  worker (`bulkhead work SPEC`)
//!   starts it, with a socket as input  ->   joins its cgroup, opens what it needs
//!                                      <-   ready
//!   stream: the client's socket        ->   reads or writes that
//!                                      <-   progress, as often as it likes
//!                                      <-   done or failed; then it ends
//! ```
//! Each message is one packet. A worker whose daemon ends is killed by the kernel.
//!
//! Owns: the messages. Does not: start a worker, or know jobs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::action::{Action, CgroupAction};
use crate::base::LeftOut;
use crate::cgroup::CgroupPath;
use crate::error::Fault;
use crate::isolation::Verified;
use crate::model::{Calibration, VolumeRef};
use crate::name::Name;
use crate::slices;
use crate::stream::StreamHeader;
use crate::units::Bytes;

/// The hidden command of `bulkhead` that runs a worker. Its argument is a [`WorkSpec`] as JSON.
pub const COMMAND: &str = "work";

/// Size limit of a message, and of the part of a stream in one packet, bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// The weight of [`slices::work`] in `io.weight` and `io.bfq.weight`, 1 to 1000: a tenth of a tenant's default, so that
/// work for no tenant yields to that of tenants.
const WEIGHT: u32 = 10;

/// The smallest size of a base if none is requested.
pub const MIN_BASE_BYTES: Bytes = Bytes::mib(256);

/// A worker's task, and the cgroup that pays for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkSpec {
    /// The cgroup to join. If it is gone, the worker stays in the daemon's.
    pub cgroup: CgroupPath,
    /// The task.
    pub task: Task,
}

/// The task of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    /// Write a snapshot to the stream.
    Send(SendTask),
    /// Read a snapshot from the stream.
    Receive(ReceiveTask),
    /// Build a base from the archive in the stream.
    Import(ImportTask),
    /// Measure a device; without a stream.
    Measure(MeasureTask),
}

/// Sending a snapshot (docs/formats/stream.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendTask {
    /// The snapshot.
    pub volume: VolumeRef,
    /// The header of its stream; the amount of data is not known yet.
    pub header: StreamHeader,
    /// Its layers, newest first.
    pub layers: Vec<PathBuf>,
    /// The layers of both snapshots that contain their difference; all layers if the snapshot is sent in full.
    pub changed: Vec<PathBuf>,
    /// On a thin pool, its devices; they take the place of layers.
    pub device: Option<SendDevice>,
}

/// The devices of snapshots on a thin pool, which are immutable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDevice {
    /// The device of the snapshot that is sent.
    pub path: PathBuf,
    /// The device of the base, for an incremental stream.
    pub base: Option<PathBuf>,
}

/// Receiving a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveTask {
    /// The future volume.
    pub volume: VolumeRef,
    /// The expected header of the stream.
    pub header: StreamHeader,
    /// The staging file.
    #[serde(rename = "part")]
    pub staging_file: PathBuf,
}

/// Importing an archive as a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportTask {
    /// The future volume.
    pub volume: VolumeRef,
    /// Name of the archive, for messages.
    pub source: String,
    /// The size of the base; `None` derives it from the content.
    pub size_bytes: Option<Bytes>,
    /// The platform of the image: `OS/ARCHITECTURE[/VARIANT]`; `None` is this host's.
    pub platform: Option<String>,
    /// The image, by name, tag or digest, if there are several.
    pub reference: Option<String>,
    /// Refuse a source if some of its extended attributes cannot be kept.
    pub strict: bool,
    /// The staging directory, where archives are unpacked.
    pub staging: PathBuf,
}

/// Measuring a device. The worker asks the daemon for volumes and tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureTask {
    /// The kernel name of the device.
    pub device: String,
    /// The pool whose space is used.
    pub pool: Option<Name>,
    /// The calibration to verify; `None` calibrates the device.
    pub verify: Option<Calibration>,
    /// The daemon's socket.
    pub socket: PathBuf,
}

/// A message from a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// All its files are open, so that removing them no longer affects it.
    Ready,
    /// Its progress.
    Progress(JobProgress),
    /// A step begins.
    Step(JobSteps, String),
    /// A measured figure.
    Figure(String),
    /// The source of an import is unpacked. It waits for [`Order::Make`].
    Staged(Staged),
    /// The task is done.
    Done(Outcome),
    /// The task failed.
    Failed(Fault),
}

/// The progress of a job that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JobProgress {
    /// Bytes moved so far.
    pub done_bytes: Bytes,
    /// Upper limit of the bytes to move, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_bytes: Option<Bytes>,
}

/// The progress of a job that has steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JobSteps {
    /// Completed steps.
    pub done: u64,
    /// All steps, as far as known.
    pub of: u64,
}

/// An unpacked source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// The future size of the base.
    pub size_bytes: Bytes,
    /// The content of its files, bytes.
    pub data_bytes: Bytes,
}

/// The result of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The snapshot was written to the stream.
    Sent {
        /// Bytes read from the snapshot.
        read_bytes: Bytes,
    },
    /// The staging file is complete.
    Received,
    /// A base was built in the staging file.
    Imported {
        /// The UUID of its content.
        content: Uuid,
        /// Number of its files, directories and other entries.
        entries: u64,
        /// Extended attributes of the source that it does not have.
        left_out: Vec<LeftOut>,
    },
    /// The new calibration of the device.
    Calibrated(Calibration),
    /// The effect of the calibration.
    Verified(Vec<Verified>),
}

/// A message to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The stream: its descriptor comes with this packet. Data that was read from it already, with the HTTP request,
    /// follows in packets, and precedes everything that is read from the descriptor.
    Stream {
        /// Number of bytes that follow in packets.
        ahead_bytes: Bytes,
    },
    /// A staging file was created for the unpacked source.
    Make {
        /// The staging file.
        #[serde(rename = "part")]
        staging_file: PathBuf,
    },
}

/// Creates the cgroup of workers that no tenant pays for. `weight_files` are those that the kernel has.
#[must_use]
pub fn make_cgroup(weight_files: &[&str]) -> Vec<Action> {
    let create = Action::Cgroup(CgroupAction::CreateCgroup { cgroup: slices::work() });
    let weigh = |file: &&str| {
        Action::Cgroup(CgroupAction::WriteCgroup {
            cgroup: slices::work(),
            file: (*file).to_owned(),
            value: format!("default {WEIGHT}"),
        })
    };
    std::iter::once(create).chain(weight_files.iter().map(weigh)).collect()
}

/// Removes that cgroup. `last`: there is no tenant.
#[must_use]
pub fn remove_cgroup(last: bool) -> Vec<Action> {
    let cgroups = std::iter::once(slices::work()).chain(last.then(slices::root));
    cgroups.map(|cgroup| Action::Cgroup(CgroupAction::RemoveCgroup { cgroup })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::WEIGHT_FILES;
    use expect_test::expect;

    #[test]
    fn workers_without_a_paying_tenant_have_a_cgroup_that_no_tenant_can_have() {
        let work = slices::work();
        assert_eq!(work.parent(), Some(slices::root()));
        let name = work.name();
        // It would be the slice of a tenant with an invalid name.
        let tenant = slices::tenant_of(name).expect("it has the form of a slice");
        assert!(tenant.parse::<crate::name::Name>().is_err(), "{tenant}");
        let other = "work".parse().expect("a valid name");
        assert!(slices::tenant(&other) != work && slices::unit(&other) != name);
        let steps: Vec<String> =
            [make_cgroup(&WEIGHT_FILES), remove_cgroup(true)].concat().iter().map(ToString::to_string).collect();
        expect![[r#"
            create cgroup bulkhead.slice/bulkhead-.work.slice
            write "default 10" to bulkhead.slice/bulkhead-.work.slice/io.weight
            write "default 10" to bulkhead.slice/bulkhead-.work.slice/io.bfq.weight
            remove cgroup bulkhead.slice/bulkhead-.work.slice
            remove cgroup bulkhead.slice"#]]
        .assert_eq(&steps.join("\n"));
    }
}
