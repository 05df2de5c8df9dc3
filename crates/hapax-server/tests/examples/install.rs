//! The services with their dependencies, installed once from their registries under the build
//! directory, and again when they change.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Written last, with what was wanted: a directory without it was given up half way.
const STAMP: &str = "installed";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Python,
    Node,
}

impl Language {
    /// The name of its example.
    pub fn example(self) -> &'static str {
        match self {
            Language::Python => "orders-python",
            Language::Node => "orders-node",
        }
    }

    /// What says by exact versions and hashes which dependencies it has.
    fn wanted(self) -> &'static [&'static str] {
        match self {
            Language::Python => &["requirements.txt"],
            Language::Node => &["package.json", "package-lock.json"],
        }
    }

    fn sources(self) -> &'static [&'static str] {
        match self {
            Language::Python => &["orders.py", "mischief.py"],
            Language::Node => &["server.js", "mischief.js"],
        }
    }
}

/// A service that can be started.
#[derive(Clone)]
pub struct Installed {
    pub language: Language,
    directory: PathBuf,
}

/// The service, or nothing when its dependencies cannot be had here, which is said where nobody can
/// miss it.
pub fn installed(language: Language) -> Option<Installed> {
    // Several tests want the same one.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("examples-installed")
        .join(language.example());
    let installed = Installed {
        language,
        directory,
    };
    match installed.make() {
        Ok(()) => Some(installed),
        Err(reason) => {
            assert!(
                !was_tampered_with(&reason),
                "{} does not get what was pinned:\n{reason}",
                language.example()
            );
            skipped(&format!(
                "the dependencies of {} cannot be installed: {reason}",
                language.example()
            ));
            None
        }
    }
}

/// Says aloud that a test has not run, and why.
pub fn skipped(why: &str) {
    // The harness names a test's thread after it. Not by a macro: those write nothing for tests
    // that pass.
    let thread = std::thread::current();
    let line = format!("SKIPPED {}: {why}\n", thread.name().unwrap_or("a test"));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Unlike a registry that is out of reach, this must not go unnoticed.
fn was_tampered_with(reason: &str) -> bool {
    reason.contains("DO NOT MATCH THE HASHES") || reason.contains("EINTEGRITY")
}

impl Installed {
    /// The command of its page, but for the variables.
    pub fn program(&self) -> Command {
        let mut command = self.interpreter();
        command.arg(self.language.sources()[0]);
        command
    }

    /// What runs a program with these dependencies.
    pub fn interpreter(&self) -> Command {
        let mut command = match self.language {
            Language::Python => Command::new(self.directory.join("bin/python")),
            Language::Node => Command::new("node"),
        };
        command.current_dir(&self.directory);
        command
    }

    fn make(&self) -> Result<(), String> {
        let (stamp, wanted) = (self.directory.join(STAMP), self.language.wanted());
        let text: String = wanted
            .iter()
            .map(|name| read(self.language, name))
            .collect();
        if std::fs::read_to_string(&stamp).ok().as_ref() != Some(&text) {
            if self.directory.exists() {
                std::fs::remove_dir_all(&self.directory).unwrap();
            }
            std::fs::create_dir_all(&self.directory).unwrap();
            wanted.iter().for_each(|name| self.copy(name));
            match self.language {
                Language::Python => self.make_python()?,
                Language::Node => self.make_node()?,
            }
            std::fs::write(stamp, text).unwrap();
        }
        // Modules are looked for from where the program is.
        self.language
            .sources()
            .iter()
            .for_each(|name| self.copy(name));
        Ok(())
    }

    fn make_python(&self) -> Result<(), String> {
        succeed(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&self.directory),
        )?;
        succeed(
            Command::new(self.directory.join("bin/python"))
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--timeout",
                    "20",
                    "--retries",
                    "2",
                ])
                .args([
                    "--require-hashes",
                    "--only-binary",
                    ":all:",
                    "--requirement",
                ])
                .arg(self.directory.join("requirements.txt")),
        )
    }

    fn make_node(&self) -> Result<(), String> {
        succeed(Command::new("node").arg("--version"))?;
        succeed(
            Command::new("npm")
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                .args([
                    "--fetch-timeout=20000",
                    "--fetch-retries=2",
                    "--fetch-retry-mintimeout=500",
                    "--fetch-retry-maxtimeout=2000",
                ])
                .current_dir(&self.directory),
        )
    }

    /// Only if it differs: another run of the tests may be about to read it.
    fn copy(&self, name: &str) {
        let (text, to) = (read(self.language, name), self.directory.join(name));
        if std::fs::read_to_string(&to).ok().as_ref() != Some(&text) {
            std::fs::write(to, text).unwrap();
        }
    }
}

fn read(language: Language, name: &str) -> String {
    std::fs::read_to_string(super::files::example(language.example()).join(name)).unwrap()
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let ran = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    let told = || {
        [&ran.stdout[..], &ran.stderr]
            .map(String::from_utf8_lossy)
            .concat()
    };
    if ran.status.success() {
        Ok(())
    } else {
        Err(format!("{command:?} failed: {}", told().trim()))
    }
}
