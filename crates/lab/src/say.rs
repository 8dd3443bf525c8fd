//! Progress on standard error, data on standard output: the lab's only two ways to speak.
//!
//! Failures to write are ignored on purpose: a closed pipe must not stop the clean-up of machines.

use std::io::Write as _;

/// One line of progress, for people.
pub fn progress(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr().lock(), "lab: {}", line.as_ref());
}

/// One line of the result, for people and programs.
pub fn result(line: impl AsRef<str>) {
    let _ = writeln!(std::io::stdout().lock(), "{}", line.as_ref());
}

/// Passes output of a guest program through as it is.
pub fn pass_on(stream: crate::Stream, data: &[u8]) {
    let _ = match stream {
        crate::Stream::Stdout => {
            let mut out = std::io::stdout().lock();
            out.write_all(data).and_then(|()| out.flush())
        }
        crate::Stream::Stderr => std::io::stderr().lock().write_all(data),
    };
}
