//! `bulkhead-lab-agent`: the program of the lab that runs inside a guest. Only the entry point; see
//! `bulkhead_lab::agent`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead_lab::agent::main()
}
