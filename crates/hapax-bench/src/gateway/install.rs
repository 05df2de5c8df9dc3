//! Peers that are fetched or built once, into a directory beside this program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Error;

/// The directory of a peer, installed if necessary. `wanted` describes the version to install: if
/// it equals the note of the last installation, nothing is done.
pub(super) fn peers(
    name: &str,
    wanted: &str,
    install: fn(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    let directory = peers_directory(name)?;
    std::fs::create_dir_all(&directory)?;
    let noted = directory.join("installed");
    if std::fs::read_to_string(&noted).ok().as_deref() != Some(wanted) {
        eprintln!("  installing {name} into {}", directory.display());
        install(&directory)?;
        std::fs::write(noted, wanted)?;
    }
    Ok(directory)
}

/// The directory of a peer, beside this program.
pub(crate) fn peers_directory(name: &str) -> Result<PathBuf, Error> {
    let executable = std::env::current_exe()?;
    let target = executable
        .ancestors()
        .nth(2)
        .ok_or("this program is in no directory of cargo's")?;
    Ok(target.join("peers").join(name))
}

/// Runs a command to its end. Fails if the command fails.
pub(super) fn run(command: &mut Command) -> Result<(), Error> {
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let arguments: Vec<_> = command
        .get_args()
        .skip(2)
        .map(|argument| argument.to_string_lossy())
        .collect();
    Err(format!(
        "{} failed and said:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    )
    .into())
}
