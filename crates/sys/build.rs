//! Compiles the BPF programs, and turns the header that they share with user space into Rust.

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let sources = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("src/bpf");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", sources.display());

    for object in ["bulkhead", "plain", "profile", "xfs"] {
        libbpf_cargo::SkeletonBuilder::new()
            .source(sources.join(format!("{object}.bpf.c")))
            .obj(out.join(format!("{object}.bpf.o")))
            .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
            .build()
            .map_err(|error| format!("{error:#} (the BPF programs need clang: Debian package clang)"))?;
    }

    bindgen::Builder::default()
        .header(sources.join("record.h").display().to_string())
        .allowlist_type(
            "share_key|write_key|service_key|service|demand_key|demand|durable|.*_record|share_kind|write_kind|service_class|record_type|loss|plain_field",
        )
        .allowlist_var("SHARE_.*|WRITE_.*|SERVICE_.*|RECORD_.*|DEMAND_.*|LOSS_.*|FIELD_.*|N_FIELDS")
        .prepend_enum_name(false)
        .layout_tests(false)
        .generate()?
        .write_to_file(out.join("record.rs"))?;
    Ok(())
}
