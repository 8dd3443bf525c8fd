//! The machine, programs and disk that an experiment ran on, for the head of its result.

use std::collections::BTreeMap;
use std::path::Path;

use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::block;
use bulkhead_sys::file::read_limited;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::{Tool, find_program};

use crate::result::{Disk, Machine};

/// Programs whose version is part of a result, with the argument that prints it.
const PROGRAMS: [(&str, &str); 4] =
    [("mkfs.ext4", "-V"), ("mariadbd", "--version"), ("sysbench", "--version"), ("lvm", "version")];

/// The simulated parts of the machine that an experiment runs on, which it cannot detect itself. Empty on a real machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Simulated {
    /// Description of the simulated disk
    #[arg(long, hide = true, default_value = "", value_name = "WORDS")]
    pub disk: String,
    /// Name of the disk's model
    #[arg(long, hide = true, default_value = "", value_name = "NAME")]
    pub disk_model: String,
    /// Description of the machine's clock source
    #[arg(long, hide = true, default_value = "", value_name = "WORDS")]
    pub clock: String,
}

/// Describes this machine.
pub fn machine(simulated: &Simulated) -> Machine {
    let system = rustix::system::uname();
    let memory = text("/proc/meminfo");
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok());
    let mut programs: BTreeMap<String, String> = PROGRAMS
        .iter()
        .filter(|(program, _)| find_program(program).is_some())
        .filter_map(|(program, argument)| {
            let said = Tool::new(program).arg(argument).run().ok()?;
            let line = first_line(&said.stdout).or_else(|| first_line(&said.stderr))?;
            Some(((*program).to_owned(), line.trim().to_owned()))
        })
        .collect();
    programs.insert("bulkhead".to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    Machine {
        kernel: system.release().to_string_lossy().into_owned(),
        n_cpus: std::thread::available_parallelism().map_or(0, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        memory_bytes: kib.unwrap_or(0u64).saturating_mul(1024),
        virtualisation: virtualisation(),
        clock: simulated.clock.clone(),
        programs,
    }
}

/// Describes the physical device: its model, and the settings of its queue.
pub fn disk(device: &str, dev: DevNo, simulated: &Simulated) -> Disk {
    let base = format!("/sys/block/{device}");
    let serial = text(&format!("{base}/serial"));
    let found = block::inspect(&Roots::host(), dev).ok();
    let own_name = found.as_ref().and_then(|found| found.model.clone()).unwrap_or_else(|| device.to_owned());
    let queue = ["scheduler", "nr_requests", "rotational", "write_cache", "wbt_lat_usec"]
        .into_iter()
        .filter_map(|file| {
            let value = text(&format!("{base}/queue/{file}")).trim().to_owned();
            (!value.is_empty()).then(|| (file.to_owned(), value))
        })
        .collect();
    Disk {
        model: if simulated.disk_model.is_empty() { own_name } else { simulated.disk_model.clone() },
        parameters: if simulated.disk.is_empty() {
            format!("serial {:?}", serial.trim())
        } else {
            simulated.disk.clone()
        },
        size_bytes: found.map_or(0, |found| found.size.0),
        queue,
    }
}

fn virtualisation() -> String {
    let said = Tool::new("systemd-detect-virt").ok_codes(&[0, 1]).run();
    match said.as_ref().map(|said| said.stdout.trim()) {
        // systemd's name for QEMU without KVM.
        Ok("qemu") => "tcg".to_owned(),
        Ok("") | Err(_) => "unknown".to_owned(),
        Ok(word) => word.to_owned(),
    }
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().find(|line| !line.trim().is_empty())
}

/// Reads a small file of `/proc` or `/sys`; empty if that fails.
fn text(path: &str) -> String {
    read_limited(Path::new(path), Bytes(1 << 16))
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let simulated = Simulated { clock: "virtual".into(), ..Simulated::default() };
        let machine = machine(&simulated);
        assert_eq!(machine.clock, "virtual");
        assert!(!machine.kernel.is_empty() && machine.memory_bytes > 0 && machine.n_cpus > 0, "{machine:?}");
    }
}
