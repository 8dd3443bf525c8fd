//! Models of disks of a known make, a hard disk, a SATA SSD and an NVMe SSD: their answers to requests, and the times
//! of these.
//!
//! Owns: the queues, caches, mechanics and flash units of the modelled disks, and the tables of their parameters.
//! Does not: store data, do I/O, read a clock or run threads. The caller passes the time in and acts on the events.
//!
//! A model runs on the clock of its drive. A disk that is `k` times slower is the same model behind a clock that runs
//! `k` times slower, so that every latency is exactly `k` times the drive's and every decision is the same.

#![forbid(unsafe_code)]

mod agenda;
mod flash;
mod hdd;
pub mod parameters;

pub use parameters::{FlashParameters, HddParameters, Parameters};

/// Virtual time since the start of the disk, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Read,
    /// `fua`: the data reaches the medium before the write completes.
    Write {
        fua: bool,
    },
    /// Every write completed before the flush reaches the medium before the flush completes.
    Flush,
    /// The bytes are undefined until they are written again; a write of them that is still cached is dropped.
    Discard,
}

/// One command. A tag is in use until its [`Event::Completed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub tag: u16,
    pub kind: Kind,
    pub offset: u64,
    pub len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Completed {
        tag: u16,
    },
    /// These bytes survive a loss of power, as the writes completed so far have left them. Emitted before the
    /// completion of the flush that needs them. A write that is durable when it completes has its `Durable` directly
    /// before its `Completed`, and is included in it.
    Durable {
        offset: u64,
        len: u64,
    },
}

/// A disk under load. The caller's order at each instant: `advance`, act on the events, `submit`.
#[derive(Debug)]
pub struct Disk {
    model: Model,
    slowdown: f64,
    description: String,
}

#[derive(Debug)]
enum Model {
    Hdd(Box<hdd::Hdd>),
    Flash(Box<flash::Flash>),
}

impl Disk {
    /// An idle disk with a clean cache. The seed determines where the platter and the flash stripes start.
    ///
    /// # Panics
    /// If `size_bytes` is less than one megabyte.
    pub fn new(parameters: &Parameters, size_bytes: u64, seed: u64) -> Self {
        assert!(size_bytes >= 1 << 20, "a modelled disk of {size_bytes} bytes has no room for a track");
        let model = match parameters {
            Parameters::Hdd(table) => Model::Hdd(Box::new(hdd::Hdd::new(*table, size_bytes, mix(seed)))),
            Parameters::Flash(table) => Model::Flash(Box::new(flash::Flash::new(*table, size_bytes, mix(seed)))),
        };
        let size_mib = size_bytes >> 20;
        let description = format!("{}; {size_mib} MiB", parameters.describe());
        Self { model, slowdown: parameters.slowdown(), description }
    }

    /// Submits a request at `now`, which is not before the last `advance` or `submit`.
    pub fn submit(&mut self, now: Nanos, request: Request) {
        let now_ns = self.drive_time(now);
        match &mut self.model {
            Model::Hdd(model) => model.submit(now_ns, request),
            Model::Flash(model) => model.submit(now_ns, request),
        }
    }

    /// When to call `advance` next. `None`: the disk is idle until the next `submit`.
    pub fn next_event(&self) -> Option<Nanos> {
        let at_ns = match &self.model {
            Model::Hdd(model) => model.next_event(),
            Model::Flash(model) => model.next_event(),
        }?;
        Some(self.host_time(at_ns))
    }

    /// Appends all events that are due up to and including `now`, in order of time.
    pub fn advance(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let now_ns = self.drive_time(now);
        match &mut self.model {
            Model::Hdd(model) => model.advance(now_ns, events),
            Model::Flash(model) => model.advance(now_ns, events),
        }
    }

    /// One line for results: the drive, its main parameters, its slowdown, and its size.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    fn drive_time(&self, host: Nanos) -> u64 {
        whole(host.0 as f64 / self.slowdown)
    }

    fn host_time(&self, drive_ns: u64) -> Nanos {
        let mut host = Nanos(whole((drive_ns as f64 * self.slowdown).ceil()));
        // The quotient of a product may fall one bit short of the factor.
        while self.drive_time(host) < drive_ns {
            host.0 += 1;
        }
        host
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times are positive and far below 2^53 ns (104 days)"
)]
fn whole(ns: f64) -> u64 {
    ns as u64
}

/// SplitMix64: spreads neighbouring seeds over all 64 bits.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn transfer_ns(len_bytes: u64, bytes_per_s: u64) -> u64 {
    len_bytes.saturating_mul(1_000_000_000) / bytes_per_s
}
