//! The configuration of a container (runtime-spec, config.md), of which three parts matter here.
//!
//! Owns: reading bind mounts, the root and the cgroup's path, and replacing the path's bytes: the rest of the text stays as it is, to the byte.

use std::ops::Range;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A configuration, with its text.
#[derive(Debug)]
pub struct Spec<'a> {
    text: &'a str,
    document: Document<'a>,
}

#[derive(Debug, Deserialize)]
struct Document<'a> {
    mounts: Option<Vec<Mount>>,
    root: Option<Root>,
    #[serde(borrow)]
    linux: Option<Linux<'a>>,
}

#[derive(Debug, Deserialize)]
struct Mount {
    source: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    options: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: String,
}

#[derive(Debug, Deserialize)]
struct Linux<'a> {
    #[serde(borrow, rename = "cgroupsPath")]
    cgroups_path: Option<&'a RawValue>,
}

impl<'a> Spec<'a> {
    /// Reads a configuration.
    ///
    /// # Errors
    /// For text that is not a configuration, or names one of the three parts twice.
    pub fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        Ok(Self { text, document: serde_json::from_str(text)? })
    }

    /// The directories and files of the host that the container sees: its root, and the sources of bind mounts. A relative path is one from the
    /// bundle.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        let is_bind = |mount: &&Mount| {
            let is_option = |option: &String| option == "bind" || option == "rbind";
            mount.kind.as_deref() == Some("bind") || mount.options.iter().flatten().any(is_option)
        };
        let mounts = self.document.mounts.iter().flatten().filter(is_bind);
        let root = self.document.root.iter().map(|root| root.path.as_str());
        root.chain(mounts.filter_map(|mount| mount.source.as_deref()))
    }

    /// The path of its cgroup, if it has one.
    ///
    /// # Errors
    /// When it is not a string.
    pub fn cgroups_path(&self) -> Result<Option<String>, serde_json::Error> {
        self.raw_path().map(|raw| serde_json::from_str(raw.get())).transpose()
    }

    /// The text with another path of its cgroup; `None` if it has no path.
    #[must_use]
    pub fn with_cgroups_path(&self, path: &str) -> Option<String> {
        let Range { start, end } = self.place()?;
        let value = serde_json::Value::from(path).to_string();
        Some([self.text.get(..start)?, &value, self.text.get(end..)?].concat())
    }

    fn raw_path(&self) -> Option<&'a RawValue> {
        self.document.linux.as_ref()?.cgroups_path
    }

    /// Where the path's value is in the text, of which it is a part.
    fn place(&self) -> Option<Range<usize>> {
        let raw = self.raw_path()?.get();
        let start = raw.as_ptr().addr().checked_sub(self.text.as_ptr().addr())?;
        Some(start..start + raw.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    #[test]
    fn only_the_path_of_the_cgroup_is_replaced() {
        let text = "{\n \"ociVersion\" : \"1.2.0\", \"future\": {\"z\": 1e400, \"a\": [\"\\u0041\"]},\n \"linux\": {\"x\":null, \
                    \"cgroupsPath\" :\t\"system.slice:docker:\\u0034\" , \"resources\": {}},\n \"annotations\": {\"cgroupsPath\": \"x\"}}\n";
        let spec = Spec::parse(text).unwrap();
        assert_eq!(spec.cgroups_path().unwrap().as_deref(), Some("system.slice:docker:4"));
        let changed = spec.with_cgroups_path(r"bulkhead-a\x2db.slice:docker:4").unwrap();
        assert_eq!(changed, text.replace(r#""system.slice:docker:\u0034""#, r#""bulkhead-a\\x2db.slice:docker:4""#));
    }

    #[test]
    fn sources_are_the_root_and_bind_mounts() {
        let text = r#"{"root": {"path": "rootfs"}, "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/a", "type": "bind", "source": "/a", "options": ["ro"]},
            {"destination": "/b", "source": "/b", "options": ["rbind", "rprivate"]},
            {"destination": "/c", "type": "none", "source": "/c", "options": ["bind"]},
            {"destination": "/d", "type": "bind"}]}"#;
        assert_eq!(Spec::parse(text).unwrap().sources().collect::<Vec<_>>(), ["rootfs", "/a", "/b", "/c"]);
        let none = Spec::parse(r#"{"mounts": null, "linux": {"cgroupsPath": null}}"#).unwrap();
        assert_eq!((none.sources().count(), none.cgroups_path().unwrap()), (0, None));
        assert_eq!(none.with_cgroups_path("x"), None);
    }

    #[test]
    fn what_is_no_configuration_is_an_error() {
        for text in [
            "",
            "[]",
            "{",
            "nul",
            r#"{"linux": []}"#,
            r#"{"mounts": {}}"#,
            r#"{"mounts": [{"source": 1}]}"#,
            r#"{"linux": {}, "linux": {}}"#,
            r#"{"linux": {"cgroupsPath": "a", "cgroupsPath": "b"}}"#,
        ] {
            assert!(Spec::parse(text).is_err(), "{text}");
        }
        assert!(Spec::parse(r#"{"linux": {"cgroupsPath": 1}}"#).unwrap().cgroups_path().is_err());
    }

    proptest! {
        #[test]
        fn a_replaced_path_is_read_back(before in any::<String>(), after in any::<String>(), pad in "[ \t\r\n]{0,3}") {
            let quoted = serde_json::Value::from(before.as_str());
            let text = format!("{{{pad}\"linux\"{pad}:{{\"cgroupsPath\":{pad}{quoted}{pad}}}}}");
            let spec = Spec::parse(&text).unwrap();
            prop_assert_eq!(spec.cgroups_path().unwrap(), Some(before.clone()));
            let changed = spec.with_cgroups_path(&after).unwrap();
            let changed = Spec::parse(&changed).unwrap();
            prop_assert_eq!(changed.cgroups_path().unwrap(), Some(after));
            prop_assert_eq!(changed.with_cgroups_path(&before), Some(text));
        }
    }
}
