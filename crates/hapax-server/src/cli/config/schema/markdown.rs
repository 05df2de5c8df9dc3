//! The tables of `docs/configuration.md`.

use crate::config::settings::{Fallback, Kind, Setting, TABLES, Table, VELOCITY};
use crate::config::text::{spelled, spelled_size};

pub(super) fn tables() -> String {
    let mut text = String::new();
    for table in TABLES {
        text += &section(table);
    }
    text + &format!(
        "### `velocity`\n\nEach entry of the list has all three.\n\n{}",
        rows(&VELOCITY)
    )
}

fn section(table: &Table) -> String {
    let title = if table.header.is_empty() {
        "Top of the file".to_owned()
    } else {
        format!("`{}`", table.header)
    };
    // Routes have the same settings as the defaults, so one table is enough.
    let settings = if table.name == "defaults" {
        String::new()
    } else {
        rows(table) + "\n"
    };
    format!(
        "## {title}\n\n{}\n\n{settings}",
        format!("{} {}", table.about, variable(table)).trim_end(),
    )
}

/// The names of the settings as environment variables.
fn variable(table: &Table) -> String {
    match (table.name, table.settings().next()) {
        (_, None) => String::new(),
        ("", Some(first)) => format!(
            "As a variable: `HAPAX__{}`.",
            first.name.to_ascii_uppercase()
        ),
        ("relay", _) => String::new(),
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

fn rows(table: &Table) -> String {
    let rows = table
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
        setting.meaning()
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
        Kind::Sections(table) => format!("list of `{}`", table.name),
        Kind::Named(table) => format!("sections `{}`", table.header),
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
