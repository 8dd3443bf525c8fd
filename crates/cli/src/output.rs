//! All output: data on standard output, messages on standard error, as tables or JSON.
//!
//! Owns: the two streams, and the escaping of control characters, so that no name or path can control the terminal. A reader that
//! closes its end (a broken pipe) is not an error. There are no colours.

use std::io::{self, Write as _};
use std::process::ExitCode;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::Finding;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::advice;
use crate::args::Format;

/// Prints in the selected format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Data as JSON.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Fault> {
        let text = serde_json::to_string_pretty(value).map_err(|error| Fault::new(Code::Internal, "output", error))?;
        self.raw(format!("{text}\n").as_bytes())
    }

    /// Lines of data; control characters are escaped.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn lines(&self, lines: &[String]) -> Result<(), Fault> {
        let text: String = lines.iter().map(|line| escaped(line) + "\n").collect();
        self.raw(text.as_bytes())
    }

    /// Data without escaping.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), Fault> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Fault::new(Code::of_io(error.kind()), "standard output", format!("it cannot be written ({error})")))
            }
            _ => Ok(()),
        }
    }

    /// Whether standard output may still have a reader; `false` for a pipe whose reader is gone.
    pub(crate) fn has_reader(&self) -> bool {
        let stdout = io::stdout();
        let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
        // A file that cannot be polled is not a pipe without a reader.
        let outcome = poll(&mut polled, Some(&Timespec::default()));
        outcome.is_err() || !polled[0].revents().contains(PollFlags::ERR)
    }

    /// A message for users, separate from the data; omitted with JSON output.
    pub(crate) fn say(&self, text: &str) {
        if !self.is_json() {
            stderr(&format!("{}\n", escaped(text)));
        }
    }

    /// A finding about an object that was shown or changed, with its hint.
    pub(crate) fn finding(&self, finding: &Finding) {
        self.say(&finding.to_string());
        advice::finding_hint(finding).iter().for_each(|hint| self.say(&format!("hint: {hint}")));
    }

    /// An error that does not end the command.
    pub(crate) fn warn(&self, fault: &Fault) {
        if self.is_json() {
            self.error(fault);
        } else {
            stderr(&format!("warning: {}\n", escaped(&fault.to_string())));
        }
    }

    /// The error that ends the command; returns its exit code.
    pub(crate) fn fail(&self, fault: &Fault) -> ExitCode {
        self.error(fault);
        ExitCode::from(fault.code.exit_code())
    }

    fn error(&self, fault: &Fault) {
        let hint = advice::hint(fault);
        if self.is_json() {
            let fault = Fault { hint, ..fault.clone() };
            // Does not fail, because a fault contains only text fields; otherwise its text is better than nothing.
            stderr(&(serde_json::to_string(&fault).unwrap_or_else(|_| fault.to_string()) + "\n"));
            return;
        }
        let hint = if hint.is_empty() { String::new() } else { format!("hint: {}\n", escaped(&hint)) };
        stderr(&format!("error: {}\n{hint}", escaped(&fault.to_string())));
    }
}

/// Prints clap's message about invalid arguments.
pub(crate) fn usage_error(text: &str) -> ExitCode {
    let lines: Vec<String> = text.trim_end().lines().map(escaped).collect();
    stderr(&(lines.join("\n") + "\n"));
    ExitCode::from(Code::InvalidArgument.exit_code())
}

fn stderr(text: &str) {
    // A closed standard error cannot be reported anywhere.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Escapes control characters, and characters that change the writing direction, in Rust's notation.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// A table with its headers in upper case.
pub(crate) fn table(headers: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let head = headers.iter().map(|header| header.to_uppercase()).collect();
    columns(&std::iter::once(head).chain(rows.iter().cloned()).collect::<Vec<_>>())
}

/// Columns separated by two spaces, without borders.
pub(crate) fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| escaped(cell)).collect()).collect();
    let n_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..n_columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

/// A list of findings, each with its hint.
pub(crate) fn findings(findings: &[Finding]) -> Vec<String> {
    if findings.is_empty() {
        return vec!["findings: none".to_owned()];
    }
    let mut lines = vec!["findings:".to_owned()];
    for finding in findings {
        lines.push(format!("  - {finding}"));
        lines.extend(advice::finding_hint(finding).map(|hint| format!("    hint: {hint}")));
    }
    lines
}

/// `key: value` lines with aligned values, and notes at the end.
pub(crate) fn block(fields: &[(&str, String)], notes: &[String]) -> Vec<String> {
    let width = fields.iter().map(|(key, _)| key.len() + 1).max().unwrap_or(0);
    let mut lines: Vec<String> = fields
        .iter()
        .map(|(key, value)| format!("{:width$} {value}", format!("{key}:")).trim_end().to_owned())
        .collect();
    if !notes.is_empty() {
        lines.push("notes:".to_owned());
        lines.extend(notes.iter().map(|note| format!("  - {note}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(escaped("a\u{1b}[31m\n\u{7f}\u{9b}\u{202e}ü"), "a\\u{1b}[31m\\n\\u{7f}\\u{9b}\\u{202e}ü");
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_trailing_space() {
        let rows = [vec!["long name".to_owned(), "1".to_owned()], vec!["ü".to_owned(), String::new()]];
        assert_eq!(table(&["name", "n"], &rows), ["NAME       N", "long name  1", "ü"]);
    }
}
