//! Compiles the protocols of the Container Storage Interface and of the kubelet's registration, without a `protoc` on the host.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    // Its comments are Markdown of another dialect, which rustdoc takes for tests.
    tonic_prost_build::configure().build_client(false).disable_comments(["."]).compile_fds(files)?;
    Ok(())
}
