//! Arguments of the commands that show what the daemon observes: `top`, `blame`, `heatmap`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::parse;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Print one table and exit
    #[arg(long)]
    pub(crate) once: bool,
    /// Print totals since the observation began, and exit (requires `--output json`)
    #[arg(long, conflicts_with_all = ["once", "interval"])]
    pub(crate) total: bool,
    /// Seconds between updates, 0.2 to 86400
    #[arg(long, short, default_value_t = 2.0, value_name = "SECONDS", value_parser = parse::seconds, allow_negative_numbers = true)]
    pub(crate) interval: f64,
    /// Initial sort column
    #[arg(long, short, value_enum, default_value_t = SortKey::Journal)]
    pub(crate) sort: SortKey,
}

/// Columns to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// Journal bytes
    Journal,
    /// Data read and written
    Data,
    /// Device time
    Device,
    /// 99th percentile of fsync latency
    Fsync,
    /// Time waited in fsync because of other containers
    Waited,
    /// Name
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct BlameArgs {
    /// Seconds to observe, 0.2 to 86400
    #[arg(long = "for", default_value_t = 10.0, value_name = "SECONDS", value_parser = parse::seconds, conflicts_with = "total", allow_negative_numbers = true)]
    pub(crate) watch: f64,
    /// Repeat until interrupted: print a table after every `--for` seconds
    #[arg(long, conflicts_with = "total")]
    pub(crate) follow: bool,
    /// Show all past waits since the daemon began observing; with --waits, those of the last 5 minutes
    #[arg(long)]
    pub(crate) total: bool,
    /// With --waits, list the past waits of the last SECONDS (at most 300)
    #[arg(long, value_name = "SECONDS", value_parser = parse::past_seconds, requires = "waits", conflicts_with_all = ["watch", "follow", "total"], allow_negative_numbers = true)]
    pub(crate) last: Option<f64>,
    /// List the longest waits individually, with the commits that each waited for, and the containers whose blocks, data and requests delayed it
    #[arg(long)]
    pub(crate) waits: bool,
    /// Show only the waits of this container: its name, or the first 12 or more digits of its ID
    #[arg(value_name = "VICTIM")]
    pub(crate) victim: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct HeatmapArgs {
    /// Also write the heat map to this file, as an SVG image
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}
