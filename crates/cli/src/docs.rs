//! Generated from the arguments: shell completions, the markdown reference and the man pages.
//!
//! The last two are in `docs/cli`; a test fails if they differ from what the program generates (`BULKHEAD_BLESS=1` rewrites
//! them).

use std::path::Path;

use bulkhead_core::error::{Code, Fault};
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
use crate::output::Output;

/// Width of the help in the reference.
const WIDTH: usize = 100;

/// Prints a completion script.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn completions(shell: Shell, output: &Output) -> Result<(), Fault> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "bulkhead", &mut script);
    output.raw(&script)
}

/// Writes the reference and the man pages.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(directory: &Path) -> Result<(), Fault> {
    for (name, content) in pages()? {
        let path = directory.join(name);
        let written =
            path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, content));
        written.map_err(|error| Fault::new(Code::Internal, path.display(), format!("cannot write it ({error})")))?;
    }
    Ok(())
}

/// Every file of `docs/cli` with its content.
fn pages() -> Result<Vec<(String, Vec<u8>)>, Fault> {
    // Independent of the environment in which they are generated.
    let mut root = Cli::command().mut_args(|arg| arg.hide_env_values(true)).term_width(WIDTH);
    root.build();
    let mut reference = String::from(
        "# The command line\n\nGenerated from the program (`bulkhead __docs`); a test checks that it is up to date.\n\
         Standard output is data, everything else goes to standard error.\n",
    );
    let mut pages = Vec::new();
    describe(&root, "bulkhead", &mut reference, &mut pages)?;
    pages.push(("README.md".to_owned(), reference.into_bytes()));
    Ok(pages)
}

fn describe(
    command: &Command,
    path: &str,
    reference: &mut String,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Fault> {
    let help = command.clone().render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    reference.push_str(&format!("\n## {path}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
    let file = path.replace(' ', "-");
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone())
        .title(file.clone())
        .render(&mut page)
        .map_err(|error| Fault::new(Code::Internal, "man page", error))?;
    pages.push((format!("man/{file}.1"), page));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        describe(sub, &format!("{path} {}", sub.get_name()), reference, pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use clap::Parser as _;

    #[test]
    fn arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn docs_cli_is_up_to_date() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli");
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            let _ = std::fs::remove_dir_all(&directory);
            write(&directory).unwrap();
        }
        let mut expected = BTreeSet::new();
        for (name, content) in pages().unwrap() {
            let found = std::fs::read(directory.join(&name)).unwrap_or_default();
            assert!(found == content, "docs/cli/{name} is stale: run this test with BULKHEAD_BLESS=1");
            expected.insert(name);
        }
        for (directory_name, prefix) in [("", ""), ("man", "man/")] {
            for entry in std::fs::read_dir(directory.join(directory_name)).unwrap() {
                let name = format!("{prefix}{}", entry.unwrap().file_name().into_string().unwrap());
                assert!(name == "man" || expected.contains(&name), "docs/cli/{name} belongs to no command");
            }
        }
    }

    /// The arguments of each `bulkhead …` in the blocks of shell commands of a document.
    fn commands(document: &str) -> Vec<Vec<String>> {
        let blocks = document.split("```").skip(1).step_by(2);
        // In a console, the other lines are output.
        let lines: Vec<String> = blocks
            .filter_map(|block| block.split_once('\n'))
            .filter(|(kind, _)| ["sh", "console"].contains(kind))
            .flat_map(|(kind, text)| {
                let text = text.replace("\\\n", " ");
                let is_command = |line: &&str| kind == "sh" || line.starts_with("$ ");
                text.lines().filter(is_command).map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        lines
            .iter()
            .filter_map(|line| line.split(" #").next())
            .flat_map(|line| line.split(['|', '&', ';']))
            .filter_map(|part| {
                let words = part.split_whitespace().skip_while(|word| ["$", "sudo", "ssh", "other"].contains(word));
                let words: Vec<String> = words.map(str::to_owned).collect();
                words.first().is_some_and(|word| word == "bulkhead" || word.ends_with("/bulkhead")).then_some(words)
            })
            .collect()
    }

    #[test]
    fn commands_in_documents_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        let mut n_commands = 0;
        for path in pages.chain([root.join("README.md")]) {
            for command in commands(&std::fs::read_to_string(&path).unwrap()) {
                n_commands += 1;
                if let Err(error) = Cli::try_parse_from(&command) {
                    panic!("{}: {}: {error}", path.display(), command.join(" "));
                }
            }
        }
        assert!(n_commands > 30, "{n_commands} commands were found");
    }

    #[test]
    fn every_shell_has_completions() {
        for shell in <Shell as clap::ValueEnum>::value_variants() {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "bulkhead", &mut script);
            assert!(String::from_utf8(script).unwrap().contains("tenant"), "{shell}");
        }
    }
}
