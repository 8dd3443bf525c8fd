//! The kernel's accounting of journals: BPF programs on the tracepoints of jbd2, ext4 and the block layer.
//!
//! Owns loading and attaching them and reading their counters. Does not decide who is charged (`bulkhead_core::observe`).
//!
//! Loading is slow (0.2 s, under emulation up to a minute): do it once. Detached programs cost nothing. They are removed with the
//! [`Tracer`], also if its process is killed: nothing is pinned.

mod decode;
mod plain;
pub mod profile;
mod tracer;
pub mod xfs;

#[expect(non_camel_case_types, unreachable_pub, dead_code, reason = "generated from record.h by bindgen")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/record.rs"));
}

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

use libbpf_rs::{Object, ObjectBuilder};

pub use self::tracer::Tracer;
use self::tracer::{Maps, Scope};
use crate::roots::Roots;

/// The compiled programs, aligned for libelf.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bulkhead.bpf.o")));

/// How the programs access kernel data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Tracepoints with access to kernel structures, by type information (BTF).
    TypedTracepoints,
    /// Fields of tracepoints alone: sums are as exact, their attribution is less so. The cgroup of device time and the dirtied
    /// blocks are unknown; the commit that an fsync needed is inferred.
    PlainTracepoints,
}

impl Method {
    /// All methods, in order of preference.
    pub const ALL: [Self; 2] = [Self::TypedTracepoints, Self::PlainTracepoints];

    /// Its name in JSON and metrics.
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

/// Journals cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel has no BTF, so the programs cannot locate the fields of its structures.
    #[error("the kernel has no type information: {path} does not exist (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf {
        /// The missing file.
        path: PathBuf,
    },
    /// There are no format files of tracepoints.
    #[error("tracefs is not mounted: {path} does not exist")]
    NoTracefs {
        /// The missing directory.
        path: PathBuf,
    },
    /// A tracepoint lacks a field that the programs need.
    #[error("the tracepoint has no usable field {field} ({path})")]
    NoField {
        /// The format file.
        path: PathBuf,
        /// The field.
        field: &'static str,
    },
    /// ext4 is neither built in nor loaded, and no XFS is mounted.
    #[error("ext4 is not loaded, and no XFS is mounted")]
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
        /// The probable cause, as a text to append; empty if unknown.
        hint: &'static str,
        /// The kernel's reason.
        #[source]
        source: libbpf_rs::Error,
    },
    /// The kernel refused to attach a program.
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

/// A loaded BPF program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name, the same as that of its tracepoint or function.
    pub name: String,
    /// Instructions as compiled.
    pub n_instructions: u64,
    /// Instructions processed by the verifier, over all paths; 0 on kernels that do not report it (before 5.16).
    pub n_verified: u64,
    /// Runs while statistics were enabled ([`Tracer::statistics`]).
    pub n_runs: u64,
    /// Duration of these runs in nanoseconds.
    pub run_ns: u64,
}

impl Tracer {
    /// Loads the programs of a method.
    ///
    /// # Errors
    /// [`BpfError`], with the missing kernel feature.
    pub fn load(roots: &Roots, method: Method) -> Result<Self, BpfError> {
        let btf = roots.sys.join("kernel/btf/vmlinux");
        if method == Method::TypedTracepoints && !btf.exists() {
            return Err(BpfError::NoBtf { path: btf });
        }
        let has_ext4 = has_ext4(roots)?;
        // Without ext4, only the typed programs are of use: they trace devices.
        if !has_ext4 && (method == Method::PlainTracepoints || xfs::file_systems(roots).is_empty()) {
            return Err(BpfError::NoExt4);
        }
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Debug, log)));
        let load_error = |source: libbpf_rs::Error| BpfError::Load { hint: hint(&source), source };
        let (object, without_functions) = match method {
            // Some kernels refuse programs on functions and accept all others.
            Method::TypedTracepoints => match load_object(has_ext4, true) {
                Ok(object) => (object, None),
                Err(error) => (load_object(has_ext4, false).map_err(load_error)?, Some(error.to_string())),
            },
            Method::PlainTracepoints => {
                let no_functions = "they need type information".to_owned();
                (plain::load(&plain::offsets(roots)?).map_err(load_error)?, Some(no_functions))
            }
        };
        Self::new(object, method.maps(), Scope { method, has_ext4, without_functions })
    }
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

/// Whether a program traces ext4 or its journal.
fn is_of_ext4(section: &OsStr) -> bool {
    let target = section.to_str().and_then(|section| section.split_once('/'));
    target.is_some_and(|(_, target)| target.starts_with("ext4_") || target.starts_with("jbd2_"))
}

/// The probable cause of a refusal.
fn hint(source: &libbpf_rs::Error) -> &'static str {
    match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            "; root needs CAP_BPF and CAP_PERFMON, and the kernel must not be locked down for confidentiality"
        }
        _ => "",
    }
}

fn log(_level: libbpf_rs::PrintLevel, message: String) {
    tracing::debug!(target: "libbpf", "{}", message.trim_end());
}

#[cfg(test)]
mod tests;
