//! The arguments of an OCI runtime: whether a container is created, its bundle, and the engine's log.
//!
//! Owns: reading the options of runc and crun, of which only these matter here. Does not: refuse anything; the real runtime gets the same words.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::log::{Format, Log};

/// What an engine asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Where the runtime reports to the engine (`--log`, `--log-format`).
    pub log: Log,
    /// The container of `create` or `run`; `None` for every other command.
    pub container: Option<Container>,
}

/// A container that is about to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id.
    pub id: OsString,
    /// The directory of its bundle (`--bundle`), by default the working directory.
    pub bundle: PathBuf,
    /// Its configuration, relative to the bundle: `config.json`, unless crun's `--config` names another file.
    pub config: PathBuf,
}

/// Options before the command that have a value.
const GLOBAL_VALUES: [&str; 9] =
    ["cgroup-manager", "criu", "l", "log", "log-format", "log-level", "r", "root", "rootless"];

/// Options of `create` and `run` that have a value.
const CREATE_VALUES: [&str; 8] =
    ["b", "bundle", "config", "console-socket", "f", "pid-file", "pidfd-socket", "preserve-fds"];

/// The commands that create a container.
const CREATING: [&str; 2] = ["create", "run"];

/// The other commands. They end the options before them, also after one that is not known here.
const OTHER: [&str; 16] = [
    "checkpoint",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "kill",
    "list",
    "pause",
    "ps",
    "restore",
    "resume",
    "spec",
    "start",
    "state",
    "update",
];

/// Reads the words after the program's name.
#[must_use]
pub fn parse(words: &[OsString]) -> Arguments {
    let mut log = Log::default();
    let mut words = Words(words);
    let mut command = None;
    while let Some(word) = words.next() {
        match word {
            Word::Option(option) => {
                let value = words.value_of(&option, &GLOBAL_VALUES);
                match (option.name, value) {
                    (b"log" | b"l", Some(value)) => log.file = Some(value.into()),
                    (b"log-format", Some(value)) if value == "json" => log.format = Format::Json,
                    (b"log-format", _) => log.format = Format::Text,
                    _ => {}
                }
            }
            Word::Plain(word) => {
                command = Some(word);
                break;
            }
        }
    }
    let container = command.filter(|word| is_one_of(word, &CREATING)).map(|_| container(words));
    Arguments { log, container }
}

/// Reads the words after `create` or `run`.
fn container(mut words: Words<'_>) -> Container {
    let mut container =
        Container { id: OsString::new(), bundle: PathBuf::from("."), config: PathBuf::from("config.json") };
    while let Some(word) = words.next() {
        match word {
            Word::Option(option) => {
                let value = words.value_of(&option, &CREATE_VALUES);
                match (option.name, value) {
                    (b"bundle" | b"b", Some(value)) => container.bundle = Path::new(value).to_owned(),
                    (b"config" | b"f", Some(value)) => container.config = Path::new(value).to_owned(),
                    _ => {}
                }
            }
            // The last one: a word before it may be the value of an option that is not known here.
            Word::Plain(word) => container.id = word.to_owned(),
        }
    }
    container
}

/// A word of the command line.
enum Word<'a> {
    Option(Opt<'a>),
    Plain(&'a OsStr),
}

/// An option: one dash or two, as runc accepts both for each of its options.
struct Opt<'a> {
    name: &'a [u8],
    /// The value after `=`, or after the letter of a short option (`-bDIR`).
    attached: Option<&'a OsStr>,
}

struct Words<'a>(&'a [OsString]);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<Word<'a>> {
        let (word, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(option(word).map_or(Word::Plain(word), Word::Option))
    }

    /// The value of an option: what is attached to it, or the next word, if it is one of those with a value. An option that is not known here
    /// has the next word as its value, unless that is an option or a command.
    fn value_of(&mut self, option: &Opt<'a>, with_value: &[&str]) -> Option<&'a OsStr> {
        if option.attached.is_some() {
            return option.attached;
        }
        let (next, rest) = self.0.split_first()?;
        let is_known = with_value.iter().any(|name| name.as_bytes() == option.name);
        let is_value = || {
            !SWITCHES.iter().any(|name| name.as_bytes() == option.name)
                && self::option(next).is_none()
                && !is_one_of(next, &CREATING)
                && !is_one_of(next, &OTHER)
        };
        (is_known || is_value()).then(|| {
            self.0 = rest;
            next.as_os_str()
        })
    }
}

/// Options without a value, of all commands.
const SWITCHES: [&str; 15] = [
    "?",
    "V",
    "d",
    "debug",
    "detach",
    "h",
    "help",
    "keep",
    "no-new-keyring",
    "no-pivot",
    "no-subreaper",
    "s",
    "systemd-cgroup",
    "v",
    "version",
];

fn option(word: &OsStr) -> Option<Opt<'_>> {
    let long = word.as_bytes().strip_prefix(b"-").filter(|rest| !rest.is_empty())?;
    let (is_short, text) = long.strip_prefix(b"-").map_or((true, long), |text| (false, text));
    let equals = text.iter().position(|byte| *byte == b'=');
    let (name, attached) = equals.map_or((text, None), |at| (&text[..at], Some(OsStr::from_bytes(&text[at + 1..]))));
    // argp's short options: `-bDIR`. Go's flags are words after a single dash, too.
    if is_short && attached.is_none() && matches!(name, [b'b' | b'f', _, ..]) && name != b"bundle" {
        return Some(Opt { name: &name[..1], attached: Some(OsStr::from_bytes(&name[1..])) });
    }
    Some(Opt { name, attached })
}

fn is_one_of(word: &OsStr, words: &[&str]) -> bool {
    words.iter().any(|one| word == *one)
}
