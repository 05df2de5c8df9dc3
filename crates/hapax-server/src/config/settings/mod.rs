//! Every setting, declared once.
//!
//! These declarations are the source of the reader of files and variables, the bounds, the
//! defaults, the comparison of a reload, the JSON Schema, `hapax config print` and the tables of
//! `docs/configuration.md`. `gateway.rs` has the settings of the gateway itself, `principals.rs`
//! those that identify callers, `on_unknown.rs` those of the webhook about unknown outcomes, `policy.rs` those of a route, `relay.rs` those of a relay; `declare.rs` has the macro and the
//! kinds of values, and `suggest.rs` finds the name that was meant by a misspelled one.
//!
//! # How to add a setting
//!
//! Write it at its place in the documentation:
//!
//! ```text
//! /// what it means, in a sentence of Markdown
//! streams_max: u32 = is "128", count(1, 10_000), "32";
//! ```
//!
//! That is its meaning, its name and the type of its field, its fallback, the values it accepts,
//! and a good example that is not the default. The fallback says what applies if the setting is not
//! written:
//!
//! - `is "VALUE"`: this value;
//! - `none`: no value, for a field that is an `Option` or a list;
//! - `words "SENTENCE"`: no value here, and the sentence says what the gateway does then;
//! - `usual "VALUE" "SENTENCE"`: this value, until a check changes it as the sentence says;
//! - `required`: a mistake, which a check has to report;
//! - `flagged`: the same, unless a flag gives the value.
//!
//! A setting without a type is only described here, and other code reads it; `FIELD as SETTING` is
//! for a field whose name differs from its setting. A field of `Policy` needs its default in
//! `hapax-core`; a test compares the two. Then use the value, and let
//! `HAPAX_BLESS=1 cargo test --test configuration` write the tables of the documentation. The
//! checks in `config/file/` report contradictions with other settings.

mod declare;
mod gateway;
mod on_unknown;
mod policy;
mod principals;
mod relay;
mod suggest;

use std::time::Duration;

pub(crate) use self::declare::{Settings, Shown, Spec};
pub use self::gateway::{Config, Drain, Limits, Timeouts, Tls, Upstream};
pub use self::on_unknown::OnUnknown;
pub(crate) use self::policy::{POLICY, ROUTE, VELOCITY};
pub use self::principals::{ForwardAuth, Jwt, StandardWebhooks};
pub(crate) use self::relay::give_up;
pub use self::relay::{Relay, Sasl};
pub(crate) use self::suggest::{describe_unknown, find_nearest};

/// The declaration of a section: the settings it may contain.
pub(crate) struct Table {
    /// Its name; empty for the top level.
    pub(crate) name: &'static str,
    /// Its header as written.
    pub(crate) header: &'static str,
    /// Its purpose: a paragraph of `docs/configuration.md`.
    pub(crate) about: &'static str,
    /// The settings and sections inside it. They are in groups, because routes and their defaults
    /// share one.
    pub(crate) groups: &'static [&'static [Setting]],
}

/// All sections, in the order in which they are shown.
pub(crate) const TABLES: [&Table; 13] = [
    &TOP,
    &JWT,
    &FORWARD_AUTH,
    &STANDARD_WEBHOOKS,
    &UPSTREAM,
    &TLS,
    &TIMEOUTS,
    &LIMITS,
    &DRAIN,
    &ON_UNKNOWN,
    &DEFAULTS,
    &ROUTES,
    &RELAY,
];

pub(crate) static TOP: Table = table(
    "",
    "",
    "What stands before the first section. `--listen`, `--admin`, `--store` and \
     `--principal` are the same as flags.",
    &[
        Config::SETTINGS,
        &[
            inner(Kind::Section(&JWT)),
            inner(Kind::Section(&FORWARD_AUTH)),
            inner(Kind::Section(&STANDARD_WEBHOOKS)),
            inner(Kind::Section(&UPSTREAM)),
            inner(Kind::Section(&TLS)),
            inner(Kind::Section(&TIMEOUTS)),
            inner(Kind::Section(&LIMITS)),
            inner(Kind::Section(&DRAIN)),
            inner(Kind::Section(&ON_UNKNOWN)),
            inner(Kind::Section(&DEFAULTS)),
            inner(Kind::Sections(&ROUTES)),
            Setting {
                needs_restart: true,
                ..inner(Kind::Named(&RELAY))
            },
        ],
    ],
);

pub(crate) static JWT: Table = table(
    "jwt",
    "[jwt]",
    "How tokens are verified, for `principal = \"jwt:CLAIM\"`, see \
     [principals.md](principals.md). One of `keys_file`, `keys_url` and `secret_file` must \
     be there.",
    &[Jwt::SETTINGS],
);

pub(crate) static FORWARD_AUTH: Table = table(
    "forward_auth",
    "[forward_auth]",
    "How another service is asked who is asking, for `principal = \"forward-auth:URL\"`, see \
     [principals.md](principals.md).",
    &[ForwardAuth::SETTINGS],
);

pub(crate) static STANDARD_WEBHOOKS: Table = table(
    "standard_webhooks",
    "[standard_webhooks]",
    "How webhooks that come in are verified, for `principal = \"standard-webhooks:NAME\"`, see \
     [webhooks.md](webhooks.md).",
    &[StandardWebhooks::SETTINGS],
);

pub(crate) static UPSTREAM: Table = table(
    "upstream",
    "[upstream]",
    "The service behind the gateway.",
    &[Upstream::SETTINGS],
);

pub(crate) static TLS: Table = table(
    "tls",
    "[tls]",
    "With this section clients speak TLS with the gateway; without it they do not. Both \
     files are PEM.",
    &[Tls::SETTINGS],
);

pub(crate) static TIMEOUTS: Table = table(
    "timeouts",
    "[timeouts]",
    "How long anybody may take: more than nothing, and at most a day.",
    &[Timeouts::SETTINGS],
);

pub(crate) static LIMITS: Table = table(
    "limits",
    "[limits]",
    "How much of anything there may be. Over a limit the new request is refused; a live \
     record is never evicted.",
    &[Limits::SETTINGS],
);

pub(crate) static DRAIN: Table = table(
    "drain",
    "[drain]",
    "What SIGTERM or SIGINT begins. A second one ends the program at once, with exit code \
     130.",
    &[Drain::SETTINGS],
);

pub(crate) static ON_UNKNOWN: Table = table(
    "on_unknown",
    "[on_unknown]",
    "With this section a URL is told of each record whose outcome is unknown and waits for a \
     person, by a signed request: see [operations.md](operations.md#being-told-of-unknown-outcomes).",
    &[OnUnknown::SETTINGS],
);

pub(crate) static DEFAULTS: Table = table(
    "defaults",
    "[defaults]",
    "What every route says that does not say otherwise, and the unwritten one after the \
     last too: all settings of `[[routes]]` but `name`, `method`, `path` and `principal`.",
    &[POLICY],
);

pub(crate) static ROUTES: Table = table(
    "routes",
    "[[routes]]",
    "Which requests, and what they are promised. The first route that matches counts. After \
     the last stands, unwritten, one for every path with what `[defaults]` says: POST and \
     PATCH with a key are guarded. A route that no request can reach is refused.",
    &[ROUTE, POLICY],
);

pub(crate) static RELAY: Table = table(
    "relay",
    "[relay.NAME]",
    "Messages of the outbox are published to a destination. `NAME` is that of the reader, which is \
     how far a destination has got: keep it. For `hapax relay --config`, and for `hapax serve`, \
     which runs them beside the gateway if `store` is a Postgres.",
    &[Relay::SETTINGS],
);

const fn table(
    name: &'static str,
    header: &'static str,
    about: &'static str,
    groups: &'static [&'static [Setting]],
) -> Table {
    Table {
        name,
        header,
        about,
        groups,
    }
}

/// A section inside another.
const fn inner(kind: Kind) -> Setting {
    let name = match kind {
        Kind::Section(table) | Kind::Sections(table) | Kind::Named(table) => table.name,
        _ => "",
    };
    Setting {
        name,
        kind,
        fallback: Fallback::Nothing,
        example: "",
        means: "",
        needs_restart: false,
    }
}

impl Table {
    /// The settings and sections inside it, in the order in which they are shown.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &'static Setting> + use<> {
        self.groups.iter().flat_map(|group| group.iter())
    }

    /// The setting with that name, or the secret whose file has that name.
    pub(crate) fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings()
            .find(|setting| setting.name == name || setting.file_name() == Some(name))
    }

    /// Every valid name in this section, including those of files with secrets.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.settings().flat_map(Setting::names)
    }

    /// The name, if it is valid in this section.
    pub(crate) fn find_name(&self, name: &str) -> Option<&'static str> {
        self.names().find(|known| *known == name)
    }
}

/// Whether a setting, named with its section, takes effect only at a start.
pub(crate) fn needs_restart(path: &str) -> bool {
    let (section, name) = path.split_once('.').unwrap_or(("", path));
    let name = match section {
        // Between them is the name of the section.
        "relay" => name.rsplit('.').next().unwrap_or_default(),
        _ => name,
    };
    TABLES
        .iter()
        .find(|known| known.name == section)
        .and_then(|section| section.find(name))
        .is_some_and(|setting| setting.needs_restart)
}

/// The declaration of one setting.
pub(crate) struct Setting {
    /// Its name.
    pub(crate) name: &'static str,
    /// The values it accepts.
    pub(crate) kind: Kind,
    /// What applies if it is not written.
    pub(crate) fallback: Fallback,
    /// A good value that is not the default, in the form of [`Fallback::Is`].
    pub(crate) example: &'static str,
    /// Its meaning, a sentence of Markdown, with the space that a comment begins with.
    means: &'static str,
    /// Whether only a restart can change it.
    needs_restart: bool,
}

/// The values that a setting accepts.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// A section inside this one.
    Section(&'static Table),
    /// A list of sections.
    Sections(&'static Table),
    /// Sections of this form, each with a name of its own.
    Named(&'static Table),
    /// Text, which the reader checks further.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A file.
    Path,
    /// A duration.
    Duration {
        /// Whether zero is allowed.
        zero: bool,
        /// The longest.
        max: Duration,
        /// The message for a longer one; empty if another check covers it.
        over: &'static str,
    },
    /// Bytes.
    Size {
        /// The fewest.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A whole number.
    Count {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// True or false.
    Switch,
    /// A list of texts.
    List,
    /// A text or a list of them.
    TextOrList,
    /// Statuses, each with one of these words.
    Classes(&'static [&'static str]),
    /// A secret, which must never be shown.
    Secret {
        /// The setting with the path of a file that contains it instead.
        file: &'static str,
    },
}

/// What applies if a setting is not written.
#[derive(Clone, Copy)]
pub(crate) enum Fallback {
    /// This value, as in the file but without quotes around text.
    Is(&'static str),
    /// No value.
    Nothing,
    /// The configuration is refused.
    Required,
    /// It depends, as this text says.
    Words(&'static str),
}

impl Setting {
    /// Its meaning, a sentence of Markdown.
    pub(crate) fn meaning(&self) -> &'static str {
        self.means.trim_start()
    }

    /// The setting that names a file with this secret.
    pub(crate) const fn file_name(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Secret { file } => Some(file),
            _ => None,
        }
    }

    /// Its name, and that of the file with the secret.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [Some(self.name), self.file_name()].into_iter().flatten()
    }

    /// Whether it is a section rather than a value.
    pub(crate) const fn is_section(&self) -> bool {
        matches!(
            self.kind,
            Kind::Section(_) | Kind::Sections(_) | Kind::Named(_)
        ) && !matches!(self.fallback, Fallback::Is(_))
    }
}

impl Kind {
    /// Whether a value is text in quotes.
    pub(crate) const fn is_text(self) -> bool {
        matches!(
            self,
            Kind::Text | Kind::Choice(_) | Kind::Path | Kind::Duration { .. } | Kind::Secret { .. }
        )
    }

    /// A value of a declaration, as it is written in the file.
    pub(crate) fn in_toml(self, value: &str) -> String {
        let is_number = || value.bytes().all(|byte| byte.is_ascii_digit());
        let is_quoted = match self {
            Kind::Size { .. } => !is_number(),
            Kind::TextOrList => !value.starts_with('['),
            _ => self.is_text(),
        };
        if is_quoted {
            format!("\"{value}\"")
        } else {
            value.to_owned()
        }
    }
}
