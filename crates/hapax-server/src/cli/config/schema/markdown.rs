//! The tables of `docs/configuration.md`.

use crate::config::file::names::{ALL, Fallback, Kind, Names, Setting, VELOCITY};
use crate::config::text::{spelled, spelled_size};

pub(super) fn tables() -> String {
    let mut text = String::new();
    for names in ALL {
        text += &section(names);
    }
    text + &format!(
        "### `velocity`\n\nEach entry of the list has all three.\n\n{}",
        table(&VELOCITY)
    )
}

fn section(names: &Names) -> String {
    let title = if names.header.is_empty() {
        "Top of the file".to_owned()
    } else {
        format!("`{}`", names.header)
    };
    // What all routes say is what each may say: one table is enough.
    let table = if names.section == "defaults" {
        String::new()
    } else {
        table(names) + "\n"
    };
    format!(
        "## {title}\n\n{} {}\n\n{table}",
        names.about,
        variable(names)
    )
}

/// How the settings are called in the environment.
fn variable(names: &Names) -> String {
    match (names.section, names.settings().next()) {
        (_, None) => String::new(),
        ("", Some(first)) => format!(
            "As a variable: `HAPAX__{}`.",
            first.name.to_ascii_uppercase()
        ),
        ("routes", _) => "As a variable: `HAPAX__ROUTES__0__MODE`, counted from 0.".to_owned(),
        (section, Some(first)) => {
            format!(
                "As a variable: `HAPAX__{}__{}`.",
                section.to_ascii_uppercase(),
                first.name.to_ascii_uppercase()
            )
        }
    }
}

fn table(names: &Names) -> String {
    let rows = names
        .settings()
        .filter(|setting| !setting.is_section())
        .map(row);
    format!(
        "| Setting | Value | Default | Meaning |\n|---|---|---|---|\n{}",
        rows.collect::<String>()
    )
}

fn row(setting: &Setting) -> String {
    format!(
        "| `{}` | {} | {} | {} |\n",
        setting.name,
        value(setting.kind),
        default(setting),
        setting.means
    )
}

fn default(setting: &Setting) -> String {
    match setting.fallback {
        Fallback::Is("[]") | Fallback::Nothing => "none".to_owned(),
        Fallback::Is(value) => format!("`{value}`"),
        Fallback::Required => "required".to_owned(),
        Fallback::Words(words) => words.to_owned(),
    }
}

fn value(kind: Kind) -> String {
    match kind {
        Kind::Section(_) => "section".to_owned(),
        Kind::Sections(names) => format!("list of `{}`", names.section),
        Kind::Text => "text".to_owned(),
        Kind::Choice(words) => words
            .iter()
            .map(|word| format!("`{word}`"))
            .collect::<Vec<_>>()
            .join(", "),
        Kind::Path => "file".to_owned(),
        Kind::Duration { max, .. } if max.as_secs() > 24 * 60 * 60 => "duration".to_owned(),
        Kind::Duration { max, .. } => format!("duration up to `{}`", spelled(max)),
        Kind::Size { max: u64::MAX, .. } => "bytes".to_owned(),
        Kind::Size { min, max } => {
            format!("bytes, `{}` to `{}`", spelled_size(min), spelled_size(max))
        }
        Kind::Count { min, max } => format!("number, {min} to {max}"),
        Kind::Switch => "`true`, `false`".to_owned(),
        Kind::List => "list of texts".to_owned(),
        Kind::TextOrList => "text, or a list".to_owned(),
        Kind::Classes(_) => "statuses and their classes".to_owned(),
        Kind::Secret { file } => format!("secret, or `{file}`"),
    }
}
