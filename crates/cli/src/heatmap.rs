//! `bulkhead heatmap`: which volume read shared blocks from where, as a table, JSON or an SVG file.

use std::path::Path;

use bulkhead_api::client::Client;
use bulkhead_api::wire::HeatRow;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::heat::HeatSource;
use bulkhead_measure::report::svg::heat_map;
use bulkhead_sys::file;

use crate::args::HeatmapArgs;
use crate::output::{Output, table};

/// Prints the heat map, and writes it as SVG if requested.
///
/// # Errors
/// The daemon's faults, and `InvalidArgument` if the SVG file cannot be written.
pub(crate) async fn run(args: HeatmapArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let rows = client.heatmap().await?;
    if let Some(path) = &args.svg {
        write(path, &heat_map(&rows))?;
        output.say(&format!("heat map written to {}", path.display()));
    }
    if output.is_json() {
        return output.json(&rows);
    }
    if rows.is_empty() {
        output.say("no volume has read shared blocks; only open volumes are counted");
        return Ok(());
    }
    let lines: Vec<Vec<String>> = rows.iter().map(line).collect();
    output.lines(&table(&["reader", "source", "from", "requests", "bytes", "disk reads saved"], &lines))?;
    let (requests, saved) =
        rows.iter().fold((0, 0), |(requests, saved), row| (requests + row.requests, saved + row.disk_reads_saved));
    output.say(&format!("{saved} of {requests} reads of shared blocks did not need the disk"));
    Ok(())
}

fn line(row: &HeatRow) -> Vec<String> {
    let from = match row.source {
        HeatSource::Disk(_) => "disk",
        HeatSource::Cache(_) => "host page cache",
        HeatSource::Peer(_) => "peer's page cache",
    };
    vec![
        row.reader.to_string(),
        row.source_name.clone(),
        from.to_owned(),
        row.requests.to_string(),
        row.bytes.to_string(),
        row.disk_reads_saved.to_string(),
    ]
}

fn write(path: &Path, svg: &str) -> Result<(), Fault> {
    file::write_atomic(path, svg.as_bytes()).map_err(|error| {
        let cause = format!("cannot write the heat map: {}", bulkhead_core::error::chain(&error));
        Fault::new(Code::InvalidArgument, path.display(), cause).hint("choose a file in a writable directory")
    })
}
