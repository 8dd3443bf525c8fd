//! Devices, their controllers, and the shares enforced on them.

use std::sync::PoisonError;

use bulkhead_api::terms::Terms;
use bulkhead_api::wire::{CostsStore, DeviceArbiter, DeviceControl, DeviceView, Done, HoldStart, HoldView};
use bulkhead_core::error::Fault;
use bulkhead_core::model::Calibration;
use bulkhead_core::report::HostReport;

use super::Service;
use crate::devices::kernel_name;
use crate::locks::{Claim, Object};

#[expect(clippy::missing_errors_doc, reason = "the engine's methods of the same names say them")]
impl Service {
    /// All block devices.
    pub async fn device_list(&self) -> Result<Vec<DeviceView>, Fault> {
        self.read(|engine| engine.device_list()).await
    }

    /// One device.
    pub async fn device_inspect(&self, name: String) -> Result<DeviceView, Fault> {
        self.read(move |engine| engine.device_inspect(&name)).await
    }

    /// Enables a controller, or restores the configuration from before Bulkhead.
    pub async fn device_control(
        &self,
        name: String,
        request: DeviceControl,
        terms: Terms,
    ) -> Result<Done<DeviceView>, Fault> {
        let (operation, claim) = (format!("control device {name}"), device(&name));
        self.change(terms, operation, claim, move |engine| engine.device_control(&name, &request, terms.dry_run)).await
    }

    /// Has the block servers on a device take turns, or not.
    pub async fn device_arbiter(
        &self,
        name: String,
        request: DeviceArbiter,
        terms: Terms,
    ) -> Result<Done<DeviceView>, Fault> {
        let (operation, claim) = (format!("switch the arbiter of device {name}"), device(&name));
        self.change(terms, operation, claim, move |engine| engine.device_arbiter(&name, &request, terms.dry_run)).await
    }

    /// Records a calibration, and applies it where io.cost is enabled.
    pub async fn device_calibrated(
        &self,
        name: String,
        calibration: Calibration,
        terms: Terms,
    ) -> Result<Done<DeviceView>, Fault> {
        let (operation, claim) = (format!("calibrate device {name}"), device(&name));
        let work = move |engine: &crate::engine::Engine| engine.device_calibrated(&name, calibration, terms.dry_run);
        self.change(terms, operation, claim, work).await
    }

    /// Records what the requests of the devices below a directory cost.
    pub async fn costs_store(&self, request: CostsStore, terms: Terms) -> Result<Done<DeviceView>, Fault> {
        let operation = format!("store the costs of {}", request.directory.display());
        let directory = request.directory.clone();
        self.change_with(
            terms,
            operation,
            move |engine| Ok(device(&engine.physical_below(&directory)?[0])),
            move |engine| engine.costs_store(&request, terms.dry_run),
        )
        .await
    }

    /// What plans have to know of the host.
    pub async fn host_report(&self) -> Result<HostReport, Fault> {
        self.read(|engine| engine.report()).await
    }

    /// The holds, as they were after the last step.
    #[must_use]
    pub fn hold_list(&self) -> Vec<HoldView> {
        self.0.hold_views.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts enforcing shares on a device, and replaces an earlier hold on it.
    pub async fn hold_start(&self, request: HoldStart, terms: Terms) -> Result<Done<HoldView>, Fault> {
        let service = self.clone();
        let named = request.device.clone();
        self.change_with(
            terms,
            "hold shares".to_owned(),
            move |engine| Ok(device(engine.held_device(named.as_deref())?.name.as_str())),
            move |engine| {
                service.with_holds(|holds| {
                    let Done { object, steps, dry_run } = engine.hold_start(&request, terms.dry_run)?;
                    let object = object.filter(|_| !dry_run).map(|hold| holds.begin(engine, hold));
                    Ok(Done { object, steps, dry_run })
                })
            },
        )
        .await
    }

    /// Ends the hold on a device.
    pub async fn hold_stop(&self, name: String, terms: Terms) -> Result<Done<HoldView>, Fault> {
        let service = self.clone();
        let (operation, claim) = (format!("end the hold on device {name}"), device(&name));
        let work = move |engine: &crate::engine::Engine| {
            service.with_holds(|holds| {
                let Done { steps, dry_run, .. } = engine.hold_stop(&name, terms.dry_run)?;
                if !dry_run {
                    holds.end(&name);
                }
                Ok(Done { object: None, steps, dry_run })
            })
        };
        self.change(terms, operation, claim, work).await
    }
}

pub(super) fn device(name: &str) -> Claim {
    Claim::default().changes(Object::Device(kernel_name(name).to_owned()))
}
