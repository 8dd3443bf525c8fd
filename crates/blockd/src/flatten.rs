//! Makes an image independent of its layers while it is served: copies the blocks that it does not own, one part at a time.

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

/// Delay before a failed attempt is retried; the pool may have been full.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Copies all blocks of layers into a volume's image, and then detaches the image from its layers.
pub(crate) fn run(gate: &Gate, volume: &Volume, path: &Path) {
    let (image, Some(layers)) = volume.parts() else { return };
    loop {
        match flatten(gate, image, layers, path) {
            Ok(copied) => {
                tracing::info!(%copied, "the image is flattened");
                gate.open();
                return;
            }
            // A failed flush may have lost copied blocks, so this server does not detach the image from its layers.
            Err(error) if gate.has_failed_flush() => {
                let hint = "repair the disk; then detach the volume from its tenant, check it, and attach it again";
                tracing::error!(why = chain(&error), hint, "a flush failed: the image is not flattened any further");
                return;
            }
            Err(error) => tracing::error!(why = chain(&error), "cannot flatten the image"),
        }
        process::pause(RETRY_DELAY);
    }
}

fn flatten(gate: &Gate, image: &Image, layers: &Layers, path: &Path) -> Result<Bytes, LayerError> {
    let failed = |operation| io_error(operation, path);
    let mut buffer = Buffer::new();
    let (mut sum, mut seen) = (0, 0);
    for start in (0..layers.map.end()).step_by(to_usize(CHUNK)) {
        // A volume that was shrunk is smaller than its layers.
        let part = start..(start + CHUNK).min(layers.map.end()).min(image.size().0);
        gate.check_flushes().map_err(failed("flush"))?;
        if layers.map.runs(part.clone()).any(|(_, source)| matches!(source, Source::Layer(_))) {
            gate.wait_for_idle(&mut seen);
            let copied = gate.hold(part.clone(), || copy(image, layers, part, &mut buffer)).and_then(|copied| copied);
            sum += copied.map_err(failed("copy to"))?;
        }
    }
    // Flushes of the volume wait: this one would miss the error of a concurrent one.
    gate.hold(ALL, || detach(gate, image, path)).map_err(failed("wait for writes to"))??;
    Ok(Bytes(sum))
}

/// Makes the copied blocks durable, and detaches the image from its layers.
fn detach(gate: &Gate, image: &Image, path: &Path) -> Result<(), LayerError> {
    gate.check_flushes().and_then(|()| gate.flush(|| image.file().sync_data())).map_err(io_error("sync", path))?;
    layer::detach(image.file(), path)
}

/// Copies the blocks of layers in a part that is not being written to; returns the number of bytes.
fn copy(image: &Image, layers: &Layers, part: Range<u64>, buffer: &mut Buffer) -> io::Result<u64> {
    let runs: Vec<_> = layers.map.runs(part).collect();
    let mut sum = 0;
    for (run, source) in runs {
        let Source::Layer(layer) = source else { continue };
        let bytes = buffer.first(to_usize(run.end - run.start));
        layers.file(layer).read_exact_at(bytes, run.start)?;
        image.file().write_all_at(bytes, run.start)?;
        sum += run.end - run.start;
        layers.map.set_owned(run);
    }
    Ok(sum)
}
