//! Process 1 of a guest, and the state of a guest that outlives a boot.
//!
//! [`Init::Script`] is a minimal shell script (`boot/start.sh`): boots are short, and everything but the disks is new
//! at each. Under [`Init::Systemd`] the guest is a host as operators have it: units, D-Bus, journal, reboots; its root
//! is writable and kept as long as the machine ([`State`]). Does not: boot.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::agent;
use crate::command::{command, output};

/// Process 1 of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Init {
    /// A script, which exits with the agent.
    #[default]
    Script,
    /// systemd, with the agent as one of its services.
    Systemd,
}

/// Capacity for writes of a guest to its root. The file is sparse: only written blocks take space on the host.
const STATE_MIB: u64 = 4096;
const MAKE_LIMIT: Duration = Duration::from_secs(60);

/// Units of the guest root that are useless here, take time, or start by themselves.
const MASKED: [&str; 12] = [
    "mariadb.service",
    "nbd-client.service",
    "getty@tty1.service",
    "serial-getty@ttyS0.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-firstboot.service",
    "systemd-networkd-wait-online.service",
];

/// The agent as a service. systemd does not stop it at shutdown, so that the host can observe the shutdown. Without the
/// host, the machine powers itself off.
const UNIT: &str = "[Unit]
Description=Agent of the lab
DefaultDependencies=no
After=sysinit.target basic.target
SuccessAction=poweroff-immediate
FailureAction=poweroff-immediate

[Service]
ExecStartPre=udevadm settle --timeout=60
ExecStartPre=/bin/bash /lab-mounts.sh
ExecStart=/lab/bin/AGENT
KillMode=process
StandardError=journal+console
";

/// Name of the unit.
const UNIT_NAME: &str = "bulkhead-lab-agent.service";

/// Files to be added to the root for systemd, by path; `None` for a masked unit. `agent` is the command with its
/// arguments.
pub(crate) fn files(mounts: &str, agent: &str) -> Vec<(PathBuf, Option<String>)> {
    let units = Path::new("etc/systemd/system");
    let unit = UNIT.replace("AGENT", agent);
    let masked = MASKED.iter().map(|name| (units.join(name), None));
    let wanted = "[Unit]\nWants=bulkhead-lab-agent.service\n".to_owned();
    let own = [
        (PathBuf::from("lab-mounts.sh"), Some(mounts.to_owned())),
        (units.join(UNIT_NAME), Some(unit)),
        // With an empty one, systemd assumes the first boot of an image and enables all units.
        (PathBuf::from("etc/machine-id"), Some("0123456789abcdef0123456789abcdef\n".to_owned())),
        (PathBuf::from("etc/hostname"), Some("bulkhead-lab\n".to_owned())),
        (units.join("basic.target.d/lab.conf"), Some(wanted)),
    ];
    masked.chain(own).collect()
}

/// The agent's command with its arguments.
pub(crate) fn agent_command(hold: bool) -> String {
    let hold = if hold { agent::HOLD_TIME } else { "" };
    format!("{} {hold}", agent::PROGRAM).trim_end().to_owned()
}

/// The file system for writes of the guest to its root, in device memory like the root itself. Dropping it removes its
/// file.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
}

impl State {
    /// Creates an empty file system.
    pub(crate) async fn create(path: PathBuf) -> Result<Self> {
        let file = std::fs::File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(STATE_MIB << 20).with_context(|| format!("cannot size {}", path.display()))?;
        let mut make = command("mke2fs");
        make.args(["-q", "-t", "ext4", "-b", "4096", "-m", "0"]).arg(&path);
        output(make, "mke2fs for what a guest writes", MAKE_LIMIT).await?;
        Ok(Self { path })
    }

    /// Device memory that it takes.
    pub(crate) const fn size_mib() -> u64 {
        STATE_MIB
    }

    pub(crate) fn qemu_options(&self) -> Vec<String> {
        let path = self.path.display();
        vec![
            "-object".to_owned(),
            format!("memory-backend-file,id=state,size={STATE_MIB}M,mem-path={path},share=on"),
            "-device".to_owned(),
            "virtio-pmem-pci,memdev=state".to_owned(),
        ]
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // It lies in the run's directory, which is removed as well.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_starts_the_agent_and_no_timers() {
        let files = files("mount\n", &agent_command(true));
        let text = |name: &str| files.iter().find(|(path, _)| path.ends_with(name)).unwrap().1.clone();
        assert!(text(UNIT_NAME).unwrap().contains("ExecStart=/lab/bin/bulkhead-lab-agent --hold-time\n"));
        assert_eq!(text("apt-daily.timer"), None);
        assert_eq!(text("machine-id").unwrap().trim().len(), 32);
        assert_eq!(agent_command(false), "bulkhead-lab-agent");
    }
}
