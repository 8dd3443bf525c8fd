//! Compiles the protocols of the Container Storage Interface and of the kubelet's registration, without a `protoc` on the host.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["proto/csi.proto", "proto/pluginregistration.proto"], ["proto"])?;
    let services = files.file.iter().flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
    let methods: Vec<String> = services
        .flat_map(|(package, service)| {
            service.method.iter().map(move |method| format!("/{package}.{}/{}", service.name(), method.name()))
        })
        .collect();
    std::fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("methods.rs"), format!("&{methods:?}"))?;
    // Its comments are Markdown of another dialect, which rustdoc takes for tests.
    tonic_prost_build::configure().build_client(false).disable_comments(["."]).compile_fds(files)?;
    Ok(())
}
