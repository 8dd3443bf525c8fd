//! Compiles the messages of containerd's API, without a `protoc` on the host.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/images.proto", "proto/content.proto"], ["proto"])?;
    tonic_prost_build::configure().build_transport(false).compile_fds(files)?;
    Ok(())
}
