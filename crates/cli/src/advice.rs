//! What the command line advises: the remedy of each reason, as commands and options.
//!
//! Owns: every wording that names them. Does not: decide what is wrong; that comes with the reason, from the daemon or from here.

use bulkhead_core::error::Fault;
use bulkhead_core::finding::Finding;
use bulkhead_core::reason::Reason;

/// What to type about a reason.
pub(crate) fn advice(reason: &Reason) -> String {
    match reason {
        Reason::DaemonUnreachable => "start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal".to_owned(),
        Reason::DaemonRunning { .. } => "use that one, or stop it first, or choose another path with `--socket`".to_owned(),
        Reason::SocketTaken { .. } => "remove it, or choose another path with `--socket`".to_owned(),
        Reason::RecordDamaged { .. } => "restore it from a backup, put it back under its own name, or move it away: what it describes is left untouched".to_owned(),
        Reason::WaitEnded { .. } => "`bulkhead job ls` shows what goes on; give it more time with `--wait`, or try again later".to_owned(),
        Reason::NoSuchJob { .. } => "`bulkhead job ls` lists them".to_owned(),
        Reason::NoSuchPool { pool } => format!("`bulkhead pool ls` lists them, `bulkhead pool create {pool} --dir PATH` makes one"),
        Reason::PoolNotThere { pool } => format!("mount the file system that the pool is on; if it is mounted elsewhere now: `bulkhead pool move {pool} --dir DIRECTORY`"),
        Reason::PoolGroupNotThere { .. } => "`vgs -o+vg_tags` shows the volume groups that are there".to_owned(),
        Reason::PoolMoved { pool, directory } => format!("if it is here from now on: `bulkhead pool move {pool} --dir {}`", directory.display()),
        Reason::PoolHasVolumes { pool } => format!("remove them first: `bulkhead volume ls --pool {pool}`, `bulkhead volume rm {pool}/VOLUME`"),
        Reason::PoolHasPart { volume } => format!("give it up first: `bulkhead volume receive {volume} --abort`"),
        Reason::NoSuchVolumeGroup { .. } => "`vgs` lists them; `bulkhead pool create NAME --device /dev/X` makes one".to_owned(),
        Reason::VolumeGroupTaken { .. } => "choose another name for the pool, or use it with `--vg`".to_owned(),
        Reason::EraseUnconfirmed { device } => format!("if that data may be lost, confirm with exactly `--erase {device}`"),
        Reason::NoSuchVolume { volume } => format!("`bulkhead volume ls` lists them, `bulkhead volume create {volume} --size SIZE` makes one"),
        Reason::VolumeUnfinished { volume } => format!("`bulkhead volume inspect {volume}` and the daemon's log say why; restart the daemon to try again"),
        Reason::VolumeAttached { volume, tenant } => format!("detach it first: `bulkhead tenant set {tenant} --detach {volume}`"),
        Reason::RemovalOfAttached { volume, tenant } => format!("detach it: `bulkhead tenant set {tenant} --detach {volume}`, or remove it with `--force`"),
        Reason::VolumeMapped { volume } => format!("`bulkhead volume unmap {volume}` when that is done"),
        Reason::FastCommitNeedsExt4 => "omit `--fast-commit`, or use `--fs ext4`".to_owned(),
        Reason::OnDemandNeedsThin { .. } => "omit `--provision`, or use a pool on a thin pool".to_owned(),
        Reason::WouldShrink { .. } => "add `--shrink` if it is to become smaller".to_owned(),
        Reason::ReceiveUnfinished { volume } => format!("`bulkhead volume receive {volume} --token` says how to go on, `--abort` gives it up"),
        Reason::ResumeOfOther => "name the snapshot that was being sent; if it is gone or was written to, give up what was received (`--abort`)".to_owned(),
        Reason::ResumeOnOtherBase => "give the same `--from` as before, or none if there was none".to_owned(),
        Reason::ChecksHeldUp => "`bulkhead job ls` shows the step that they are at".to_owned(),
        Reason::JournalSmall { volume } => format!("detach it from its tenant, then `bulkhead volume resize {volume} --journal auto`"),
        Reason::LayersMany { volume } => format!("`bulkhead volume flatten {volume}`"),
        Reason::VolumeNotAttached { volume } => format!("attach it first: `bulkhead tenant set TENANT --attach {volume}`"),
        Reason::JournalUnmended { volume } => format!("`bulkhead volume check --repair {volume}`, then `bulkhead volume resize {volume} --journal auto`"),
        Reason::FileSystemErrors => "`bulkhead volume check POOL/VOLUME --repair` repairs what is safe, with `--full` all of it; `bulkhead volume map POOL/VOLUME` gives you the device".to_owned(),
        Reason::EarlierRepairKept { kept } => format!("remove that when it is not needed any more: `bulkhead volume rm {kept}`"),
        Reason::SnapshotNeeded { volume } => format!("make a snapshot first, and use that: `bulkhead volume snapshot {volume} NAME`"),
        Reason::NoSnapshotOfIt { snapshot } => format!("clone that: `bulkhead volume clone {snapshot} NAME`"),
        Reason::WouldLoseChanges { volume } => format!("add `--lose-changes`, or keep it as a snapshot first: `bulkhead volume snapshot {volume} NAME`"),
        Reason::NoSnapshotsInPool => "use a pool on an LVM thin pool (`bulkhead pool create NAME --vg VG --thin-pool LV`), or one in a directory without `--server loop`".to_owned(),
        Reason::TooManyLayers => "`bulkhead volume flatten POOL/VOLUME`, and use it until it depends on no layer".to_owned(),
        Reason::FlatteningNeedsRoom { volume } => format!("make room in the pool, wait until it is flattened, or cancel that: `bulkhead volume flatten {volume} --cancel`"),
        Reason::SharingFixed => "omit `--share` and `--domain`, or make it in a pool in a directory".to_owned(),
        Reason::DomainNeedsDrr => "give it `--share drr` or `--share off`".to_owned(),
        Reason::SiblingsNeedIndex => "give it `--share base`, or make it in a pool in a directory".to_owned(),
        Reason::SiblingsUnreadable => "`/run/bulkhead/blockd/siblings.log` may say why; a clone made with `--share base` needs no siblings".to_owned(),
        Reason::SharingNeedsUblk => "`modprobe ublk_drv`, or clone the snapshot without `--share`".to_owned(),
        Reason::NeedsDirectoryPool => "use a pool in a directory (`bulkhead pool create NAME --dir PATH`), or copy the files".to_owned(),
        Reason::ReceiveIncomplete { volume } => format!("send it again, from where `bulkhead volume receive {volume} --token` says"),
        Reason::ReceiveGivenUp => "send it again, from where `bulkhead volume receive POOL/VOLUME --token` says".to_owned(),
        Reason::NothingReceived { .. } => "send it from its beginning, without `--resume`".to_owned(),
        Reason::NeverSent { .. } => "omit `--from`".to_owned(),
        Reason::BaseMissing => "receive the snapshot first that the stream is based on, or send this one whole (without `--from`)".to_owned(),
        Reason::OtherReceived => "go on with that, give it up with `--abort`, or choose another name".to_owned(),
        Reason::StagingInSource => "give another directory with `--staging`".to_owned(),
        Reason::StagingFull => "make room there, or give another directory with `--staging`".to_owned(),
        Reason::StagingUnsuitable => "give a `--staging` directory on a file system that has all that the source has".to_owned(),
        Reason::ArchiveCompression => "decompress it, for example `xz -dc FILE | bulkhead image import /dev/stdin POOL/VOLUME`".to_owned(),
        Reason::NoSuchPlatform => "choose one with `--platform`".to_owned(),
        Reason::ImageAmbiguous => "choose one with `--reference`, and `--platform` if need be".to_owned(),
        Reason::TooManyImages => "choose one image with `--reference`, or save it alone into a layout".to_owned(),
        Reason::NoSuchTenant { tenant } => format!("`bulkhead tenant ls` lists them, `bulkhead tenant create {tenant}` makes one"),
        Reason::TenantDiffers { tenant } => format!("change it with `bulkhead tenant set {tenant}`, or choose another name"),
        Reason::TenantHasProcesses { .. } => "end them, or remove the tenant with `--force`, which kills them".to_owned(),
        Reason::NoSuchDevice { .. } => "`bulkhead device ls` lists them by their kernel names".to_owned(),
        Reason::DeviceReplaced { device } => format!("configure it again, for example `bulkhead device control {device} --policy iocost`"),
        Reason::ControlOnPhysical { physical } => format!("control the physical device, for example `bulkhead device control {} --policy iocost`", first(physical)),
        Reason::Uncalibrated { device } => format!("`bulkhead device calibrate {device}` measures one"),
        Reason::NoController { device } => format!("set one up: `bulkhead device control {device} --policy iocost`, or bfq"),
        Reason::StrictBfqNeeded { device, tunables } => format!(
            "`bulkhead device control {device} --policy bfq`, then {} in /sys/block/{device}/queue/iosched; if its write cache is on, switch \
             that off first (`hdparm -W 0 /dev/{device}`): a flush waits for all that is in it",
            tunables.join(", ")
        ),
        Reason::IocostMissing => "use `--policy bfq`, or a kernel with CONFIG_BLK_CGROUP_IOCOST".to_owned(),
        Reason::UblkMissing => "`modprobe ublk_drv`, or `--server loop` for the pool".to_owned(),
        Reason::NoDeviceToHold => "`bulkhead device ls` says why; `bulkhead device control DEV --policy iocost` sets one up".to_owned(),
        Reason::SeveralDevicesToHold { .. } => "say which one is meant: `--device DEV`, as in `bulkhead device ls`".to_owned(),
        Reason::HoldOnPhysical { physical } => format!("hold shares of the physical device: `--device {}`", first(physical)),
        Reason::SharesInvalid => "for example `--tenant a=70 --tenant b=30`".to_owned(),
        Reason::NoSuchContainer { .. } => "`bulkhead top` shows the names of those that do I/O".to_owned(),
    }
}

/// What to do about a fault: the advice, where it has a reason; empty when there is nothing sensible to say.
pub(crate) fn cure(fault: &Fault) -> String {
    fault.reason.as_deref().map_or_else(|| fault.cure.clone(), advice)
}

/// What to do about a finding: the advice, where it has a reason; `None` when there is nothing sensible to say.
pub(crate) fn of_finding(finding: &Finding) -> Option<String> {
    finding.reason.as_deref().map(advice).or_else(|| finding.advice.clone())
}

/// The device to name, of those that a stacked one lies on.
fn first(physical: &[String]) -> &str {
    physical.first().map_or("DEV", String::as_str)
}

#[cfg(test)]
mod tests;
