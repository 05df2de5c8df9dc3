//! The SDKs, installed once from their registries under the build directory, and again when what is
//! wanted of them changes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is wanted, by exact versions and hashes.
const REQUIREMENTS: &str = include_str!("requirements.txt");
const PACKAGE: &str = include_str!("package.json");
const PACKAGE_LOCK: &str = include_str!("package-lock.json");

const CHARGE_PY: &str = include_str!("charge.py");
const CHARGE_MJS: &str = include_str!("charge.mjs");

/// Written last, with what was wanted: a directory without it was given up half way.
const STAMP: &str = "installed";

#[derive(Clone, Copy)]
pub(crate) enum Sdk {
    Python,
    Node,
}

pub(crate) struct Installed {
    sdk: Sdk,
    directory: PathBuf,
}

/// The SDK, or nothing when it cannot be had here, which is said where nobody can miss it.
pub(crate) fn installed(sdk: Sdk) -> Option<Installed> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .with_file_name("sdk")
        .join(sdk.word());
    let installed = Installed { sdk, directory };
    match installed.make() {
        Ok(()) => Some(installed),
        Err(reason) => {
            assert!(
                !was_tampered_with(&reason),
                "{} is not what was pinned:\n{reason}",
                sdk.word()
            );
            // Not by a macro: those write nothing for tests that pass.
            let skipped = format!(
                "SKIPPED: stripes_sdk_for_{}_charges_once: the SDK cannot be installed: {reason}\n",
                sdk.word()
            );
            std::io::stderr().write_all(skipped.as_bytes()).unwrap();
            None
        }
    }
}

/// Unlike a registry that is out of reach, this must not go unnoticed.
fn was_tampered_with(reason: &str) -> bool {
    reason.contains("DO NOT MATCH THE HASHES") || reason.contains("EINTEGRITY")
}

impl Sdk {
    fn word(self) -> &'static str {
        match self {
            Sdk::Python => "python",
            Sdk::Node => "node",
        }
    }

    fn wanted(self) -> String {
        match self {
            Sdk::Python => REQUIREMENTS.to_owned(),
            Sdk::Node => format!("{PACKAGE}{PACKAGE_LOCK}"),
        }
    }
}

impl Installed {
    pub(crate) fn name(&self) -> String {
        format!("Stripe for {}", self.sdk.word())
    }

    /// The program that pays orders through the SDK.
    pub(crate) fn program(&self) -> Command {
        let mut command = match self.sdk {
            Sdk::Python => Command::new(self.directory.join("bin/python")),
            Sdk::Node => Command::new("node"),
        };
        command.arg(self.directory.join(self.script().0));
        command
    }

    fn script(&self) -> (&'static str, &'static str) {
        match self.sdk {
            Sdk::Python => ("charge.py", CHARGE_PY),
            Sdk::Node => ("charge.mjs", CHARGE_MJS),
        }
    }

    fn make(&self) -> Result<(), String> {
        let stamp = self.directory.join(STAMP);
        if std::fs::read_to_string(&stamp).ok() != Some(self.sdk.wanted()) {
            if self.directory.exists() {
                std::fs::remove_dir_all(&self.directory).unwrap();
            }
            std::fs::create_dir_all(&self.directory).unwrap();
            match self.sdk {
                Sdk::Python => self.make_python()?,
                Sdk::Node => self.make_node()?,
            }
            std::fs::write(stamp, self.sdk.wanted()).unwrap();
        }
        // Modules are looked for from where the script is.
        let (name, text) = self.script();
        self.write(name, text);
        Ok(())
    }

    fn make_python(&self) -> Result<(), String> {
        self.write("requirements.txt", REQUIREMENTS);
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
        self.write("package.json", PACKAGE);
        self.write("package-lock.json", PACKAGE_LOCK);
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

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.join(name), text).unwrap();
    }
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
