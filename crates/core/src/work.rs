//! Work that takes long, or reads what nobody vouches for, and is done by a process of its own: a worker. The daemon starts it as a
//! job, in the cgroup that pays for it; here is what the two say to each other.
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
//! Owns: the words. Does not: know how a worker is started, or what a job is.

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

/// The hidden command of the program `bulkhead` that does work for the daemon. Its argument is a [`WorkSpec`] as JSON.
pub const COMMAND: &str = "work";

/// The largest message, in bytes, and the most of a stream that comes in one packet.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;

/// The weight of [`slices::work`] in `io.weight` and `io.bfq.weight`, 1 to 1000: a tenth of what a tenant has by default. What nobody
/// pays for comes after what somebody pays for.
const WEIGHT: u32 = 10;

/// The smallest base that is made when nobody gives its size.
pub const MIN_BASE_BYTES: Bytes = Bytes::mib(256);

/// What a worker is to do, and who pays.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkSpec {
    /// The cgroup to work in, from the root of the hierarchy. When it is gone, the daemon's pays.
    pub cgroup: CgroupPath,
    /// The work.
    pub task: Task,
}

/// A worker's work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    /// Write a snapshot to the stream.
    Send(SendTask),
    /// Read a snapshot from the stream.
    Receive(ReceiveTask),
    /// Make a base of the archive in the stream.
    Import(ImportTask),
    /// Measure a device; without a stream.
    Measure(MeasureTask),
}

/// What is to be read to send a snapshot (docs/formats/stream.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendTask {
    /// The snapshot.
    pub volume: VolumeRef,
    /// The header of its stream; how much data follows is not known yet.
    pub header: StreamHeader,
    /// The layers that hold it, the newest first.
    pub layers: Vec<PathBuf>,
    /// The layers of either snapshot that hold what differs between them; all when all is sent.
    pub changed: Vec<PathBuf>,
    /// On a thin pool, what holds it instead of layers.
    pub device: Option<SendDevice>,
}

/// The devices of snapshots on a thin pool, of which nobody can change what they hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendDevice {
    /// That of what is sent.
    pub path: PathBuf,
    /// That of the snapshot from which only what differs is sent.
    pub base: Option<PathBuf>,
}

/// Where a snapshot is to be received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveTask {
    /// The volume that it becomes.
    pub volume: VolumeRef,
    /// The header that its stream has to have.
    pub header: StreamHeader,
    /// The file into which it is received.
    pub part: PathBuf,
}

/// What a base is to be made of, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportTask {
    /// The volume that it becomes.
    pub volume: VolumeRef,
    /// Name of the archive, for messages.
    pub source: String,
    /// The size of the base; by what is in it when there is none.
    pub size_bytes: Option<Bytes>,
    /// Which image of several, by its platform: `OS/ARCHITECTURE[/VARIANT]`; what this host runs when there is none.
    pub platform: Option<String>,
    /// Which image of several, by its name, its tag or its digest.
    pub reference: Option<String>,
    /// Refuses a source of which not all extended attributes can be kept.
    pub strict: bool,
    /// Where archives are unpacked on the way.
    pub staging: PathBuf,
}

/// What is to be measured, by a worker that asks the daemon for volumes and tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasureTask {
    /// The kernel name of the device.
    pub device: String,
    /// The pool whose room is used.
    pub pool: Option<Name>,
    /// The calibration to be verified; one is to be found when it is `None`.
    pub verify: Option<Calibration>,
    /// Where the daemon listens.
    pub socket: PathBuf,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// All that it needs is open: nobody can take it away any more.
    Ready,
    /// How far it is.
    Progress(JobProgress),
    /// A step begins.
    Step(JobSteps, String),
    /// What was measured.
    Figure(String),
    /// What is to be imported is unpacked. It waits for [`Order::Make`].
    Staged(Staged),
    /// All is done.
    Done(Outcome),
    /// It could not be done.
    Failed(Fault),
}

/// How far a job is that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JobProgress {
    /// What it has moved.
    pub done_bytes: Bytes,
    /// What it has to move at most, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_bytes: Option<Bytes>,
}

/// The steps of a job that has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JobSteps {
    /// Those that are done.
    pub done: u64,
    /// All of them, as far as that is known.
    pub of: u64,
}

/// What is to be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// The size that the base is to have.
    pub size_bytes: Bytes,
    /// What its files hold.
    pub data_bytes: Bytes,
}

/// What came of a worker's work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The snapshot was written to the stream.
    Sent {
        /// What was read of it.
        read_bytes: Bytes,
    },
    /// The part is whole.
    Received,
    /// A base was made in the part.
    Imported {
        /// What it is called.
        content: Uuid,
        /// How many files, directories and so on are in it.
        entries: u64,
        /// Extended attributes that it does not have.
        left_out: Vec<LeftOut>,
    },
    /// What was found of the device.
    Calibrated(Calibration),
    /// What the calibration does.
    Verified(Vec<Verified>),
}

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The stream: its descriptor comes with this packet. What was read of it already, while it was still HTTP, comes in packets
    /// after this one, and before everything that is read from the descriptor.
    Stream {
        /// How many bytes come in packets.
        ahead_bytes: Bytes,
    },
    /// A part was made for what is unpacked.
    Make {
        /// The file.
        part: PathBuf,
    },
}

/// Makes the cgroup of workers for which no tenant pays. `weight_files` are those that the kernel has.
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

/// Removes that cgroup. `last`: there is no tenant either.
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
    fn work_that_no_tenant_pays_for_has_a_cgroup_that_none_can_have() {
        let work = slices::work();
        assert_eq!(work.parent(), Some(slices::root()));
        let name = work.name();
        // Whatever tenant it would be, that is no name.
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
