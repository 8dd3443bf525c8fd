//! The protocol between a [`crate::Machine`] and the agent in its guest: JSON lines over a virtio-serial port.
//!
//! Owns the message types. Each request carries an id that all its replies repeat, so that several can be in flight.
//! Does not: read or write the port (`channel` on the host, `agent` in the guest).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port.
pub(crate) const PORT_NAME: &str = "bulkhead.agent";

/// One line from the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    /// Chosen by the host, repeated in every reply.
    pub(crate) id: u64,
    pub(crate) request: Request,
}

/// Requests of the host.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Starts a process in its own process group; its output and end come as events.
    Spawn {
        argv: Vec<String>,
        env: Vec<(String, String)>,
        stdin: Payload,
    },
    /// Sends a signal to the process (or its group) that request `target` started.
    Signal {
        target: u64,
        signal: i32,
        group: bool,
    },
    ReadFile {
        path: String,
    },
    WriteFile {
        path: String,
        data: Payload,
    },
    /// Looks up the device node of the disk with this serial number.
    Disk {
        serial: String,
    },
    /// Lists mounts, devices, cgroups and processes in the guest, for the leak check.
    Snapshot,
    /// Replied to after `milliseconds` of guest time.
    Pause {
        milliseconds: u64,
    },
    /// The host waits for the next event of the process that request `target` started, after having received `seen`.
    /// Has no reply; see [`crate::agent`] for its effect.
    Await {
        target: u64,
        seen: u64,
    },
    /// Ends the agent, and thereby the machine.
    Shutdown,
}

/// One line from the guest.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reply {
    /// Id of the request; 0 for [`Event::Hello`].
    pub(crate) id: u64,
    pub(crate) event: Event,
}

/// Replies of the guest. `Started` and `Output` are followed by further events; all others complete the request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Event {
    /// Sent once, when the agent is ready.
    Hello {
        kernel: String,
    },
    Started {
        pid: u32,
    },
    Output {
        stream: Stream,
        data: Payload,
    },
    Exited(ExitStatus),
    Done,
    File(Payload),
    Disk(Option<String>),
    Snapshot(BTreeSet<String>),
    Failed {
        message: String,
    },
}

/// An output stream of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How a process in the guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// It was terminated by this signal.
    Signal(i32),
}

impl ExitStatus {
    /// Whether the exit code is 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }

    /// The exit code as a shell reports it (128 + signal).
    #[must_use]
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Bytes, encoded as plain text where they are UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Payload {
    Text(String),
    Hex(String),
}

impl Payload {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let digit = |value: u8| char::from(DIGITS[usize::from(value)]);
                Self::Hex(bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect())
            }
        }
    }

    /// Decodes the bytes; `None` when the hexadecimal form is invalid.
    pub(crate) fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.into_bytes()),
            Self::Hex(hex) => hex
                .as_bytes()
                .chunks(2)
                .map(|pair| {
                    let text = std::str::from_utf8(pair).ok().filter(|t| t.len() == 2)?;
                    u8::from_str_radix(text, 16).ok()
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_round_trips_text_and_bytes() {
        for bytes in [&b""[..], b"plain", "ümlaut".as_bytes(), &[0xff, 0x00, 0x80]] {
            let line = serde_json::to_string(&Payload::new(bytes)).unwrap();
            let back: Payload = serde_json::from_str(&line).unwrap();
            assert_eq!(back.into_bytes().unwrap(), bytes);
        }
        assert_eq!(Payload::Hex("0g".into()).into_bytes(), None);
        assert_eq!(Payload::Hex("abc".into()).into_bytes(), None);
    }
}
