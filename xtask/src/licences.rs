//! The licences of the packages that are linked into the shipped programs, which the Debian package contains as their authors require.
//!
//! Owns: the layout of packaging/third-party-licences.txt. cargo-about finds the texts. Does not: decide which licences are accepted (deny.toml).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::check::{installed, output_of};
use crate::lab::workspace;

/// The version to install if none is installed.
const CARGO_ABOUT_VERSION: &str = "0.9.3";
/// The shipped programs: packages, and their directories below crates.
const SHIPPED: [(&str, &str); 2] = [("bulkhead", "cli"), ("bulkhead-runtime", "runtime")];
/// The first line of the file; the packages follow, one a line, up to an empty line.
const TITLE: &str =
    "Packages in bulkhead and bulkhead-runtime, with their licences (`cargo xtask deny` writes this file)";

/// What cargo-about prints.
#[derive(Debug, Deserialize)]
struct Report {
    crates: Vec<Crate>,
    licenses: Vec<Licence>,
}

#[derive(Debug, Deserialize)]
struct Crate {
    package: Package,
    license: String,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
}

#[derive(Debug, Deserialize)]
struct Licence {
    name: String,
    text: String,
    used_by: Vec<User>,
}

#[derive(Debug, Deserialize)]
struct User {
    #[serde(rename = "crate")]
    package: Package,
}

impl std::fmt::Display for Package {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// Writes the file.
///
/// # Errors
/// A package without a licence text, with one that is not accepted, or a cargo-about that is missing and cannot be built.
pub(crate) fn write() -> Result<()> {
    // Without optimisation it takes minutes to recognise the texts.
    let program = installed("cargo-about", CARGO_ABOUT_VERSION, &["--locked", "--features", "cli"])?;
    let reports = SHIPPED.iter().map(|(_, directory)| report(&program, directory)).collect::<Result<Vec<_>>>()?;
    let path = file(&workspace());
    std::fs::write(&path, text(&reports)).with_context(|| format!("cannot write {}", path.display()))
}

/// The path of the file in a workspace.
fn file(workspace: &Path) -> PathBuf {
    workspace.join("packaging/third-party-licences.txt")
}

/// What cargo-about finds for the program in a directory below crates.
fn report(cargo_about: &Path, directory: &str) -> Result<Report> {
    let [configuration, manifest] = ["packaging/about.toml".to_owned(), format!("crates/{directory}/Cargo.toml")]
        .map(|file| workspace().join(file).to_string_lossy().into_owned());
    let options = ["--offline", "--locked", "--fail", "--format", "json"];
    let files = ["--config", &configuration, "--manifest-path", &manifest];
    let output = output_of(cargo_about, &[&["generate"], &options[..], &files[..]].concat())?;
    serde_json::from_slice(&output).context("cargo-about printed something other than its report")
}

/// The file: all packages, then each text once, with the packages that it is for.
fn text(reports: &[Report]) -> String {
    let crates = reports.iter().flat_map(|report| &report.crates);
    let packages: BTreeSet<String> = crates.map(|one| format!("{}: {}", one.package, one.license)).collect();
    let mut texts: BTreeMap<(&str, &str), BTreeSet<String>> = BTreeMap::new();
    for licence in reports.iter().flat_map(|report| &report.licenses) {
        let users = texts.entry((&licence.name, licence.text.trim())).or_default();
        users.extend(licence.used_by.iter().map(|user| user.package.to_string()));
    }
    let packages: Vec<String> = packages.into_iter().collect();
    let mut file = format!("{TITLE}\n{}\n", packages.join("\n"));
    for ((name, text), users) in texts {
        let users: Vec<String> = users.into_iter().collect();
        file += &format!("\n{}\n{name}: {}\n\n{text}\n", "=".repeat(80), users.join(", "));
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packages that a file lists, as `name version`.
    fn listed(file: &str) -> BTreeSet<String> {
        let lines = file.lines().skip(1).take_while(|line| !line.is_empty());
        lines.filter_map(|line| line.split_once(": ")).map(|(package, _)| package.to_owned()).collect()
    }

    #[test]
    fn each_text_is_there_once_with_its_packages() {
        let package = |name: &str| Package { name: name.to_owned(), version: "1.0.0".to_owned() };
        let report = |name: &str| Report {
            crates: vec![Crate { package: package(name), license: "MIT".to_owned() }],
            licenses: vec![Licence {
                name: "MIT License".to_owned(),
                text: "Permission\n".to_owned(),
                used_by: vec![User { package: package(name) }],
            }],
        };
        let file = text(&[report("b"), report("a")]);
        assert_eq!(listed(&file), ["a 1.0.0", "b 1.0.0"].map(str::to_owned).into());
        assert!(file.ends_with("\nMIT License: a 1.0.0, b 1.0.0\n\nPermission\n"), "{file}");
        assert_eq!(file.matches("Permission").count(), 1);
    }

    #[test]
    fn the_licences_of_all_linked_packages_are_in_the_file() {
        let tree = |package: &str| {
            let what =
                ["tree", "--locked", "--package", package, "--edges", "normal", "--prefix", "none", "--no-dedupe"];
            let how = ["--target", "x86_64-unknown-linux-gnu", "--format", "{p}"];
            let output = output_of(&crate::check::cargo_program(), &[&what[..], &how[..]].concat()).unwrap();
            String::from_utf8(output).unwrap()
        };
        // Ours have a path.
        let linked: BTreeSet<String> = SHIPPED
            .iter()
            .flat_map(|(package, _)| tree(package).lines().map(str::to_owned).collect::<Vec<_>>())
            .filter(|line| !line.contains(" (/") && !line.is_empty())
            .map(|line| line.replacen(" v", " ", 1).replace(" (proc-macro)", ""))
            .collect();
        let listed = listed(&std::fs::read_to_string(file(&workspace())).unwrap());
        let missing: Vec<&String> = linked.difference(&listed).collect();
        assert!(missing.is_empty(), "packaging/third-party-licences.txt lacks {missing:?}: run `cargo xtask deny`");
    }
}
