//! The command line of virtme-ng, and the starting of it: the only file that knows its options.
//!
//! Does not talk to the guest.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::agent::HOLD_TIME;
use crate::clock::Clock;
use crate::command::{command, search_path};
use crate::disk::Disks;
use crate::kernels::KernelImage;
use crate::lab::Lab;
use crate::machine::MachineSpec;
use crate::protocol::PORT_NAME;
use crate::root_image::RootImage;

/// Warnings and worse reach the console from the start; all of it would slow an emulated machine down.
const CONSOLE_LOG_LEVEL: &str = "loglevel=5";
/// Emulation translates code anew for each address at which it is met: with programs at the same addresses in each process,
/// starting one takes 12 ms in place of 33.
const SAME_ADDRESSES: &str = "norandmaps";
/// Debian's kernels clear each page that they give out; what needs it clear does that in any case.
const PAGES_NOT_CLEARED: &str = "init_on_alloc=0";
/// An emulated processor copies byte by byte where it says that this is fast: without the flags, memory is copied 1.5 to 4 times
/// as fast.
pub(crate) const PLAIN_COPIES: [&str; 2] = ["-cpu", "max,-erms,-fsrm"];
/// virtme-ng has six serial devices with a port each. Of the 31 that they could have, QEMU polls the queues of all, which
/// took half of a processor while the guest read files. Port 0 is that of a console.
const FEW_PORTS: [&str; 2] = ["-global", "virtio-serial-device.max_ports=2"];
/// Replaces the shell that virtme-ng starts, and drops the descriptors which that one inherited.
const AGENT: &str = "exec /lab/bin/bulkhead-lab-agent";
const NO_DESCRIPTORS: &str = "3>&- 4>&- 5>&- 6>&- 7>&- 8>&-";

/// A machine to be started by virtme-ng.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) spec: &'a MachineSpec,
    pub(crate) image: &'a KernelImage,
    pub(crate) disks: &'a Disks,
    /// The root that the guest changes over to; its folder stays what it boots from.
    pub(crate) root_image: Option<&'a RootImage>,
    /// The host folder that the guest sees as /lab.
    pub(crate) shared: &'a Path,
}

impl Start<'_> {
    /// virtme-ng with the agent as the guest's program, listening on `socket`.
    pub(crate) fn with_agent(&self, socket: &Path) -> Result<Command> {
        let mut options = self.disks.qemu_options();
        options.extend([
            "-device".to_owned(),
            "virtio-serial-pci,id=bulkhead-serial".to_owned(),
            "-chardev".to_owned(),
            format!("socket,id=bulkhead,path={},server=on,wait=off", socket.display()),
            "-device".to_owned(),
            format!("virtserialport,bus=bulkhead-serial.0,chardev=bulkhead,name={PORT_NAME}"),
        ]);
        let mut vng = self.common(&options)?;
        let hold = if self.spec.clock == Clock::Virtual { HOLD_TIME } else { "" };
        vng.args(["--verbose", "--append", CONSOLE_LOG_LEVEL, "--", &format!("{AGENT} {hold} {NO_DESCRIPTORS}")]);
        vng.stdin(Stdio::null());
        Ok(vng)
    }

    /// virtme-ng with a shell on the caller's terminal.
    pub(crate) fn with_console(&self) -> Result<Command> {
        self.common(&self.disks.qemu_options())
    }

    fn common(&self, qemu_options: &[String]) -> Result<Command> {
        let Self { lab, spec, image, shared, .. } = self;
        // virtme-ng keeps settings in the home folder and temporary files in TMPDIR: both get a place that goes away.
        let home = lab.run_dir().path("home");
        std::fs::create_dir_all(&home).with_context(|| format!("cannot create {}", home.display()))?;
        let root = lab.root().dir();
        let mut vng = command(lab.tools().join("vng"));
        vng.current_dir(root).env("PATH", search_path(Some(lab.tools())));
        vng.env("HOME", &home).env("TMPDIR", &home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        let mut qemu_options = qemu_options.to_vec();
        qemu_options.extend(FEW_PORTS.map(str::to_owned));
        qemu_options.extend(spec.clock.qemu_options());
        qemu_options.extend(self.root_image.iter().flat_map(|root| root.qemu_options(spec.memory_mib)));
        if !lab.kvm_for(spec.clock) {
            vng.args(["--disable-kvm", "--append", SAME_ADDRESSES, "--append", PAGES_NOT_CLEARED]);
            qemu_options.extend(PLAIN_COPIES.map(str::to_owned));
        }
        // The same virtual hardware on every host: PCI, and 9p even where virtiofsd is installed.
        vng.args(["--disable-microvm", "--force-9p", "--user", "root", "--name", "bulkhead-lab"]);
        vng.arg("--cpus").arg(spec.cpus.to_string());
        vng.arg("--memory").arg(format!("{}M", spec.memory_mib));
        vng.arg("--root").arg(root).arg("--run").arg(image.path(lab.root()));
        vng.arg(format!("--rwdir=/lab={}", shared.display()));
        vng.arg(format!("--qemu-opts={}", qemu_options.join(" ")));
        Ok(vng)
    }
}
