//! The tables of the modelled drives: each value with its unit and its source.
//!
//! Owns: the parameters, and the scaling to a slower disk of the same kind.
//! Does not: contain behaviour; the models read these tables.
//!
//! Sources are marked "seen" in a document, "recalled" from a data sheet that was not at hand, "derived" from seen
//! figures, "fitted" to a seen measurement with the model, or "assumed" where nothing is published.

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Parameters {
    Hdd(HddParameters),
    Flash(FlashParameters),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HddParameters {
    pub drive: &'static str,
    /// Factor applied to all times of the drive.
    pub slowdown: f64,
    pub revolution_ns: u64,
    /// Offset of a track's first sector from that of the previous track, which covers the track switch.
    pub track_skew_ns: u64,
    /// Sustained rate, track switches included, in the outermost and in the innermost zone.
    pub outer_bytes_per_s: u64,
    pub inner_bytes_per_s: u64,
    pub n_zones: u64,
    /// Seek curve for x = distance / stroke: `single + sqrt * sqrt(x)` up to the knee, then linear up to the full
    /// stroke.
    pub seek_single_track_ns: u64,
    pub seek_sqrt_ns: u64,
    pub seek_knee_per_mille: u64,
    pub seek_full_stroke_ns: u64,
    /// Additional settling time before a write; `single_track` after a switch to the next track.
    pub write_settle_ns: u64,
    pub write_settle_single_track_ns: u64,
    /// Positioning overhead of the arm, per access that does not continue the previous one.
    pub access_overhead_ns: u64,
    /// Overhead of the electronics, concurrent with the arm.
    pub command_overhead_ns: u64,
    pub interface_bytes_per_s: u64,
    pub queue_depth: usize,
    /// A command that has waited this long is served first.
    pub command_age_limit_ns: u64,
    /// Longest run of commands, or of destages, while the other kind waits and is urgent.
    pub turn_accesses: u32,
    pub read_ahead_bytes: u64,
    pub n_read_segments: usize,
    pub write_cache: bool,
    pub write_cache_bytes: u64,
    pub write_cache_extents: usize,
    pub write_cache_high_water_per_mille: u64,
    /// Dirty data older than this competes with the commands.
    pub dirty_age_limit_ns: u64,
    /// Once dirty data is older than this, the oldest is destaged in turn, wherever the arm is.
    pub dirty_starvation_ns: u64,
    /// Dirty data that is not urgent waits until no read has arrived for this long.
    pub destage_idle_ns: u64,
    pub destage_run_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashParameters {
    pub drive: &'static str,
    /// Factor applied to all times of the drive.
    pub slowdown: f64,
    pub queue_depth: usize,
    /// Time of the controller per command, one command after the other: bounds IOPS.
    pub read_command_ns: u64,
    pub write_command_ns: u64,
    pub interface_read_bytes_per_s: u64,
    pub interface_write_bytes_per_s: u64,
    /// Full duplex: reads and writes do not share the interface.
    pub interface_duplex: bool,
    /// Dies that work in parallel; a page occupies one die.
    pub n_units: u64,
    pub page_bytes: u64,
    pub page_read_ns: u64,
    /// Whether sequential reads find their data in the drive's memory.
    pub prefetch: bool,
    /// From the end of the transfer to the completion of a write.
    pub buffer_write_ns: u64,
    pub write_buffer_bytes: u64,
    /// Program rate of all units together.
    pub program_bytes_per_s: u64,
    /// Random writes up to this fraction of the size run at the full rate; garbage collection restores it in idle time.
    pub burst_per_mille_of_size: u64,
    /// Rate of random writes after the burst.
    pub random_write_bytes_per_s: u64,
    /// The write buffer survives a loss of power: a write is durable when it completes.
    pub power_loss_protection: bool,
    /// Time of a flush with something to save, or of any flush with power-loss protection.
    pub flush_ns: u64,
    pub flush_per_write_ns: u64,
    pub flush_writes_max: u64,
    /// Written data becomes durable without a flush after this time.
    pub map_save_interval_ns: u64,
}

impl Parameters {
    /// HGST Ultrastar 7K6000 4 TB, mechanics as in the OEM specification of its successor, Ultrastar DC HC310.
    pub const HDD: Self = Self::Hdd(HddParameters {
        drive: "Ultrastar 7K6000 4 TB 7200 rpm SATA",
        slowdown: 1.0,
        // HC310 OEM specification p. 9: 8.33 ms; 7200 rpm (seen).
        revolution_ns: 8_333_333,
        // Assumed: just above the single-track seek of a write, 0.32 ms.
        track_skew_ns: 400_000,
        // DS7K6000: 227 MB/s (recalled); the inner rate by the ratio 83/175 of the Constellation ES.3 manual (derived).
        outer_bytes_per_s: 227_000_000,
        inner_bytes_per_s: 108_000_000,
        // Deskstar 7K500 manual p. 31: zones 0 to 29 (seen).
        n_zones: 30,
        // HC310 OEM specification p. 9: single track 0.23 ms, average 7.4 ms (seen). Knee as in the HP 97560 (Ruemmler
        // and Wilkes, seen); full stroke 2.16 times the average, as in the ST9500430SS manual (seen). The curve is
        // derived from these.
        seek_single_track_ns: 230_000,
        seek_sqrt_ns: 12_870_000,
        seek_knee_per_mille: 200,
        seek_full_stroke_ns: 16_000_000,
        // HC310 OEM specification p. 9: average 8.2 - 7.4 ms, single track 0.32 - 0.23 ms (seen).
        write_settle_ns: 800_000,
        write_settle_single_track_ns: 90_000,
        // Fitted to 168-170 IOPS at depth 16 (Exos X24 and Exos M data sheets) and 212 at 32 (DC HC580), both seen.
        access_overhead_ns: 500_000,
        // Assumed; ST9500430SS manual: 0.2 ms with its access overhead.
        command_overhead_ns: 50_000,
        // SATA 6 Gb/s, 8b/10b.
        interface_bytes_per_s: 600_000_000,
        // SATA: tags 0 to 31.
        queue_depth: 32,
        // Assumed: seven times the mean response at depth 32. Drives were seen to delay a queued command for 1 to 2 s (Google, 2008, by the
        // article on NCQ of Wikipedia), and to starve those that lie far from a stream (Yu et al., ACM TOS 6(1), 2010; recalled).
        command_age_limit_ns: 1_000_000_000,
        turn_accesses: 8,
        // 128 MB of memory (recalled, DS7K6000), shared out by assumption: 16 read segments of 2 MiB, 96 MiB for
        // writes.
        read_ahead_bytes: 2 << 20,
        n_read_segments: 16,
        write_cache: true,
        write_cache_bytes: 96 << 20,
        // Assumed: a flush of a cache full of scattered blocks takes some seconds, as hosts give up after 30 s. More
        // extents sort better: 1024 give 300 random writes/s over the whole stroke; 355-378 are measured, on part of it
        // (seen).
        write_cache_extents: 1024,
        write_cache_high_water_per_mille: 750,
        // Assumed.
        dirty_age_limit_ns: 3_000_000_000,
        dirty_starvation_ns: 10_000_000_000,
        destage_idle_ns: 10_000_000,
        destage_run_bytes: 1 << 20,
    });

    /// Samsung 870 EVO 1 TB; flushes as in its predecessor, the 860 EVO 1 TB.
    pub const SSD: Self = Self::Flash(FlashParameters {
        drive: "Samsung 870 EVO 1 TB SATA",
        slowdown: 1.0,
        queue_depth: 32,
        // iocost-benchmarks, Samsung_SSD_870: 98 400 random reads/s; data sheet (KitGuru p. 12): 88 000 writes/s at
        // depth 32 (seen).
        read_command_ns: 10_200,
        write_command_ns: 11_300,
        // Data sheet: 560 and 530 MB/s (seen).
        interface_read_bytes_per_s: 560_000_000,
        interface_write_bytes_per_s: 530_000_000,
        interface_duplex: false,
        // Assumed: 8 channels, 2 dies each; 16 KiB pages.
        n_units: 16,
        page_bytes: 16 << 10,
        // Data sheet: 13 000 reads/s at depth 1 = 76.9 us, less command and transfer (derived).
        page_read_ns: 59_400,
        // 850 EVO, CrystalDiskMark (pastebin i2kDyjWx): 534 MB/s with one request at a time, so transfers hide the
        // medium (seen).
        prefetch: true,
        // Data sheet: 36 000 writes/s at depth 1 = 27.8 us, less command and transfer (derived).
        buffer_write_ns: 8_800,
        // Assumed.
        write_buffer_bytes: 8 << 20,
        // iocost-benchmarks: 540 MB/s over 65 GB (seen).
        program_bytes_per_s: 540_000_000,
        // Data sheet: TurboWrite 42 GB of 1 TB, then still 530 MB/s (recalled).
        burst_per_mille_of_size: 42,
        // iocost-benchmarks: 91-93 k random writes/s over 120 s (seen). No steady state of the full drive is published.
        random_write_bytes_per_s: 373_000_000,
        power_loss_protection: false,
        // ceph-diskbench, 860 EVO 1 TB: 490 write+flush/s with 1 job, 1728/s with 14 (seen); split by fit.
        flush_ns: 1_430_000,
        flush_per_write_ns: 473_000,
        flush_writes_max: 16,
        // Assumed.
        map_save_interval_ns: 1_000_000_000,
    });

    /// Samsung PM963 1.92 TB, with power-loss protection; flushes as measured on the 960 GB of the series.
    pub const NVME: Self = Self::Flash(FlashParameters {
        drive: "Samsung PM963 1.92 TB NVMe",
        slowdown: 1.0,
        queue_depth: 1024,
        // CrystalDiskMark 8 (gist tana3n), 512 in flight: 470 013 reads/s, 282 876 writes/s (seen); reads are bounded
        // by the units.
        read_command_ns: 2_000,
        write_command_ns: 3_530,
        // The same: 2382.6 and 1304.7 MB/s (seen).
        interface_read_bytes_per_s: 2_390_000_000,
        interface_write_bytes_per_s: 1_305_000_000,
        interface_duplex: true,
        // Fitted to 470 013 reads/s.
        n_units: 42,
        page_bytes: 16 << 10,
        // The same: 11 313 reads/s at depth 1 = 88.4 us, less command and transfer (derived).
        page_read_ns: 84_600,
        // gist akahana-1: 916 MB/s with one request at a time, so transfers do not hide the medium (seen).
        prefetch: false,
        // The same as the reads: 42 188 writes/s at depth 1 = 23.7 us, less command and transfer (derived).
        buffer_write_ns: 17_000,
        // Assumed.
        write_buffer_bytes: 64 << 20,
        // Sequential writes last at this rate: data sheet 1200 MB/s (recalled), measured 1304.7 (seen).
        program_bytes_per_s: 1_310_000_000,
        // Assumed: the spare area, 1.92 TB of 2 TiB of flash less what the firmware needs.
        burst_per_mille_of_size: 70,
        // P4500 2 TB data sheet: 38 000 writes/s (seen); PM963: 40 000 (recalled); 39 000 of 4 KiB.
        random_write_bytes_per_s: 159_744_000,
        power_loss_protection: true,
        // ceph-diskbench, PM963 960 GB: 34 090 write+flush/s = 29.3 us, less the write (derived).
        flush_ns: 5_600,
        flush_per_write_ns: 0,
        flush_writes_max: 0,
        // Not used: buffered data is durable.
        map_save_interval_ns: 1_000_000_000,
    });

    /// The disks of the lab: hdd unchanged, and with its write cache disabled (`hdparm -W 0`); ssd and nvme slowed down
    /// so far that a guest of 10^9 instructions a second can keep them busy at a depth of 32, and that the software
    /// path to them is a small part of their latency. hdd-slow, ssd-slow and nvme-slow are another five times slower,
    /// for loads that such a processor would limit: 10^9 instructions a second are to nvme-slow what a dozen server
    /// cores, 5 x 10^10 together, are to the drive. The burst of nvme and nvme-slow never ends: experiments write 7 %
    /// of the lab's 8 GiB within a minute, but would never write 7 % of the drive.
    #[must_use]
    pub fn of_lab(name: &str) -> Option<Self> {
        match name {
            "hdd" => Some(Self::HDD),
            "hdd-slow" => Some(Self::HDD.scaled(5.0)),
            "hdd-nocache" => Some(Self::HDD.without_write_cache()),
            "ssd" => Some(Self::SSD.scaled(5.0)),
            "ssd-slow" => Some(Self::SSD.scaled(25.0)),
            "nvme" => Some(Self::NVME.scaled(10.0).without_end_of_burst()),
            "nvme-slow" => Some(Self::NVME.scaled(50.0).without_end_of_burst()),
            _ => None,
        }
    }

    /// Number of commands that it accepts at a time.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        match self {
            Self::Hdd(table) => table.queue_depth,
            Self::Flash(table) => table.queue_depth,
        }
    }

    /// Whether it is a rotating disk.
    #[must_use]
    pub fn is_rotational(&self) -> bool {
        matches!(self, Self::Hdd(_))
    }

    /// Whether unflushed writes are lost at a power cut, as the drive itself reports.
    #[must_use]
    pub fn has_volatile_cache(&self) -> bool {
        match self {
            Self::Hdd(table) => table.write_cache,
            Self::Flash(_) => true,
        }
    }

    /// The same hard disk with its write cache disabled; flash disks are unchanged.
    #[must_use]
    pub fn without_write_cache(&self) -> Self {
        match *self {
            Self::Hdd(table) => Self::Hdd(HddParameters { write_cache: false, ..table }),
            Self::Flash(_) => *self,
        }
    }

    /// The same flash disk with an unlimited burst: random writes always run at the full rate. Hard disks are
    /// unchanged.
    #[must_use]
    pub fn without_end_of_burst(&self) -> Self {
        match *self {
            Self::Hdd(_) => *self,
            Self::Flash(table) => Self::Flash(FlashParameters { burst_per_mille_of_size: 1_000_000, ..table }),
        }
    }

    /// A disk of the same kind that is `k` times slower in every respect: times are multiplied by `k`, rates divided by
    /// `k`, sizes unchanged.
    ///
    /// # Panics
    /// If `k` is not a positive number.
    #[must_use]
    pub fn scaled(&self, k: f64) -> Self {
        assert!(k.is_finite() && k > 0.0, "a disk cannot be {k} times slower");
        match *self {
            Self::Hdd(table) => Self::Hdd(HddParameters { slowdown: table.slowdown * k, ..table }),
            Self::Flash(table) => Self::Flash(FlashParameters { slowdown: table.slowdown * k, ..table }),
        }
    }

    pub(crate) fn slowdown(&self) -> f64 {
        match self {
            Self::Hdd(table) => table.slowdown,
            Self::Flash(table) => table.slowdown,
        }
    }

    /// One line: the drive, and its main parameters after scaling.
    pub fn describe(&self) -> String {
        let k = self.slowdown();
        let ms = |ns: u64| ns as f64 * k / 1e6;
        let us = |ns: u64| ns as f64 * k / 1e3;
        let mb = |bytes_per_s: u64| bytes_per_s as f64 / k / 1e6;
        let slower = if k > 1.0 { format!(", {k} times slower") } else { String::new() };
        match self {
            Self::Hdd(t) => format!(
                "model of {}{slower}: whole stroke over the disk's own tracks, revolution {:.2} ms, \
                 full-stroke seek {:.1} ms, {:.0}-{:.0} MB/s, queue of {}, write cache {}",
                t.drive,
                ms(t.revolution_ns),
                ms(t.seek_full_stroke_ns),
                mb(t.outer_bytes_per_s),
                mb(t.inner_bytes_per_s),
                t.queue_depth,
                if t.write_cache { format!("{} MiB", t.write_cache_bytes >> 20) } else { "off".to_owned() },
            ),
            Self::Flash(t) => format!(
                "model of {}{slower}: {} units, page read {:.1} us, {:.0}/{:.0} MB/s, \
                 command {:.1}/{:.1} us, queue of {}, flush {:.1} us, power-loss protection {}",
                t.drive,
                t.n_units,
                us(t.page_read_ns),
                mb(t.interface_read_bytes_per_s),
                mb(t.interface_write_bytes_per_s),
                us(t.read_command_ns),
                us(t.write_command_ns),
                t.queue_depth,
                us(t.flush_ns + t.flush_per_write_ns),
                if t.power_loss_protection { "yes" } else { "no" },
            ),
        }
    }
}
