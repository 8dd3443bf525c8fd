//! Command lines of the `lvm` program, and the names, tags and sizes that they accept.

use std::ffi::{OsStr, OsString};

use bulkhead_core::units::Bytes;

use super::{LIMIT, LvmError, PROGRAM};
use crate::tool::Tool;

/// Commands without a time limit: if they are killed between suspending and resuming a device, all I/O on it stays blocked.
const SUSPENDING: [&str; 4] = ["lvcreate", "lvextend", "lvreduce", "lvremove"];

/// Makes a volume read-only; `lvchange` with this flag suspends the device, too.
pub(super) const READ_ONLY_FLAG: &str = "-pr";

/// Longest name of a group or volume in bytes. The dm name combines both, with `-` doubled (`DM_NAME_LEN` 128).
const MAX_NAME_BYTES: usize = 63;

/// Longest tag in bytes (lvm(8): 1024).
const MAX_TAG_BYTES: usize = 1024;

pub(super) const REPORT_ARGS: [&str; 5] = ["--reportformat", "json", "--units", "b", "--nosuffix"];

pub(super) const VG_FIELDS: &str = "vg_name,vg_size,vg_free,vg_extent_size,vg_tags,pv_count,vg_missing_pv_count";

/// Fields of volumes only: a field of segments (`segtype`) would result in one line per segment.
pub(super) const LV_FIELDS: &str = "lv_name,vg_name,lv_size,lv_layout,lv_role,pool_lv,origin,lv_active,lv_device_open,lv_tags,\
                         data_percent,metadata_percent,lv_kernel_major,lv_kernel_minor,lv_attr,lv_skip_activation,\
                         lv_health_status";

/// One LVM command and its arguments.
#[derive(Clone, Debug)]
pub(super) struct Command(Vec<OsString>);

impl Command {
    pub(super) fn new(name: &str) -> Self {
        Self(vec![name.into()])
    }

    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.push(arg.as_ref().to_owned());
        self
    }

    pub(super) fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.0.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(super) fn tool(&self, config: &str) -> Tool {
        let (name, args) = self.0.split_at(1.min(self.0.len()));
        // Before the other arguments, which may end the options with `--`.
        let tool = Tool::new(PROGRAM).args(name).args(["--config", config]).args(args);
        if self.suspends() { tool.unlimited() } else { tool.limit(LIMIT) }
    }

    /// Whether it may suspend a device.
    pub(super) fn suspends(&self) -> bool {
        self.0.first().is_some_and(|name| SUSPENDING.iter().any(|command| name == command))
            || self.0.iter().any(|arg| arg == READ_ONLY_FLAG)
    }
}

pub(super) fn linear_args(vg: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<Command, LvmError> {
    let command = creation(vg, name, Some(size), tags)?;
    // --yes confirms wiping a signature found in the new volume.
    Ok(command.args(["--yes", "-Wy", "-Zy", "--type", "linear", "-n", name, "-L", &size_arg(size), vg]))
}

pub(super) fn thin_pool_args(vg: &str, name: &str, size: Bytes) -> Result<Command, LvmError> {
    let command = creation(vg, name, Some(size), &[])?;
    Ok(command.args(["--yes", "-Zy", "--type", "thin-pool", "-n", name, "-L", &size_arg(size), vg]))
}

pub(super) fn thin_args(vg: &str, pool: &str, name: &str, size: Bytes, tags: &[&str]) -> Result<Command, LvmError> {
    check_lv(pool)?;
    let command = creation(vg, name, Some(size), tags)?;
    Ok(command.args(["--yes", "--type", "thin", "-n", name, "-V", &size_arg(size), "--thinpool", pool, vg]))
}

pub(super) fn snapshot_args(
    vg: &str,
    origin: &str,
    name: &str,
    tags: &[&str],
    read_only: bool,
) -> Result<Command, LvmError> {
    check_lv(origin)?;
    let permission = if read_only { "-pr" } else { "-prw" };
    let command = creation(vg, name, None, tags)?;
    Ok(command.args(["--yes", "-s", "-kn", "-ay", permission, "-n", name, &full_name(vg, origin)]))
}

/// The common part of commands that create a volume.
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

pub(super) fn size_arg(size: Bytes) -> String {
    // LVM requires multiples of 512; it rounds up to extents itself.
    let sectors = size.0.div_ceil(512);
    format!("{sectors}s")
}

pub(super) fn full_name(vg: &str, name: &str) -> String {
    format!("{vg}/{name}")
}

pub(super) fn check_vg(name: &str) -> Result<(), LvmError> {
    check_name("volume group", name)
}

pub(super) fn check_lv(name: &str) -> Result<(), LvmError> {
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

pub(super) fn check_tag(tag: &str) -> Result<(), LvmError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_+.-/=!:&#".contains(&byte);
    if tag.is_empty() || tag.len() > MAX_TAG_BYTES || tag.starts_with('-') || !tag.bytes().all(allowed) {
        return Err(LvmError::BadTag(tag.to_owned()));
    }
    Ok(())
}
