//! Volume groups and their physical volumes.

use std::path::{Path, PathBuf};

use super::command::{Command, REPORT_ARGS, check_tag, check_vg};
use super::error::{no_group, other};
use super::{Lvm, LvmError, report};
use crate::block;

impl Lvm {
    /// Creates a volume group with these tags on a blank block device, which becomes its physical volume, in one metadata commit.
    ///
    /// # Errors
    /// [`LvmError::BadTag`], [`LvmError::HasSignature`] if the device is not blank, [`LvmError::AlreadyExists`], [`LvmError::InUse`] if the
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
        // Without --yes: LVM asks about a signature that has appeared meanwhile, gets no answer, and fails.
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
            let reason =
                if n_volumes == 1 { "it has 1 volume".to_owned() } else { format!("it has {n_volumes} volumes") };
            return Err(LvmError::InUse { operation: REMOVE, object: name.to_owned(), reason, source: None });
        }
        // Without --yes: LVM asks about a volume that has appeared meanwhile, gets no answer, and fails.
        self.change_group(REMOVE, name, &["vgremove"])
    }

    /// Removes LVM's label from a device that belongs to no group; `false` if it has none.
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
                // The first error is the cause.
                Ok(None) | Err(_) => other(REMOVE, &object, source),
            }),
        }
    }

    /// Device nodes of the physical volumes of a group; for a missing one it is not a path, but `[unknown]`.
    ///
    /// # Errors
    /// [`LvmError::BadName`], [`LvmError::Report`], [`LvmError::Other`].
    pub fn pv_devices(&self, vg: &str) -> Result<Vec<PathBuf>, LvmError> {
        check_vg(vg)?;
        let output = self.run_for("list", vg, Command::new("pvs").args(REPORT_ARGS).args(["-o", "vg_name,pv_name"]))?;
        report::parse_pv_devices(&output.stdout, vg)
            .map_err(|reason| LvmError::Report { object: vg.to_owned(), reason })
    }

    /// The group that a physical volume belongs to; `None` if it belongs to none.
    ///
    /// # Errors
    /// [`LvmError::Other`] if LVM fails, also for a device that is not a physical volume; [`LvmError::Report`]. After an error the
    /// membership is unknown: do not erase the device.
    pub fn group_of(&self, device: &Path) -> Result<Option<String>, LvmError> {
        let object = device.display().to_string();
        let output = self.run_for(
            "determine the volume group of",
            &object,
            Command::new("pvs").args(REPORT_ARGS).args(["-o", "vg_name", "--"]).arg(device),
        )?;
        report::parse_group_of_pv(&output.stdout).map_err(|reason| LvmError::Report { object, reason })
    }

    pub(super) fn change_group(&self, operation: &'static str, vg: &str, words: &[&str]) -> Result<(), LvmError> {
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
}
