//! Reasons: situations in which an operation is refused or fails, and which have a remedy.
//!
//! Owns: the closed list of situations, with what is needed to word the remedy of each, and the remedy in words that are true of
//! every front end. Does not: name a command or an option. A front end that has commands, fields or buttons of its own for a
//! remedy matches on the reason and says so in its own way: the command line in its `advice.rs`.

use std::path::PathBuf;

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::VolumeRef;
use crate::name::Name;

mod remedy;

/// Why an operation is refused or fails, where there is a remedy. A client may match on it, and has to expect reasons that it does
/// not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    // Daemon and jobs.
    /// No daemon answers on the socket that a client was given.
    DaemonUnreachable,
    /// Another daemon answers on the socket that this one was to listen on.
    DaemonRunning {
        /// That socket.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        socket: PathBuf,
    },
    /// What is not a socket is where the daemon was to listen.
    SocketTaken {
        /// That path.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        socket: PathBuf,
    },
    /// A state file is cut, altered, or not under its own name.
    RecordDamaged {
        /// Its path.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        path: PathBuf,
    },
    /// Periodic checks do not end.
    ChecksHeldUp,
    /// An operation waited for others, or for data to be written, as long as it was given.
    WaitEnded {
        /// How long that was, seconds.
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
    /// The directory of a pool is not there, or is another one: its file system is not mounted, or elsewhere.
    PoolNotThere {
        /// The pool.
        pool: Name,
    },
    /// The volume group of a pool is not there, or is another one.
    PoolGroupNotThere {
        /// The pool.
        pool: Name,
        /// The name of its volume group.
        vg: String,
    },
    /// A directory holds a pool that is recorded at another place, or was asked for by another name.
    PoolMoved {
        /// The pool that the directory holds.
        pool: Name,
        /// The directory.
        #[cfg_attr(feature = "schema", schema(value_type = String))]
        directory: PathBuf,
    },
    /// A pool that is to be removed has volumes.
    PoolHasVolumes {
        /// The pool.
        pool: Name,
    },
    /// A pool that is to be removed has a snapshot that was received in part.
    PoolHasPart {
        /// The snapshot.
        volume: VolumeRef,
    },
    /// No volume group has that name.
    NoSuchVolumeGroup {
        /// The name.
        vg: String,
    },
    /// The volume group that a pool on a device would get is there already.
    VolumeGroupTaken {
        /// Its name.
        vg: String,
    },
    /// A device carries data, and nobody confirmed that it may be erased.
    EraseUnconfirmed {
        /// The device's path, exactly as it has to be confirmed.
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
    /// A tenant has a volume that has to be nobody's.
    VolumeAttached {
        /// The volume.
        volume: VolumeRef,
        /// Its tenant.
        tenant: Name,
    },
    /// A volume that is to be removed is a tenant's.
    RemovalOfAttached {
        /// The volume.
        volume: VolumeRef,
        /// Its tenant.
        tenant: Name,
    },
    /// A volume is mapped: an operator works on its device.
    VolumeMapped {
        /// The volume.
        volume: VolumeRef,
    },
    /// fast_commit was asked for, for another file system than ext4.
    FastCommitNeedsExt4,
    /// A pool of thick logical volumes was to provision a volume on demand.
    OnDemandNeedsThin {
        /// The pool.
        pool: Name,
    },
    /// A new size is smaller than the present one, and nobody confirmed that.
    WouldShrink {
        /// The volume.
        volume: VolumeRef,
    },
    /// A snapshot has been received in part.
    ReceiveUnfinished {
        /// The volume that it is to be.
        volume: VolumeRef,
    },
    /// A volume has grown, and its journal has not.
    JournalSmall {
        /// The volume.
        volume: VolumeRef,
    },
    /// A volume lies on so many layers that its snapshots come near to the most that there can be.
    LayersMany {
        /// The volume.
        volume: VolumeRef,
    },
    /// A volume would have to be mounted for a tenant.
    VolumeNotAttached {
        /// The volume.
        volume: VolumeRef,
    },
    /// Replacing a volume's journal failed, and so did putting it in order again.
    JournalUnmended {
        /// The volume.
        volume: VolumeRef,
    },
    /// A volume's file system has errors.
    FileSystemErrors,
    /// What a volume was before an earlier repair is still kept, and a further repair would keep more.
    EarlierRepairKept {
        /// The snapshot that keeps it.
        kept: VolumeRef,
    },
    // Copies: snapshots, clones, layers, sharing.
    /// What works with a snapshot was asked for with a volume that can change.
    SnapshotNeeded {
        /// That volume.
        volume: VolumeRef,
    },
    /// A volume was to go back to what is no snapshot of it.
    NoSnapshotOfIt {
        /// What was named.
        snapshot: VolumeRef,
    },
    /// Going back to a snapshot loses what was written since, and nobody confirmed that.
    WouldLoseChanges {
        /// The volume.
        volume: VolumeRef,
    },
    /// A pool's kind has no snapshots and clones.
    NoSnapshotsInPool,
    /// A volume lies on as many layers as it can.
    TooManyLayers,
    /// A volume that is being flattened was to be copied, and there is no room for what its flattening would take in addition.
    FlatteningNeedsRoom {
        /// The volume.
        volume: VolumeRef,
    },
    /// Where shared blocks are read from was chosen for a volume without a block server of its own.
    ReadFromFixed,
    /// A sharing domain was given with the host's page cache, which has none.
    DomainNeedsPeers,
    /// Reading from peers was requested on LVM, where no volume has a block index.
    PeersNeedIndex,
    /// No process can read a volume on behalf of its peers.
    PeersUnreadable,
    /// A clone on LVM that shares memory needs ublk, which this kernel does not have.
    SharingNeedsUblk,
    // Transfers and imports.
    /// Something is to be imported or received into LVM.
    NeedsDirectoryPool,
    /// A stream does not go on where what was received of a volume ends.
    ReceiveIncomplete {
        /// The volume.
        volume: VolumeRef,
    },
    /// What was received was given up while a stream went on with it.
    ReceiveGivenUp,
    /// Nothing of a volume has been received so far.
    NothingReceived {
        /// The volume.
        volume: VolumeRef,
    },
    /// The receiver cannot have the snapshot that a stream was to be based on.
    NeverSent {
        /// That snapshot.
        from: VolumeRef,
    },
    /// The snapshot that a stream is based on is not in the pool.
    BaseMissing,
    /// Another snapshot was received in part under that name.
    OtherReceived,
    /// What was received in part is not what is sent.
    ResumeOfOther,
    /// What was received in part is based on another snapshot than what is sent.
    ResumeOnOtherBase,
    /// The staging directory is within the directory that is to be imported.
    StagingInSource,
    /// There is no room where archives are unpacked.
    StagingFull,
    /// The staging directory's file system cannot hold all that the source has.
    StagingUnsuitable,
    /// An archive is compressed in a way that is not read.
    ArchiveCompression,
    /// There is no image for that platform.
    NoSuchPlatform,
    /// Which image of several is meant is not said, or there is none of that name.
    ImageAmbiguous,
    /// There are more images than are looked through.
    TooManyImages,
    // Tenants.
    /// No tenant has that name.
    NoSuchTenant {
        /// The name.
        tenant: Name,
    },
    /// A tenant of that name is there, and differs from the one to be created.
    TenantDiffers {
        /// The name.
        tenant: Name,
    },
    /// Processes run in a tenant that is to be removed.
    TenantHasProcesses {
        /// The tenant.
        tenant: Name,
    },
    // Devices and held shares.
    /// No block device has that name.
    NoSuchDevice {
        /// The name.
        device: String,
    },
    /// A device has the name of one that was configured, and is another.
    DeviceReplaced {
        /// The name.
        device: String,
    },
    /// A controller was asked for on a stacked device.
    ControlOnPhysical {
        /// The physical devices below it.
        physical: Vec<String>,
    },
    /// io.cost was asked for on a device that has no calibration.
    Uncalibrated {
        /// The device.
        device: String,
    },
    /// No controller makes weights work on a device.
    NoController {
        /// The device.
        device: String,
    },
    /// io.cost isolates a hard disk at no speed, and a strict BFQ does.
    StrictBfqNeeded {
        /// The device.
        device: String,
        /// What makes BFQ strict: its tunables as they have to be, `name=value`.
        tunables: Vec<String>,
    },
    /// The kernel has no io.cost.
    IocostMissing,
    /// The kernel has no ublk, or one that lacks what block servers need.
    UblkMissing,
    /// Shares are to be held, and no device has a controller.
    NoDeviceToHold,
    /// Shares are to be held, and several devices have a controller.
    SeveralDevicesToHold {
        /// These.
        devices: Vec<String>,
    },
    /// Shares are to be held on a device, or beside a journal, which is on other physical devices.
    HoldOnPhysical {
        /// The physical devices.
        physical: Vec<String>,
    },
    /// Shares that are to be held make no sense together.
    SharesInvalid,
    /// No container, unit, tenant or cgroup has that name.
    NoSuchContainer {
        /// The name.
        name: String,
    },
}

/// What a reason is read as: one of a newer version than this is none, so that its fault can be read all the same.
#[derive(Deserialize)]
#[serde(untagged)]
enum Lenient {
    Known(Box<Reason>),
    Unknown(IgnoredAny),
}

/// Reads a reason, if it is one of those that are known here.
///
/// # Errors
/// Those of the deserializer.
pub(crate) fn if_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<Reason>>, D::Error> {
    Ok(match Lenient::deserialize(deserializer)? {
        Lenient::Known(reason) => Some(reason),
        Lenient::Unknown(_) => None,
    })
}
