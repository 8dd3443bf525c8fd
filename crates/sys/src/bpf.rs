//! The kernel's own account of journals: BPF programs on the tracepoints of jbd2, ext4 and the block layer.
//!
//! Owns loading and attaching them and reading what they counted. Does not decide who pays (`bulkhead_core::observe`).
//!
//! Loading takes a while (0.2 s, under emulation up to a minute): do it once. As long as the programs are not attached they
//! cost nothing. They go with the [`Tracer`], also when its process is killed: nothing is pinned.

mod decode;
mod loaded;
mod plain;
pub mod xfs;

#[expect(non_camel_case_types, unreachable_pub, dead_code, reason = "generated from record.h by bindgen")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/record.rs"));
}

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::PathBuf;

use bulkhead_core::observe::record::{Batch, CgroupId, ShareKey};
use bulkhead_core::units::DevNo;
use libbpf_rs::{Object, ObjectBuilder};
use rustix::time::{ClockId, clock_gettime};

use self::loaded::{Loaded, Maps};
use crate::roots::Roots;

/// The compiled programs, aligned as libelf wants them.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bulkhead.bpf.o")));

/// How the programs see what the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Tracepoints with the kernel's own structures, whose fields its type information tells (BTF).
    TypedTracepoints,
    /// Fields of tracepoints alone: charges as exact, but by less. Whose device time it was is not told, nor which blocks were
    /// dirtied, and which commit an fsync needed is inferred.
    PlainTracepoints,
}

impl Method {
    /// All of them, the best first.
    pub const ALL: [Self; 2] = [Self::TypedTracepoints, Self::PlainTracepoints];

    /// The word for it in JSON and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::TypedTracepoints => "tp_btf",
            Self::PlainTracepoints => "tracepoint",
        }
    }

    const fn maps(self) -> Maps {
        match self {
            Self::TypedTracepoints => Maps {
                transient: &["shares", "commits", "syncs", "writing", "work_owners", "devices", "issued", "blocks"],
                counted: &["writes", "services", "journals"],
            },
            Self::PlainTracepoints => Maps {
                transient: &["shares", "commits", "last_commits", "syncs", "writing", "work_owners", "inodes"],
                counted: &["writes", "journals"],
            },
        }
    }
}

/// The journals cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel does not describe its structures, so that the programs cannot find their fields.
    #[error("the kernel has no type information: {path} is not there (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf {
        /// Where it should be.
        path: PathBuf,
    },
    /// The events of tracepoints are not described.
    #[error("tracefs is not mounted: {path} is not there (`mount -t tracefs tracefs /sys/kernel/tracing`)")]
    NoTracefs {
        /// Where it should be.
        path: PathBuf,
    },
    /// An event is not as the programs know it.
    #[error("the tracepoint has no field {field} that can be used, by {path}")]
    NoField {
        /// The file that describes it.
        path: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// ext4 is not in the kernel, or its module is not loaded; nor is there an XFS.
    #[error("ext4 is not loaded, and no XFS is mounted (mount one of them, or `modprobe ext4`)")]
    NoExt4,
    /// The list of file systems cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the programs.
    #[error("cannot load the BPF programs{hint}")]
    Load {
        /// What probably stands in the way, as a text to append; empty when that is not known.
        hint: &'static str,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel refused to run a program.
    #[error("cannot attach BPF program {program}")]
    Attach {
        /// Its name, which is the tracepoint's.
        program: String,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A map could not be read or written.
    #[error("cannot access BPF map {map}")]
    Map {
        /// Its name.
        map: &'static str,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
}

/// A program in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// What it is called, which is what it is attached to.
    pub name: String,
    /// Its instructions as compiled.
    pub n_instructions: u64,
    /// Instructions that the verifier followed, over all paths; 0 on kernels that do not say (before 5.16).
    pub n_verified: u64,
    /// How often it ran while statistics were on ([`Tracer::statistics`]).
    pub n_runs: u64,
    /// Nanoseconds that these runs took.
    pub run_ns: u64,
}

/// The programs in the kernel. Not attached at first.
pub struct Tracer {
    loaded: Loaded,
    method: Method,
    has_ext4: bool,
    /// Why programs on functions do not run.
    without_functions: Option<String>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracer").field("attached", &self.is_attached()).finish_non_exhaustive()
    }
}

impl Tracer {
    /// Loads the programs of a method.
    ///
    /// # Errors
    /// [`BpfError`], which says what the kernel lacks.
    pub fn load(roots: &Roots, method: Method) -> Result<Self, BpfError> {
        let btf = roots.sys.join("kernel/btf/vmlinux");
        if method == Method::TypedTracepoints && !btf.exists() {
            return Err(BpfError::NoBtf { path: btf });
        }
        let has_ext4 = has_ext4(roots)?;
        // Only the typed programs see something without ext4: devices.
        if !has_ext4 && (method == Method::PlainTracepoints || xfs::file_systems(roots).is_empty()) {
            return Err(BpfError::NoExt4);
        }
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let load_error = |source: libbpf_rs::Error| BpfError::Load { hint: hint(&source), source };
        let (object, without_functions) = match method {
            // Programs on functions are refused by some kernels that take all the others.
            Method::TypedTracepoints => match load_object(has_ext4, true) {
                Ok(object) => (object, None),
                Err(error) => (load_object(has_ext4, false).map_err(load_error)?, Some(error.to_string())),
            },
            Method::PlainTracepoints => {
                let no_functions = "they need type information".to_owned();
                (plain::load(&plain::offsets(roots)?).map_err(load_error)?, Some(no_functions))
            }
        };
        Ok(Self { loaded: Loaded::new(object, method.maps())?, method, has_ext4, without_functions })
    }

    /// What was loaded.
    #[must_use]
    pub fn method(&self) -> Method {
        self.method
    }

    /// Whether journals of ext4 are traced; else ext4 was not loaded, and only devices are.
    #[must_use]
    pub fn has_ext4(&self) -> bool {
        self.has_ext4
    }

    /// Why the programs on functions of jbd2 (fentry) do not run; `None` when they do. Without them a handle that restarts is
    /// counted from its restart on, a block that several dirty is paid by the first, and nobody is surcharged for commits forced early.
    #[must_use]
    pub fn without_functions(&self) -> Option<&str> {
        self.without_functions.as_deref()
    }

    /// Whether the programs run.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.loaded.is_attached()
    }

    /// The programs that are loaded.
    ///
    /// # Errors
    /// [`BpfError::Read`].
    pub fn programs(&self, roots: &Roots) -> Result<Vec<Program>, BpfError> {
        loaded::programs(roots, &self.loaded.object)
    }

    /// Has the kernel measure how long programs run, all of the host's, as long as the descriptor is open
    /// (`BPF_ENABLE_STATS`). That makes each run a little longer.
    ///
    /// # Errors
    /// The kernel's reason.
    pub fn statistics() -> io::Result<OwnedFd> {
        // SAFETY: it takes a number and returns a new descriptor or a negative error number.
        let fd = unsafe { libbpf_rs::libbpf_sys::bpf_enable_stats(libbpf_rs::libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(-fd));
        }
        // SAFETY: the descriptor is new, and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Lets the programs run. Journals are found by their first commit, or told by [`Tracer::add_journals`]. Idempotent.
    ///
    /// # Errors
    /// [`BpfError::Attach`], and then none of them runs; [`BpfError::Map`].
    pub fn attach(&mut self) -> Result<(), BpfError> {
        if let Some(cause) = self.loaded.attach()? {
            self.without_functions = Some(cause);
        }
        Ok(())
    }

    /// Enters devices that hold a journal, so that writes to them count before their first commit.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn add_journals(&self, journals: &[DevNo]) -> Result<(), BpfError> {
        self.loaded.add_journals(journals)
    }

    /// Stops the programs; what they counted stays.
    pub fn detach(&mut self) {
        self.loaded.detach();
    }

    /// What happened since the last look, and the sums as they stand.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn look(&mut self) -> Result<Batch, BpfError> {
        self.loaded.look()
    }

    /// Forgets everything that was counted.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn reset(&mut self) -> Result<(), BpfError> {
        self.loaded.reset()
    }

    /// Forgets shares of transactions whose commit is over.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_shares(&self, keys: &[ShareKey]) -> Result<(), BpfError> {
        self.loaded.forget_shares(keys)
    }

    /// Forgets the sums of cgroups that are gone.
    ///
    /// # Errors
    /// [`BpfError::Map`].
    pub fn forget_cgroups(&self, gone: &HashSet<CgroupId>) -> Result<(), BpfError> {
        self.loaded.forget_cgroups(gone)
    }
}

/// The clock of the records, in nanoseconds (kernel `ktime_get_ns`).
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1_000_000_000 + ns
}

fn load_object(with_ext4: bool, with_functions: bool) -> libbpf_rs::Result<Object> {
    let mut object = ObjectBuilder::default().name("bulkhead")?.open_memory(&OBJECT.0)?;
    for mut program in object.progs_mut() {
        let section = program.section();
        let wanted = (with_ext4 || !is_of_ext4(section)) && (with_functions || !is_on_function(section));
        program.set_autoload(wanted);
    }
    object.load()
}

fn is_on_function(section: &OsStr) -> bool {
    section.as_encoded_bytes().starts_with(b"fentry/")
}

fn has_ext4(roots: &Roots) -> Result<bool, BpfError> {
    let path = roots.proc.join("filesystems");
    let text = std::fs::read_to_string(&path).map_err(|source| BpfError::Read { path, source })?;
    Ok(text.lines().any(|line| line.trim() == "ext4"))
}

/// Whether a program is attached to ext4 or its journal.
fn is_of_ext4(section: &OsStr) -> bool {
    let target = section.to_str().and_then(|section| section.split_once('/'));
    target.is_some_and(|(_, target)| target.starts_with("ext4_") || target.starts_with("jbd2_"))
}

/// What an operator can do about a refusal.
fn hint(source: &libbpf_rs::Error) -> &'static str {
    match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; it takes root with CAP_BPF and CAP_PERFMON, and a kernel that is not locked down for confidentiality"
        }
        _ => "",
    }
}

fn log(_level: libbpf_rs::PrintLevel, message: String) {
    tracing::debug!(target: "libbpf", "{}", message.trim_end());
}

#[cfg(test)]
mod tests;
