//! Volume groups and logical volumes, through the `lvm` program (lvm(8)).
//!
//! Owns: its command lines and JSON reports. Names, tags and sizes are validated before they become arguments. If a command fails, the
//! cause is determined from a report, not from the message.
//! Does not: create, grow or shrink file systems (`fsutil`), or record volumes (their tags are the record).
//!
//! Without udev (a minimal container or a rescue system) LVM would wait forever for udev's reply, or rely on links that do not exist. If
//! nothing listens at `/run/udev/control`, each command is configured to create the nodes in `/dev` itself. In a container with the host's
//! `/run/udev` but its own IPC namespace LVM still hangs: share the host's IPC namespace.

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
    Command, LV_FIELDS, READ_ONLY_FLAG, REPORT_ARGS, VG_FIELDS, check_lv, check_vg, full_name, linear_args, size_arg,
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

/// The program; the command is its first argument.
const PROGRAM: &str = "lvm";

/// Time limit of a command: LVM waits for locks, and reads every device.
const LIMIT: Duration = Duration::from_secs(300);

/// udev's control socket.
const UDEV_CONTROL: &str = "/run/udev/control";

/// LVM configuration without udev.
const WITHOUT_UDEV: &str = "activation{udev_sync=0 udev_rules=0 verify_udev_operations=1} devices{obtain_device_list_from_udev=0 external_device_info_source=\"none\"}";

/// LVM configuration of all commands: with asynchronous I/O a command ends by waiting for an RCU grace period (`io_destroy`, 12 to 24 ms),
/// longer than all its other work.
const SYNCHRONOUS: &str = "global{use_aio=0}";

/// The administrator's filter, read once. LVM accepts a single filter, so ours is merged with it.
static GLOBAL_FILTER: OnceLock<Option<String>> = OnceLock::new();

/// The `lvm` program, with some ublk devices excluded.
#[derive(Clone, Copy, Debug)]
pub struct Lvm {
    /// Lists the excluded devices, by number; called before each command.
    excluded: fn() -> Vec<u32>,
}

impl Lvm {
    /// `excluded` lists the ublk devices, by number, that LVM must not open. It would scan them for labels, and hang on one without a
    /// server, together with everything that waits for LVM.
    #[must_use]
    pub fn new(excluded: fn() -> Vec<u32>) -> Self {
        Self { excluded }
    }

    /// All volume groups, by name.
    ///
    /// # Errors
    /// [`LvmError::Other`] if LVM fails, [`LvmError::Report`].
    pub fn vgs(&self) -> Result<Vec<Vg>, LvmError> {
        const OBJECT: &str = "the volume groups";
        let output = self.run_for("list", OBJECT, Command::new("vgs").args(REPORT_ARGS).args(["-o", VG_FIELDS]))?;
        let mut groups =
            parse_vgs(&output.stdout).map_err(|reason| LvmError::Report { object: OBJECT.into(), reason })?;
        groups.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(groups)
    }

    /// One volume group; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`LvmError::BadName`] and those of [`Lvm::vgs`].
    pub fn vg(&self, name: &str) -> Result<Option<Vg>, LvmError> {
        check_vg(name)?;
        // Querying one group fails with the same exit code for a missing and for a broken one, so all are queried.
        Ok(self.vgs()?.into_iter().find(|group| group.name == name))
    }

    /// The volumes of a group, by name. LVM's internal volumes (`[pool_tdata]`, `[lvol0_pmspare]`) are omitted.
    ///
    /// # Errors
    /// [`LvmError::NotFound`] for a missing group, and those of [`Lvm::vgs`].
    pub fn lvs(&self, vg: &str) -> Result<Vec<Lv>, LvmError> {
        check_vg(vg)?;
        self.volumes(vg, "list", vg)
    }

    /// One volume; `None` if there is none of that name in the group.
    ///
    /// # Errors
    /// [`LvmError::BadName`] and those of [`Lvm::lvs`], also for a missing group.
    pub fn lv(&self, vg: &str, name: &str) -> Result<Option<Lv>, LvmError> {
        check_lv(name)?;
        Ok(self.lvs(vg)?.into_iter().find(|volume| volume.name == name))
    }

    /// Creates a linear volume, active, and wipes old signatures and the first 4 KiB in it.
    ///
    /// The size is rounded up to whole extents. The rest of the volume keeps the old content of the extents.
    ///
    /// # Errors
    /// [`LvmError::AlreadyExists`], [`LvmError::NotFound`] (the group), [`LvmError::NoSpace`], [`LvmError::BadName`],
    /// [`LvmError::BadTag`], [`LvmError::ZeroSize`], [`LvmError::Other`].
    pub fn create_linear(&self, vg: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<(), LvmError> {
        let command = linear_args(vg, name, size, tags)?;
        self.create("create", vg, name, Need::Extents(size), &command)
    }

    /// Creates a thin pool that zeroes blocks before their first use, so that no tenant reads another one's old data.
    ///
    /// LVM chooses the sizes of metadata and blocks by the size of the pool, and reserves a spare of the metadata's size for repair.
    ///
    /// # Errors
    /// As [`Lvm::create_linear`].
    pub fn create_thin_pool(&self, vg: &str, name: &str, size: Bytes) -> Result<(), LvmError> {
        let command = thin_pool_args(vg, name, size)?;
        // Metadata and its spare: 64 bytes for each block of 64 KiB, in whole extents (lvmthin(7)).
        let with_metadata = Bytes(size.0.saturating_add(size.0 / 512).saturating_add(8 * Bytes::MIB));
        self.create("create", vg, name, Need::Extents(with_metadata), &command)
    }

    /// Creates a thin volume, active, in a pool.
    ///
    /// # Errors
    /// As [`Lvm::create_linear`]; [`LvmError::NotFound`] also for a missing pool, [`LvmError::NoSpace`] if the pool is full.
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

    /// Creates a thin snapshot of a thin volume, active, without the activation skip flag.
    ///
    /// The kernel freezes a mounted file system on the origin meanwhile, so that the snapshot is consistent (ext4 with an empty journal,
    /// XFS with a log to replay). Dirty data is written out before, to keep the freeze short.
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
        // A missing device is reported by LVM.
        if let Ok(dev) = block::devno_of(&node(vg, origin)) {
            mount::sync_device(&Roots::host(), dev);
        }
        // Without a size LVM creates a thin snapshot, and only of a thin volume.
        self.create("snapshot", vg, name, Need::Lv(origin), &command)
    }

    /// Grows a volume, or shrinks it if `shrink` permits. The size is rounded up to whole extents.
    ///
    /// The file system is not resized: grow it afterwards, shrink it before. LVM 2.03.17 and newer refuse to truncate a file system that
    /// they know.
    ///
    /// # Errors
    /// [`LvmError::WouldShrink`] if `size` is less than the present size and `shrink` is false, [`LvmError::NotFound`],
    /// [`LvmError::NoSpace`], [`LvmError::Other`].
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
            // LVM refuses to resize to the present size.
            Ok(Some(found)) if found.size == wanted => Ok(()),
            _ if more > group.free && !matches!(volume.kind, LvKind::Thin { .. }) => {
                Err(no_extents(RESIZE, object, more, group.free, source))
            }
            _ => Err(other(RESIZE, &object, source)),
        }
    }

    /// Removes a volume; `false` if there is none, or if it does not have the tag. Its thin snapshots are kept.
    ///
    /// # Errors
    /// [`LvmError::NotFound`] (the group), [`LvmError::InUse`] while it is open or has dependents that LVM would remove as well
    /// (volumes of a thin pool, thick snapshots), [`LvmError::Other`].
    pub fn remove(&self, vg: &str, name: &str, with_tag: Option<&str>) -> Result<bool, LvmError> {
        check_vg(vg)?;
        check_lv(name)?;
        let volumes = self.volumes(vg, "remove", &full_name(vg, name))?;
        let has_tag = |volume: &Lv| with_tag.is_none_or(|tag| volume.tags.iter().any(|found| found == tag));
        if !volumes.iter().any(|volume| volume.name == name && has_tag(volume)) {
            return Ok(false);
        }
        // --yes would also confirm the removal of all dependents.
        let mut dependent = volumes.iter().filter(|volume| match &volume.kind {
            LvKind::Thin { pool, .. } => pool == name,
            LvKind::ThickSnapshot { origin } => origin == name,
            _ => false,
        });
        if let Some(first) = dependent.next() {
            let reason = match dependent.count() {
                0 => format!("volume {} depends on it", first.name),
                n_others => format!("{} volumes depend on it, for example {}", 1 + n_others, first.name),
            };
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

    /// Activates a volume, also one with the activation skip flag. Idempotent.
    ///
    /// # Errors
    /// [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn activate(&self, vg: &str, name: &str) -> Result<(), LvmError> {
        self.change("activate", vg, name, &["lvchange", "--yes", "-ay", "-K"]).map(drop)
    }

    /// Deactivates a volume, so that it has no device. `false` if it is not active.
    ///
    /// # Errors
    /// [`LvmError::InUse`] while it is open, [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn deactivate(&self, vg: &str, name: &str) -> Result<bool, LvmError> {
        const DEACTIVATE: &str = "deactivate";
        if !node(vg, name).exists() {
            return Ok(false);
        }
        match self.change(DEACTIVATE, vg, name, &["lvchange", "--yes", "-an"]) {
            Ok(_) => Ok(true),
            Err(LvmError::Other { operation, object, source })
                if self.lv(vg, name).is_ok_and(|lv| lv.is_some_and(|lv| lv.open)) =>
            {
                let reason = "a program, or another device, has it open".to_owned();
                Err(LvmError::InUse { operation, object, reason, source: Some(source) })
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a volume read-only, also while it is active; a mounted file system must be mounted read-only. `false` if it was already.
    ///
    /// # Errors
    /// [`LvmError::NotFound`], [`LvmError::Other`].
    pub fn protect(&self, vg: &str, name: &str) -> Result<bool, LvmError> {
        const PROTECT: &str = "make read-only";
        let found = self.lv(vg, name)?.ok_or_else(|| no_volume(PROTECT, &full_name(vg, name)))?;
        if !found.read_only {
            self.change(PROTECT, vg, name, &["lvchange", "--yes", READ_ONLY_FLAG])?;
        }
        Ok(!found.read_only)
    }

    /// Runs a command on one volume, and determines the cause of a failure.
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
            Err(source) => Err(self.creation_error(operation, vg, name, need, source)),
        }
    }

    /// The cause of a failed creation.
    fn creation_error(
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
        config.extend(self.exclusion_filter());
        command.tool(&config.join(" ")).run()
    }

    /// The filter that excludes devices from LVM; `None` if there are none to exclude.
    fn exclusion_filter(&self) -> Option<String> {
        let ids = (self.excluded)();
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

/// The resource that a new volume needs, to determine the cause of a failure.
#[derive(Clone, Copy)]
enum Need<'a> {
    /// Free extents of the group.
    Extents(Bytes),
    /// Another volume: the pool, or the origin of a snapshot.
    Lv(&'a str),
}

/// Why a thin pool accepts no more volumes; `None` if it should.
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

/// A filter that rejects these ublk devices and their partitions, followed by the administrator's own.
fn filter(ids: &[u32], own: Option<&str>) -> String {
    let mut patterns: Vec<String> = ids.iter().map(|id| format!("\"r|^/dev/ublkb{id}(p[0-9]+)?$|\"")).collect();
    let own = own.map(|own| own.trim_start_matches('[').trim_end_matches(']').to_owned());
    patterns.extend(own.filter(|own| !own.is_empty()));
    format!("devices{{global_filter=[{}]}}", patterns.join(","))
}

/// Whether udev is running: its socket accepts connections. The stale socket of a stopped udev does not.
fn udev_answers() -> bool {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
    let attempt = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(UDEV_CONTROL)?)
    };
    // AGAIN: it is running, with a full queue.
    matches!(attempt(), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

#[cfg(test)]
mod tests;
