//! Volume groups and logical volumes, through the `lvm` program (lvm(8)).
//!
//! Owns: its command lines and its JSON reports. Names, tags and sizes are checked before they become arguments. When a
//! command fails, the cause is found by asking for a report, not by reading the message.
//! Does not: make, grow or shrink file systems (`fsutil`), and keep a record of volumes (their tags are the record).
//!
//! Without udev (a small container or a rescue system) LVM would wait for ever for udev's answer, or trust links that
//! nobody makes. Where `/run/udev/control` does not answer, each command is told so and makes the nodes in `/dev` itself.
//! In a container that has the host's `/run/udev` but its own IPC namespace LVM still hangs: share the host's.

mod command;
mod error;
mod group;
mod report;
mod tags;
mod volume;

use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bulkhead_core::units::Bytes;

use self::command::{
    Command, LV_FIELDS, PROTECTING, REPORT_ARGS, VG_FIELDS, check_lv, check_vg, full_name, linear_args, size_arg,
    snapshot_args, thin_args, thin_pool_args,
};
pub use self::error::LvmError;
use self::error::{no_extents, no_group, no_volume, other};
use self::report::{parse_lvs, parse_vgs};
pub use self::volume::{Lv, LvKind, Vg};
use crate::block;
use crate::mount;
use crate::roots::Roots;
use crate::tool::{Tool, ToolError, ToolOutput};

/// The program; the commands are its first argument.
const PROGRAM: &str = "lvm";

/// How long one command may take: LVM waits for locks, and reads every device.
const LIMIT: Duration = Duration::from_secs(300);

/// Where udev listens.
const UDEV_CONTROL: &str = "/run/udev/control";

/// What LVM is told when there is no udev.
const WITHOUT_UDEV: &str = "activation{udev_sync=0 udev_rules=0 verify_udev_operations=1} devices{obtain_device_list_from_udev=0 external_device_info_source=\"none\"}";

/// What LVM is told in any case: with asynchronous I/O each command waits for a grace period of RCU at its end (`io_destroy`, 12 to
/// 24 ms), longer than for all else it does.
const SYNCHRONOUS: &str = "global{use_aio=0}";

/// The administrator's own filter, read once: LVM takes only one.
static GLOBAL_FILTER: OnceLock<Option<String>> = OnceLock::new();

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

#[cfg(test)]
mod tests;
