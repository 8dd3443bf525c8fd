//! Images as block devices: each with a block server of its own, or on a loop device.
//!
//! A block server is a process that the daemon starts and does not wait for: it outlives the daemon, and is found again by its
//! device's registration.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_core::action::ServerAction;
use bulkhead_core::backend::device_owner;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::health::Backing;
use bulkhead_core::journal::Accounting;
use bulkhead_core::model::Server;
use bulkhead_core::reason::Reason;
use bulkhead_core::serve::{self, ServeSpec};
use bulkhead_core::units::Bytes;
use bulkhead_formats::layer::{self, LayerError};
use bulkhead_formats::servers::{self, RemovalError, lvm};
use bulkhead_sys::loopdev::{self, AttachOptions, LoopInfo};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;
use bulkhead_sys::ublk::{Control, DeviceInfo, UblkError, sized};
use bulkhead_sys::{block, cgroup, file, image, process};
use uuid::Uuid;

use super::Kernel;
use super::act::Outcome;
use super::faults::{Classify, file as file_object};
use crate::host::OpenDevice;

/// How long starting a server may take: it waits for the requests in progress of its predecessor.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long the kernel keeps a device after its file system has ended, and between two attempts.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// How long stopping a server may take: its requests in progress may wait for a slow disk.
const SERVER_END_LIMIT: Duration = Duration::from_secs(60);

/// Suffix of an open file that has been removed (`/proc/PID/fd`).
const GONE_LAYER: &str = ".layer (deleted)";

/// The device of an image.
#[derive(Debug)]
pub(super) enum Attached {
    Loop(LoopInfo),
    Served(DeviceInfo),
}

impl Attached {
    pub(super) fn node(&self, roots: &Roots) -> PathBuf {
        match self {
            Attached::Loop(info) => info.dev_path.clone(),
            Attached::Served(device) => sized::node(roots, device),
        }
    }
}

impl Kernel {
    pub(super) fn act_on_server(&self, action: &ServerAction) -> Result<Outcome, Fault> {
        use ServerAction as A;
        match action {
            A::AttachImage { server, spec } => self.attach_image(*server, spec),
            A::RefreshImage { image, volume, size_bytes } => self.refresh_image(image, *volume, *size_bytes),
            A::DetachImage { image, volume } => self.detach_image(image, *volume),
            A::RenewServer { image, volume } => self.renew_stale(image, *volume),
        }
    }

    /// The device of an image, whether or not it has a server.
    pub(super) fn attached(&self, image: &Path, volume: Uuid) -> Result<Option<Attached>, Fault> {
        if let Some((_, device)) = self.served(image, volume)? {
            return Ok(Some(Attached::Served(device)));
        }
        Ok(self.loop_device(image)?.map(Attached::Loop))
    }

    fn loop_device(&self, image: &Path) -> Result<Option<LoopInfo>, Fault> {
        loopdev::find_by_backing(&self.roots, image).map_err(|e| e.fault(file_object(image)))
    }

    /// Makes a device of an image, or keeps the existing one; a missing server is replaced. A device of the volume that
    /// serves another image is removed first.
    ///
    /// # Errors
    /// [`Kernel::own_device`]'s and [`Kernel::serve`]'s.
    pub(super) fn attach_image(&self, server: Server, spec: &ServeSpec) -> Result<Outcome, Fault> {
        let image = &spec.image;
        if let Some((_, device)) = self.own_device(image, spec.volume)? {
            return match server_of(&device) {
                Some(pid) => self.restore_served(&device, pid, spec),
                None => self.serve(spec).map(|()| Outcome::DONE),
            };
        }
        if self.loop_device(image)?.is_some() {
            return Ok(Outcome::UNCHANGED);
        }
        if let Some(below) = &spec.below {
            activate_below(below);
            // Without a server it would not be the device that its record describes.
            let served = self.ublk().map_err(|e| e.fault(file_object(image)).reason(Reason::SharingNeedsUblk));
            return served.and_then(|_| self.serve(spec)).map(|()| Outcome::DONE);
        }
        let chain = layer::chain(image).map_err(|e| e.fault(file_object(image)))?;
        if spec.layered && chain.is_none() {
            return Err(LayerError::AttributeLost { path: image.clone() }.fault(file_object(image)));
        }
        let has_layers = chain.is_some();
        if server == Server::Auto || has_layers {
            match self.ublk() {
                Ok(_) => return self.serve(spec).map(|()| Outcome::DONE),
                Err(error @ (UblkError::Unavailable { .. } | UblkError::Lacks { .. })) if !has_layers => {
                    tracing::info!(image = %image.display(), %error, "no block server: a loop device is used");
                }
                Err(error) => return Err(error.fault(file_object(image))),
            }
        }
        let options = AttachOptions { direct_io: true, ..AttachOptions::default() };
        loopdev::attach(&self.roots, image, options).map_err(|e| e.fault(file_object(image)))?;
        Ok(Outcome::DONE)
    }

    /// Makes a layer from an image's content, and replaces its server, if it has one, by one that serves the image on top of it.
    pub(super) fn create_layer(&self, image: &Path, volume: Uuid, layer: Uuid) -> Result<Outcome, Fault> {
        let object = || file_object(image);
        let _replacing = self.replacing.begin(volume);
        let mut server = self.own_device(image, volume)?;
        if server.is_none() {
            if self.loop_device(image)?.is_some() {
                let cause = "it is on a loop device, which does not support layers";
                return Err(Fault::new(Code::Unsupported, object(), cause)
                    .hint("on a kernel with ublk, detach the volume from its tenant and attach it again"));
            }
            // An image on a layer cannot go back to a loop device.
            self.ublk().map_err(|e| e.fault(object()))?;
        }
        let stop = || {
            let Some((control, device)) = &mut server else { return };
            let found = control.info(device.id).ok().flatten().and_then(|device| device.server().ok().flatten());
            // If it does not exit, waiting for it fails with an error.
            let _ = found.map(|server| server.kill());
        };
        let changed = layer::freeze(image, layer, SERVER_END_LIMIT, stop).map_err(|e| e.fault(object()))?;
        if changed && let Some((_, device)) = server {
            let recorded = servers::spec_of_disk(&self.roots, &device.name());
            let gone = || Fault::new(Code::Internal, object(), "the daemon has no record of its block server");
            self.serve(&ServeSpec { layered: true, ..recorded.ok_or_else(gone)? })?;
        }
        Ok(Outcome::changed(changed))
    }

    /// Replaces an image's server, if it has removed layers open.
    pub(super) fn renew_stale(&self, image: &Path, volume: Uuid) -> Result<Outcome, Fault> {
        let Some((_, device)) = self.served(image, volume)? else { return Ok(Outcome::UNCHANGED) };
        let (pid, recorded) = (server_of(&device), servers::spec_of_disk(&self.roots, &device.name()));
        let (Some(pid), Some(recorded)) = (pid, recorded) else { return Ok(Outcome::UNCHANGED) };
        let is_gone = |path: &Path| path.to_str().is_some_and(|path| path.ends_with(GONE_LAYER));
        let failed = |error| {
            Fault::new(Code::Internal, file_object(image), format!("its server's files cannot be listed: {error}"))
        };
        let open = process::open_files(&self.roots, pid).map_err(failed)?;
        if !open.iter().any(|path| is_gone(path)) {
            return Ok(Outcome::UNCHANGED);
        }
        self.renew_server(&device, &recorded)?;
        Ok(Outcome::DONE)
    }

    pub(super) fn refresh_image(&self, image: &Path, volume: Uuid, size: Bytes) -> Result<Outcome, Fault> {
        if let Some((mut control, device)) = self.served(image, volume)? {
            let grown = sized::grow(&self.roots, &mut control, &device, size);
            let old = grown.map_err(|e| e.fault(file_object(image)))?;
            return Ok(Outcome { old: Some(old.to_string()), changed: old < size, ..Outcome::DONE });
        }
        let Some(info) = self.loop_device(image)? else { return Ok(Outcome::UNCHANGED) };
        loopdev::set_capacity(&self.roots, &info).map_err(|e| e.fault(file_object(image)))?;
        Ok(Outcome::DONE)
    }

    pub(super) fn detach_image(&self, image: &Path, volume: Uuid) -> Result<Outcome, Fault> {
        let object = || file_object(image);
        // A successor would prevent the removal of its cgroup.
        let _ending = self.replacing.begin(volume);
        // A server that is being started gets its device first.
        let starting = servers::lock(&self.roots, volume, START_LIMIT).map_err(|e| e.fault(object()))?;
        if let Some((mut control, device)) = self.device_of(image, volume)? {
            let mut removed = servers::remove(&mut control, &self.roots, &device);
            if is_busy(&removed) && self.ends_meanwhile(&device.name()) {
                let give_up = Instant::now() + RELEASE_LIMIT;
                while is_busy(&removed) && Instant::now() < give_up {
                    process::pause(RELEASE_POLL);
                    removed = servers::remove(&mut control, &self.roots, &device);
                }
            }
            removed.map_err(|e| e.fault(object()))?;
            // It was stopped on purpose: its log is not needed.
            servers::clean_up(&self.roots, volume).map_err(|e| e.fault(object()))?;
            return Ok(Outcome {
                old: Some(device.node(&self.roots).display().to_string()),
                changed: true,
                ..Outcome::DONE
            });
        }
        servers::clean_up(&self.roots, volume).map_err(|e| e.fault(object()))?;
        drop(starting);
        let Some(info) = self.loop_device(image)? else { return Ok(Outcome::UNCHANGED) };
        loopdev::detach(&self.roots, &info).map_err(|e| e.fault(object()))?;
        Ok(Outcome { old: Some(info.dev_path.display().to_string()), changed: true, ..Outcome::DONE })
    }

    /// The open device of an image, and its backing.
    pub(super) fn open_image(&self, image: &Path, volume: Uuid) -> Result<Option<OpenDevice>, Fault> {
        let (path, dev, backing) = match self.attached(image, volume)? {
            None => return Ok(None),
            Some(Attached::Loop(info)) => {
                let no_ublk = match self.ublk() {
                    Err(error @ (UblkError::Unavailable { .. } | UblkError::Lacks { .. })) => Some(error.to_string()),
                    _ => None,
                };
                (info.dev_path, info.dev, Backing::Loop { direct_io: info.direct_io, no_ublk })
            }
            Some(Attached::Served(device)) => {
                let recorded = servers::spec_of_disk(&self.roots, &device.name());
                let base = recorded.as_ref().and_then(|spec| spec.below.as_ref());
                let lost_base = base.filter(|base| !base.exists()).cloned();
                // Images that are provisioned on demand, or on layers, are not prepared.
                let is_prepared = |spec: &ServeSpec| !spec.discards && !spec.layered && spec.below.is_none();
                let unprepared = if recorded.as_ref().is_some_and(is_prepared) {
                    image::unwritten(image).map_err(|e| e.fault(file_object(image)))?
                } else {
                    Bytes(0)
                };
                let path = sized::node(&self.roots, &device);
                let dev = block::devno_of(&path).map_err(|e| e.fault(file_object(image)))?;
                let has_server = server_of(&device).is_some();
                (path, dev, Backing::Served { has_server, lost_base, unprepared })
            }
        };
        let logical_block_bytes = block::logical_block_bytes(&self.roots, dev).ok();
        Ok(Some(OpenDevice { path, dev, backing, logical_block_bytes }))
    }

    /// How the writes of an image's block server are charged; `None` if it has none.
    pub(super) fn server_accounting(&self, image: &Path, volume: Uuid, wanted: &CgroupPath) -> Option<Accounting> {
        let none = |reason: String| Some(Accounting::None { reason });
        let device = match self.served(image, volume) {
            Ok(Some((_, device))) => device,
            Ok(None) => return None,
            Err(fault) => return none(fault.to_string()),
        };
        let Some(pid) = server_of(&device) else { return none("its block server is gone".to_owned()) };
        match cgroup::cgroup_of(&self.roots, pid) {
            Err(error) => none(error.to_string()),
            Ok(found) if found == *wanted => Some(Accounting::Server { pid, cgroup: wanted.to_string() }),
            Ok(found) => none(format!("its block server (pid {pid}) is in cgroup {found}, not in {wanted}")),
        }
    }

    /// The ublk device of a volume that serves this image, if there is one.
    ///
    /// # Errors
    /// `InUse` if it serves another image, which must never be taken for the volume's.
    fn served(&self, image: &Path, volume: Uuid) -> Result<Option<(Control, DeviceInfo)>, Fault> {
        let found = self.device_of(image, volume)?;
        if let Some((_, device)) = &found
            && let Some(other) = servers::other_image(&self.roots, &device.name(), image)
        {
            let node = sized::node(&self.roots, device);
            let cause =
                format!("{} still serves {}, left by an interrupted operation", node.display(), other.display());
            return Err(Fault::new(Code::InUse, file_object(image), cause)
                .hint(format!("wait until nothing uses it: `fuser -v {}` lists the processes", node.display())));
        }
        Ok(found)
    }

    /// The ublk device of a volume that serves this image, if there is one; one that serves another image is removed. During a rollback the
    /// replacement is served under the volume's identity, and its check may outlive a killed daemon.
    ///
    /// # Errors
    /// `InUse` while the other one is in use.
    fn own_device(&self, image: &Path, volume: Uuid) -> Result<Option<(Control, DeviceInfo)>, Fault> {
        let found = self.device_of(image, volume)?;
        let Some((_, device)) = &found else { return Ok(None) };
        let Some(other) = servers::other_image(&self.roots, &device.name(), image) else { return Ok(found) };
        self.detach_image(image, volume)?;
        let (image, other) = (image.display(), other.display());
        tracing::warn!(%image, %other, device = device.name(), "removed a device left by an interrupted operation");
        Ok(None)
    }

    /// The ublk device of a volume, whichever image it serves.
    fn device_of(&self, image: &Path, volume: Uuid) -> Result<Option<(Control, DeviceInfo)>, Fault> {
        let mut control = match Control::open(&self.roots) {
            Err(UblkError::Unavailable { .. }) => return Ok(None),
            Err(UblkError::Lacks { .. }) if !servers::is_announced(&self.roots, device_owner(volume)) => {
                return Ok(None);
            }
            opened => opened.map_err(|e| e.fault(file_object(image)))?,
        };
        let owner = device_owner(volume);
        let found =
            servers::find(&mut control, &self.roots, owner, &self.owners).map_err(|e| e.fault(file_object(image)))?;
        if found.is_some() && !servers::is_announced(&self.roots, owner) {
            // Created by an earlier version, or its file was removed by hand.
            servers::announce(&self.roots, owner).map_err(|e| e.fault(file_object(image)))?;
        }
        Ok(found.map(|device| (control, device)))
    }

    /// The driver, with its module loaded, if it has the features that block servers need.
    fn ublk(&self) -> Result<Control, UblkError> {
        let mut control = match Control::open(&self.roots) {
            Err(UblkError::Unavailable { source, .. }) if source.kind() == ErrorKind::NotFound => {
                // Without the module, opening fails with the reason.
                let _ = Tool::new("modprobe").arg("ublk_drv").run();
                Control::open(&self.roots)?
            }
            opened => opened?,
        };
        control.features()?;
        Ok(control)
    }

    /// Starts a block server, which takes over an existing device.
    pub(crate) fn serve(&self, spec: &ServeSpec) -> Result<(), Fault> {
        self.start_server(spec, false)
    }

    /// Starts a successor for a device whose server is gone; does nothing if the device is gone as well.
    pub(crate) fn start_successor(&self, spec: &ServeSpec) -> Result<(), Fault> {
        self.start_server(spec, true)
    }

    fn start_server(&self, spec: &ServeSpec, successor: bool) -> Result<(), Fault> {
        let object = || file_object(&spec.image);
        let text = serde_json::to_string(spec).map_err(|error| Fault::new(Code::Internal, object(), error))?;
        let mut tool = Tool::bulkhead(&self.program).outlives_shutdown().arg(serve::COMMAND).arg(text);
        tool = tool.arg("--requests").arg(self.requests.to_string());
        if successor {
            tool = tool.arg("--successor");
        }
        tool.run().map(drop).map_err(|error| error.fault(object()))
    }

    /// Replaces a server; I/O waits meanwhile.
    fn renew_server(&self, device: &DeviceInfo, spec: &ServeSpec) -> Result<(), Fault> {
        let failed = |error: io::Error| Fault::new(Code::Internal, file_object(&spec.image), error.to_string());
        let _replacing = self.replacing.begin(spec.volume);
        if let Some(server) = device.server().map_err(failed)? {
            server.kill().map_err(failed)?;
            if !server.wait_until_ended(SERVER_END_LIMIT).map_err(failed)? {
                return Err(Fault::new(Code::InUse, file_object(&spec.image), "its block server does not exit")
                    .hint("the daemon's log and `dmesg` say more"));
            }
        }
        self.serve(spec)
    }

    /// Restores what may have been lost of a device with a running server.
    fn restore_served(&self, device: &DeviceInfo, pid: u32, spec: &ServeSpec) -> Result<Outcome, Fault> {
        let object = || file_object(&spec.image);
        if sized::size(&self.roots, device).is_none() {
            let size = image::size(&spec.image)
                .map_err(|source| file::FileError::io("examine", &spec.image, source).fault(object()))?;
            sized::expose(&self.roots, device, Bytes(size.0 / BLOCK_BYTES * BLOCK_BYTES))
                .map_err(|e| e.fault(object()))?;
        }
        let Some(cgroup) = &spec.cgroup else { return Ok(Outcome::UNCHANGED) };
        let recorded = servers::spec_of_disk(&self.roots, &device.name());
        if recorded
            .as_ref()
            .is_some_and(|recorded| (recorded.flatten, recorded.read_from) != (spec.flatten, spec.read_from))
        {
            // The new server registers itself. If it were registered before, a crash in between would leave the old one running.
            self.renew_server(device, spec)?;
            return Ok(Outcome::DONE);
        }
        if recorded.as_ref() != Some(spec) {
            servers::register(&self.roots, device, spec).map_err(|e| e.fault(object()))?;
        }
        let found = cgroup::cgroup_of(&self.roots, pid).map_err(|e| e.fault(object()))?;
        if found == *cgroup {
            return Ok(Outcome::UNCHANGED);
        }
        cgroup::move_pid(&self.roots, pid, cgroup).map_err(|e| e.fault(format!("cgroup {cgroup}")))?;
        Ok(Outcome { old: Some(found.to_string()), changed: true, ..Outcome::DONE })
    }
}

/// Activates the volume that another one shares page cache with. If it is gone, nothing is shared, and no data is lost.
fn activate_below(node: &Path) {
    let mut names = node.iter().rev().filter_map(OsStr::to_str);
    let (Some(lv), Some(vg)) = (names.next(), names.next()) else { return };
    if !node.exists()
        && let Err(error) = lvm().activate(vg, lv)
    {
        tracing::warn!(volume = %node.display(), why = chain(&error), "no page cache can be shared with it");
    }
}

/// Whether a device could not be removed because it is in use.
fn is_busy(removed: &Result<(), RemovalError>) -> bool {
    matches!(removed, Err(RemovalError::Ublk(UblkError::Busy { .. })))
}

/// The process that serves a device, if it is running.
pub(super) fn server_of(device: &DeviceInfo) -> Option<u32> {
    device.server().ok().flatten()?;
    device.server_pid
}
