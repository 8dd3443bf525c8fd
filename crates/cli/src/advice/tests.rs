//! Every hint has the expected text, and its commands and options exist: they are parsed by the command line itself.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bulkhead_core::error::Code;
use bulkhead_core::finding::FindingId;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use clap::{CommandFactory as _, Parser as _};

use super::*;
use crate::args::Cli;

fn volume(text: &str) -> VolumeRef {
    text.parse().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// One example of each reason, and its hint.
fn hints() -> Vec<(Reason, &'static str)> {
    vec![
        (Reason::DaemonUnreachable, "start it: `systemctl start bulkhead`, or `bulkhead daemon` in another terminal"),
        (
            Reason::DaemonRunning { socket: "/run/b.sock".into() },
            "use that daemon, stop it first, or choose another socket path with `--socket`",
        ),
        (
            Reason::SocketTaken { socket: "/run/b.sock".into() },
            "remove it, or choose another socket path with `--socket`",
        ),
        (
            Reason::RecordDamaged { path: "/var/lib/bulkhead/pools/p".into() },
            "restore it from a backup, rename it back, or move it away; the object that it describes is not touched",
        ),
        (
            Reason::WaitEnded { seconds: 7 },
            "`bulkhead job ls` shows what is in progress; allow more time with `--wait`, or try again later",
        ),
        (Reason::NoSuchJob { job: 7 }, "`bulkhead job ls` lists the jobs"),
        (
            Reason::NoSuchPool { pool: name("p") },
            "`bulkhead pool ls` lists the pools, `bulkhead pool create p --dir PATH` creates one",
        ),
        (
            Reason::PoolNotThere { pool: name("p") },
            "mount the pool's file system; if it is now mounted elsewhere: `bulkhead pool move p --dir DIRECTORY`",
        ),
        (
            Reason::PoolGroupNotThere { pool: name("p"), vg: "vg0".to_owned() },
            "`vgs -o+vg_tags` lists the existing volume groups",
        ),
        (
            Reason::PoolMoved { pool: name("p"), directory: "/mnt/p".into() },
            "if the pool is now here: `bulkhead pool move p --dir /mnt/p`",
        ),
        (
            Reason::PoolHasVolumes { pool: name("p") },
            "remove them first: `bulkhead volume ls --pool p`, `bulkhead volume rm p/VOLUME`",
        ),
        (
            Reason::PoolHasPart { volume: volume("p/v") },
            "discard the received data first: `bulkhead volume receive p/v --abort`",
        ),
        (
            Reason::NoSuchVolumeGroup { vg: "vg0".to_owned() },
            "`vgs` lists the volume groups; `bulkhead pool create NAME --device /dev/X` creates one",
        ),
        (
            Reason::VolumeGroupTaken { vg: "vg0".to_owned() },
            "choose another name for the pool, or use that volume group with `--vg`",
        ),
        (
            Reason::EraseUnconfirmed { device: "sda".to_owned() },
            "if that data may be erased, confirm with exactly `--erase sda`",
        ),
        (
            Reason::NoSuchVolume { volume: volume("p/v") },
            "`bulkhead volume ls` lists the volumes, `bulkhead volume create p/v --size SIZE` creates one",
        ),
        (
            Reason::VolumeUnfinished { volume: volume("p/v") },
            "`bulkhead volume inspect p/v` and the daemon's log say why; restart the daemon to try again",
        ),
        (
            Reason::VolumeAttached { volume: volume("p/v"), tenant: name("db") },
            "detach it first: `bulkhead tenant set db --detach p/v`",
        ),
        (
            Reason::RemovalOfAttached { volume: volume("p/v"), tenant: name("db") },
            "detach it: `bulkhead tenant set db --detach p/v`, or remove it with `--force`",
        ),
        (
            Reason::VolumeMapped { volume: volume("p/v") },
            "`bulkhead volume unmap p/v` when its device is no longer needed",
        ),
        (Reason::FastCommitNeedsExt4, "omit `--fast-commit`, or use `--fs ext4`"),
        (
            Reason::OnDemandNeedsThin { pool: name("p") },
            "omit `--provision`, or use a directory pool or a pool on an LVM thin pool (`--thin-pool`, `--thin`)",
        ),
        (Reason::WouldShrink { volume: volume("p/v") }, "add `--shrink` to confirm that the volume is to shrink"),
        (
            Reason::ReceiveUnfinished { volume: volume("p/v") },
            "`bulkhead volume receive p/v --token` prints the resume token, `--abort` discards the received data",
        ),
        (
            Reason::ResumeOfOther,
            "specify the snapshot of the interrupted transfer; if it is gone or has been written to, discard the received data (`--abort`)",
        ),
        (Reason::ResumeOnOtherBase, "use `--from` as in the interrupted transfer, or omit it if that had none"),
        (Reason::ChecksHeldUp, "`bulkhead job ls` shows their current step"),
        (
            Reason::JournalSmall { volume: volume("p/v") },
            "detach it from its tenant, then `bulkhead volume resize p/v --journal auto`",
        ),
        (Reason::LayersMany { volume: volume("p/v") }, "`bulkhead volume flatten p/v`"),
        (
            Reason::VolumeNotAttached { volume: volume("p/v") },
            "attach it first: `bulkhead tenant set TENANT --attach p/v`",
        ),
        (
            Reason::JournalUnmended { volume: volume("p/v") },
            "`bulkhead volume check --repair p/v`, then `bulkhead volume resize p/v --journal auto`",
        ),
        (
            Reason::FileSystemErrors,
            "`bulkhead volume check POOL/VOLUME --repair` repairs what can be repaired safely, `--full` repairs everything; `bulkhead volume map POOL/VOLUME` provides the device for other tools",
        ),
        (
            Reason::EarlierRepairKept { kept: volume("p/v-before-repair") },
            "remove it when it is no longer needed: `bulkhead volume rm p/v-before-repair`",
        ),
        (
            Reason::SnapshotNeeded { volume: volume("p/v") },
            "create a snapshot first, and use it instead: `bulkhead volume snapshot p/v NAME`",
        ),
        (Reason::NoSnapshotOfIt { snapshot: volume("p/s") }, "clone it instead: `bulkhead volume clone p/s NAME`"),
        (
            Reason::WouldLoseChanges { volume: volume("p/v") },
            "add `--lose-changes`, or keep the current state as a snapshot first: `bulkhead volume snapshot p/v NAME`",
        ),
        (
            Reason::NoSnapshotsInPool,
            "use a pool on an LVM thin pool (`bulkhead pool create NAME --vg VG --thin-pool LV`), or a directory pool without `--server loop`",
        ),
        (
            Reason::TooManyLayers,
            "`bulkhead volume flatten POOL/VOLUME`, and keep the volume in use until it depends on no layer",
        ),
        (
            Reason::FlatteningNeedsRoom { volume: volume("p/v") },
            "free up space in the pool, wait until the volume is flattened, or cancel flattening: `bulkhead volume flatten p/v --cancel`",
        ),
        (Reason::ReadFromFixed, "omit `--read-from` and `--domain`, or use a directory pool"),
        (Reason::DomainNeedsPeers, "use `--read-from peers` or `--read-from disk`"),
        (Reason::PeersNeedIndex, "use `--read-from host-cache`, or a directory pool"),
        (
            Reason::PeersUnreadable,
            "`/run/bulkhead/blockd/peers.log` may say why; a clone created with `--read-from host-cache` needs no peers",
        ),
        (Reason::SharingNeedsUblk, "`modprobe ublk_drv`, or clone the snapshot without `--read-from`"),
        (
            Reason::NeedsDirectoryPool,
            "use a directory pool (`bulkhead pool create NAME --dir PATH`), or copy the files",
        ),
        (
            Reason::ReceiveIncomplete { volume: volume("p/v") },
            "resume the transfer with the token that `bulkhead volume receive p/v --token` prints",
        ),
        (
            Reason::ReceiveGivenUp,
            "resume the transfer with the token that `bulkhead volume receive POOL/VOLUME --token` prints",
        ),
        (Reason::NothingReceived { volume: volume("p/v") }, "send it from the beginning, without `--resume`"),
        (Reason::NeverSent { from: volume("p/s") }, "omit `--from`"),
        (
            Reason::BaseMissing,
            "receive the snapshot that the stream is based on first, or send this one in full (without `--from`)",
        ),
        (Reason::OtherReceived, "resume that transfer, discard it with `--abort`, or choose another name"),
        (Reason::StagingInSource, "choose another directory with `--staging`"),
        (Reason::StagingFull, "free up space there, or choose another directory with `--staging`"),
        (
            Reason::StagingUnsuitable,
            "choose a `--staging` directory on a file system that supports everything the source uses",
        ),
        (
            Reason::ArchiveCompression,
            "decompress it, for example `xz -dc FILE | bulkhead image import /dev/stdin POOL/VOLUME`",
        ),
        (Reason::NoSuchPlatform, "choose one with `--platform`"),
        (Reason::ImageAmbiguous, "choose one with `--reference`, and `--platform` if necessary"),
        (Reason::TooManyImages, "choose one with `--reference`, or export that image to a layout of its own"),
        (
            Reason::NoSuchTenant { tenant: name("db") },
            "`bulkhead tenant ls` lists the tenants, `bulkhead tenant create db` creates one",
        ),
        (
            Reason::TenantDiffers { tenant: name("db") },
            "change it with `bulkhead tenant set db`, or choose another name",
        ),
        (
            Reason::TenantHasProcesses { tenant: name("db") },
            "stop them, or remove the tenant with `--force`, which kills them",
        ),
        (Reason::NoSuchDevice { device: "sda".to_owned() }, "`bulkhead device ls` lists the devices by kernel name"),
        (
            Reason::DeviceReplaced { device: "sda".to_owned() },
            "configure it again, for example `bulkhead device control sda --policy iocost`",
        ),
        (
            Reason::ControlOnPhysical { physical: vec!["sda".to_owned(), "sdb".to_owned()] },
            "set the controller of the physical device, for example `bulkhead device control sda --policy iocost`",
        ),
        (
            Reason::ArbiterOnPhysical { physical: vec!["sda".to_owned(), "sdb".to_owned()] },
            "switch on that of the physical device, for example `bulkhead device arbiter sda on`",
        ),
        (Reason::Uncalibrated { device: "sda".to_owned() }, "`bulkhead device calibrate sda` measures a model"),
        (
            Reason::NoController { device: "sda".to_owned() },
            "enable one: `bulkhead device control sda --policy iocost` (or `bfq`)",
        ),
        (
            Reason::StrictBfqNeeded { device: "sda".to_owned(), tunables: vec!["a=1".to_owned(), "b=2".to_owned()] },
            "`bulkhead device control sda --policy bfq`, then set a=1, b=2 in /sys/block/sda/queue/iosched; if the write cache is enabled, \
             disable it first (`hdparm -W 0 /dev/sda`): a flush waits for everything in it",
        ),
        (Reason::IocostMissing, "use `--policy bfq`, or a kernel with CONFIG_BLK_CGROUP_IOCOST"),
        (Reason::UblkMissing, "`modprobe ublk_drv`, or `--server loop` for the pool"),
        (
            Reason::NoDeviceToHold,
            "`bulkhead device ls` shows why; `bulkhead device control DEV --policy iocost` enables a controller",
        ),
        (
            Reason::SeveralDevicesToHold { devices: vec!["sda".to_owned(), "sdb".to_owned()] },
            "choose one with `--device DEV`, as listed by `bulkhead device ls`",
        ),
        (
            Reason::HoldOnPhysical { physical: vec!["sda".to_owned(), "sdb".to_owned()] },
            "use the physical device: `--device sda`",
        ),
        (
            Reason::HoldForPromises { tenants: vec!["db".to_owned(), "web".to_owned()] },
            "remove the promises, for example `bulkhead tenant set db --fsync-p99 none`",
        ),
        (Reason::HoldOfOperator { device: "sda".to_owned() }, "end it: `bulkhead hold rm sda`"),
        (Reason::SharesInvalid, "for example `--tenant a=70 --tenant b=30`"),
        (
            Reason::OutsideSlice { slice: "bulkhead-my\\x2ddb.slice".to_owned() },
            "create the container again: `docker run --cgroup-parent 'bulkhead-my\\x2ddb.slice'` or `docker run --runtime bulkhead`, and Podman's alike",
        ),
        (
            Reason::NoSuchContainer { name: "web".to_owned() },
            "`bulkhead top` shows the names of containers that do I/O",
        ),
    ]
}

#[test]
fn each_reason_has_the_expected_hint() {
    for (reason, expected) in hints() {
        assert_eq!(advice(&reason), expected);
        let fault = Fault::new(Code::Internal, "x", "y").reason(reason);
        assert_eq!(hint(&fault), expected);
        let finding = Finding::from_fault(FindingId::NotRecovered, fault);
        assert_eq!(finding_hint(&finding).as_deref(), Some(expected));
    }
    let finding = Finding::new(FindingId::ServerGone, "x", "y");
    assert_eq!(finding_hint(&finding), None);
    assert_eq!(finding_hint(&finding.advise("wait")).as_deref(), Some("wait"));
    assert_eq!(hint(&Fault::new(Code::Internal, "x", "y").hint("wait")), "wait");
}

#[test]
fn every_reason_of_the_api_has_an_expected_hint_here() {
    let document = std::fs::read(crates().join("../docs/openapi.json")).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    let variants = document["components"]["schemas"]["Reason"]["oneOf"].as_array().unwrap();
    let described: BTreeSet<String> =
        variants.iter().map(|variant| text(&variant["properties"]["reason"]["enum"][0])).collect();
    let expected = hints().into_iter().map(|(reason, _)| serde_json::to_value(reason).unwrap());
    assert_eq!(expected.map(|reason| text(&reason["reason"])).collect::<BTreeSet<_>>(), described);
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap().to_owned()
}

#[test]
fn commands_in_hints_are_valid() {
    let mut n_commands = 0;
    for (reason, _) in hints() {
        let advice = advice(&reason);
        for command in quoted(&advice).flat_map(|quoted| quoted.split('|')) {
            let words: Vec<&str> = command.split_whitespace().collect();
            if words.first() == Some(&"bulkhead") {
                n_commands += 1;
                let parsed = Cli::try_parse_from(&words);
                assert!(parsed.is_ok(), "{reason:?}: `{command}`: {}", parsed.unwrap_err());
            }
        }
    }
    assert!(n_commands > 30, "only {n_commands} commands were found");
}

#[test]
fn options_in_hints_exist() {
    let ours = options();
    let mut n_options = 0;
    for (reason, _) in hints() {
        for quoted in quoted(&advice(&reason)).filter(|quoted| quoted.starts_with("--")) {
            n_options += 1;
            let option = quoted.split([' ', '=']).next().unwrap();
            assert!(ours.contains(option), "{reason:?}: `{option}`");
        }
    }
    assert!(n_options > 15, "only {n_options} options were found");
}

#[test]
fn remedies_in_core_name_no_command_or_option() {
    let ours = options();
    for (reason, _) in hints() {
        let remedy = reason.remedy();
        assert!(!remedy.is_empty() && !remedy.ends_with('.'), "{reason:?}: {remedy}");
        assert_eq!(ours_in(&remedy, &ours), Vec::<&str>::new(), "{reason:?}");
    }
}

#[test]
fn no_crate_below_the_front_ends_names_commands_or_options() {
    let ours = options();
    let mut found = Vec::new();
    for krate in ["core", "sys", "formats", "blockd", "image", "api", "engine", "front-end"] {
        for path in sources(&crates().join(krate).join("src")) {
            let source = std::fs::read_to_string(&path).unwrap();
            // Unit tests are at the end of every file.
            let product = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            let file = path.strip_prefix(crates()).unwrap().to_str().unwrap();
            for line in product.lines().filter(|line| !line.trim_start().starts_with("//")) {
                if !ours_in(line, &ours).is_empty() {
                    found.push(format!("{file}: {}", line.trim()));
                }
            }
        }
    }
    assert!(found.is_empty(), "give these a `Reason`, and its hint in `advice`:\n{}", found.join("\n"));
}

/// The commands and options of the command line that a text names.
fn ours_in<'a>(text: &'a str, options: &BTreeSet<String>) -> Vec<&'a str> {
    let starts = |part: &&str| {
        let option = part.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next().unwrap_or_default();
        part.starts_with("bulkhead ") || options.contains(option)
    };
    text.split('`').skip(1).filter(starts).collect()
}

/// The parts of a text between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// All long options of all commands, with their dashes.
fn options() -> BTreeSet<String> {
    fn collect(command: &clap::Command, into: &mut BTreeSet<String>) {
        into.extend(command.get_arguments().filter_map(|argument| Some(format!("--{}", argument.get_long()?))));
        command.get_subcommands().for_each(|command| collect(command, into));
    }
    let mut options = BTreeSet::new();
    collect(&Cli::command(), &mut options);
    options
}

/// The directory of the workspace's crates.
fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All source files below a directory, without test files.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !path.file_stem().unwrap().to_str().unwrap().ends_with("tests")
        {
            files.push(path);
        }
    }
    files
}
