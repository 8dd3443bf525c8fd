//! The command line's hints: the remedy of each reason, in terms of commands and options.
//!
//! Owns: the words of the command line for each reason. Does not: diagnose errors; the reason comes from the daemon, or from another module.

use bulkhead_core::error::Fault;
use bulkhead_core::finding::Finding;
use bulkhead_core::reason::Reason;

/// The remedy of a reason, as commands and options.
pub(crate) fn advice(reason: &Reason) -> String {
    match reason {
        Reason::DaemonUnreachable => "start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal".to_owned(),
        Reason::DaemonRunning { .. } => "use that daemon, stop it first, or choose another socket path with `--socket`".to_owned(),
        Reason::SocketTaken { .. } => "remove it, or choose another socket path with `--socket`".to_owned(),
        Reason::RecordDamaged { .. } => "restore it from a backup, rename it back, or move it away; the object that it describes is not touched".to_owned(),
        Reason::WaitEnded { .. } => "`bulkhead job ls` shows what is in progress; allow more time with `--wait`, or try again later".to_owned(),
        Reason::NoSuchJob { .. } => "`bulkhead job ls` lists the jobs".to_owned(),
        Reason::NoSuchPool { pool } => format!("`bulkhead pool ls` lists the pools, `bulkhead pool create {pool} --dir PATH` creates one"),
        Reason::PoolNotThere { pool } => format!("mount the pool's file system; if it is now mounted elsewhere: `bulkhead pool move {pool} --dir DIRECTORY`"),
        Reason::PoolGroupNotThere { .. } => "`vgs -o+vg_tags` lists the existing volume groups".to_owned(),
        Reason::PoolMoved { pool, directory } => format!("if the pool is now here: `bulkhead pool move {pool} --dir {}`", directory.display()),
        Reason::PoolHasVolumes { pool } => format!("remove them first: `bulkhead volume ls --pool {pool}`, `bulkhead volume rm {pool}/VOLUME`"),
        Reason::PoolHasPart { volume } => format!("discard the received data first: `bulkhead volume receive {volume} --abort`"),
        Reason::NoSuchVolumeGroup { .. } => "`vgs` lists the volume groups; `bulkhead pool create NAME --device /dev/X` creates one".to_owned(),
        Reason::VolumeGroupTaken { .. } => "choose another name for the pool, or use that volume group with `--vg`".to_owned(),
        Reason::EraseUnconfirmed { device } => format!("if that data may be erased, confirm with exactly `--erase {device}`"),
        Reason::NoSuchVolume { volume } => format!("`bulkhead volume ls` lists the volumes, `bulkhead volume create {volume} --size SIZE` creates one"),
        Reason::VolumeUnfinished { volume } => format!("`bulkhead volume inspect {volume}` and the daemon's log say why; restart the daemon to try again"),
        Reason::VolumeAttached { volume, tenant } => format!("detach it first: `bulkhead tenant set {tenant} --detach {volume}`"),
        Reason::RemovalOfAttached { volume, tenant } => format!("detach it: `bulkhead tenant set {tenant} --detach {volume}`, or remove it with `--force`"),
        Reason::VolumeMapped { volume } => format!("`bulkhead volume unmap {volume}` when its device is no longer needed"),
        Reason::FastCommitNeedsExt4 => "omit `--fast-commit`, or use `--fs ext4`".to_owned(),
        Reason::OnDemandNeedsThin { .. } => "omit `--provision`, or use a directory pool or a pool on an LVM thin pool (`--thin-pool`, `--thin`)".to_owned(),
        Reason::WouldShrink { .. } => "add `--shrink` to confirm that the volume is to shrink".to_owned(),
        Reason::ReceiveUnfinished { volume } => format!("`bulkhead volume receive {volume} --token` prints the resume token, `--abort` discards the received data"),
        Reason::ResumeOfOther => "specify the snapshot of the interrupted transfer; if it is gone or has been written to, discard the received data (`--abort`)".to_owned(),
        Reason::ResumeOnOtherBase => "use `--from` as in the interrupted transfer, or omit it if that had none".to_owned(),
        Reason::ChecksHeldUp => "`bulkhead job ls` shows their current step".to_owned(),
        Reason::JournalSmall { volume } => format!("detach it from its tenant, then `bulkhead volume resize {volume} --journal auto`"),
        Reason::LayersMany { volume } => format!("`bulkhead volume flatten {volume}`"),
        Reason::VolumeNotAttached { volume } => format!("attach it first: `bulkhead tenant set TENANT --attach {volume}`"),
        Reason::JournalUnmended { volume } => format!("`bulkhead volume check --repair {volume}`, then `bulkhead volume resize {volume} --journal auto`"),
        Reason::FileSystemErrors => "`bulkhead volume check POOL/VOLUME --repair` repairs what can be repaired safely, `--full` repairs everything; `bulkhead volume map POOL/VOLUME` provides the device for other tools".to_owned(),
        Reason::EarlierRepairKept { kept } => format!("remove it when it is no longer needed: `bulkhead volume rm {kept}`"),
        Reason::SnapshotNeeded { volume } => format!("create a snapshot first, and use it instead: `bulkhead volume snapshot {volume} NAME`"),
        Reason::NoSnapshotOfIt { snapshot } => format!("clone it instead: `bulkhead volume clone {snapshot} NAME`"),
        Reason::WouldLoseChanges { volume } => format!("add `--lose-changes`, or keep the current state as a snapshot first: `bulkhead volume snapshot {volume} NAME`"),
        Reason::NoSnapshotsInPool => "use a pool on an LVM thin pool (`bulkhead pool create NAME --vg VG --thin-pool LV`), or a directory pool without `--server loop`".to_owned(),
        Reason::TooManyLayers => "`bulkhead volume flatten POOL/VOLUME`, and keep the volume in use until it depends on no layer".to_owned(),
        Reason::FlatteningNeedsRoom { volume } => format!("free up space in the pool, wait until the volume is flattened, or cancel flattening: `bulkhead volume flatten {volume} --cancel`"),
        Reason::ReadFromFixed => "omit `--read-from` and `--domain`, or use a directory pool".to_owned(),
        Reason::DomainNeedsPeers => "use `--read-from peers` or `--read-from disk`".to_owned(),
        Reason::PeersNeedIndex => "use `--read-from host-cache`, or a directory pool".to_owned(),
        Reason::PeersUnreadable => "`/run/bulkhead/blockd/peers.log` may say why; a clone created with `--read-from host-cache` needs no peers".to_owned(),
        Reason::SharingNeedsUblk => "`modprobe ublk_drv`, or clone the snapshot without `--read-from`".to_owned(),
        Reason::NeedsDirectoryPool => "use a directory pool (`bulkhead pool create NAME --dir PATH`), or copy the files".to_owned(),
        Reason::ReceiveIncomplete { volume } => format!("resume the transfer with the token that `bulkhead volume receive {volume} --token` prints"),
        Reason::ReceiveGivenUp => "resume the transfer with the token that `bulkhead volume receive POOL/VOLUME --token` prints".to_owned(),
        Reason::NothingReceived { .. } => "send it from the beginning, without `--resume`".to_owned(),
        Reason::NeverSent { .. } => "omit `--from`".to_owned(),
        Reason::BaseMissing => "receive the snapshot that the stream is based on first, or send this one in full (without `--from`)".to_owned(),
        Reason::OtherReceived => "resume that transfer, discard it with `--abort`, or choose another name".to_owned(),
        Reason::StagingInSource => "choose another directory with `--staging`".to_owned(),
        Reason::StagingFull => "free up space there, or choose another directory with `--staging`".to_owned(),
        Reason::StagingUnsuitable => "choose a `--staging` directory on a file system that supports everything the source uses".to_owned(),
        Reason::ArchiveCompression => "decompress it, for example `xz -dc FILE | bulkhead image import /dev/stdin POOL/VOLUME`".to_owned(),
        Reason::NoSuchPlatform => "choose one with `--platform`".to_owned(),
        Reason::ImageAmbiguous => "choose one with `--reference`, and `--platform` if necessary".to_owned(),
        Reason::TooManyImages => "choose one with `--reference`, or export that image to a layout of its own".to_owned(),
        Reason::NoSuchTenant { tenant } => format!("`bulkhead tenant ls` lists the tenants, `bulkhead tenant create {tenant}` creates one"),
        Reason::TenantDiffers { tenant } => format!("change it with `bulkhead tenant set {tenant}`, or choose another name"),
        Reason::TenantHasProcesses { .. } => "stop them, or remove the tenant with `--force`, which kills them".to_owned(),
        Reason::NoSuchDevice { .. } => "`bulkhead device ls` lists the devices by kernel name".to_owned(),
        Reason::DeviceReplaced { device } => format!("configure it again, for example `bulkhead device control {device} --policy iocost`"),
        Reason::ControlOnPhysical { physical } => format!("set the controller of the physical device, for example `bulkhead device control {} --policy iocost`", first(physical)),
        Reason::ArbiterOnPhysical { physical } => format!("switch on that of the physical device, for example `bulkhead device arbiter {} on`", first(physical)),
        Reason::Uncalibrated { device } => format!("`bulkhead device calibrate {device}` measures a model"),
        Reason::NoController { device } => format!("enable one: `bulkhead device control {device} --policy iocost` (or `bfq`)"),
        Reason::StrictBfqNeeded { device, tunables } => format!(
            "`bulkhead device control {device} --policy bfq`, then set {} in /sys/block/{device}/queue/iosched; if the write cache is enabled, \
             disable it first (`hdparm -W 0 /dev/{device}`): a flush waits for everything in it",
            tunables.join(", ")
        ),
        Reason::IocostMissing => "use `--policy bfq`, or a kernel with CONFIG_BLK_CGROUP_IOCOST".to_owned(),
        Reason::UblkMissing => "`modprobe ublk_drv`, or `--server loop` for the pool".to_owned(),
        Reason::NoDeviceToHold => "`bulkhead device ls` shows why; `bulkhead device control DEV --policy iocost` enables a controller".to_owned(),
        Reason::SeveralDevicesToHold { .. } => "choose one with `--device DEV`, as listed by `bulkhead device ls`".to_owned(),
        Reason::HoldOnPhysical { physical } => format!("use the physical device: `--device {}`", first(physical)),
        Reason::HoldForPromises { tenants } => format!("remove the promises, for example `bulkhead tenant set {} --fsync-p99 none`", first(tenants)),
        Reason::HoldOfOperator { device } => format!("end it: `bulkhead hold rm {device}`"),
        Reason::SharesInvalid => "for example `--tenant a=70 --tenant b=30`".to_owned(),
        Reason::OutsideSlice { slice } => format!("create the container again: `docker run --cgroup-parent '{slice}'` or `docker run --runtime bulkhead`, and Podman's alike"),
        Reason::NoSuchContainer { .. } => "`bulkhead top` shows the names of containers that do I/O".to_owned(),
    }
}

/// The hint of a fault: the advice for its reason, else its own hint; empty if it has neither.
pub(crate) fn hint(fault: &Fault) -> String {
    fault.reason.as_deref().map_or_else(|| fault.hint.clone(), advice)
}

/// The hint of a finding: the advice for its reason, else its own advice.
pub(crate) fn finding_hint(finding: &Finding) -> Option<String> {
    finding.reason.as_deref().map(advice).or_else(|| finding.advice.clone())
}

/// The device to suggest, of the physical devices below a stacked one.
fn first(physical: &[String]) -> &str {
    physical.first().map_or("DEV", String::as_str)
}

#[cfg(test)]
mod tests;
