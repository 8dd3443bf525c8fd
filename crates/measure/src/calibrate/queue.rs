//! A device's scheduler and io.cost lines while it is calibrated: switched off, and put back exactly.
//!
//! They are set here and not through the daemon, whose record of the device stays as it is: the policy that the operator
//! chose (also `none`), or that nobody chose one. The previous settings are kept in a file until they are restored. The file is
//! gone after a reboot, as is what it would undo: the daemon then enables the recorded policy.

use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_api::wire::DeviceView;
use bulkhead_core::model::QueueSettings;
use bulkhead_core::units::DevNo;
use bulkhead_sys::iocost::{ModelLine, QosLine};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, iocost};
use serde::{Deserialize, Serialize};

use crate::cleanup::{forget, keep, kept};

/// Settings of a device.
#[derive(Debug, Serialize, Deserialize)]
struct Before {
    device: String,
    dev: String,
    settings: QueueSettings,
}

/// Switches the controllers of a device off; its settings are kept in `file` first.
///
/// # Errors
/// When the file cannot be written, or the kernel refuses.
pub(super) fn switch_off(roots: &Roots, file: &Path, device: &DeviceView) -> Result<()> {
    let settings = QueueSettings {
        scheduler: device.scheduler.clone().unwrap_or_default(),
        cost_model: device.cost_model.clone(),
        cost_qos: device.cost_qos.clone(),
    };
    let is_bfq = settings.scheduler == "bfq";
    keep(file, &Before { device: device.name.clone(), dev: device.dev.clone(), settings })?;
    let dev: DevNo = device.dev.parse().context("the device's number")?;
    iocost::disable(roots, dev).context("cannot switch io.cost off")?;
    if is_bfq {
        block::set_scheduler(roots, dev, "mq-deadline")
            .or_else(|_| block::set_scheduler(roots, dev, "none"))
            .context("cannot take bfq away")?;
    }
    Ok(())
}

/// Restores the settings in `file`, and removes it. Does nothing when there is no such file; a device that is gone
/// has taken its settings with it.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn put_back(roots: &Roots, file: &Path) -> Result<()> {
    let Some(before) = kept::<Before>(file)? else { return Ok(()) };
    let dev: DevNo = before.dev.parse().context("the device's number")?;
    if block::name_of(roots, dev).is_ok_and(|name| name == before.device) {
        set(roots, dev, &before.settings)
            .with_context(|| format!("cannot put back the settings of {}", before.device))?;
    }
    forget(file)
}

/// Applies settings, with io.cost off in between; an empty scheduler stays what it is.
///
/// # Errors
/// When a line cannot be read, or the kernel refuses.
pub(super) fn set(roots: &Roots, dev: DevNo, settings: &QueueSettings) -> Result<()> {
    iocost::disable(roots, dev)?;
    if !settings.scheduler.is_empty() {
        block::set_scheduler(roots, dev, &settings.scheduler)?;
    }
    if let Some(line) = &settings.cost_model {
        let (_, line) = ModelLine::parse(&format!("{dev} {line}")).with_context(|| format!("the line {line:?}"))?;
        iocost::write_model(roots, dev, &line)?;
    }
    if let Some(line) = &settings.cost_qos {
        let (_, line) = QosLine::parse(&format!("{dev} {line}")).with_context(|| format!("the line {line:?}"))?;
        iocost::write_qos(roots, dev, &line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
