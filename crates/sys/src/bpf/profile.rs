//! What chosen cgroups ask of devices, and their durable writes, counted by BPF programs.
//!
//! Owns: loading them, which cgroups they count, and their counters. Does not: interpret these.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use bulkhead_core::observe::record::CgroupId;
use bulkhead_core::units::DevNo;
use libbpf_rs::{Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder};

use super::decode::{dev_from_kernel, read};
use super::generated::{DEMAND_BACKGROUND, DEMAND_SEQUENTIAL, DEMAND_WRITE, demand, demand_key, durable};
use super::{Aligned, BpfError, has_ext4, hint, is_of_ext4, log};
use crate::roots::Roots;

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/profile.bpf.o")));

/// Requests of one kind to one device, since the programs were attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The whole disk.
    pub dev: DevNo,
    /// Whether they write.
    pub is_write: bool,
    /// Whether each begins where another one of the same direction ended.
    pub is_sequential: bool,
    /// Whether nobody waits for them: writes without `REQ_SYNC`.
    pub is_background: bool,
    /// Their number.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Calls to fsync and fdatasync, and on ext4 also msync and writes with `O_DSYNC`, since the programs were attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durables {
    /// Their number.
    pub calls: u64,
    /// Their whole time, nanoseconds.
    pub ns: u64,
    /// Those during which a commit of the file system ended; always 0 but on ext4.
    pub commits: u64,
}

/// The programs in the kernel. Dropping it removes them.
pub struct Profiler {
    // Dropped before the programs, which the links keep attached.
    _links: Vec<Link>,
    members: MapHandle,
    demands: MapHandle,
    durables: MapHandle,
    known: BTreeSet<CgroupId>,
    sees_calls: bool,
    _object: Object,
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profiler").field("members", &self.known.len()).finish_non_exhaustive()
    }
}

impl Profiler {
    /// Loads and attaches the programs, which count nothing yet.
    ///
    /// # Errors
    /// [`BpfError`], with the missing kernel feature.
    pub fn start(roots: &Roots) -> Result<Self, BpfError> {
        let btf = roots.sys.join("kernel/btf/vmlinux");
        if !btf.exists() {
            return Err(BpfError::NoBtf { path: btf });
        }
        let with_ext4 = has_ext4(roots)?;
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let load = || -> libbpf_rs::Result<Object> {
            let mut object = ObjectBuilder::default().name("bulkhead_profile")?.open_memory(&OBJECT.0)?;
            for mut program in object.progs_mut() {
                let wanted = with_ext4 || !is_of_ext4(program.section());
                program.set_autoload(wanted);
            }
            object.load()
        };
        let object = load().map_err(|source| BpfError::Load { hint: hint(&source), source })?;
        let (mut links, mut sees_calls) = (Vec::new(), true);
        for program in object.progs_mut().filter(|program| program.autoload()) {
            match program.attach() {
                Ok(link) => links.push(link),
                Err(_) if is_on_call(program.section()) => sees_calls = false,
                Err(source) => {
                    let program = program.name().to_string_lossy().into_owned();
                    return Err(BpfError::Attach { program, source });
                }
            }
        }
        let map = |name: &'static str| {
            let map = object.maps().find(|map| map.name() == name).expect("the object has its own maps");
            MapHandle::try_from(&map).map_err(|source| BpfError::Map { map: name, source })
        };
        let (members, demands, durables) = (map("members")?, map("demands")?, map("durables")?);
        Ok(Self { _links: links, members, demands, durables, known: BTreeSet::new(), sees_calls, _object: object })
    }

    /// Whether fsyncs are seen on all file systems. Without tracepoints of system calls, or without tracefs, they are on ext4 alone.
    #[must_use]
    pub fn sees_calls(&self) -> bool {
        self.sees_calls
    }

    /// Counts these cgroups and no others from now on.
    ///
    /// # Errors
    /// [`BpfError::Map`], also for more cgroups than the map holds.
    pub fn set_members(&mut self, wanted: &BTreeSet<CgroupId>) -> Result<(), BpfError> {
        let error = |source| BpfError::Map { map: "members", source };
        for gone in self.known.difference(wanted) {
            self.members.delete(&gone.0.to_ne_bytes()).map_err(error)?;
        }
        for new in wanted.difference(&self.known) {
            self.members.update(&new.0.to_ne_bytes(), &[1], MapFlags::ANY).map_err(error)?;
        }
        self.known.clone_from(wanted);
        Ok(())
    }

    /// The requests so far.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn asked(&self) -> Result<Vec<Asked>, BpfError> {
        let error = |source| BpfError::Map { map: "demands", source };
        let mut all = Vec::new();
        for key in self.demands.keys() {
            let Some(value) = self.demands.lookup(&key, MapFlags::ANY).map_err(error)? else { continue };
            let (Some(key), Some(value)) = (read::<demand_key>(&key), read::<demand>(&value)) else { continue };
            let is = |bit: u32| key.kind & bit != 0;
            all.push(Asked {
                dev: dev_from_kernel(key.dev),
                is_write: is(DEMAND_WRITE),
                is_sequential: is(DEMAND_SEQUENTIAL),
                is_background: is(DEMAND_BACKGROUND),
                requests: value.requests,
                bytes: value.bytes,
            });
        }
        Ok(all)
    }

    /// The durable writes so far.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn durables(&self) -> Result<Durables, BpfError> {
        let value = self.durables.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(|source| BpfError::Map { map: "durables", source })?;
        let raw = value.and_then(|bytes| read::<durable>(&bytes));
        Ok(raw.map(|raw| Durables { calls: raw.calls, ns: raw.ns, commits: raw.commits }).unwrap_or_default())
    }
}

fn is_on_call(section: &OsStr) -> bool {
    section.as_encoded_bytes().starts_with(b"tracepoint/syscalls/")
}
