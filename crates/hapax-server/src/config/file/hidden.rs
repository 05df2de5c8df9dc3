//! Hides secrets in lines of the configuration that are shown with a mistake, on a screen or in a
//! log.
//!
//! A secret is recognized by how the line looks, because a file that is not valid TOML cannot be
//! parsed.

use std::ops::Range;

use crate::config::settings::{Kind, TABLES, Table, find_nearest};
use crate::config::{password, url};

/// Shown in place of a secret.
pub(super) const HIDDEN: &str = "(hidden)";

/// Whether a setting with this name is a secret, or its misspelled name may be that of one.
pub(super) fn is_secret(name: &str) -> bool {
    // For a variable, only the last part counts.
    let name = name
        .rsplit("__")
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    if name.ends_with("_file") {
        return false;
    }
    let is_declared = |table: &&Table| {
        find_nearest(table, &name).is_some_and(|nearest| {
            let setting = table.find(nearest);
            setting.is_some_and(|setting| {
                matches!(setting.kind, Kind::Secret { .. }) && setting.name == nearest
            })
        })
    };
    ["token", "secret", "password", "passwd", "credential"]
        .iter()
        .any(|word| name.contains(word))
        || TABLES.iter().any(is_declared)
}

/// A line without its secrets, and the characters of it that the bytes `span` correspond to.
pub(super) fn line(
    text: &str,
    line_start: usize,
    line: &str,
    span: Range<usize>,
) -> (String, Range<usize>) {
    if in_secret(&text[..line_start]) {
        return (HIDDEN.to_owned(), 0..HIDDEN.len());
    }
    let characters = |bytes: usize| line[..bytes].chars().count();
    let hidden_from =
        |value: usize| format!("{} {HIDDEN}", without_password(line[..value].trim_end()));
    match secret_value(line) {
        Some(value) if span.end > value => {
            let shown = hidden_from(value);
            let start = if span.start < value {
                characters(span.start)
            } else {
                shown.chars().count() - HIDDEN.len()
            };
            let end = shown.chars().count();
            (shown, start..end)
        }
        Some(value) => (
            hidden_from(value),
            characters(span.start)..characters(span.end),
        ),
        None => (
            without_password(line),
            characters(span.start)..characters(span.end),
        ),
    }
}

/// The position on a line where the value of a secret begins.
fn secret_value(line: &str) -> Option<usize> {
    let ends = line.match_indices('=').map(|(at, _)| at);
    { ends }
        .find(|at| {
            let before = line[..*at].trim_end().trim_end_matches(['"', '\'']);
            let begins = before
                .rfind(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-')))
                .map_or(0, |at| at + 1);
            line[..*at].is_char_boundary(begins)
                && is_secret(before.get(begins..).unwrap_or_default())
                && !is_parameter(&line[..begins])
        })
        .map(|at| at + 1)
}

/// Whether a parameter in the URL of a store follows; its secrets are hidden one by one.
fn is_parameter(before: &str) -> bool {
    before.ends_with(['?', '&']) && find_store(before).is_some_and(|at| at.after.starts_with("//"))
}

/// The URL of a store in a text.
struct FoundStore<'a> {
    before: &'a str,
    scheme: &'a str,
    /// What follows the colon.
    after: &'a str,
}

/// The first URL in a text that is the URL of a store, well formed or not.
fn find_store(text: &str) -> Option<FoundStore<'_>> {
    let begins = |scheme: &&str| {
        let colons = text.match_indices(':').map(|(colon, _)| colon);
        { colons }
            .find(|colon| text[..*colon].ends_with(scheme))
            .map(|colon| (colon - scheme.len(), colon + 1))
    };
    let (start, end) = password::SCHEMES.iter().filter_map(begins).min()?;
    Some(FoundStore {
        before: &text[..start],
        scheme: &text[start..end],
        after: &text[end..],
    })
}

/// Whether this text ends within a multi-line secret.
fn in_secret(text: &str) -> bool {
    let mut open: Option<&str> = None;
    for line in text.lines() {
        open = match open {
            Some(quotes) if line.contains(quotes) => None,
            Some(quotes) => Some(quotes),
            None => secret_value(line).and_then(|at| {
                ["\"\"\"", "'''"]
                    .into_iter()
                    .find(|quotes| line[at..].matches(quotes).count() % 2 == 1)
            }),
        };
    }
    open.is_some()
}

/// A text without the user names, passwords and queries of its URLs. Its number of characters stays
/// the same.
pub(super) fn without_password(text: &str) -> String {
    let Some(found) = find_store(text) else {
        return url::mask_with(text, stars);
    };
    // A malformed password extends to the end of the text at most.
    let end = found.after.find(['"', '\'']).unwrap_or(found.after.len());
    let (after, rest) = found.after.split_at(end);
    let after = if after.starts_with("//") {
        without_values(&password::mask_with(after, stars))
    } else if let Some(after) = after.strip_prefix('/') {
        // A slash is missing: what follows may be a password.
        format!("/{}", stars(after))
    } else if after.contains('@') {
        stars(after)
    } else {
        after.to_owned()
    };
    let before = url::mask_with(found.before, stars);
    format!("{before}{}{after}{}", found.scheme, without_password(rest))
}

/// A URL without the values of its parameters: a misspelled name may be that of a password.
fn without_values(url: &str) -> String {
    let Some((place, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let hidden = |pair: &str| match pair.split_once('=') {
        Some((name, value)) => format!("{name}={}", stars(value)),
        None => pair.to_owned(),
    };
    format!(
        "{place}?{}",
        query.split('&').map(hidden).collect::<Vec<_>>().join("&")
    )
}

fn stars(secret: &str) -> String {
    "*".repeat(secret.chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_told_by_their_names() {
        for name in [
            "admin_token",
            "settle_token",
            "admin-tokn",
            "ADMIN_TOKEN",
            "HAPAX__ADMIN_TOKEN",
            "HAPAX__JWT__SECRET",
            "my_password",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "admin",
            "listen",
            "admin_token_file",
            "HAPAX__ADMIN_TOKEN_FILE",
            "key",
            "HAPAX__LISTEN",
            "",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn lines_lose_their_secrets_and_carets_keep_their_places() {
        for (text, at, span, shown, caret) in [
            (
                "admin_token = \"s3\"",
                0,
                14..18,
                "admin_token = (hidden)",
                14..22,
            ),
            (
                "admin_tokn = \"s3\"",
                0,
                0..10,
                "admin_tokn = (hidden)",
                0..10,
            ),
            (
                "a = 1\nadmin_token = \"\"\"\ns3\n\"\"\"",
                24,
                0..2,
                "(hidden)",
                0..8,
            ),
            (
                "jwt = { secret = \"s3\" }",
                0,
                0..3,
                "jwt = { secret = (hidden)",
                0..3,
            ),
            (
                "url = \"http://a:s3@b\"",
                0,
                6..21,
                "url = \"http://****@b\"",
                6..21,
            ),
            (
                "url = \"http://a:s/3@b\"",
                0,
                6..22,
                "url = \"http://*****@b\"",
                6..22,
            ),
            (
                "store = \"postgres://a:s/3@b?password=s3\"",
                0,
                8..40,
                "store = \"postgres://a:***@b?password=**\"",
                8..40,
            ),
            (
                "store = \"postgres:/a:s3@b\"",
                0,
                8..26,
                "store = \"postgres:/******\"",
                8..26,
            ),
            (
                "store = \"postgres://a@b/c?pasword=s3\"",
                0,
                8..37,
                "store = \"postgres://a@b/c?pasword=**\"",
                8..37,
            ),
            (
                "store = \"postgres:a:s3@b\"",
                0,
                8..25,
                "store = \"postgres:******\"",
                8..25,
            ),
            (
                "store = \"redis+sentinel://a:s/3@b/c?sentinel_password=s3\"",
                0,
                8..56,
                "store = \"redis+sentinel://a:***@b/c?sentinel_password=**\"",
                8..56,
            ),
            (
                "store = \"rediss:/a:s3@b\" # postgres://a:s3@b",
                0,
                8..24,
                "store = \"rediss:/******\" # postgres://a:**@b",
                8..24,
            ),
            (
                "store = \"redis+ring://a:s3@b\"",
                0,
                8..29,
                "store = \"redis+ring://****@b\"",
                8..29,
            ),
            (
                "principal = \"forward-auth:http://a/v?t=s3\"",
                0,
                12..40,
                "principal = \"forward-auth:http://a/v?****\"",
                12..40,
            ),
            (
                "p = [\"http://a?s3\", \"http://s3@b/?s3\"]",
                0,
                4..38,
                "p = [\"http://a?**\", \"http://**@b/?**\"]",
                4..38,
            ),
            ("listen = \"é\"", 0, 9..13, "listen = \"é\"", 9..12),
        ] {
            let rest = text[at..].lines().next().unwrap();
            assert_eq!(
                line(text, at, rest, span),
                (shown.to_owned(), caret),
                "{text}"
            );
        }
    }
}
