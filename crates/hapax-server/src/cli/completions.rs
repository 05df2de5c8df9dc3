//! `hapax completions`: completion scripts for shells.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Cli, Exit, text};
use crate::version;

/// Print a script that lets a shell complete hapax commands and flags.
///
/// For this shell only: source <(hapax completions bash). For good: put it where the shell looks,
/// as in ~/.local/share/bash-completion/completions/hapax, ~/.config/fish/completions/hapax.fish,
/// or _hapax in a directory of zsh's $fpath.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<(), Exit> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut without_hidden(&Cli::command()),
        "hapax",
        &mut script,
    );
    let script = String::from_utf8(script)
        .map_err(|_| Exit::failed("the script is not text: this is a bug of hapax"))?;
    text::emit(&script);
    Ok(())
}

/// Removes hidden commands, which the generators would offer too.
fn without_hidden(all: &clap::Command) -> clap::Command {
    let visible = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .cloned();
    let about = all.get_about().cloned().unwrap_or_default();
    clap::Command::new("hapax")
        .about(about)
        .version(version::SHORT)
        .disable_help_subcommand(true)
        .args(all.get_arguments().cloned())
        .subcommands(visible)
}
