//! The services of the examples, with their dependencies.

use std::process::Command;

use super::files::example;
use super::harness::install::{self, File};
pub use super::harness::install::{Installed, Language};

/// The name of the example in this language, the files that pin its dependencies, and its sources,
/// of which the first is the program.
fn parts(
    language: Language,
) -> (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
) {
    match language {
        Language::Python => (
            "orders-python",
            &["requirements.txt"],
            &["orders.py", "mischief.py"],
        ),
        Language::Node => (
            "orders-node",
            &["package.json", "package-lock.json"],
            &["server.js", "mischief.js"],
        ),
        Language::Go | Language::Php => panic!("no service behind a gateway is in {language:?}"),
    }
}

/// The name of the example in this language.
pub fn name(language: Language) -> &'static str {
    parts(language).0
}

/// The service, or `None` if its dependencies cannot be installed here.
pub fn installed(language: Language) -> Option<Installed> {
    let (name, wanted, sources) = parts(language);
    let read = |files: &[&'static str]| -> Vec<File> {
        let text = |file| std::fs::read_to_string(example(name).join(file)).unwrap();
        files.iter().map(|file| (*file, text(*file))).collect()
    };
    let folder = format!("examples-installed/{name}");
    install::install(&folder, language, &read(wanted), &read(sources))
}

/// The command of the example's page, without its variables.
pub fn program(installed: &Installed) -> Command {
    let (_, _, sources) = parts(installed.language);
    let mut command = installed.interpreter();
    command.arg(sources[0]);
    command
}
