//! Packages of other Debian suites, downloaded without changing the host's apt.
//!
//! Owns: a private apt with lists and cache in its own directory.
//! Does not: install anything on the host; packages are unpacked into the caller's directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command::{command, output};
use crate::guest_root::{DEBIAN_KEYRING, debian_mirror};

const DOWNLOAD_LIMIT: Duration = Duration::from_secs(900);
const STEP_LIMIT: Duration = Duration::from_secs(180);

/// An apt that is confined to its own directory.
#[derive(Debug)]
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Creates it in `dir`, for one suite of Debian.
    pub(crate) fn new(dir: &Path, suite: &str) -> Result<Self> {
        for sub in ["lists/partial", "cache/archives/partial", "parts", "debs"] {
            let path = dir.join(sub);
            std::fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        let line = format!("deb [arch=amd64 signed-by={DEBIAN_KEYRING}] {} {suite} main\n", debian_mirror());
        for (name, contents) in [("sources.list", line.as_str()), ("status", "")] {
            let path = dir.join(name);
            std::fs::write(&path, contents).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self { dir: dir.to_owned() })
    }

    /// Runs one of apt's programs; downloads are unpacked by [`PrivateApt::unpack`].
    pub(crate) async fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let settings = [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "parts"),
            ("Dir::Etc::preferencesparts", "parts"),
            ("Dir::State::lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", "cache"),
        ];
        let mut apt = command(program);
        for (key, name) in settings {
            apt.arg("-o").arg(format!("{key}={}", self.dir.join(name).display()));
        }
        // The sandbox user cannot enter root's directories.
        apt.args(["-o", "Dir::Etc::preferences=/dev/null", "-o", "APT::Sandbox::User=root"]);
        apt.args(arguments).current_dir(self.dir.join("debs"));
        output(apt, &format!("{program} {} (private)", arguments.join(" ")), DOWNLOAD_LIMIT).await
    }

    /// Unpacks all downloaded packages into one directory, and returns their names and versions.
    pub(crate) async fn unpack(&self, target: &Path) -> Result<Vec<String>> {
        let debs = self.dir.join("debs");
        let mut packages = Vec::new();
        for entry in std::fs::read_dir(&debs).with_context(|| format!("cannot list {}", debs.display()))? {
            let path = entry.with_context(|| format!("cannot list {}", debs.display()))?.path();
            let mut unpack = command("dpkg-deb");
            unpack.arg("-x").arg(&path).arg(target);
            output(unpack, &format!("unpacking {}", path.display()), STEP_LIMIT).await?;
            let mut show = command("dpkg-deb");
            show.args(["--show", "--showformat=${Package} ${Version}"]).arg(&path);
            packages.push(output(show, &format!("reading {}", path.display()), STEP_LIMIT).await?);
        }
        packages.sort();
        Ok(packages)
    }
}
