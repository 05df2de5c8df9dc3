//! Reads the mode of a route, and checks what the mode requires: records in the database of the
//! effects, or a path to probe.

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

/// Reads the path to probe, and reports settings that the mode lacks or does not use. `store` is
/// the store of the records, if known.
pub(super) fn needs(
    section: &Section<'_>,
    policy: &Policy,
    store: Option<&StoreUrl>,
) -> Option<PathAndQuery> {
    let probe = section.get("probe", parsed(path));
    // If the mode could not be read, nothing is reported about what a mode needs.
    if section.has("mode") && section.get("mode", parsed(mode)).is_none() {
        return None;
    }
    if let (
        Mode::Transaction,
        Some(store @ (StoreUrl::Sqlite(_) | StoreUrl::Redis(_) | StoreUrl::Memory)),
    ) = (policy.mode, store)
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
