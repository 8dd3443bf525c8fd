//! Links development builds at a fixed address. Without optimisation there are 125 000 relocations, a third of the time of a start, and
//! acceptance cases start the program thousands of times. Release builds stay position-independent.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
