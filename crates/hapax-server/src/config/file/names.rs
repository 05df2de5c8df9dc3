//! Every section and setting: its name, what may be written there, what counts when nothing is, and
//! what it means.
//!
//! This is the one table. The reader knows a setting and its bounds by it; the variables
//! `HAPAX__SECTION__SETTING`, the JSON Schema, `docs/configuration.md` and `hapax config print` are
//! made from it. `tables.rs` has the sections, `policy.rs` what a route may say, `principals.rs`
//! how callers are known, `kind.rs` what kinds of values there are, `spelling.rs` what somebody may
//! have meant who wrote another name.

mod kind;
mod policy;
mod principals;
mod spelling;
mod tables;

pub(crate) use self::kind::{Fallback, Kind, Setting, TIMEOUT, UP_TO_A_DAY};
pub(crate) use self::policy::{POLICY, VELOCITY};
pub(crate) use self::principals::{FORWARD_AUTH, JWT};
pub(crate) use self::spelling::{nearest, unknown};
pub(crate) use self::tables::{ALL, DEFAULTS, DRAIN, LIMITS, ROUTES, TIMEOUTS, TLS, TOP, UPSTREAM};

/// A section and what may stand in it.
pub(crate) struct Names {
    /// Its name; empty for what stands before the first section.
    pub(crate) section: &'static str,
    /// How its header is written.
    pub(crate) header: &'static str,
    /// What it is for: a paragraph of `docs/configuration.md`.
    pub(crate) about: &'static str,
    /// The settings and sections inside it. In groups, because routes and their defaults share one.
    pub(crate) groups: &'static [&'static [Setting]],
}

impl Names {
    /// The settings and sections inside it, in the order in which they are shown.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// The setting by that name, or the secret whose file it names.
    pub(crate) fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings()
            .find(|setting| setting.name == name || setting.file_name() == Some(name))
    }

    /// Every name that may stand here, those of files with secrets too.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.settings()
            .flat_map(|setting| [Some(setting.name), setting.file_name()])
            .flatten()
    }

    /// That name as the table spells it.
    pub(crate) fn word(&self, name: &str) -> Option<&'static str> {
        self.words().find(|word| *word == name)
    }
}
