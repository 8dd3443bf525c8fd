//! A machine with its console on the caller's terminal, for interactive use. Owns the QEMU process; needs a terminal.

use std::process::ExitStatus;

use anyhow::{Context, Result, bail};

use crate::clock::Clock;
use crate::disk::Disks;
use crate::init::Init;
use crate::lab::Lab;
use crate::machine::MachineSpec;
use crate::qemu::Start;
use crate::say;
use crate::shared_dir::SharedDir;

/// Boots and waits until the shell in the guest exits. The machine is killed if the caller goes away.
///
/// # Errors
/// When the machine cannot be started.
pub async fn shell(lab: &Lab, spec: &MachineSpec) -> Result<ExitStatus> {
    if spec.clock == Clock::Virtual {
        bail!("a shell waits for input, and virtual time would leap meanwhile: omit --clock, or use `lab exec`");
    }
    if spec.init == Init::Systemd {
        bail!("a shell needs the console, which is systemd's log: omit --systemd, or use `lab exec`");
    }
    let Ok(size) = rustix::termios::tcgetwinsize(std::io::stdin()) else {
        bail!("a shell needs a terminal: run a command with `lab exec`, or under `script`");
    };
    let size = (size.ws_row, size.ws_col);
    let image = lab.kernel(spec.kernel).await?;
    let disks = Disks::start(lab, &spec.disks, spec.clock).await?;
    let shared = SharedDir::create(lab)?;
    let root = lab.root_image(spec.kernel).await?;
    let start =
        Start { lab, spec, image: &image, disks: &disks, root: &root, state: None, shared: &shared.dir, clock: None };
    say::progress("starting; programs are in /lab/bin, disks in /dev/disk/by-id, leave with Ctrl-D");
    // In the caller's process group, the only one that may read from the terminal.
    let mut qemu = tokio::process::Command::from(start.with_console(size).await?)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start QEMU")?;
    let status = qemu.wait().await.context("cannot wait for QEMU")?;
    shared.collect_out(&lab.config().artifacts.join("out")).await?;
    Ok(status)
}
