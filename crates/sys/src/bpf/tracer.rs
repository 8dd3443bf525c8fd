//! A BPF object in the kernel: its programs, its ring buffer, and the maps that it shares with user space. All objects use the
//! same names for maps of the same purpose.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::mpsc;

use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, MapType, Object, RingBuffer, RingBufferBuilder};

use super::{BpfError, Method, Program, decode, is_on_function};
use crate::process;
use crate::roots::Roots;

/// The maps of an object, besides `losses` and `records`, which every object has.
#[derive(Clone, Copy)]
pub(super) struct Maps {
    /// State of work in progress, which is void once the programs have missed a part of it.
    pub(super) transient: &'static [&'static str],
    /// Sums and devices.
    pub(super) counted: &'static [&'static str],
}

/// Which journals the programs trace, and how.
#[derive(Clone, Debug)]
pub(super) struct Scope {
    pub(super) method: Method,
    pub(super) has_ext4: bool,
    /// Why the programs on functions do not run.
    pub(super) without_functions: Option<String>,
}

/// The programs in the kernel, initially detached. Dropping it removes them.
pub struct Tracer {
    // Dropped before the programs, which the links keep attached.
    pub(super) links: Vec<Link>,
    ring: RingBuffer<'static>,
    records: mpsc::Receiver<Vec<u8>>,
    names: Maps,
    maps: Vec<(&'static str, MapHandle)>,
    pub(super) object: Object,
    scope: Scope,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer")
            .field("scope", &self.scope)
            .field("attached", &self.is_attached())
            .finish_non_exhaustive()
    }
}

impl Tracer {
    pub(super) fn new(object: Object, names: Maps, scope: Scope) -> Result<Self, BpfError> {
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
        Ok(Self { links: Vec::new(), ring, records, names, maps, object, scope })
    }

    /// How the programs access kernel data.
    #[must_use]
    pub fn method(&self) -> Method {
        self.scope.method
    }

    /// Whether ext4 journals are traced. False for XFS, and where ext4 was not loaded, so that only devices are traced.
    #[must_use]
    pub fn has_ext4(&self) -> bool {
        self.scope.has_ext4
    }

    /// Why the programs on functions of jbd2 (fentry) do not run; `None` if they do. Without them, handles that restart are counted
    /// only from the restart on, a block dirtied by several cgroups is charged to the first, and early commits have no surcharge.
    #[must_use]
    pub fn without_functions(&self) -> Option<&str> {
        self.scope.without_functions.as_deref()
    }

    /// Whether the programs run.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.links.is_empty()
    }

    /// The loaded programs.
    ///
    /// # Errors
    /// [`BpfError::Read`].
    pub fn programs(&self, roots: &Roots) -> Result<Vec<Program>, BpfError> {
        programs(roots, &self.object)
    }

    /// Enables the kernel's run-time statistics of BPF programs, host-wide, while the descriptor is open (`BPF_ENABLE_STATS`).
    /// Makes each run slightly slower.
    ///
    /// # Errors
    /// The operating system's.
    pub fn statistics() -> io::Result<OwnedFd> {
        // SAFETY: it takes a number and returns a new descriptor or a negative error number.
        let fd = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(libbpf_rs::libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the descriptor is new, and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Attaches the programs. A journal is discovered at its first commit, or added with [`Tracer::add_journals`]. Idempotent.
    ///
    /// # Errors
    /// [`BpfError::Attach`], with all programs detached; [`BpfError::Map`].
    pub fn attach(&mut self) -> Result<(), BpfError> {
        if self.is_attached() {
            return Ok(());
        }
        self.clear(self.names.transient)?;
        let (mut links, mut without_functions) = (Vec::new(), None);
        // The last one first: in the sources, what ends something comes after what begins it. Attached the other way round, a request that is
        // issued and completed in between would stay in flight.
        let programs: Vec<_> = self.object.progs_mut().filter(|program| program.autoload()).collect();
        for program in programs.into_iter().rev() {
            match program.attach() {
                Ok(link) => links.push(link),
                Err(error) if is_on_function(program.section()) => without_functions = Some(error.to_string()),
                Err(source) => {
                    return Err(BpfError::Attach { program: program.name().to_string_lossy().into_owned(), source });
                }
            }
        }
        self.links = links;
        if without_functions.is_some() {
            self.scope.without_functions = without_functions;
        }
        Ok(())
    }

    /// Detaches the programs; counters are kept.
    pub fn detach(&mut self) {
        self.links.clear();
    }

    /// Adds devices of journaled file systems (XFS included), so that journal and metadata writes there are counted before the
    /// first commit. Devices that the programs know already are unchanged: they may be journals of other file systems.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn add_journals(&self, devices: &[DevNo]) -> Result<(), BpfError> {
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

    /// Events since the last poll, and the current sums.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn poll(&mut self) -> Result<Batch, BpfError> {
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
        Ok(Batch {
            now_ns: process::monotonic_ns(),
            records,
            shares,
            writes,
            services,
            losses: decode::losses(counter),
        })
    }

    /// Clears all counters and pending events.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn reset(&mut self) -> Result<(), BpfError> {
        self.poll()?;
        self.clear(self.names.transient)?;
        self.clear(self.names.counted)?;
        let losses = self.map("losses");
        for key in losses.keys() {
            let cleared = losses.update(&key, &0u64.to_ne_bytes(), MapFlags::ANY);
            cleared.map_err(|source| BpfError::Map { map: "losses", source })?;
        }
        Ok(())
    }

    /// Evicts shares of transactions whose commit is finished, and of closed checkpoints.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn evict_shares(&self, keys: &[ShareKey]) -> Result<(), BpfError> {
        keys.iter().try_for_each(|key| self.remove("shares", decode::bytes_of(&decode::share_to_raw(key))))
    }

    /// Evicts the sums of removed cgroups.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn evict_cgroups(&self, removed: &HashSet<CgroupId>) -> Result<(), BpfError> {
        let is_removed = |key: &[u8]| decode::key_cgroup(key).is_some_and(|cgroup| removed.contains(&cgroup));
        for &name in self.names.counted.iter().filter(|name| **name != "journals") {
            for key in self.entries(name, |key, _| is_removed(key).then(|| key.to_vec()))? {
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
        // The whole map in one call. With smaller batches, libbpf-rs takes a short batch for the last one; but the kernel also
        // returns a short batch if the next bucket does not fit.
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

/// The loaded programs of an object.
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
