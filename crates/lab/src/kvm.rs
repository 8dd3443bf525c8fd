//! Whether KVM boots a stock kernel on this host. /dev/kvm may exist without that, so one trial boot decides. The
//! answer is kept in the cache with the release of the host's kernel. Does not: configure KVM.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache::write_atomically;
use crate::kernels::Kernel;
use crate::lab::Lab;
use crate::machine::{Machine, MachineSpec};
use crate::say;

/// A stock kernel boots in about 5 s under KVM. If QEMU stops the machine, the trial ends at once.
const TRIAL_LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    host_kernel: String,
    usable: bool,
}

/// Answers from `BULKHEAD_LAB_KVM`, the cache, or a trial boot.
pub(crate) async fn usable(lab: &mut Lab) -> Result<bool> {
    match std::env::var("BULKHEAD_LAB_KVM").as_deref() {
        Ok("0") => return Ok(false),
        Ok("1") => return Ok(true),
        Ok("") | Err(_) => {}
        Ok(other) => bail!("BULKHEAD_LAB_KVM is {other:?}: use 0 (emulate) or 1 (use KVM)"),
    }
    if !Path::new("/dev/kvm").exists() {
        return Ok(false);
    }
    let host_kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let path = lab.cache().path("kvm.json");
    let known = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<Answer>(&text).ok());
    if let Some(answer) = known.filter(|answer| answer.host_kernel == host_kernel) {
        return Ok(answer.usable);
    }
    say::progress(format!("trying KVM once (at most {} s)", TRIAL_LIMIT.as_secs()));
    lab.set_kvm(true);
    let spec = MachineSpec { boot_timeout: TRIAL_LIMIT, ..MachineSpec::new(Kernel::V6_12) };
    let usable = match Machine::boot(lab, &spec, "kvm-trial").await {
        Ok(mut machine) => {
            machine.power_off().await;
            true
        }
        Err(_) => false,
    };
    say::progress(if usable { "KVM works" } else { "KVM does not boot a stock kernel here: guests are emulated" });
    write_atomically(&path, &serde_json::to_string_pretty(&Answer { host_kernel, usable })?)?;
    Ok(usable)
}
