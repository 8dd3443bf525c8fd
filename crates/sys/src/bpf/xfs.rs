//! The kernel's own account of XFS logs: BPF programs on the tracepoints of xfs, in an object of their own, because a kernel
//! without xfs would refuse them.
//!
//! Owns loading and attaching them, reading what they counted, and finding the XFS file systems that there are. Does not decide
//! who pays (`bulkhead_core::observe::log`).

use std::ffi::OsStr;
use std::sync::mpsc;

use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};

use super::{Aligned, BpfError, Program, clear, decode, entries, hint, log, now_ns, programs, remove};
use crate::block;
use crate::roots::Roots;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/xfs.bpf.o")));

/// Maps that are void when the programs have missed a part of what they are about.
const TRANSIENT: [&str; 6] = ["shares", "items", "iclogs", "requesters", "inactive", "errands"];
/// Maps with sums and devices.
const COUNTED: [&str; 2] = ["writes", "journals"];

/// The programs in the kernel. Not attached at first.
pub struct XfsTracer {
    // Before the programs that they keep running.
    links: Vec<Link>,
    ring: RingBuffer<'static>,
    records: mpsc::Receiver<Vec<u8>>,
    maps: Vec<(&'static str, MapHandle)>,
    object: Object,
}

impl std::fmt::Debug for XfsTracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XfsTracer").field("attached", &!self.links.is_empty()).finish_non_exhaustive()
    }
}

/// Devices of the XFS file systems that are mounted, in whatever mount namespace.
#[must_use]
pub fn file_systems(roots: &Roots) -> Vec<DevNo> {
    // Beside them are `debug` and `stats`.
    let names = std::fs::read_dir(roots.sys.join("fs/xfs")).into_iter().flatten().flatten();
    names.filter_map(|entry| block::devno_of_name(roots, entry.file_name().to_str()?)).collect()
}

impl XfsTracer {
    /// Loads the programs.
    ///
    /// # Errors
    /// [`BpfError::Load`] with the kernel's reason, also when xfs is not in the kernel and its module is not loaded.
    pub fn load() -> Result<Self, BpfError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let object = ObjectBuilder::default()
            .name("bulkhead_xfs")
            .and_then(|builder| builder.open_memory(&OBJECT.0))
            .and_then(libbpf_rs::OpenObject::load)
            .map_err(|source| BpfError::Load { hint: hint(&source), source })?;
        let map = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == OsStr::new(name)).expect("the object has its own maps");
            MapHandle::try_from(&map).map_err(|source| BpfError::Map { map: name, source })
        };
        let names = TRANSIENT.into_iter().chain(COUNTED).chain(["losses"]);
        let maps = names.map(|name| Ok((name, map(name)?))).collect::<Result<_, _>>()?;
        let (sender, records) = mpsc::channel();
        let mut builder = RingBufferBuilder::new();
        let records_map = map("records")?;
        let ring_error = |source| BpfError::Map { map: "records", source };
        // The receiver lives as long as the buffer: a send cannot fail.
        builder.add(&records_map, move |bytes| i32::from(sender.send(bytes.to_vec()).is_err())).map_err(ring_error)?;
        let ring = builder.build().map_err(ring_error)?;
        Ok(Self { links: Vec::new(), ring, records, maps, object })
    }

    /// The programs.
    ///
    /// # Errors
    /// [`BpfError::Read`].
    pub fn programs(&self, roots: &Roots) -> Result<Vec<Program>, BpfError> {
        programs(roots, &self.object)
    }

    /// Lets the programs run. Idempotent.
    ///
    /// # Errors
    /// [`BpfError::Attach`], and then none of them runs; [`BpfError::Map`].
    pub fn attach(&mut self) -> Result<(), BpfError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        self.clear(&TRANSIENT)?;
        let mut links = Vec::new();
        for program in self.object.progs_mut() {
            let attached = program.attach().map_err(|source| BpfError::Attach {
                program: program.name().to_string_lossy().into_owned(),
                source,
            })?;
            links.push(attached);
        }
        self.links = links;
        Ok(())
    }

    /// Stops the programs; what they counted stays.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// Enters devices with an XFS, so that metadata written there counts before the first write to the log.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn add_file_systems(&self, devices: &[DevNo]) -> Result<(), BpfError> {
        for device in devices {
            let dev = decode::dev_to_kernel(*device).to_ne_bytes();
            let entered = self.map("journals").update(&dev, &dev, MapFlags::ANY);
            entered.map_err(|source| BpfError::Map { map: "journals", source })?;
        }
        Ok(())
    }

    /// What happened since the last look, and the sums as they stand.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn look(&mut self) -> Result<Batch, BpfError> {
        self.ring.consume().map_err(|source| BpfError::Map { map: "records", source })?;
        let records = self.records.try_iter().filter_map(|bytes| decode::record(&bytes)).collect();
        let shares = entries("shares", self.map("shares"), decode::share)?;
        let writes = entries("writes", self.map("writes"), decode::write)?;
        let losses = decode::losses(|index| {
            let value = self.map("losses").lookup(&index.to_ne_bytes(), MapFlags::ANY).ok().flatten();
            value.and_then(|value| decode::sum(&value)).unwrap_or(0)
        });
        Ok(Batch { now_ns: now_ns(), records, shares, writes, losses, ..Batch::default() })
    }

    /// Forgets everything that was counted.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn reset(&mut self) -> Result<(), BpfError> {
        self.look()?;
        self.clear(&TRANSIENT)?;
        self.clear(&COUNTED)?;
        let losses = self.map("losses");
        for key in losses.keys() {
            let cleared = losses.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY);
            cleared.map_err(|source| BpfError::Map { map: "losses", source })?;
        }
        Ok(())
    }

    /// Forgets shares of checkpoints that take no more transactions.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_shares(&self, keys: &[ShareKey]) -> Result<(), BpfError> {
        for key in keys {
            remove("shares", self.map("shares"), decode::bytes_of(&decode::share_to_raw(key)))?;
        }
        Ok(())
    }

    /// Forgets the sums of cgroups that are gone.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_cgroups(&self, gone: &std::collections::HashSet<CgroupId>) -> Result<(), BpfError> {
        let is_gone = |key: &[u8]| decode::key_cgroup(key).is_some_and(|cgroup| gone.contains(&cgroup));
        let writes = self.map("writes");
        for key in entries("writes", writes, |key, _| is_gone(key).then(|| key.to_vec()))? {
            remove("writes", writes, &key)?;
        }
        Ok(())
    }

    fn map(&self, name: &str) -> &MapHandle {
        let found = self.maps.iter().find(|(other, _)| *other == name);
        &found.expect("all maps of the object are opened when it is loaded").1
    }

    fn clear(&self, names: &[&'static str]) -> Result<(), BpfError> {
        names.iter().try_for_each(|name| clear(self.map(name)).map_err(|source| BpfError::Map { map: name, source }))
    }
}

#[cfg(test)]
mod tests;
