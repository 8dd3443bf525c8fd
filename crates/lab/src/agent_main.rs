//! `bulkhead-lab-agent`: the one program of the lab that runs inside a guest. All of it is in `bulkhead_lab::agent`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead_lab::agent::main()
}
