//! What hand-written documents name exists: tests that docs/SPECIFICATION.md cites, files and tests in docs/ARCHITECTURE.md and
//! CONTRIBUTING.md, and targets of links.
//!
//! Does not: know what a test asserts, nor read generated documents.

#![expect(clippy::unwrap_used, reason = "these are tests, and their helpers too")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The documents that people write, from the root of the repository: all but those of the command line and of evidence, which are generated.
fn documents() -> Vec<String> {
    let pages = ["docs", "docs/formats"].map(|directory| (directory, fs::read_dir(root().join(directory)).unwrap()));
    let pages = pages.into_iter().flat_map(|(directory, entries)| {
        entries.map(move |entry| format!("{directory}/{}", entry.unwrap().file_name().to_str().unwrap()))
    });
    let pages = pages.filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "md"));
    pages.chain(["README.md", "CONTRIBUTING.md"].map(str::to_owned)).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// Collects the Rust files in a directory and its subdirectories.
fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Tests and cases in the Rust files of the workspace.
struct Sources {
    /// Modules with tests, as paths: `…/crates/core/trim`, `…/crates/engine/http/tests/streams`.
    modules: Vec<String>,
    functions: BTreeSet<String>,
    /// Strings in the lab's cases, their names among them.
    cases: BTreeSet<String>,
}

impl Sources {
    fn read() -> Self {
        let mut paths = Vec::new();
        for directory in ["crates", "fuzz", "xtask"] {
            rust_files(&root().join(directory), &mut paths);
        }
        let mut sources = Self { modules: Vec::new(), functions: BTreeSet::new(), cases: BTreeSet::new() };
        for path in paths {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.to_str().unwrap();
            if ["#[test]", "#[tokio::test", "proptest! {"].iter().any(|mark| text.contains(mark)) {
                let module = path.trim_end_matches(".rs").trim_end_matches("/tests").trim_end_matches("/mod");
                sources.modules.push(module.replace("/src/", "/"));
            }
            let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split_once(['(', '<']));
            sources.functions.extend(functions.map(|(name, _)| name.to_owned()));
            if path.contains("/lab/src/cases") {
                sources.cases.extend(text.split('"').map(str::to_owned));
            }
        }
        sources
    }

    /// Whether a name in the column of tests is one: a case of the lab, a command or file with tests, a module, or a function.
    fn have_test(&self, name: &str) -> bool {
        if let Some(case) = name.strip_prefix("lab: ") {
            self.cases.contains(case)
        } else if name.starts_with("cargo xtask ") {
            true
        } else if name.contains('/') {
            root().join(name).is_file()
        } else if name.contains("::") {
            let module = format!("/{}", name.strip_suffix("::tests").unwrap_or(name).replace("::", "/"));
            self.modules.iter().any(|path| path.ends_with(&module))
        } else {
            self.functions.contains(name)
        }
    }
}

/// What stands between backquotes.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether a file that a document names exists: `core/src/trim.rs`, or `core/trim.rs` and `core/src/trim` for short.
fn exists(name: &str) -> bool {
    let in_src = name.split_once('/').map(|(member, file)| format!("crates/{member}/src/{file}"));
    [name.to_owned(), format!("crates/{name}"), format!("crates/{name}.rs"), format!("docs/{name}")]
        .into_iter()
        .chain(in_src)
        .any(|path| root().join(path).exists())
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchor that a heading has on code hosts.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_matches(['#', ' ']).chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_promise_names_tests_that_exist() {
    let specification = document("docs/SPECIFICATION.md");
    let sources = Sources::read();
    let promises: Vec<Vec<&str>> = specification
        .lines()
        .skip_while(|line| !line.starts_with("## "))
        .filter_map(|line| Some(line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect()))
        .filter(|columns: &Vec<&str>| columns.get(1) != Some(&"enforced by"))
        .collect();
    assert!(promises.len() > 80, "{} promises were found", promises.len());
    let mut missing = BTreeSet::new();
    for columns in promises {
        let [promise, tests, files] = columns.as_slice() else { panic!("not three columns: {columns:?}") };
        let names: Vec<&str> = code(tests).filter(|name| !name.starts_with("--")).collect();
        assert!(!names.is_empty(), "no test enforces a promise: {promise}");
        missing.extend(names.into_iter().filter(|name| !sources.have_test(name)));
        assert!(code(files).next().is_some(), "no file keeps a promise: {promise}");
        missing.extend(code(files).filter(|name| !exists(name)));
    }
    assert!(missing.is_empty(), "docs/SPECIFICATION.md names tests or files that do not exist: {missing:#?}");
}

#[test]
fn every_file_and_test_that_guides_name_exists() {
    let sources = Sources::read();
    let is_path = |name: &str| {
        name.contains('/')
            && !name.starts_with('/')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_.-".contains(&b))
    };
    let is_test = |name: &str| {
        name.starts_with("lab: ")
            || name.ends_with("::tests")
            || name.split('_').count() > 3
                && name.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
    };
    let mut missing = BTreeSet::new();
    for guide in ["docs/ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = prose(&document(guide));
        let names = code(&text)
            .filter(|name| is_path(name) && !exists(name) || is_test(name) && !sources.have_test(name))
            .map(|name| format!("{guide}: {name}"));
        missing.extend(names);
    }
    assert!(missing.is_empty(), "files or tests that do not exist: {missing:#?}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for name in &documents() {
        let text = prose(&document(name));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(link, _)| link)) {
            if link.contains("://") {
                continue;
            }
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { root().join(name) } else { root().join(name).with_file_name(file) };
            let leads = path.exists()
                && (place.is_empty()
                    || prose(&fs::read_to_string(&path).unwrap())
                        .lines()
                        .any(|line| line.starts_with('#') && anchor(line) == place));
            if !leads {
                dead.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(dead.is_empty(), "links without a target: {dead:#?}");
}
