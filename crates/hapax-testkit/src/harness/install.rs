//! Programs in other languages with their dependencies. They are installed once from their
//! registries under the build directory, and again when their requirements change.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use crate::skipped;

/// Written last, with the requirements: a directory without it is an unfinished installation.
const STAMP: &str = "installed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
    /// Its sources are compiled on installation.
    Go,
    /// Needs no dependencies but PHP with its driver for Postgres.
    Php,
}

/// The name and the content of a file.
pub type File = (&'static str, String);

/// An installation.
#[derive(Clone)]
pub struct Installed {
    pub language: Language,
    pub directory: PathBuf,
}

/// Installs the `wanted` packages by exact versions and hashes into this directory, and puts the
/// sources beside them. `None`, after printing why, if that is not possible here.
///
/// The directory is one of the build's, so that another run finds the installation.
pub fn install(
    directory: PathBuf,
    language: Language,
    wanted: &[File],
    sources: &[File],
) -> Option<Installed> {
    // Several tests need the same installation.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    let name = directory.display().to_string();
    let installed = Installed {
        language,
        directory,
    };
    let made = installed.make(wanted);
    if let Err(reason) = made {
        // Unlike an unreachable registry, a wrong hash must fail the test.
        let was_tampered_with = ["DO NOT MATCH THE HASHES", "EINTEGRITY"]
            .iter()
            .any(|word| reason.contains(word));
        assert!(
            !was_tampered_with,
            "{name} is not what was pinned:\n{reason}"
        );
        skipped(format!("{name} cannot be installed: {reason}"));
        return None;
    }
    // Modules are searched for from the directory of the program.
    sources.iter().for_each(|source| installed.put(source));
    Some(installed)
}

impl Installed {
    /// The interpreter for programs with these dependencies, in their directory.
    pub fn interpreter(&self) -> Command {
        let mut command = match self.language {
            Language::Python => Command::new(self.directory.join("bin/python")),
            Language::Node => Command::new("node"),
            Language::Go => Command::new(self.directory.join("program")),
            Language::Php => Command::new("php"),
        };
        command.current_dir(&self.directory);
        command
    }

    fn make(&self, wanted: &[File]) -> Result<(), String> {
        let (stamp, directory) = (self.directory.join(STAMP), &self.directory);
        let text: String = wanted.iter().map(|(_, text)| text.as_str()).collect();
        if std::fs::read_to_string(&stamp).ok().as_ref() == Some(&text) {
            return Ok(());
        }
        if directory.exists() {
            std::fs::remove_dir_all(directory).unwrap();
        }
        std::fs::create_dir_all(directory).unwrap();
        wanted.iter().for_each(|file| self.put(file));
        match self.language {
            Language::Python => {
                succeed(Command::new("python3").args(["-m", "venv"]).arg(directory))?;
                succeed(self.interpreter().args(words(
                    "-m pip install --quiet --timeout 20 --retries 2 \
                     --require-hashes --only-binary :all: --requirement requirements.txt",
                )))?;
            }
            Language::Node => {
                succeed(self.interpreter().arg("--version"))?;
                let npm = words(
                    "ci --ignore-scripts --no-audit --no-fund --fetch-timeout=20000 \
                     --fetch-retries=2 --fetch-retry-mintimeout=500 --fetch-retry-maxtimeout=2000",
                );
                succeed(Command::new("npm").args(npm).current_dir(directory))?;
            }
            Language::Go => {
                let build = words("build -mod=readonly -o program .");
                let mut go = Command::new("go");
                go.args(build).current_dir(directory);
                // No other toolchain than the one that is here.
                succeed(go.env("GOTOOLCHAIN", "local"))?;
            }
            Language::Php => {
                let has_driver = "exit(extension_loaded('pdo_pgsql') ? 0 : 1);";
                succeed(self.interpreter().args(["-r", has_driver]))?;
            }
        }
        std::fs::write(stamp, text).unwrap();
        Ok(())
    }

    /// Writes the file only if it differs: another run of the tests may be about to read it.
    fn put(&self, (name, text): &File) {
        let to = self.directory.join(name);
        if std::fs::read_to_string(&to).ok().as_ref() != Some(text) {
            std::fs::write(to, text).unwrap();
        }
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let ran = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if ran.status.success() {
        return Ok(());
    }
    let told = [&ran.stdout[..], &ran.stderr].map(String::from_utf8_lossy);
    Err(format!("{command:?} failed: {}", told.concat().trim()))
}
