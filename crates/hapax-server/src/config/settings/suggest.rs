//! Suggests the setting that was meant by an unknown name.

use strsim::levenshtein;

use super::{POLICY, ROUTES, TABLES, Table};

/// Limit on the names that a message lists.
const LISTED_MAX: usize = 20;

/// The message for a setting that a section does not have.
pub(crate) fn describe_unknown(table: &Table, written: &str) -> String {
    let place = if table.name.is_empty() {
        "before the first section".to_owned()
    } else {
        format!("in {}", table.header)
    };
    let what = if written.is_empty() {
        "a setting without a name".to_owned()
    } else {
        format!("unknown setting `{written}` {place}")
    };
    if written == "strict" {
        return format!(
            "{what}: every 5xx but 503 is unknown by default now: leave it out, or write \
             classes = {{ \"503\" = \"unknown\" }} to hold that one too"
        );
    }
    if let Some(meant) = find_nearest(table, written) {
        return format!("{what}: did you mean `{meant}`?");
    }
    if POLICY.iter().any(|setting| setting.name == written) {
        return format!(
            "{what}: it belongs in {}, or in [defaults] for all of them",
            ROUTES.header
        );
    }
    match TABLES
        .iter()
        .find(|other| other.find_name(written).is_some())
    {
        Some(other) if other.name.is_empty() => {
            format!("{what}: it belongs at the top of the file, before the first section")
        }
        Some(other) => format!("{what}: it belongs in {}", other.header),
        None => format!("{what}: {}", list_names(table)),
    }
}

fn list_names(table: &Table) -> String {
    let names: Vec<&str> = table.names().collect();
    match names.len() {
        0..=LISTED_MAX => format!("there are {}", names.join(", ")),
        _ => "`hapax config schema --markdown` lists all there are".to_owned(),
    }
}

/// The setting of this section that was probably meant.
pub(crate) fn find_nearest(table: &Table, written: &str) -> Option<&'static str> {
    // Enough to compare two names; a written one may be of any length.
    let written = written.chars().take(64).collect::<String>();
    let plain = written.replace('-', "_").to_ascii_lowercase();
    let (distance, name) = table
        .names()
        .map(|name| (levenshtein(&plain, name), name))
        .min()?;
    (distance <= 2 && distance * 3 <= plain.chars().count()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::super::TOP;
    use super::*;

    #[test]
    fn near_misses_are_recognised() {
        for (table, written, meant) in [
            (&ROUTES, "retenton", Some("retention")),
            (&ROUTES, "longest-attempt", Some("longest_attempt")),
            (&TOP, "Listen", Some("listen")),
            (&TOP, "admin-token-file", Some("admin_token_file")),
            (&ROUTES, "methods", Some("method")),
            (&ROUTES, "x", None),
            (&TOP, "workers", None),
        ] {
            assert_eq!(find_nearest(table, written), meant, "{written}");
        }
    }
}
