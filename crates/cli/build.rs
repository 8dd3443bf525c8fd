//! Links development builds to run at a fixed address: a dynamic linker has 125 000 relocations to make in one that is not optimised, which
//! is a third of what starting it takes, and acceptance cases start it thousands of times. What is shipped stays position-independent.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
