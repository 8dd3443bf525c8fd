//! Bulkhead's fence around the kernel.
//!
//! Owns: all system calls, ioctls, `/sys`, `/proc` and cgroup files, and helper programs that Bulkhead uses; one interface per
//! file. This is the only crate with `unsafe`.
//! Does not: contain policy. What to do, and in which order, comes from `bulkhead-core` through the engine.

#![deny(missing_docs)]

pub mod background;
pub mod block;
pub mod block_trace;
pub mod bpf;
pub mod buffer;
pub mod cgroup;
pub mod extents;
pub mod facts;
pub mod file;
pub mod fix;
pub mod fsutil;
pub mod fsync_trace;
pub mod handle;
pub mod image;
pub mod iocost;
pub mod iosched;
pub mod jbd2;
pub mod loopdev;
pub mod lvm;
pub mod mount;
pub mod namespace;
pub mod packet;
pub mod pagecache;
pub mod probe;
pub mod process;
pub mod roots;
pub mod runtimes;
pub mod scratch;
pub mod selinux;
pub mod shared;
pub mod size;
pub mod spawn;
pub mod systemd;
pub mod thin;
pub mod tool;
pub mod trim;
pub mod ublk;
pub mod words;
pub mod worker;

pub use tracefs::TraceError;

mod mapping;
mod raw;
mod tracefs;
