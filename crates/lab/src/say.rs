//! Output of the lab: progress on standard error, results on standard output. Nothing else of the lab prints.
//!
//! Write errors are ignored on purpose: a closed pipe must not stop the cleanup of machines.

use std::io::Write as _;

/// Prints one line of progress, for people.
pub fn progress(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr().lock(), "lab: {}", line.as_ref());
}

/// Prints one line of results, for people and programs.
pub fn result(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.as_ref());
}

/// Forwards output of a guest program unchanged.
pub fn pass_on(stream: crate::Stream, data: &[u8]) {
    let _ = match stream {
        crate::Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(data).and_then(|()| out.flush())
        }
        crate::Stream::Stderr => std::io::stderr().lock().write_all(data),
    };
}
