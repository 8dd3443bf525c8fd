//! Volume groups and logical volumes, through the `lvm` program (lvm(8)).
//!
//! Owns: its command lines and its JSON reports. Names, tags and sizes are checked before they become arguments. When a
//! command fails, the cause is found by asking for a report, not by reading the message.
//! Does not: make, grow or shrink file systems (`fsutil`), and keep a record of volumes (their tags are the record).
//!
//! Without udev (a small container or a rescue system) LVM would wait for ever for udev's answer, or trust links that
//! nobody makes. Where `/run/udev/control` does not answer, each command is told so and makes the nodes in `/dev` itself.
//! In a container that has the host's `/run/udev` but its own IPC namespace LVM still hangs: share the host's.

use std::cmp::Ordering;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_core::units::{Bytes, DevNo};

use crate::block;
use crate::mount;
use crate::roots::Roots;
use crate::tool::{Tool, ToolError, ToolOutput};

mod report;
mod tags;

use report::{parse_lvs, parse_vgs};

/// The program; the commands are its first argument.
const PROGRAM: &str = "lvm";

/// How long one command may take: LVM waits for locks, and reads every device.
const LIMIT: Duration = Duration::from_secs(300);

/// Commands without a limit: killed between suspending a device and resuming it, they leave all I/O on it blocked.
const SUSPENDING: [&str; 4] = ["lvcreate", "lvextend", "lvreduce", "lvremove"];

/// What an `lvchange` has that suspends its device, too.
const PROTECTING: &str = "-pr";

/// Longest name of a group or volume in bytes. The dm name is built of both with `-` doubled (`DM_NAME_LEN` 128).
const MAX_NAME_BYTES: usize = 63;

/// Longest tag in bytes (lvm(8): 1024).
const MAX_TAG_BYTES: usize = 1024;

/// Where udev listens.
const UDEV_CONTROL: &str = "/run/udev/control";

/// What LVM is told when there is no udev.
const WITHOUT_UDEV: &str = "activation{udev_sync=0 udev_rules=0 verify_udev_operations=1} devices{obtain_device_list_from_udev=0 external_device_info_source=\"none\"}";

/// What LVM is told in any case: with asynchronous I/O each command waits for a grace period of RCU at its end (`io_destroy`, 12 to
/// 24 ms), longer than for all else it does.
const SYNCHRONOUS: &str = "global{use_aio=0}";

/// The administrator's own filter, read once: LVM takes only one.
static GLOBAL_FILTER: OnceLock<Option<String>> = OnceLock::new();

/// Why something about LVM failed. `object` is a group (`vg`), a volume (`vg/lv`) or a device.
#[derive(Debug, thiserror::Error)]
pub enum LvmError {
    /// A name that LVM does not take, or that could be mistaken for an option.
    #[error("{name:?} cannot be the name of a {what}: {reason}")]
    BadName {
        /// `volume group` or `logical volume`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tag that LVM does not take.
    #[error("{0:?} cannot be a tag: use 1 to 1024 of A-Z a-z 0-9 _ + . - / = ! : & #, not starting with -")]
    BadTag(String),
    /// A size of zero.
    #[error("cannot {operation} {object}: a size of 0 makes no sense")]
    ZeroSize {
        /// What was tried.
        operation: &'static str,
        /// The volume.
        object: String,
    },
    /// It does not exist.
    #[error("cannot {operation} {object}: there is no {missing}")]
    NotFound {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// What is missing.
        missing: String,
    },
    /// There is one of that name already.
    #[error("cannot {operation} {object}: it exists already")]
    AlreadyExists {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
    },
    /// The group, or the thin pool, has not enough space left.
    #[error("cannot {operation} {object}: {reason}")]
    NoSpace {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// How much is needed, and how much is there.
        reason: String,
        /// What LVM said.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// It is open, mounted, or has volumes.
    #[error("cannot {operation} {object}: {reason}")]
    InUse {
        /// What was tried.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// By whom or what.
        reason: String,
        /// What LVM said.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The device carries something: nothing is overwritten.
    #[error("cannot {operation} {object}: it carries {}", list_signatures(found))]
    HasSignature {
        /// What was tried.
        operation: &'static str,
        /// The device.
        object: String,
        /// What was found on it.
        found: Vec<block::Signature>,
    },
    /// The volume would become smaller, and the caller did not say that this is meant.
    #[error("{object} is {now} large: making it {wanted} would cut it off")]
    WouldShrink {
        /// The volume.
        object: String,
        /// Its size.
        now: Bytes,
        /// The size asked for.
        wanted: Bytes,
    },
    /// The device could not be examined.
    #[error("cannot {operation} {object}")]
    Device {
        /// What was tried.
        operation: &'static str,
        /// The device.
        object: String,
        /// Why.
        #[source]
        source: Box<block::BlockError>,
    },
    /// A report was not understood.
    #[error("cannot read the report of lvm about {object}: {reason}")]
    Report {
        /// What the report is about.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Any other failure.
    #[error("cannot {operation} {object}")]
    Other {
        /// What was tried.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// What LVM said.
        #[source]
        source: Box<ToolError>,
    },
}

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vg {
    /// Name.
    pub name: String,
    /// Size of all its extents.
    pub size: Bytes,
    /// Space in extents that no volume uses.
    pub free: Bytes,
    /// Size of an extent: volumes are multiples of it.
    pub extent_size: Bytes,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// Number of physical volumes.
    pub pv_count: u32,
    /// Whether a physical volume is missing.
    pub partial: bool,
}

/// What kind of volume it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LvKind {
    /// Plain extents.
    Linear,
    /// A thin pool.
    ThinPool,
    /// A thin volume.
    Thin {
        /// Its pool.
        pool: String,
        /// The volume of which it is a snapshot, while that exists.
        origin: Option<String>,
    },
    /// An old-style copy-on-write snapshot; it goes when its origin goes.
    ThickSnapshot {
        /// The volume of which it is a snapshot.
        origin: String,
    },
    /// Anything else, as LVM's report calls it (`lv_layout`).
    Other(String),
}

/// A logical volume.
#[derive(Clone, Debug, PartialEq)]
pub struct Lv {
    /// Name.
    pub name: String,
    /// Its group.
    pub vg: String,
    /// Device node, `/dev/VG/LV`; there only while it is active. A thin pool has none.
    pub path: PathBuf,
    /// Size; for a thin volume the virtual one.
    pub size: Bytes,
    /// What it is.
    pub kind: LvKind,
    /// Whether the kernel has it (`dmsetup`).
    pub active: bool,
    /// Whether something has it open: a mount, a program, or another volume.
    pub open: bool,
    /// Tags, sorted.
    pub tags: Vec<String>,
    /// How full it is in percent (0 to 100): mapped part of a thin volume, data of a thin pool. `None` when it is inactive
    /// or this does not apply.
    pub data_percent: Option<f64>,
    /// How full the metadata of a thin pool is, in percent.
    pub metadata_percent: Option<f64>,
    /// Device number while it is active.
    pub dev: Option<DevNo>,
    /// Whether it refuses writes (by its metadata, so also known while it is inactive).
    pub read_only: bool,
    /// Whether it is left out when the group is activated (thin snapshots made by others; lvchange(8), `--setactivationskip`).
    pub activation_skip: bool,
    /// Whether a thin pool gives out blocks zeroed (lvcreate(8), `--zero`); without it a volume shows what its blocks held before.
    pub zeroes: bool,
    /// LVM's word for what is wrong with it (`lv_health_status`): `partial`, `failed`, `out_of_data`,
    /// `metadata_read_only` …; empty when it is well.
    pub health: String,
}

/// The finest step of [`Lv::data_percent`] as LVM reports it, in percent.
const PERCENT_STEP: f64 = 0.01;

impl Lv {
    /// What it takes of its group, or a thin volume of its pool: rounded down to what LVM's percentage surely stands for.
    #[must_use]
    pub fn allocated(&self) -> Bytes {
        if !matches!(self.kind, LvKind::Thin { .. }) {
            return self.size;
        }
        let pct = self.data_percent.map_or(0.0, |pct| (pct - PERCENT_STEP).clamp(0.0, 100.0));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a part of a size, rounded down"
        )]
        Bytes((self.size.0 as f64 * (pct / 100.0)) as u64)
    }
}

/// The `lvm` program, kept away from some ublk devices.
#[derive(Clone, Copy, Debug)]
pub struct Lvm {
    /// Lists them, by number, before each command.
    avoided: fn() -> Vec<u32>,
}

impl Lvm {
    /// `avoided` lists the ublk devices, by number, that LVM must not open: it would look for labels on each, and wait for one whose server
    /// is gone, with everything that waits for LVM.
    #[must_use]
    pub fn new(avoided: fn() -> Vec<u32>) -> Self {
        Self { avoided }
    }

    /// All volume groups, by name.
    ///
    /// # Errors
    /// [`LvmError::Other`] when LVM fails, [`LvmError::Report`].
    pub fn vgs(&self) -> Result<Vec<Vg>, LvmError> {
        const OBJECT: &str = "the volume groups";
        let output = self.run_for("list", OBJECT, Command::new("vgs").args(REPORT_ARGS).args(["-o", VG_FIELDS]))?;
        let mut groups =
            parse_vgs(&output.stdout).map_err(|reason| LvmError::Report { object: OBJECT.into(), reason })?;
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(groups)
    }

    /// One volume group; `None` when there is none of that name.
    ///
    /// # Errors
    /// [`LvmError::BadName`] and those of [`Lvm::vgs`].
    pub fn vg(&self, name: &str) -> Result<Option<Vg>, LvmError> {
        check_vg(name)?;
        // Asking for one group by name fails with the same exit code for "none" and for "broken": so all are asked for.
        Ok(self.vgs()?.into_iter().find(|group| group.name == name))
    }

    /// The volumes of a group, by name. LVM's internal volumes (`[pool_tdata]`, `[lvol0_pmspare]`) are left out.
    ///
    /// # Errors
    /// [`LvmError::NotFound`] without the group, and those of [`Lvm::vgs`].
    pub fn lvs(&self, vg: &str) -> Result<Vec<Lv>, LvmError> {
        check_vg(vg)?;
        self.volumes(vg, "list", vg)
    }

    /// One volume; `None` when there is none of that name in the group.
    ///
    /// # Errors
    /// [`LvmError::BadName`] and those of [`Lvm::lvs`]: also that the group does not exist.
    pub fn lv(&self, vg: &str, name: &str) -> Result<Option<Lv>, LvmError> {
        check_lv(name)?;
        Ok(self.lvs(vg)?.into_iter().find(|volume| volume.name == name))
    }

    /// Makes a volume of plain extents, active, and wipes old signatures and the first 4 KiB inside it.
    ///
    /// The size is rounded up to whole extents. The rest of the volume has the old content of the extents.
    ///
    /// # Errors
    /// [`LvmError::AlreadyExists`], [`LvmError::NotFound`] (the group), [`LvmError::NoSpace`], [`LvmError::BadName`],
    /// [`LvmError::BadTag`], [`LvmError::ZeroSize`], [`LvmError::Other`].
    pub fn create_linear(&self, vg: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<(), LvmError> {
        let command = linear_args(vg, name, size, tags)?;
        self.create("create", vg, name, Need::Extents(size), &command)
    }

    /// Makes a thin pool that zeroes blocks before their first use, so that no tenant reads another one's old data.
    ///
    /// LVM chooses the size of the metadata and of the blocks by the size of the pool, and reserves as much again for repair.
    ///
    /// # Errors
    /// As [`Lvm::create_linear`].
    pub fn create_thin_pool(&self, vg: &str, name: &str, size: Bytes) -> Result<(), LvmError> {
        let command = thin_pool_args(vg, name, size)?;
        // Metadata and its spare: 64 bytes for each block of 64 KiB, in whole extents (lvmthin(7)).
        let with_metadata = Bytes(size.0.saturating_add(size.0 / 512).saturating_add(8 * Bytes::MIB));
        self.create("create", vg, name, Need::Extents(with_metadata), &command)
    }

    /// Makes a thin volume, active, in a pool.
    ///
    /// # Errors
    /// As [`Lvm::create_linear`]; [`LvmError::NotFound`] also without the pool, [`LvmError::NoSpace`] when the pool is full.
    pub fn create_thin(
        &self,
        vg: &str,
        pool: &str,
        name: &str,
        virtual_size: Bytes,
        tags: &[&str],
    ) -> Result<(), LvmError> {
        let command = thin_args(vg, pool, name, virtual_size, tags)?;
        self.create("create", vg, name, Need::Lv(pool), &command)
    }

    /// Makes a thin snapshot of a thin volume, active, without the flag that would leave it out at the next activation.
    ///
    /// The kernel freezes a mounted file system on the origin for the moment, so that the snapshot is consistent (an ext4 comes
    /// out with an empty journal, XFS with a log to replay). What is dirty is written out before, so that the moment is short.
    ///
    /// # Errors
    /// As [`Lvm::create_thin`], with the origin in place of the pool.
    pub fn snapshot_thin(
        &self,
        vg: &str,
        origin: &str,
        name: &str,
        tags: &[&str],
        read_only: bool,
    ) -> Result<(), LvmError> {
        let command = snapshot_args(vg, origin, name, tags, read_only)?;
        // When there is no such device, LVM says so.
        if let Ok(dev) = block::devno_of(&node(vg, origin)) {
            mount::sync_device(&Roots::host(), dev);
        }
        // Without a size LVM makes a thin snapshot, and only of a thin volume.
        self.create("snapshot", vg, name, Need::Lv(origin), &command)
    }

    /// Makes a volume larger or, when `shrink` says that this is meant, smaller. Rounded up to whole extents.
    ///
    /// The file system is not touched: grow it afterwards, shrink it before. LVM 2.03.17 and newer refuse to cut off a file
    /// system that they know.
    ///
    /// # Errors
    /// [`LvmError::WouldShrink`] when `size` is less than now and `shrink` is false, [`LvmError::NotFound`], [`LvmError::NoSpace`],
    /// [`LvmError::Other`].
    pub fn resize(&self, volume: &Lv, size: Bytes, shrink: bool) -> Result<(), LvmError> {
        const RESIZE: &str = "resize";
        let object = full_name(&volume.vg, &volume.name);
        let command_name = match size.cmp(&volume.size) {
            _ if size.0 == 0 => return Err(LvmError::ZeroSize { operation: RESIZE, object }),
            Ordering::Equal => return Ok(()),
            Ordering::Greater => "lvextend",
            Ordering::Less if shrink => "lvreduce",
            Ordering::Less => return Err(LvmError::WouldShrink { object, now: volume.size, wanted: size }),
        };
        let Err(source) = self.run(&Command::new(command_name).args(["--yes", "-L", &size_arg(size), &object])) else {
            return Ok(());
        };
        let Ok(group) = self.vg(&volume.vg) else { return Err(other(RESIZE, &object, source)) };
        let Some(group) = group else { return Err(no_group(RESIZE, &object, &volume.vg)) };
        let wanted = size.round_up(group.extent_size).unwrap_or(size);
        let more = Bytes(wanted.0.saturating_sub(volume.size.0));
        match self.lv(&volume.vg, &volume.name) {
            Ok(None) => Err(no_volume(RESIZE, &object)),
            // LVM refuses a change of size that changes no size.
            Ok(Some(found)) if found.size == wanted => Ok(()),
            _ if more > group.free && !matches!(volume.kind, LvKind::Thin { .. }) => {
                Err(no_extents(RESIZE, object, more, group.free, source))
            }
            _ => Err(other(RESIZE, &object, source)),
        }
    }

    /// Removes a volume; `false` when there is none, or when it does not have the tag. Its thin snapshots live on.
    ///
    /// # Errors
    /// [`LvmError::NotFound`] (the group), [`LvmError::InUse`] while it is open or others would go with it (the volumes of a thin pool,
    /// thick snapshots), [`LvmError::Other`].
    pub fn remove(&self, vg: &str, name: &str, with_tag: Option<&str>) -> Result<bool, LvmError> {
        check_vg(vg)?;
        check_lv(name)?;
        let volumes = self.volumes(vg, "remove", &full_name(vg, name))?;
        let has_tag = |volume: &Lv| with_tag.is_none_or(|tag| volume.tags.iter().any(|found| found == tag));
        if !volumes.iter().any(|volume| volume.name == name && has_tag(volume)) {
            return Ok(false);
        }
        // --yes would also answer the question whether to remove all that depends on it.
        let mut dependent = volumes.iter().filter(|volume| match &volume.kind {
            LvKind::Thin { pool, .. } => pool == name,
            LvKind::ThickSnapshot { origin } => origin == name,
            _ => false,
        });
        if let Some(first) = dependent.next() {
            let reason = format!("{} volumes depend on it, for example {}", 1 + dependent.count(), first.name);
            return Err(LvmError::InUse { operation: "remove", object: full_name(vg, name), reason, source: None });
        }
        match self.change("remove", vg, name, &["lvremove", "--yes"]) {
            Ok(_) => Ok(true),
            Err(LvmError::Other { operation, object, source })
                if self.lv(vg, name).is_ok_and(|lv| lv.is_some_and(|lv| lv.open)) =>
            {
                let reason = "it is open: mounted, or used by a program or another volume".to_owned();
                Err(LvmError::InUse { operation, object, reason, source: Some(source) })
            }
            Err(error) => Err(error),
        }
    }

    /// Activates a volume, also one with the activation skip flag. Does nothing to an active one.
    ///
    /// # Errors
    /// [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn activate(&self, vg: &str, name: &str) -> Result<(), LvmError> {
        self.change("activate", vg, name, &["lvchange", "--yes", "-ay", "-K"]).map(drop)
    }

    /// Makes a volume read-only, also while it is active: what is mounted on it must be mounted read-only. `false` when it was.
    ///
    /// # Errors
    /// [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn protect(&self, vg: &str, name: &str) -> Result<bool, LvmError> {
        const PROTECT: &str = "make read-only";
        let found = self.lv(vg, name)?.ok_or_else(|| no_volume(PROTECT, &full_name(vg, name)))?;
        if !found.read_only {
            self.change(PROTECT, vg, name, &["lvchange", "--yes", PROTECTING])?;
        }
        Ok(!found.read_only)
    }

    /// Makes a volume group with these tags on one blank block device, which becomes its physical volume, in one metadata change.
    ///
    /// # Errors
    /// [`LvmError::BadTag`], [`LvmError::HasSignature`] when the device carries anything, [`LvmError::AlreadyExists`], [`LvmError::InUse`] when the
    /// kernel has claimed the device, [`LvmError::Device`], [`LvmError::Other`].
    pub fn vg_create(&self, name: &str, device: &Path, tags: &[&str]) -> Result<(), LvmError> {
        const CREATE: &str = "create a volume group on";
        check_vg(name)?;
        tags.iter().try_for_each(|tag| check_tag(tag))?;
        let object = device.display().to_string();
        let probe = |source| LvmError::Device { operation: CREATE, object: object.clone(), source: Box::new(source) };
        block::devno_of(device).map_err(probe)?;
        let found = block::signatures(device).map_err(probe)?;
        if !found.is_empty() {
            return Err(LvmError::HasSignature { operation: CREATE, object, found });
        }
        if block::claimed(device).map_err(probe)? {
            let reason = "another program or the kernel has claimed it".to_owned();
            return Err(LvmError::InUse { operation: CREATE, object, reason, source: None });
        }
        // Without --yes: a signature that appears meanwhile makes LVM ask, and nobody answers.
        let tags = tags.iter().flat_map(|tag| ["--addtag", *tag]);
        match self.run(&Command::new("vgcreate").args(tags).arg(name).arg("--").arg(device)) {
            Ok(_) => Ok(()),
            Err(source) => Err(match self.vg(name) {
                Ok(Some(_)) => LvmError::AlreadyExists { operation: "create volume group", object: name.to_owned() },
                _ => other(CREATE, &object, source),
            }),
        }
    }

    /// Removes an empty volume group; its physical volumes remain (see [`Lvm::pv_remove`]).
    ///
    /// # Errors
    /// [`LvmError::InUse`] while it has volumes, [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn vg_remove(&self, name: &str) -> Result<(), LvmError> {
        const REMOVE: &str = "remove volume group";
        check_vg(name)?;
        let n_volumes = self.volumes(name, REMOVE, name)?.len();
        if n_volumes > 0 {
            let reason = format!("it has {n_volumes} volumes");
            return Err(LvmError::InUse { operation: REMOVE, object: name.to_owned(), reason, source: None });
        }
        // Without --yes: a volume that appears meanwhile makes LVM ask, and nobody answers.
        self.change_group(REMOVE, name, &["vgremove"])
    }

    /// Takes LVM's label from a device that belongs to no group; `false` when it had none.
    ///
    /// # Errors
    /// [`LvmError::InUse`] while it belongs to a group, [`LvmError::Device`], [`LvmError::Other`].
    pub fn pv_remove(&self, device: &Path) -> Result<bool, LvmError> {
        const REMOVE: &str = "remove the LVM label from";
        let object = device.display().to_string();
        let found = block::signatures(device).map_err(|source| LvmError::Device {
            operation: REMOVE,
            object: object.clone(),
            source: Box::new(source),
        })?;
        if !found.iter().any(|signature| signature.kind == "LVM2_member") {
            return Ok(false);
        }
        match self.run(&Command::new("pvremove").arg("--").arg(device)) {
            Ok(_) => Ok(true),
            Err(source) => Err(match self.group_of(device) {
                Ok(Some(group)) => LvmError::InUse {
                    operation: REMOVE,
                    object,
                    reason: format!("it belongs to volume group {group}"),
                    source: Some(Box::new(source)),
                },
                // What LVM said first is the reason.
                Ok(None) | Err(_) => other(REMOVE, &object, source),
            }),
        }
    }

    /// Runs a command on one volume, and finds out why where it fails.
    fn change(&self, operation: &'static str, vg: &str, name: &str, words: &[&str]) -> Result<ToolOutput, LvmError> {
        check_vg(vg)?;
        check_lv(name)?;
        let object = full_name(vg, name);
        let (first, rest) = words.split_first().unwrap_or((&"", &[]));
        self.run(&Command::new(first).args(rest).arg(&object)).map_err(|source| match self.lvs(vg) {
            Err(LvmError::NotFound { .. }) => no_group(operation, &object, vg),
            Err(_) => other(operation, &object, source),
            Ok(volumes) if volumes.iter().all(|volume| volume.name != name) => no_volume(operation, &object),
            Ok(_) => other(operation, &object, source),
        })
    }

    fn change_group(&self, operation: &'static str, vg: &str, words: &[&str]) -> Result<(), LvmError> {
        check_vg(vg)?;
        let (first, rest) = words.split_first().unwrap_or((&"", &[]));
        match self.run(&Command::new(first).args(rest).arg(vg)) {
            Ok(_) => Ok(()),
            Err(source) => Err(match self.vg(vg) {
                Ok(None) => no_group(operation, vg, vg),
                _ => other(operation, vg, source),
            }),
        }
    }

    /// Device nodes of the physical volumes of a group; one that is missing is not a path (`[unknown]`).
    ///
    /// # Errors
    /// [`LvmError::BadName`], [`LvmError::Report`], [`LvmError::Other`].
    pub fn pv_devices(&self, vg: &str) -> Result<Vec<PathBuf>, LvmError> {
        check_vg(vg)?;
        let output = self.run_for("list", vg, Command::new("pvs").args(REPORT_ARGS).args(["-o", "vg_name,pv_name"]))?;
        report::parse_pv_devices(&output.stdout, vg)
            .map_err(|reason| LvmError::Report { object: vg.to_owned(), reason })
    }

    /// The group that a physical volume belongs to; `None` when it belongs to none.
    ///
    /// # Errors
    /// [`LvmError::Other`] when LVM cannot say, also for a device that is no physical volume; [`LvmError::Report`]. An unknown
    /// group is not no group: whoever is about to erase the device has to stop.
    pub fn group_of(&self, device: &Path) -> Result<Option<String>, LvmError> {
        let object = device.display().to_string();
        let output = self.run_for(
            "find the volume group of",
            &object,
            Command::new("pvs").args(REPORT_ARGS).args(["-o", "vg_name", "--"]).arg(device),
        )?;
        report::parse_group_of_pv(&output.stdout).map_err(|reason| LvmError::Report { object, reason })
    }

    fn volumes(&self, vg: &str, operation: &'static str, object: &str) -> Result<Vec<Lv>, LvmError> {
        let output = self.run(&Command::new("lvs").args(REPORT_ARGS).args(["-o", LV_FIELDS, vg])).map_err(
            |source| match self.vg(vg) {
                Ok(None) => no_group(operation, object, vg),
                _ => other(operation, object, source),
            },
        )?;
        let mut volumes =
            parse_lvs(&output.stdout).map_err(|reason| LvmError::Report { object: vg.to_owned(), reason })?;
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(volumes)
    }

    fn create(
        &self,
        operation: &'static str,
        vg: &str,
        name: &str,
        need: Need<'_>,
        command: &Command,
    ) -> Result<(), LvmError> {
        match self.run(command) {
            Ok(_) => Ok(()),
            Err(source) => Err(self.why_not_created(operation, vg, name, need, source)),
        }
    }

    fn why_not_created(
        &self,
        operation: &'static str,
        vg: &str,
        name: &str,
        need: Need<'_>,
        source: ToolError,
    ) -> LvmError {
        let object = full_name(vg, name);
        let (Ok(group), Ok(volumes)) = (self.vg(vg), self.lvs(vg).or_else(none_if_missing)) else {
            return other(operation, &object, source);
        };
        let Some(group) = group else { return no_group(operation, &object, vg) };
        if volumes.iter().any(|volume| volume.name == name) {
            return LvmError::AlreadyExists { operation, object };
        }
        match need {
            Need::Extents(size) => {
                let size = size.round_up(group.extent_size).unwrap_or(size);
                if size >= group.free {
                    no_extents(operation, object, size, group.free, source)
                } else {
                    other(operation, &object, source)
                }
            }
            Need::Lv(needed) => {
                let Some(found) = volumes.iter().find(|volume| volume.name == needed) else {
                    return LvmError::NotFound {
                        operation,
                        object,
                        missing: format!("volume {}", full_name(vg, needed)),
                    };
                };
                let pool = match &found.kind {
                    LvKind::Thin { pool, .. } => volumes.iter().find(|volume| volume.name == *pool),
                    _ => Some(found),
                };
                match pool.and_then(full_pool) {
                    Some(reason) => LvmError::NoSpace { operation, object, reason, source: Some(Box::new(source)) },
                    None => other(operation, &object, source),
                }
            }
        }
    }

    fn run_for(&self, operation: &'static str, object: &str, command: Command) -> Result<ToolOutput, LvmError> {
        self.run(&command).map_err(|source| other(operation, object, source))
    }

    fn run(&self, command: &Command) -> Result<ToolOutput, ToolError> {
        let mut config = vec![SYNCHRONOUS.to_owned()];
        if !udev_answers() {
            config.push(WITHOUT_UDEV.to_owned());
        }
        config.extend(self.without_volumes());
        command.tool(&config.join(" ")).run()
    }

    /// The filter that keeps LVM away from the devices to avoid; `None` when there are none.
    fn without_volumes(&self) -> Option<String> {
        let ids = (self.avoided)();
        let own = || {
            let found = Tool::new(PROGRAM).args(["lvmconfig", "devices/global_filter"]).limit(LIMIT).run().ok()?;
            Some(found.stdout.trim().strip_prefix("global_filter=")?.to_owned())
        };
        (!ids.is_empty()).then(|| filter(&ids, GLOBAL_FILTER.get_or_init(own).as_deref()))
    }
}

/// The device node of a volume.
#[must_use]
pub fn node(vg: &str, name: &str) -> PathBuf {
    Path::new("/dev").join(vg).join(name)
}

/// What a new volume needs, to find out why it could not be made.
#[derive(Clone, Copy)]
enum Need<'a> {
    /// Free extents of the group.
    Extents(Bytes),
    /// Another volume: the pool, or the origin of a snapshot.
    Lv(&'a str),
}

/// Why a thin pool takes nothing more; `None` when it should.
fn full_pool(pool: &Lv) -> Option<String> {
    // LVM itself refuses new thin volumes at these limits: 100 % of data, or metadata nearly full (lvmthin(7)).
    let full = |percent: Option<f64>, limit: f64| percent.is_some_and(|percent| percent >= limit);
    let name = full_name(&pool.vg, &pool.name);
    match () {
        () if full(pool.data_percent, 99.99) => Some(format!("thin pool {name} is full")),
        () if full(pool.metadata_percent, 75.0) => Some(format!("the metadata of thin pool {name} is nearly full")),
        () => None,
    }
}

fn none_if_missing(error: LvmError) -> Result<Vec<Lv>, LvmError> {
    match error {
        LvmError::NotFound { .. } => Ok(Vec::new()),
        error => Err(error),
    }
}

fn no_group(operation: &'static str, object: &str, vg: &str) -> LvmError {
    LvmError::NotFound { operation, object: object.to_owned(), missing: format!("volume group {vg}") }
}

fn no_volume(operation: &'static str, object: &str) -> LvmError {
    LvmError::NotFound { operation, object: object.to_owned(), missing: format!("volume {object}") }
}

fn no_extents(operation: &'static str, object: String, need: Bytes, free: Bytes, source: ToolError) -> LvmError {
    let reason = format!("it needs {need} and the volume group has {free} free");
    LvmError::NoSpace { operation, object, reason, source: Some(Box::new(source)) }
}

fn other(operation: &'static str, object: &str, source: ToolError) -> LvmError {
    LvmError::Other { operation, object: object.to_owned(), source: Box::new(source) }
}

fn list_signatures(found: &[block::Signature]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A filter that rejects these ublk devices and their partitions, in front of the administrator's own.
fn filter(ids: &[u32], own: Option<&str>) -> String {
    let mut patterns: Vec<String> = ids.iter().map(|id| format!("\"r|^/dev/ublkb{id}(p[0-9]+)?$|\"")).collect();
    let own = own.map(|own| own.trim_start_matches('[').trim_end_matches(']').to_owned());
    patterns.extend(own.filter(|own| !own.is_empty()));
    format!("devices{{global_filter=[{}]}}", patterns.join(","))
}

/// Whether udev is there: its socket takes connections. A socket left over from a udev that ended does not.
fn udev_answers() -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let attempt = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(UDEV_CONTROL)?)
    };
    // AGAIN: there is somebody, with a full queue.
    matches!(attempt(), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

// Command lines. Each checks what it puts in.

const REPORT_ARGS: [&str; 5] = ["--reportformat", "json", "--units", "b", "--nosuffix"];

const VG_FIELDS: &str = "vg_name,vg_size,vg_free,vg_extent_size,vg_tags,pv_count,vg_missing_pv_count";

/// Only fields of volumes: one of segments (`segtype`) would give a line per segment.
const LV_FIELDS: &str = "lv_name,vg_name,lv_size,lv_layout,lv_role,pool_lv,origin,lv_active,lv_device_open,lv_tags,\
                         data_percent,metadata_percent,lv_kernel_major,lv_kernel_minor,lv_attr,lv_skip_activation,\
                         lv_health_status";

/// One LVM command and its arguments.
#[derive(Clone, Debug)]
struct Command(Vec<OsString>);

impl Command {
    fn new(name: &str) -> Self {
        Self(vec![name.into()])
    }

    fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.push(arg.as_ref().to_owned());
        self
    }

    fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.0.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    fn tool(&self, config: &str) -> Tool {
        let (name, args) = self.0.split_at(1.min(self.0.len()));
        // In front of the other arguments, which may end the options with `--`.
        let tool = Tool::new(PROGRAM).args(name).args(["--config", config]).args(args);
        if self.suspends() { tool.unlimited() } else { tool.limit(LIMIT) }
    }

    /// Whether it may suspend a device.
    fn suspends(&self) -> bool {
        self.0.first().is_some_and(|name| SUSPENDING.iter().any(|command| name == command))
            || self.0.iter().any(|arg| arg == PROTECTING)
    }
}

fn linear_args(vg: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<Command, LvmError> {
    let command = creation(vg, name, Some(size), tags)?;
    // --yes answers the question whether to wipe a signature found inside the new volume.
    Ok(command.args(["--yes", "-Wy", "-Zy", "--type", "linear", "-n", name, "-L", &size_arg(size), vg]))
}

fn thin_pool_args(vg: &str, name: &str, size: Bytes) -> Result<Command, LvmError> {
    let command = creation(vg, name, Some(size), &[])?;
    Ok(command.args(["--yes", "-Zy", "--type", "thin-pool", "-n", name, "-L", &size_arg(size), vg]))
}

fn thin_args(vg: &str, pool: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<Command, LvmError> {
    check_lv(pool)?;
    let command = creation(vg, name, Some(size), tags)?;
    Ok(command.args(["--yes", "--type", "thin", "-n", name, "-V", &size_arg(size), "--thinpool", pool, vg]))
}

fn snapshot_args(vg: &str, origin: &str, name: &str, tags: &[&str], read_only: bool) -> Result<Command, LvmError> {
    check_lv(origin)?;
    let permission = if read_only { "-pr" } else { "-prw" };
    let command = creation(vg, name, None, tags)?;
    Ok(command.args(["--yes", "-s", "-kn", "-ay", permission, "-n", name, &full_name(vg, origin)]))
}

/// What all commands that make a volume have in common.
fn creation(vg: &str, name: &str, size: Option<Bytes>, tags: &[&str]) -> Result<Command, LvmError> {
    check_vg(vg)?;
    check_lv(name)?;
    if size == Some(Bytes(0)) {
        return Err(LvmError::ZeroSize { operation: "create", object: full_name(vg, name) });
    }
    let mut command = Command::new("lvcreate");
    for tag in tags {
        check_tag(tag)?;
        command = command.args(["--addtag", tag]);
    }
    Ok(command)
}

fn size_arg(size: Bytes) -> String {
    // LVM wants multiples of 512; it rounds up to extents itself.
    let sectors = size.0.div_ceil(512);
    format!("{sectors}s")
}

fn full_name(vg: &str, name: &str) -> String {
    format!("{vg}/{name}")
}

fn check_vg(name: &str) -> Result<(), LvmError> {
    check_name("volume group", name)
}

fn check_lv(name: &str) -> Result<(), LvmError> {
    check_name("logical volume", name)
}

/// lvm(8), "VALID NAMES".
fn check_name(what: &'static str, name: &str) -> Result<(), LvmError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+_.-".contains(&byte);
    let reason = match name {
        "" => "it is empty",
        "." | ".." => "it means a directory",
        _ if name.len() > MAX_NAME_BYTES => "it is longer than 63 bytes",
        _ if name.starts_with('-') => "it starts with a dash",
        _ if !name.bytes().all(allowed) => "only letters, digits and + _ . - are allowed",
        _ => return Ok(()),
    };
    Err(LvmError::BadName { what, name: name.to_owned(), reason })
}

fn check_tag(tag: &str) -> Result<(), LvmError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&byte);
    if tag.is_empty() || tag.len() > MAX_TAG_BYTES || tag.starts_with('-') || !tag.bytes().all(allowed) {
        return Err(LvmError::BadTag(tag.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
