//! Reasons: situations in which an operation is refused or fails, and that have a remedy.
//!
//! Owns: the closed list of situations, each with the values that its remedy mentions, and a remedy that is worded for
//! every front end. Does not: name a command or an option. A front end with commands, fields or buttons of its own
//! matches on the reason and words the remedy itself: the command line in its `advice.rs`.

use std::path::PathBuf;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::VolumeRef;
use crate::name::Name;

mod remedy;

/// Why an operation is refused or fails, if there is a remedy. A client may match on it, and has to expect unknown
/// reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    // Daemon and jobs.
    /// No daemon answers on the client's socket.
    DaemonUnreachable,
    /// Another daemon listens on this daemon's socket.
    DaemonRunning {
        /// The socket.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        socket: PathBuf,
    },
    /// The path of the daemon's socket is a file that is not a socket.
    SocketTaken {
        /// The path.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        socket: PathBuf,
    },
    /// A state file is truncated, altered, or has another name than its content.
    RecordDamaged {
        /// Its path.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        path: PathBuf,
    },
    /// Periodic checks do not finish.
    ChecksHeldUp,
    /// An operation reached its time limit while it waited for others, or for data to be written.
    WaitEnded {
        /// The limit, seconds.
        seconds: u64,
    },
    /// No job has that number, or it ended long ago.
    NoSuchJob {
        /// The number.
        job: u64,
    },
    // Pools.
    /// No pool has that name.
    NoSuchPool {
        /// The name.
        pool: Name,
    },
    /// The directory of a pool is missing, or is another one: its file system is not mounted, or mounted elsewhere.
    PoolNotThere {
        /// The pool.
        pool: Name,
    },
    /// The volume group of a pool is missing, or is another one.
    PoolGroupNotThere {
        /// The pool.
        pool: Name,
        /// The name of its volume group.
        vg: String,
    },
    /// A directory contains a pool that is recorded with another directory, or was requested by another name.
    PoolMoved {
        /// The pool in the directory.
        pool: Name,
        /// The directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        directory: PathBuf,
    },
    /// A pool cannot be removed, because it has volumes.
    PoolHasVolumes {
        /// The pool.
        pool: Name,
    },
    /// A pool cannot be removed, because it has a partially received snapshot.
    PoolHasPart {
        /// The snapshot.
        volume: VolumeRef,
    },
    /// No volume group has that name.
    NoSuchVolumeGroup {
        /// The name.
        vg: String,
    },
    /// The volume group that a pool on a device would get exists already.
    VolumeGroupTaken {
        /// Its name.
        vg: String,
    },
    /// A device carries data, and its erasure is not confirmed.
    EraseUnconfirmed {
        /// The device's path, as the confirmation has to name it.
        device: String,
    },
    // Volumes.
    /// No volume has that name.
    NoSuchVolume {
        /// The name.
        volume: VolumeRef,
    },
    /// An operation on a volume was interrupted and could not be completed.
    VolumeUnfinished {
        /// The volume.
        volume: VolumeRef,
    },
    /// The operation requires that no tenant has the volume, but one does.
    VolumeAttached {
        /// The volume.
        volume: VolumeRef,
        /// Its tenant.
        tenant: Name,
    },
    /// A volume cannot be removed, because it is attached to a tenant.
    RemovalOfAttached {
        /// The volume.
        volume: VolumeRef,
        /// Its tenant.
        tenant: Name,
    },
    /// A volume is mapped: an operator is working on its device.
    VolumeMapped {
        /// The volume.
        volume: VolumeRef,
    },
    /// fast_commit was requested for a file system other than ext4.
    FastCommitNeedsExt4,
    /// Provisioning on demand was requested in a pool of thick logical volumes.
    OnDemandNeedsThin {
        /// The pool.
        pool: Name,
    },
    /// The new size is smaller than the current one, and shrinking is not confirmed.
    WouldShrink {
        /// The volume.
        volume: VolumeRef,
    },
    /// A snapshot has been received only in part.
    ReceiveUnfinished {
        /// The future volume.
        volume: VolumeRef,
    },
    /// A volume has grown, and its journal has not.
    JournalSmall {
        /// The volume.
        volume: VolumeRef,
    },
    /// The backing chain of a volume approaches the maximum number of layers.
    LayersMany {
        /// The volume.
        volume: VolumeRef,
    },
    /// The operation requires that the volume is mounted for a tenant.
    VolumeNotAttached {
        /// The volume.
        volume: VolumeRef,
    },
    /// Replacing a volume's journal failed, and so did recovering from that.
    JournalUnmended {
        /// The volume.
        volume: VolumeRef,
    },
    /// A volume's file system has errors.
    FileSystemErrors,
    /// The copy from before an earlier repair still exists, and another repair would create one more.
    EarlierRepairKept {
        /// That copy, a snapshot.
        kept: VolumeRef,
    },
    // Copies: snapshots, clones, layers, sharing.
    /// The operation requires a snapshot, but got a writable volume.
    SnapshotNeeded {
        /// The writable volume.
        volume: VolumeRef,
    },
    /// A rollback was requested to something that is not a snapshot of the volume.
    NoSnapshotOfIt {
        /// The requested snapshot.
        snapshot: VolumeRef,
    },
    /// A rollback loses what was written since the snapshot, and that is not confirmed.
    WouldLoseChanges {
        /// The volume.
        volume: VolumeRef,
    },
    /// Pools of this kind have no snapshots and clones.
    NoSnapshotsInPool,
    /// The backing chain of a volume has the maximum number of layers.
    TooManyLayers,
    /// A volume that is being flattened cannot be copied: there is no space for what flattening would then need in
    /// addition.
    FlatteningNeedsRoom {
        /// The volume.
        volume: VolumeRef,
    },
    /// The source of shared blocks was chosen for a volume without a block server.
    ReadFromFixed,
    /// A sharing domain was requested with the host's page cache, which has none.
    DomainNeedsPeers,
    /// Reading from peers was requested on LVM, where no volume has a block index.
    PeersNeedIndex,
    /// No process can read volumes on behalf of their peers.
    PeersUnreadable,
    /// A clone on LVM that shares memory needs ublk, which this kernel lacks.
    SharingNeedsUblk,
    // Transfers and imports.
    /// Importing or receiving into an LVM pool is not supported.
    NeedsDirectoryPool,
    /// A stream does not continue at the offset up to which the volume was received.
    ReceiveIncomplete {
        /// The volume.
        volume: VolumeRef,
    },
    /// The partially received snapshot was discarded while a stream resumed it.
    ReceiveGivenUp,
    /// Nothing of the volume has been received.
    NothingReceived {
        /// The volume.
        volume: VolumeRef,
    },
    /// The base of an incremental stream was never sent, so that the receiver cannot have it.
    NeverSent {
        /// The base.
        from: VolumeRef,
    },
    /// The base of a stream is not in the pool.
    BaseMissing,
    /// Another snapshot was partially received under that name.
    OtherReceived,
    /// The partially received snapshot is not the one that is sent.
    ResumeOfOther,
    /// The partially received snapshot has another base than the stream.
    ResumeOnOtherBase,
    /// The staging directory is inside the directory to import.
    StagingInSource,
    /// The staging directory has no space left.
    StagingFull,
    /// The staging directory's file system does not support everything that the source uses.
    StagingUnsuitable,
    /// The compression of an archive is not supported.
    ArchiveCompression,
    /// The source has no image for that platform.
    NoSuchPlatform,
    /// The source has several images and none was chosen, or none with that name.
    ImageAmbiguous,
    /// The source has more images than are searched.
    TooManyImages,
    // Tenants.
    /// No tenant has that name.
    NoSuchTenant {
        /// The name.
        tenant: Name,
    },
    /// A tenant of that name exists, and differs from the requested one.
    TenantDiffers {
        /// The name.
        tenant: Name,
    },
    /// A tenant cannot be removed, because it has processes.
    TenantHasProcesses {
        /// The tenant.
        tenant: Name,
    },
    // Devices and holds.
    /// No block device has that name.
    NoSuchDevice {
        /// The name.
        device: String,
    },
    /// A device has the name of a configured one, but is another device.
    DeviceReplaced {
        /// The name.
        device: String,
    },
    /// A controller was requested on a stacked device.
    ControlOnPhysical {
        /// The physical devices below it.
        physical: Vec<String>,
    },
    /// An arbiter was requested on a stacked device.
    ArbiterOnPhysical {
        /// The physical devices below it.
        physical: Vec<String>,
    },
    /// io.cost was requested on a device without a calibration.
    Uncalibrated {
        /// The device.
        device: String,
    },
    /// A device has no controller that honours weights.
    NoController {
        /// The device.
        device: String,
    },
    /// io.cost isolates this hard disk at no speed; a strict BFQ does.
    StrictBfqNeeded {
        /// The device.
        device: String,
        /// The tunables of a strict BFQ, `name=value`.
        tunables: Vec<String>,
    },
    /// The kernel has no io.cost.
    IocostMissing,
    /// The kernel has no ublk, or one that lacks features that block servers need.
    UblkMissing,
    /// Shares cannot be enforced, because no device has a controller.
    NoDeviceToHold,
    /// The device is ambiguous: several devices have a controller.
    SeveralDevicesToHold {
        /// Their names.
        devices: Vec<String>,
    },
    /// The requested device is stacked, or the journal's file system is on other physical devices.
    HoldOnPhysical {
        /// The physical devices.
        physical: Vec<String>,
    },
    /// The hold enforces promises, and ends with them.
    HoldForPromises {
        /// The tenants whose promises it enforces.
        tenants: Vec<String>,
    },
    /// A hold that an operator has started prevents one for promises.
    HoldOfOperator {
        /// The device.
        device: String,
    },
    /// The requested shares are invalid.
    SharesInvalid,
    /// A container uses a volume of a tenant outside of the tenant's slice.
    OutsideSlice {
        /// The unit of the slice.
        slice: String,
    },
    /// No container, unit, tenant or cgroup has that name.
    NoSuchContainer {
        /// The name.
        name: String,
    },
}

/// Reads a reason. One of a newer version is ignored, so that its error can still be read.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient {
    Known(Box<Reason>),
    Unknown(IgnoredAny),
}

/// Reads a reason, if this version knows it.
///
/// # Errors
/// Those of the deserializer.
pub(crate) fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Reason>>, D::Error> {
    Ok(match Lenient::deserialize(deserializer)? {
        Lenient::Known(reason) => Some(reason),
        Lenient::Unknown(_) => None,
    })
}
