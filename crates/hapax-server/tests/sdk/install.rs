//! The SDKs, and the programs that pay orders through them.

use std::process::Command;

use super::harness::install::{self, Installed, Language};

/// The dependencies, by exact versions and hashes.
const REQUIREMENTS: &str = include_str!("requirements.txt");
const PACKAGE: &str = include_str!("package.json");
const PACKAGE_LOCK: &str = include_str!("package-lock.json");

/// The SDK, or `None` if it cannot be installed here.
pub fn installed(language: Language) -> Option<Installed> {
    let own = |(name, text): (&'static str, &str)| (name, text.to_owned());
    let python = [("requirements.txt", REQUIREMENTS)].map(own);
    let node = [
        ("package.json", PACKAGE),
        ("package-lock.json", PACKAGE_LOCK),
    ]
    .map(own);
    let sources = [
        ("charge.py", include_str!("charge.py")),
        ("charge.mjs", include_str!("charge.mjs")),
    ];
    match language {
        Language::Python => install::install("sdk/python", language, &python, &sources.map(own)),
        Language::Node => install::install("sdk/node", language, &node, &sources.map(own)),
        Language::Go | Language::Php => panic!("no SDK is tested in {language:?}"),
    }
}

pub fn name(sdk: &Installed) -> String {
    format!("Stripe for {:?}", sdk.language)
}

/// The program that pays orders through the SDK.
pub fn program(sdk: &Installed) -> Command {
    let mut command = sdk.interpreter();
    command.arg(match sdk.language {
        Language::Python => "charge.py",
        Language::Node => "charge.mjs",
        Language::Go | Language::Php => panic!("no SDK is tested in {:?}", sdk.language),
    });
    command
}
