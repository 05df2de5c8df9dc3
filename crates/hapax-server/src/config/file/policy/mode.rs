//! What a route promises, and what that needs beside it: records in the database of the effects, or
//! somebody to ask.

use hapax::{Mode, Policy};
use http::uri::PathAndQuery;

use super::super::section::Section;
use super::super::value::parsed;
use crate::config::StoreUrl;

pub(crate) fn mode(text: &str) -> Result<Mode, String> {
    let words = || {
        Mode::ALL
            .map(|mode| format!("\"{}\"", mode.word()))
            .join(", ")
    };
    Mode::ALL.into_iter().find(|mode| mode.word() == text).ok_or_else(|| {
        format!("`{text}` is no mode: write \"hold\", or another if the service does its part: there are {}", words())
    })
}

/// Reads whom to ask, and notes what the mode lacks and what it has no use for. `store` is where
/// records are kept, if that is known.
pub(super) fn needs(
    section: &Section<'_>,
    policy: &Policy,
    store: Option<&StoreUrl>,
) -> Option<PathAndQuery> {
    let probe = section.get("probe", parsed(path));
    // A mode that could not be read is no reason to say what another lacks.
    if section.has("mode") && section.get("mode", parsed(mode)).is_none() {
        return None;
    }
    if let (Mode::Transaction, Some(store @ (StoreUrl::Sqlite(_) | StoreUrl::Memory))) =
        (policy.mode, store)
    {
        section.mistake(
            &["mode"],
            format!("mode \"transaction\" needs the records in the Postgres database of the effects, and `store` is \"{store}\": write store = \"postgres://hapax@db.internal/orders\", or another mode"),
        );
    }
    match (policy.mode, probe) {
        (Mode::Probe, None) if !section.has("probe") => {
            section.mistake(
                &["mode"],
                "mode \"probe\" asks the service what became of a lost attempt, and nobody said where: write probe = \"/hapax/probe\", the path that answers",
            );
            None
        }
        (Mode::Probe, probe) => probe,
        (mode, Some(_)) => {
            if section.says("probe") {
                section.mistake(
                    &["probe", "mode"],
                    format!(
                        "`probe` is whom mode \"probe\" asks, and the mode is \"{}\": write mode = \"probe\", or leave it out",
                        mode.word()
                    ),
                );
            }
            section.report_ignored("probe", "the mode asks nobody");
            None
        }
        (_, None) => None,
    }
}

/// A path as it is sent to the upstream.
fn path(text: &str) -> Result<PathAndQuery, String> {
    if text.contains("://") {
        return Err(
            "the route's own upstream is asked: write the path alone, as in \"/hapax/probe\""
                .to_owned(),
        );
    }
    if !text.starts_with('/') {
        return Err(format!("a path begins with `/`: write \"/{text}\""));
    }
    if text.contains(['?', '#']) {
        return Err("a probe says by its fields what it asks for: write the path alone, as in \"/hapax/probe\"".to_owned());
    }
    if text.contains(['*', '{', '}']) {
        return Err(
            "this is one path and no pattern: the operation is told in a field. Write \"/hapax/probe\", for example".to_owned()
        );
    }
    let is_sound = text.bytes().all(|byte| byte.is_ascii_graphic());
    PathAndQuery::try_from(text)
        .ok()
        .filter(|_| is_sound)
        .ok_or_else(|| format!("`{text}` cannot stand in a path as it is sent: percent-encode it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_read_by_its_word() {
        for wanted in Mode::ALL {
            assert_eq!(mode(wanted.word()), Ok(wanted));
        }
        assert!(mode("Hold").is_err() && mode("").is_err());
    }

    #[test]
    fn a_probe_is_one_path_of_the_upstream() {
        for good in ["/", "/hapax/probe", "/a%20b", "/a/"] {
            assert_eq!(path(good).map(|path| path.to_string()), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "probe",
            "http://a/b",
            "/a?b",
            "/a#b",
            "/a/*",
            "/{id}",
            "/a b",
            "/é",
            "*",
        ] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }
}
