//! `hapax man`: the manual, a page for each command, generated from the help texts.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap_mangen::Man;

use super::{Cli, Exit, text};
use crate::version;

/// The end of every page: the same text for all commands.
const COMMON: &str = include_str!("man_common.roff");

/// Print the manual, or write all of its pages.
///
/// Read one with: hapax man keys settle | man -l -
#[derive(clap::Args)]
pub(super) struct Args {
    /// The command whose page to print, word by word
    #[arg(value_name = "COMMAND", conflicts_with = "out")]
    command: Vec<String>,
    /// Write every page into this directory, which is made if it is not there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let mut all = Cli::command();
    all.build();
    match &args.out {
        Some(directory) => write_all(&all, directory),
        None => {
            let page = rendered(found(&all, &args.command)?);
            text::emit(&String::from_utf8_lossy(&page));
            Ok(())
        }
    }
}

/// The command that these words name. Hidden commands have no page.
fn found<'a>(all: &'a clap::Command, words: &[String]) -> Result<&'a clap::Command, Exit> {
    words.iter().try_fold(all, |command, word| {
        visible(command)
            .find(|sub| sub.get_name() == word)
            .ok_or_else(|| {
                let known = visible(command)
                    .map(clap::Command::get_name)
                    .collect::<Vec<_>>()
                    .join(", ");
                let of = command
                    .get_display_name()
                    .unwrap_or("hapax")
                    .replace('-', " ");
                match known.as_str() {
                    "" => Exit::usage(format!(
                        "`{of}` has no command `{}`: ask for `hapax man` of it alone",
                        text::line(word)
                    )),
                    _ => Exit::usage(format!(
                        "`{of}` has no command `{}`: it has {known}",
                        text::line(word)
                    )),
                }
            })
    })
}

fn visible(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
}

fn write_all(all: &clap::Command, directory: &Path) -> Result<(), Exit> {
    let failed = |path: &Path, error: &io::Error| {
        Exit::failed(format!(
            "could not write {}: {error}: choose another --out",
            path.display()
        ))
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, &error))?;
    let mut waiting = vec![all];
    while let Some(command) = waiting.pop() {
        let path = directory.join(format!("{}.1", name(command)));
        std::fs::write(&path, rendered(command)).map_err(|error| failed(&path, &error))?;
        waiting.extend(visible(command));
    }
    Ok(())
}

/// `hapax-keys-list`: the usual form of page names, which `man hapax keys` finds.
fn name(command: &clap::Command) -> &str {
    command.get_display_name().unwrap_or("hapax")
}

fn rendered(command: &clap::Command) -> Vec<u8> {
    let mut page = Vec::new();
    let man = Man::new(command.clone())
        .title(name(command).to_uppercase())
        .source(format!("hapax {}", version::SHORT));
    // Never empty, because the arguments of the title are positional.
    let man = man.date(version::DATE).manual("Hapax");
    man.render(&mut page)
        .and_then(|()| page.write_all(COMMON.as_bytes()))
        .and_then(|()| writeln!(page, ".SH \"SEE ALSO\"\n{}", see_also(command)))
        .expect("memory takes what is written to it");
    page
}

/// The page of the parent command, and those of the subcommands.
fn see_also(command: &clap::Command) -> String {
    let above = name(command).rsplit_once('-').map(|(above, _)| above);
    let below = visible(command).map(name);
    let pages: Vec<_> = above
        .into_iter()
        .chain(below)
        .map(|page| format!(".BR {} (1)", page.replace('-', "\\-")))
        .collect();
    match pages.is_empty() {
        true => ".BR hapax (1)".to_owned(),
        false => pages.join(" ,\n"),
    }
}
