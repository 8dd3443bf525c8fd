//! The lab: virtual machines with stock kernels and simulated disks, and the cases that run in them.
//!
//! Treats the programs under test as black boxes. Owns everything from a fresh host to a report: host programs
//! ([`Lab::open`]), machines ([`Machine`]), disks ([`DiskSpec`]), cases ([`case`], [`cases`]) and their runner
//! ([`runner`]). Not shipped.
#![forbid(unsafe_code)]

pub mod agent;
mod apt;
mod cache;
pub mod case;
pub mod cases;
mod channel;
mod clock;
mod command;
mod crate_tool;
mod disk;
mod go_tool;
mod guest_root;
mod init;
mod initramfs;
mod kernels;
mod kvm;
mod lab;
mod machine;
mod package;
mod process;
mod programs;
mod protocol;
mod qemu;
mod report;
mod root_image;
mod run_dir;
pub mod runner;
pub mod say;
mod sealed;
mod setup;
mod shared_dir;
mod shell;
mod vm;
mod wait;

pub use cache::Cache;
pub use clock::Clock;
pub use command::{command as host_command, output as host_output};
pub use crate_tool::CrateTool;
pub use disk::{DiskModel, DiskSpec, Disks, IocostLines};
pub use go_tool::{GoModule, GoPrograms, GoTool};
pub use guest_root::GuestRoot;
pub use init::Init;
pub use kernels::{Kernel, KernelImage};
pub use lab::{Lab, LabConfig};
pub use machine::{DEFAULT_DEADLINE, DISK_WORD, GUEST_BIN, GUEST_OUT, Machine, MachineSpec};
pub use package::GuestPackage;
pub use process::{Output, Process, ProcessEvent};
pub use protocol::{ExitStatus, Stream};
pub use report::{Entry, Report, Verdict};
pub use sealed::{SealedOutcome, SealedSpec, run_sealed};
pub use shell::shell;
pub use wait::wait_until;
