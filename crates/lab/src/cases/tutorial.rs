//! Tutorials of docs: their files are written and their commands run in a guest, and what these print is compared with
//! what the page shows.
//!
//! Owns: which blocks of a page are files, commands and output. Does not: know a tutorial.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::case::Ctx;

/// Default time limit of one command.
const LIMIT: Duration = Duration::from_secs(120);

/// A step of a tutorial.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A file: a block whose first line is a comment with its path.
    File { path: String, contents: String },
    /// A command, with the output that the page shows.
    Run { command: String, output: Shown },
}

/// The output of a command, as a page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Shown {
    /// Not at all: the block has commands alone.
    Nothing,
    /// As it is.
    Text(String),
    /// With other figures than the next run's.
    Figures(String),
}

/// Follows a tutorial to its end, and fails with all differences; the number of commands that it has.
pub(super) async fn follow(ctx: &Ctx, page: &str) -> Result<usize> {
    follow_within(ctx, page, LIMIT).await
}

/// [`follow`] with another time limit for each command.
pub(super) async fn follow_within(ctx: &Ctx, page: &str, limit: Duration) -> Result<usize> {
    let (mut n_commands, mut differences) = (0, String::new());
    for step in steps(page) {
        match step {
            Step::File { path, contents } => {
                let dir = path.rsplit_once('/').context("the path of a file is absolute")?.0;
                ctx.machine.sh(&format!("mkdir -p {dir}")).await?;
                ctx.machine.write_file(&path, contents.as_bytes()).await?;
            }
            Step::Run { command, output: Shown::Nothing } => {
                n_commands += 1;
                ctx.machine.sh_within(&command, limit).await.with_context(|| format!("`{command}`"))?;
            }
            Step::Run { command, output } => {
                n_commands += 1;
                // Warnings, and the progress of what takes long, are not part of a page.
                let run = format!("{{ {command}; }} 2>&1 | grep -vE '^(time=|job [0-9]+: )' || true");
                let seen = ctx.machine.sh_within(&run, limit).await?;
                if !output.is(&seen) {
                    differences += &format!("`{command}`: the page shows\n{output}\nand the output is\n{seen}\n");
                }
            }
        }
    }
    ensure!(differences.is_empty(), "{differences}");
    Ok(n_commands)
}

impl Shown {
    /// Whether a command's output is this.
    fn is(&self, seen: &str) -> bool {
        match self {
            Self::Nothing => true,
            Self::Text(shown) => normal(seen) == normal(shown),
            Self::Figures(shown) => words(shown).is_subset(&words(seen)),
        }
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Text(shown) | Self::Figures(shown) => f.write_str(shown),
        }
    }
}

/// The section of a page with this heading, up to the next one.
///
/// # Errors
/// If the page has no such section.
pub(super) fn section<'a>(page: &'a str, heading: &str) -> Result<&'a str> {
    let rest = page.split_once(&format!("\n## {heading}\n")).with_context(|| format!("no section {heading}"))?.1;
    Ok(rest.split_once("\n## ").map_or(rest, |(section, _)| section))
}

/// The steps of a page, in order: blocks `sh` are commands, blocks `console` are commands after `$ ` with their output
/// (`console figures`: with figures that differ from run to run), blocks `toml`, `ini` and `yaml` files.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for block in page.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').unwrap_or((block, ""));
        match kind {
            "sh" => steps.push(Step::Run { command: without_sudo(text.trim_end()), output: Shown::Nothing }),
            "console" | "console figures" => {
                let shown = if kind == "console" { Shown::Text } else { Shown::Figures };
                for command in format!("\n{text}").split("\n$ ").skip(1) {
                    let (command, output) = command.split_once('\n').unwrap_or((command, ""));
                    steps.push(Step::Run {
                        command: without_sudo(command),
                        output: shown(output.trim_end().to_owned()),
                    });
                }
            }
            "toml" | "ini" | "yaml" => {
                if let Some((path, contents)) = text.strip_prefix("# /").and_then(|text| text.split_once('\n')) {
                    steps.push(Step::File { path: format!("/{path}"), contents: contents.to_owned() });
                }
            }
            _ => {}
        }
    }
    steps
}

/// The guest's commands run as root, and it has no sudo.
fn without_sudo(command: &str) -> String {
    command.lines().map(|line| line.strip_prefix("sudo ").unwrap_or(line)).collect::<Vec<_>>().join("\n")
}

/// Output without what differs from run to run: IDs, numbers of devices, and the width of columns.
fn normal(output: &str) -> String {
    let is_id = |text: &str| text.len() >= 12 && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let word = |word: &str| {
        let text = word.trim_matches(['[', ']', ':']);
        // As Kubernetes names a volume.
        let text = text.split_once("pvc-").map_or(text, |(_, id)| id);
        match text.strip_prefix("/dev/ublkb") {
            _ if is_id(text) => word.replace(text, "ID"),
            Some(number) => {
                word.replace(text, &format!("/dev/ublkbN{}", number.trim_start_matches(|c: char| c.is_ascii_digit())))
            }
            None => word.to_owned(),
        }
    };
    let line = |line: &str| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    output.trim().lines().map(line).collect::<Vec<_>>().join("\n")
}

/// The words of output with figures: which containers, file systems and causes it names. A page shows only the first rows of a long table.
fn words(output: &str) -> BTreeSet<String> {
    let is_word = |word: &&str| !word.starts_with(['(', '<', '…']) && !word.starts_with(|c: char| c.is_ascii_digit());
    normal(output).split_whitespace().filter(is_word).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_commands_and_output_are_told_apart() {
        let page = "Text.\n```toml\n# /etc/a.conf\n[a]\n```\n```toml\n[no path]\n```\n```sh\nsudo one\ntwo\n```\n\
                    ```console\n$ sudo ls\na\nb\n$ true\n```\n```text\n$ no command\n```\n";
        let run = |command: &str, output: Shown| Step::Run { command: command.to_owned(), output };
        let text = |text: &str| Shown::Text(text.to_owned());
        let file = Step::File { path: "/etc/a.conf".to_owned(), contents: "[a]\n".to_owned() };
        assert_eq!(
            steps(page),
            [file, run("one\ntwo", Shown::Nothing), run("ls", text("a\nb")), run("true", text(""))]
        );
    }

    #[test]
    fn a_section_ends_at_the_next_heading() {
        let page = "# Page\n\n## One\n\nfirst\n\n### Part\n\n## Two\n\nlast\n";
        assert_eq!(section(page, "One").ok(), Some("\nfirst\n\n### Part\n"));
        assert_eq!(section(page, "Two").ok(), Some("\nlast\n"));
        assert!(section(page, "Three").is_err());
    }

    #[test]
    fn ids_devices_and_columns_are_not_compared() {
        assert_eq!(normal("a   0123456789ab: [0123456789ab] /dev/ublkb12p1 x\n"), "a ID: [ID] /dev/ublkbNp1 x");
        assert_eq!(normal("base abf1686a-ea76-8d3f-a3d5-d0e8ef2134b4"), "base ID");
        assert_eq!(normal("file/pvc-abf1686a-ea76-8d3f-a3d5-d0e8ef2134b4 pvc-data"), "file/pvc-ID pvc-data");
        assert_ne!(normal("charged"), normal("not charged"));
    }

    #[test]
    fn a_page_with_figures_shows_some_rows_with_the_names_that_each_run_has() {
        let shown = Shown::Figures("VICTIM WAITED backup\ndb 1.5 s 0.2 s\n…".to_owned());
        assert!(shown.is("VICTIM  WAITED  backup\ndb  31 ms  12 ms\nweb  3 s  -\n"));
        assert!(!shown.is("VICTIM  WAITED  web\ndb  31 ms  12 ms\n"));
    }
}
