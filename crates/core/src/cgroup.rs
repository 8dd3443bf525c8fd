//! The path of a cgroup, validated once.
//!
//! Owns: validating, joining and comparing such paths. Does not: name the cgroups of tenants ([`crate::slices`]), or
//! check whether a cgroup exists.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest name of one cgroup in bytes (kernel `NAME_MAX`).
const NAME_MAX_BYTES: usize = 255;

/// The path of a cgroup below the cgroup root, for example `bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice`.
///
/// Has no empty, `.` or `..` part and no line break, so that joining it to the root never leaves the hierarchy. The root
/// itself is [`CgroupPath::root`], written `/`. A leading slash, as in `/proc/PID/cgroup`, is accepted and dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CgroupPath(String);

/// An invalid cgroup path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path:?} is not the path of a cgroup: {reason}")]
pub struct CgroupPathError {
    /// The text as given.
    pub path: String,
    /// The rule that it breaks.
    pub reason: &'static str,
}

impl CgroupPath {
    /// The root of the hierarchy.
    #[must_use]
    pub fn root() -> Self {
        Self(String::new())
    }

    /// Whether this is the root of the hierarchy.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The cgroup `name` (one or more parts) below this one.
    ///
    /// # Errors
    /// [`CgroupPathError`] when `name` is empty or has a part that is not allowed.
    pub fn join(&self, name: &str) -> Result<Self, CgroupPathError> {
        if name.is_empty() || name.starts_with('/') {
            return Err(CgroupPathError { path: name.to_owned(), reason: "it has an empty part" });
        }
        let below: Self = name.parse()?;
        Ok(if self.is_root() { below } else { Self(format!("{}/{}", self.0, below.0)) })
    }

    /// The cgroup above; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        Some(self.0.rsplit_once('/').map_or_else(Self::root, |(above, _)| Self(above.to_owned())))
    }

    /// The last part; empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The path from the root of the hierarchy; empty for the root.
    #[must_use]
    pub fn relative(&self) -> &str {
        &self.0
    }

    /// Whether this is `other`, or a cgroup below it.
    #[must_use]
    pub fn starts_with(&self, other: &Self) -> bool {
        let rest = self.0.strip_prefix(&other.0);
        other.is_root() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The cgroups above, from the root down, without this one.
    #[must_use]
    pub fn ancestors(&self) -> Vec<Self> {
        let mut above: Vec<Self> = std::iter::successors(self.parent(), Self::parent).collect();
        above.reverse();
        above
    }
}

impl FromStr for CgroupPath {
    type Err = CgroupPathError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = |reason| Err(CgroupPathError { path: text.to_owned(), reason });
        if text == "/" {
            return Ok(Self::root());
        }
        let path = text.strip_prefix('/').unwrap_or(text);
        for part in path.split('/') {
            match part {
                "" => return error("it has an empty part"),
                "." | ".." => return error("'.' and '..' are not allowed"),
                part if part.len() > NAME_MAX_BYTES => return error("a part is longer than 255 bytes"),
                // The kernel refuses '\n' (cgroup_mkdir): the name must fit in one line of /proc/PID/cgroup.
                part if part.contains(['\n', '\0']) => return error("it contains a line break or a NUL"),
                _ => {}
            }
        }
        Ok(Self(path.to_owned()))
    }
}

impl TryFrom<String> for CgroupPath {
    type Error = CgroupPathError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<CgroupPath> for String {
    fn from(path: CgroupPath) -> String {
        path.to_string()
    }
}

impl fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(if self.is_root() { "/" } else { &self.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        text.parse().unwrap()
    }

    #[test]
    fn paths_are_compared_by_component() {
        let slice = path("a.slice/b");
        assert!(slice.starts_with(&slice) && path("/a.slice/b/c").starts_with(&slice));
        assert!(slice.starts_with(&CgroupPath::root()) && CgroupPath::root().starts_with(&CgroupPath::root()));
        assert!(!path("a.slice/bc").starts_with(&slice) && !path("a.slice").starts_with(&slice));
    }

    #[test]
    fn json_is_the_text() {
        for text in ["/", "a.slice/b"] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(serde_json::to_string(&path(text)).unwrap(), json);
            assert_eq!(serde_json::from_str::<CgroupPath>(&json).unwrap(), path(text));
        }
        for bad in ["", "a//b", "a/", "../x", "a/./b", "a\nb", "a\0b"] {
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<CgroupPath>(&json).is_err(), "{bad:?}");
        }
    }
}
