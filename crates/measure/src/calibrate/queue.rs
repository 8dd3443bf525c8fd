//! A device's scheduler and io.cost settings during calibration: disabled, and restored exactly.
//!
//! They are set here and not through the daemon, whose record of the device is unchanged: the policy that the operator selected (including
//! `none`), or no policy. The previous settings are stored in a file until they are restored. A reboot removes the file and the settings
//! that it would undo; the daemon then enables the recorded policy.

use std::path::Path;

use anyhow::{Context, Result};
use bulkhead_api::wire::DeviceView;
use bulkhead_core::model::QueueSettings;
use bulkhead_core::units::DevNo;
use bulkhead_sys::iocost::{ModelLine, QosLine};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, iocost};
use serde::{Deserialize, Serialize};

use crate::cleanup::{load_record, remove_record, store_record};

/// Settings of a device.
#[derive(Debug, Serialize, Deserialize)]
struct SavedSettings {
    device: String,
    dev: String,
    settings: QueueSettings,
}

/// Stores the settings of a device in `file`, and disables its controllers.
///
/// # Errors
/// If the file cannot be written, or the kernel refuses.
pub(super) fn disable(roots: &Roots, file: &Path, device: &DeviceView) -> Result<()> {
    let settings = QueueSettings {
        scheduler: device.scheduler.clone().unwrap_or_default(),
        cost_model: device.cost_model.clone(),
        cost_qos: device.cost_qos.clone(),
    };
    let is_bfq = settings.scheduler == "bfq";
    store_record(file, &SavedSettings { device: device.name.clone(), dev: device.dev.clone(), settings })?;
    let dev: DevNo = device.dev.parse().context("the device's number")?;
    iocost::disable(roots, dev).context("cannot switch io.cost off")?;
    if is_bfq {
        block::set_scheduler(roots, dev, "mq-deadline")
            .or_else(|_| block::set_scheduler(roots, dev, "none"))
            .context("cannot take bfq away")?;
    }
    Ok(())
}

/// Restores the settings in `file`, and removes it. Does nothing if the file does not exist; the settings of a removed device need not be
/// restored.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn restore(roots: &Roots, file: &Path) -> Result<()> {
    let Some(before) = load_record::<SavedSettings>(file)? else { return Ok(()) };
    let dev: DevNo = before.dev.parse().context("the device's number")?;
    if block::name_of(roots, dev).is_ok_and(|name| name == before.device) {
        set(roots, dev, &before.settings)
            .with_context(|| format!("cannot put back the settings of {}", before.device))?;
    }
    remove_record(file)
}

/// Applies settings, with io.cost disabled in between; an empty scheduler is left unchanged.
///
/// # Errors
/// If a line is malformed, or the kernel refuses.
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
