//! `bulkhead doctor`: checks the storage stack of this host, or of captured facts. It needs no daemon.
//!
//! Owns: the form of captured facts on disk, the output, and the order of fixes. Does not: read the host (`bulkhead_sys::facts`), judge or
//! plan (`bulkhead_advise`), or change settings (`bulkhead_sys::fix`).

mod fix;
mod picture;
mod sarif;

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use bulkhead_advise::{Fix, Rule, rules};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::facts::{FORMAT, Facts, Unseen};
use bulkhead_core::finding::{Finding, Severity};
use bulkhead_core::stack;
use bulkhead_formats::servers;
use bulkhead_measure::report::svg::stacks;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{facts, file};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::output::{Output, block, findings, table};

/// The file with the facts in a captured directory.
const FILE: &str = "facts.json";
/// Largest such file: facts of a host with thousands of mounts and cgroups take a few MiB.
const MAX_BYTES: u64 = 64 << 20;
/// Exit codes for findings, by the most severe one; those of errors are smaller.
const WARNINGS: u8 = 20;
const CRITICAL: u8 = 21;

/// A check, as JSON.
#[derive(Debug, Serialize)]
struct Check<'a> {
    /// The kernel's release.
    kernel: &'a str,
    /// What was found, most severe first.
    findings: &'a [Finding],
    /// What could not be looked at.
    unseen: &'a [Unseen],
}

/// A rule, as JSON.
#[derive(Debug, Serialize)]
struct RuleView<'a> {
    id: &'a str,
    severity: Severity,
    meaning: &'a str,
    why: &'a str,
    /// What this project has measured of it.
    measured: Option<&'a str>,
    /// Where that figure is from.
    evidence: Option<String>,
    source: &'a str,
    /// Why it has no fix by changes of settings.
    no_fix: Option<&'a str>,
}

impl<'a> From<&'a Rule> for RuleView<'a> {
    fn from(rule: &'a Rule) -> Self {
        Self {
            id: rule.id.word(),
            severity: rule.id.severity(),
            meaning: rule.id.meaning(),
            why: rule.why,
            measured: rule.measured.map(|measured| measured.figure),
            evidence: rule.measured.map(|measured| format!("docs/EVIDENCE.md#{}", measured.section)),
            source: rule.source,
            no_fix: match rule.fix {
                Fix::Changes(_) => None,
                Fix::None(reason) => Some(reason),
            },
        }
    }
}

/// Checks a host, or shows rules.
///
/// # Errors
/// `NotFound` for an unknown rule, and for a directory without facts; `Corrupt` for facts that cannot be read; `AlreadyExists` for a capture into
/// a directory that exists.
pub(crate) fn run(args: &DoctorArgs, output: &Output) -> Result<ExitCode, Fault> {
    if args.list_rules {
        return list(output).map(|()| ExitCode::SUCCESS);
    }
    if let Some(id) = &args.explain {
        return explain(id, output).map(|()| ExitCode::SUCCESS);
    }
    if args.fix {
        return fix::run(args.dry_run, output);
    }
    if args.undo {
        return fix::undo(output);
    }
    let facts = match &args.from {
        Some(directory) => load(directory)?,
        None => read_host(),
    };
    match &args.capture {
        Some(directory) => save(&facts, directory, output).map(|()| ExitCode::SUCCESS),
        None => check(&facts, args, output),
    }
}

fn read_host() -> Facts {
    let roots = Roots::host();
    let image_of = |name: &str| servers::spec_of_disk(&Roots::host(), name).map(|spec| spec.image);
    let image_of: facts::ImageOf = Arc::new(image_of);
    facts::read(&roots, &image_of)
}

fn check(facts: &Facts, args: &DoctorArgs, output: &Output) -> Result<ExitCode, Fault> {
    let found = bulkhead_advise::judge(facts);
    if let Some(path) = &args.svg {
        let svg = stacks(&stack::rows(facts, &found));
        file::write_atomic(path, svg.as_bytes()).map_err(|error| {
            Fault::new(Code::InvalidArgument, path.display(), bulkhead_core::error::chain(&error))
                .hint("choose a file in a writable directory")
        })?;
        output.say(&format!("picture written to {}", path.display()));
    }
    if args.sarif {
        output.json(&sarif::log(&found))?;
    } else if output.is_json() {
        output.json(&Check { kernel: &facts.kernel, findings: &found, unseen: &facts.unseen })?;
    } else {
        let mut lines = if args.picture { picture::lines(&stack::rows(facts, &found)) } else { findings(&found) };
        let count = |severity| found.iter().filter(|finding| finding.severity == severity).count();
        let unseen = facts.unseen.iter().map(|unseen| format!("not seen: {}: {}", unseen.what, unseen.why));
        lines.extend(unseen);
        lines.push(format!(
            "mounts: {}, devices: {}, rules: {}; critical: {}, warnings: {}, infos: {}",
            facts.mounts.len(),
            facts.devices.len(),
            rules().count(),
            count(Severity::Critical),
            count(Severity::Warning),
            count(Severity::Info)
        ));
        output.lines(&lines)?;
    }
    Ok(exit_code(&found))
}

fn exit_code(found: &[Finding]) -> ExitCode {
    match found.iter().map(|finding| finding.severity).max() {
        Some(Severity::Critical) => ExitCode::from(CRITICAL),
        Some(Severity::Warning) => ExitCode::from(WARNINGS),
        Some(Severity::Info) | None => ExitCode::SUCCESS,
    }
}

fn list(output: &Output) -> Result<(), Fault> {
    if output.is_json() {
        return output.json(&rules().map(RuleView::from).collect::<Vec<_>>());
    }
    let row = |rule: &Rule| vec![rule.id.to_string(), rule.id.severity().to_string(), rule.id.meaning().to_owned()];
    output.lines(&table(&["rule", "severity", "meaning"], &rules().map(row).collect::<Vec<_>>()))
}

fn explain(id: &str, output: &Output) -> Result<(), Fault> {
    let rule = bulkhead_advise::rule(id).ok_or_else(|| {
        Fault::new(Code::NotFound, format!("rule {id}"), "there is no such rule")
            .hint("`bulkhead doctor --list-rules` lists them")
    })?;
    let view = RuleView::from(rule);
    if output.is_json() {
        return output.json(&view);
    }
    let measured = match (view.measured, &view.evidence) {
        (Some(figure), Some(evidence)) => format!("{figure} ({evidence})"),
        _ => "not measured by this project".to_owned(),
    };
    let fields = [
        ("rule", view.id.to_owned()),
        ("severity", view.severity.to_string()),
        ("meaning", view.meaning.to_owned()),
        ("why", view.why.to_owned()),
        ("measured", measured),
        ("source", view.source.to_owned()),
        ("fix", view.no_fix.map_or_else(|| "`bulkhead doctor --fix`".to_owned(), |reason| format!("none: {reason}"))),
    ];
    output.lines(&block(&fields, &[]))
}

fn load(directory: &Path) -> Result<Facts, Fault> {
    let path = directory.join(FILE);
    let object = || format!("facts {}", path.display());
    let unreadable = |error: io::Error| match Code::of_io(error.kind()) {
        Code::NotFound => Fault::new(Code::NotFound, object(), "there is no such file")
            .hint("name the directory that `bulkhead doctor --capture DIR` has written"),
        code => Fault::new(code, object(), error),
    };
    let size = fs::metadata(&path).map_err(unreadable)?.len();
    if size > MAX_BYTES {
        return Err(Fault::new(
            Code::Corrupt,
            object(),
            format!("it has {size} bytes, and facts have at most {MAX_BYTES}"),
        ));
    }
    let text = fs::read(&path).map_err(unreadable)?;
    let facts: Facts = serde_json::from_slice(&text).map_err(|error| Fault::new(Code::Corrupt, object(), error))?;
    if facts.format == 0 || facts.format > FORMAT {
        let cause = format!("their format is {}, and this version reads 1 to {FORMAT}", facts.format);
        return Err(Fault::new(Code::Corrupt, object(), cause).hint("use a newer version of bulkhead"));
    }
    Ok(facts)
}

fn save(facts: &Facts, directory: &Path, output: &Output) -> Result<(), Fault> {
    let path = directory.join(FILE);
    let text = serde_json::to_vec_pretty(facts).map_err(|error| Fault::new(Code::Internal, "facts", error))?;
    let failed = |error: io::Error| {
        let object = format!("directory {}", directory.display());
        Fault::new(Code::of_io(error.kind()), object, error).hint("choose a new directory")
    };
    fs::create_dir(directory).and_then(|()| fs::write(&path, text)).map_err(failed)?;
    output.say(&format!(
        "facts written to {}; check them: bulkhead doctor --from {}",
        path.display(),
        directory.display()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_facts_are_read_back() {
        let base = tempfile::tempdir().unwrap();
        let (directory, output) = (base.path().join("facts"), Output::new(crate::args::Format::Json));
        let facts = Facts { format: FORMAT, kernel: "6.12.0".to_owned(), ..Facts::default() };
        save(&facts, &directory, &output).unwrap();
        assert_eq!(load(&directory).unwrap(), facts);
        assert_eq!(save(&facts, &directory, &output).unwrap_err().code, Code::AlreadyExists);
        assert_eq!(save(&facts, &base.path().join("a/b"), &output).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn facts_that_cannot_be_read_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let refused = |text: &str| {
            fs::write(base.path().join(FILE), text).unwrap();
            load(base.path()).unwrap_err()
        };
        assert_eq!(load(&base.path().join("gone")).unwrap_err().code, Code::NotFound);
        for text in ["", "{}", r#"{"format": 2}"#, r#"{"format": 1, "devices": [{"dev": "x"}]}"#] {
            let fault = refused(text);
            assert_eq!(fault.code, Code::Corrupt, "{text}: {fault}");
        }
        assert!(refused(r#"{"format": 2}"#).cause.contains("reads 1 to 1"));
    }
}
