//! The configuration file, `/etc/bulkhead/runtime.toml`. Without one, the defaults apply; packaging/runtime.toml shows all keys.

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bulkhead_api::client::DEFAULT_SOCKET;
use serde::Deserialize;

/// Path of the configuration file.
pub const FILE: &str = "/etc/bulkhead/runtime.toml";

/// Environment variable with another path, for tests and for engines with different settings.
pub const FILE_VARIABLE: &str = "BULKHEAD_RUNTIME_CONFIG";

/// Limit of the file's size, bytes.
const MAX_BYTES: u64 = 64 << 10;

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// The runtimes to execute: the first one that is there. A name is looked up in `PATH`, an absolute path is taken as it is.
    pub runtimes: Vec<PathBuf>,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The daemon's directory for runtime state; mount points of volumes are in its `mnt`.
    pub run_dir: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            runtimes: vec!["runc".into(), "crun".into()],
            socket: DEFAULT_SOCKET.into(),
            run_dir: "/run/bulkhead".into(),
        }
    }
}

/// Why the configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("{}: cannot read it", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// It is not TOML, or has an unknown key or a value of another type.
    #[error("{}: line {line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// A value is out of range.
    #[error("{}: {key} = {value:?}: {rule}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The value, or a part of it.
        value: String,
        /// What is allowed.
        rule: &'static str,
    },
}

impl Settings {
    /// Reads the file that the environment names, or [`FILE`] if it exists.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn load(named: Option<&OsStr>) -> Result<Self, SettingsError> {
        let path = Path::new(named.unwrap_or(OsStr::new(FILE)));
        match read(path) {
            Ok(text) => Self::parse(path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => Ok(Self::default()),
            Err(source) => Err(SettingsError::Read { path: path.to_owned(), source }),
        }
    }

    /// Reads the text of the file at `path`.
    ///
    /// # Errors
    /// [`SettingsError::Parse`] and [`SettingsError::Value`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, SettingsError> {
        let settings: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = 1 + before.matches('\n').count();
            SettingsError::Parse { path: path.to_owned(), line, message: error.message().replace('\n', " ") }
        })?;
        let value = |key, value: &Path, rule| {
            let value = value.to_string_lossy().into_owned();
            Err(SettingsError::Value { path: path.to_owned(), key, value, rule })
        };
        if settings.runtimes.is_empty() {
            return value("runtimes", Path::new(""), "name at least one runtime");
        }
        let is_name = |runtime: &&PathBuf| runtime.is_absolute() || runtime.file_name() == Some(runtime.as_os_str());
        if let Some(runtime) = settings.runtimes.iter().find(|runtime| !is_name(runtime)) {
            return value("runtimes", runtime, "a runtime is a name or an absolute path");
        }
        for (key, path) in [("socket", &settings.socket), ("run-dir", &settings.run_dir)] {
            if !path.is_absolute() {
                return value(key, path, "the path must be absolute");
            }
        }
        Ok(settings)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::error::chain;

    fn error(text: &str) -> String {
        Settings::parse(Path::new("/etc/runtime.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn the_example_shows_each_key_with_its_default() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/runtime.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Settings::parse(&path, &text).unwrap(), Settings::default());
        let uncommented: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix('#')).collect();
        let keys = uncommented.iter().filter(|line| line.contains(" = ") && !line.starts_with(' '));
        let table: toml::Table = toml::from_str(&keys.copied().collect::<Vec<_>>().join("\n")).unwrap();
        assert_eq!(table.keys().collect::<Vec<_>>(), ["run-dir", "runtimes", "socket"]);
        assert_eq!(Settings::parse(&path, &toml_text(&uncommented)).unwrap(), Settings::default());
    }

    fn toml_text(lines: &[&str]) -> String {
        lines.iter().filter(|line| !line.starts_with(' ')).copied().collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn errors_name_the_file_and_the_key() {
        for (text, expected) in [
            ("runtimes = [", "/etc/runtime.toml: line 1: "),
            ("\nruntime = \"runc\"", "/etc/runtime.toml: line 2: unknown field `runtime`"),
            ("runtimes = \"runc\"", "/etc/runtime.toml: line 1: invalid type: string \"runc\""),
            ("runtimes = []", "/etc/runtime.toml: runtimes = \"\": name at least one runtime"),
            (
                "runtimes = [\"runc\", \"\"]",
                "/etc/runtime.toml: runtimes = \"\": a runtime is a name or an absolute path",
            ),
            (
                "runtimes = [\"./runc\"]",
                "/etc/runtime.toml: runtimes = \"./runc\": a runtime is a name or an absolute path",
            ),
            ("runtimes = [\"..\"]", "/etc/runtime.toml: runtimes = \"..\": a runtime is a name or an absolute path"),
            ("socket = \"run\"", "/etc/runtime.toml: socket = \"run\": the path must be absolute"),
            ("run-dir = \"\"", "/etc/runtime.toml: run-dir = \"\": the path must be absolute"),
        ] {
            let error = error(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn only_the_default_file_may_be_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runtime.toml");
        let absent = Settings::load(Some(path.as_os_str())).unwrap_err();
        assert!(
            chain(&absent).ends_with("runtime.toml: cannot read it: No such file or directory (os error 2)"),
            "{absent}"
        );
        std::fs::write(&path, "#".repeat(100 << 10)).unwrap();
        let large = Settings::load(Some(path.as_os_str())).unwrap_err();
        assert!(chain(&large).ends_with("it is larger than 65536 bytes"), "{large}");
        std::fs::write(&path, "runtimes = [\"/opt/crun\"]").unwrap();
        assert_eq!(Settings::load(Some(path.as_os_str())).unwrap().runtimes, [PathBuf::from("/opt/crun")]);
    }
}
