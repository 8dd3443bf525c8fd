//! Compresses the committed OpenAPI document, which the daemon serves: the code that makes it is for tests only, and takes 25 times as much space.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

fn main() -> Result<(), Box<dyn Error>> {
    let document = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../../docs/openapi.json");
    println!("cargo::rerun-if-changed={}", document.display());
    let text = std::fs::read(&document).map_err(|error| format!("cannot read {}: {error}", document.display()))?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&text)?;
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("openapi.json.gz"), encoder.finish()?)?;
    Ok(())
}
