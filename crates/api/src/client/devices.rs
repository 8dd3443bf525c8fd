//! Calls that are about block devices and the shares that are enforced on them.

use bulkhead_core::error::Fault;
use bulkhead_core::model::Calibration;

use super::{Client, dry};
use crate::routes::{self, Device, NoQuery, Wait};
use crate::wire::{
    CostsStore, DeviceArbiter, DeviceControl, DeviceMeasure, DeviceView, Done, HoldStart, HoldView, JobView,
};

/// Devices and holds.
#[expect(clippy::missing_errors_doc, reason = "documented once, at the first `impl` block of `Client`")]
impl Client {
    /// Lists all block devices.
    pub async fn device_list(&self) -> Result<Vec<DeviceView>, Fault> {
        self.query(routes::device_list(), &(), NoQuery {}).await
    }

    /// Shows a block device, by its kernel name.
    pub async fn device_inspect(&self, name: &str) -> Result<DeviceView, Fault> {
        self.query(routes::device_inspect(), &Device(name.to_owned()), NoQuery {}).await
    }

    /// Lists the holds.
    pub async fn hold_list(&self) -> Result<Vec<HoldView>, Fault> {
        self.query(routes::hold_list(), &(), NoQuery {}).await
    }

    /// Starts to enforce shares on a device.
    pub async fn hold_start(&self, request: &HoldStart, dry_run: bool) -> Result<Done<HoldView>, Fault> {
        self.submit(routes::hold_start(), &(), dry(dry_run), request).await
    }

    /// Ends the hold on a device, given by its kernel name or path.
    pub async fn hold_stop(&self, device: &str, dry_run: bool) -> Result<Done<HoldView>, Fault> {
        self.submit(routes::hold_stop(), &Device(device.to_owned()), dry(dry_run), &()).await
    }

    /// Enables a controller on a device, or restores the previous one.
    pub async fn device_control(
        &self,
        name: &str,
        request: &DeviceControl,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        self.submit(routes::device_control(), &Device(name.to_owned()), dry(dry_run), request).await
    }

    /// Has the block servers on a device take turns, or not.
    pub async fn device_arbiter(
        &self,
        name: &str,
        request: &DeviceArbiter,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        self.submit(routes::device_arbiter(), &Device(name.to_owned()), dry(dry_run), request).await
    }

    /// Stores a calibration of a device.
    pub async fn device_calibrate(
        &self,
        name: &str,
        calibration: &Calibration,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        self.submit(routes::device_calibrate(), &Device(name.to_owned()), dry(dry_run), calibration).await
    }

    /// Stores what the requests of the devices below a directory cost.
    pub async fn costs_store(&self, request: &CostsStore, dry_run: bool) -> Result<Done<DeviceView>, Fault> {
        self.submit(routes::costs_store(), &(), dry(dry_run), request).await
    }

    /// Starts to measure a device.
    pub async fn device_measure(&self, name: &str, request: &DeviceMeasure) -> Result<JobView, Fault> {
        self.submit(routes::device_measure(), &Device(name.to_owned()), Wait::default(), request).await
    }
}
