//! A BPF object in the kernel: its programs, its ring buffer, and the maps that it shares with user space under the same names as
//! every other object of ours.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::mpsc;

use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, RingBuffer, RingBufferBuilder};

use super::{BpfError, Program, decode, is_on_function, now_ns};
use crate::roots::Roots;

/// The maps of an object, beside `losses` and `records`, which all have.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    /// State of what is under way, which is void when the programs have missed a part of it.
    pub(super) transient: &'static [&'static str],
    /// Sums and devices.
    pub(super) counted: &'static [&'static str],
}

/// Not attached at first.
pub(super) struct Loaded {
    // Before the programs that they keep running.
    pub(super) links: Vec<Link>,
    ring: RingBuffer<'static>,
    records: mpsc::Receiver<Vec<u8>>,
    names: Maps,
    maps: Vec<(&'static str, MapHandle)>,
    pub(super) object: Object,
}

impl Loaded {
    pub(super) fn new(object: Object, names: Maps) -> Result<Self, BpfError> {
        let map = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == OsStr::new(name)).expect("the object has its own maps");
            MapHandle::try_from(&map).map_err(|source| BpfError::Map { map: name, source })
        };
        let all = names.transient.iter().chain(names.counted).chain(&["losses"]);
        let maps = all.map(|name| Ok((*name, map(name)?))).collect::<Result<_, _>>()?;
        let (sender, records) = mpsc::channel();
        let mut builder = RingBufferBuilder::new();
        let records_map = map("records")?;
        let ring_error = |source| BpfError::Map { map: "records", source };
        // The receiver lives as long as the buffer: a send cannot fail.
        builder.add(&records_map, move |bytes| i32::from(sender.send(bytes.to_vec()).is_err())).map_err(ring_error)?;
        let ring = builder.build().map_err(ring_error)?;
        Ok(Self { links: Vec::new(), ring, records, names, maps, object })
    }

    pub(super) fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// Lets the programs run. Idempotent. Returns why those on functions do not, if so.
    pub(super) fn attach(&mut self) -> Result<Option<String>, BpfError> {
        if self.is_attached() {
            return Ok(None);
        }
        self.clear(self.names.transient)?;
        let (mut links, mut without_functions) = (Vec::new(), None);
        for program in self.object.progs_mut().filter(|program| program.autoload()) {
            match program.attach() {
                Ok(link) => links.push(link),
                Err(error) if is_on_function(program.section()) => without_functions = Some(error.to_string()),
                Err(source) => {
                    return Err(BpfError::Attach { program: program.name().to_string_lossy().into_owned(), source });
                }
            }
        }
        self.links = links;
        Ok(without_functions)
    }

    /// Stops the programs; what they counted stays.
    pub(super) fn detach(&mut self) {
        self.links.clear();
    }

    /// Enters devices that the programs do not know yet. They may know already that one is the journal of another one's file
    /// system.
    pub(super) fn add_journals(&self, devices: &[DevNo]) -> Result<(), BpfError> {
        for device in devices {
            let dev = decode::dev_to_kernel(*device).to_ne_bytes();
            match self.map("journals").update(&dev, &dev, MapFlags::NO_EXIST) {
                Err(source) if source.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                    return Err(BpfError::Map { map: "journals", source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What happened since the last look, and the sums as they stand.
    pub(super) fn look(&mut self) -> Result<Batch, BpfError> {
        self.ring.consume().map_err(|source| BpfError::Map { map: "records", source })?;
        let records = self.records.try_iter().filter_map(|bytes| decode::record(&bytes)).collect();
        let shares = self.entries("shares", decode::share)?;
        let writes = self.entries("writes", decode::write)?;
        let services = match self.names.counted.contains(&"services") {
            true => self.entries("services", decode::device_service)?,
            false => Vec::new(),
        };
        let counter = |index: u32| {
            let value = self.map("losses").lookup(&index.to_ne_bytes(), MapFlags::ANY).ok().flatten();
            value.and_then(|value| decode::sum(&value)).unwrap_or(0)
        };
        Ok(Batch { now_ns: now_ns(), records, shares, writes, services, losses: decode::losses(counter) })
    }

    /// Forgets everything that was counted.
    pub(super) fn reset(&mut self) -> Result<(), BpfError> {
        self.look()?;
        self.clear(self.names.transient)?;
        self.clear(self.names.counted)?;
        let losses = self.map("losses");
        for key in losses.keys() {
            let cleared = losses.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY);
            cleared.map_err(|source| BpfError::Map { map: "losses", source })?;
        }
        Ok(())
    }

    /// Forgets shares that are used up.
    pub(super) fn forget_shares(&self, keys: &[ShareKey]) -> Result<(), BpfError> {
        keys.iter().try_for_each(|key| self.remove("shares", decode::bytes_of(&decode::share_to_raw(key))))
    }

    /// Forgets the sums of cgroups that are gone.
    pub(super) fn forget_cgroups(&self, gone: &HashSet<CgroupId>) -> Result<(), BpfError> {
        let is_gone = |key: &[u8]| decode::key_cgroup(key).is_some_and(|cgroup| gone.contains(&cgroup));
        for &name in self.names.counted.iter().filter(|name| **name != "journals") {
            for key in self.entries(name, |key, _| is_gone(key).then(|| key.to_vec()))? {
                self.remove(name, &key)?;
            }
        }
        Ok(())
    }

    fn map(&self, name: &str) -> &MapHandle {
        let found = self.maps.iter().find(|(other, _)| *other == name);
        &found.expect("all maps of the object are opened when it is loaded").1
    }

    fn entries<T>(&self, name: &'static str, decode: impl Fn(&[u8], &[u8]) -> Option<T>) -> Result<Vec<T>, BpfError> {
        let map = self.map(name);
        // All of it with one call: a call that gives less than was asked for is taken for the last one, but a bucket that does not
        // fit ends a call early, too.
        let batches = map.lookup_batch(map.max_entries(), MapFlags::ANY, MapFlags::ANY);
        let batches = batches.map_err(|source| BpfError::Map { map: name, source })?;
        Ok(batches.filter_map(|(key, value)| decode(&key, &value)).collect())
    }

    fn remove(&self, name: &'static str, key: &[u8]) -> Result<(), BpfError> {
        match self.map(name).delete(key) {
            Err(source) if source.kind() != libbpf_rs::ErrorKind::NotFound => Err(BpfError::Map { map: name, source }),
            _ => Ok(()),
        }
    }

    fn clear(&self, names: &[&'static str]) -> Result<(), BpfError> {
        for &name in names {
            let map = self.map(name);
            debug_assert!(matches!(map.map_type(), MapType::Hash | MapType::LruHash));
            let keys: Vec<Vec<u8>> = map.keys().collect();
            keys.iter().try_for_each(|key| self.remove(name, key))?;
        }
        Ok(())
    }
}

/// The programs of an object that are loaded.
pub(super) fn programs(roots: &Roots, object: &Object) -> Result<Vec<Program>, BpfError> {
    let loaded = object.progs().filter(libbpf_rs::Program::autoload);
    let info = |program: libbpf_rs::Program<'_>| {
        let path = roots.proc.join("self/fdinfo").join(program.as_fd().as_raw_fd().to_string());
        let text = std::fs::read_to_string(&path).map_err(|source| BpfError::Read { path, source })?;
        let number = |name: &str| decode::fdinfo(&text, name).unwrap_or(0);
        Ok(Program {
            name: program.name().to_string_lossy().into_owned(),
            n_instructions: program.insn_cnt() as u64,
            n_verified: number("verified_insns"),
            n_runs: number("run_cnt"),
            run_ns: number("run_time_ns"),
        })
    };
    loaded.map(info).collect()
}
