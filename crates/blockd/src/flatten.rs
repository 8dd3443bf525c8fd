//! Makes an image independent of what lies below it, while it is served: copies what it does not own, a little at a time.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use bulkhead_core::cow::Source;
use bulkhead_core::error::chain;
use bulkhead_core::units::Bytes;
use bulkhead_formats::layer::{self, LayerError};
use bulkhead_sys::buffer::{Buffer, CHUNK, to_usize};
use bulkhead_sys::file::io_error;
use bulkhead_sys::process;

use crate::fill::{ALL, Gate};
use crate::image::Image;
use crate::layers::Layers;
use crate::volume::Volume;

/// After how long it is tried again when it cannot be done: there may be no space.
const AGAIN: Duration = Duration::from_secs(60);

/// Copies all that lies below a volume's image, and says then of the image that it lies on nothing.
pub(crate) fn run(gate: &Gate, volume: &Volume, path: &Path) {
    let (image, Some(layers)) = volume.parts() else { return };
    loop {
        match flatten(gate, image, layers, path) {
            Ok(copied) => {
                tracing::info!(%copied, "the image lies on no layer any more");
                gate.open();
                return;
            }
            // What a failed flush has lost cannot be known. This server does not say that the image needs nothing below.
            Err(error) if gate.has_failed_flush() => {
                let hint =
                    "when the disk is in order: detach the volume from its tenant, check it, and attach it again";
                tracing::error!(why = chain(&error), hint, "a flush failed: the image is not flattened any further");
                return;
            }
            Err(error) => tracing::error!(why = chain(&error), "the image cannot be flattened"),
        }
        process::pause(AGAIN);
    }
}

fn flatten(gate: &Gate, image: &Image, layers: &Layers, path: &Path) -> Result<Bytes, LayerError> {
    let failed = |operation| io_error(operation, path);
    let mut buffer = Buffer::new();
    let (mut sum, mut seen) = (0, 0);
    for start in (0..layers.map.end()).step_by(to_usize(CHUNK)) {
        // A volume that was made smaller has less than its layers.
        let part = start..(start + CHUNK).min(layers.map.end()).min(image.size().0);
        gate.check_flushes().map_err(failed("flush"))?;
        if layers.map.runs(part.clone()).any(|(_, source)| matches!(source, Source::Layer(_))) {
            gate.wait_for_idle(&mut seen);
            let copied = gate.hold(part.clone(), || copy(image, layers, part, &mut buffer)).and_then(|copied| copied);
            sum += copied.map_err(failed("copy to"))?;
        }
    }
    // No flush of the volume may fail meanwhile, of which this one would not hear.
    gate.hold(ALL, || leave(gate, image, path)).map_err(failed("wait for writes to"))??;
    Ok(Bytes(sum))
}

/// Says of an image that it lies on nothing, when all that was copied is durable.
fn leave(gate: &Gate, image: &Image, path: &Path) -> Result<(), LayerError> {
    gate.check_flushes().and_then(|()| gate.flush(|| image.file().sync_data())).map_err(io_error("sync", path))?;
    layer::leave(image.file(), path)
}

/// Copies what layers have of a part, to which nobody writes; returns how much that was.
fn copy(image: &Image, layers: &Layers, part: Range<u64>, buffer: &mut Buffer) -> io::Result<u64> {
    let runs: Vec<_> = layers.map.runs(part).collect();
    let mut sum = 0;
    for (run, source) in runs {
        let Source::Layer(layer) = source else { continue };
        let bytes = buffer.first(to_usize(run.end - run.start));
        layers.file(layer).read_exact_at(bytes, run.start)?;
        image.file().write_all_at(bytes, run.start)?;
        sum += run.end - run.start;
        layers.map.own(run);
    }
    Ok(sum)
}
