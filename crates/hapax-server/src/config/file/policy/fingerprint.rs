//! Reads the fingerprint settings: when two requests count as the same.

use hapax::core::fingerprint::{BodyMode, FingerprintPolicy, Selection};

use super::super::section::Section;
use super::super::value::{parse_texts, parsed};
use super::key::{pointer, telling_field};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Auto,
    Raw,
    Json,
    Multipart,
}

pub(crate) fn read(section: &Section<'_>) -> FingerprintPolicy {
    let word = section
        .get("fingerprint", parsed(word))
        .unwrap_or(Word::Auto);
    let selection = selection(section, word);
    let body = match word {
        Word::Auto => BodyMode::Auto,
        Word::Raw => BodyMode::Raw,
        Word::Json => BodyMode::Json(selection),
        Word::Multipart => BodyMode::Multipart,
    };
    let headers = section
        .get("fingerprint_headers", |value, _| {
            parse_texts("x-api-version", telling_field, value)
        })
        .unwrap_or_default();
    let mut policy = FingerprintPolicy::default();
    policy.body = body;
    headers
        .iter()
        .fold(policy, |policy, name| policy.with_header(name))
}

fn word(text: &str) -> Result<Word, String> {
    match text {
        "auto" => Ok(Word::Auto),
        "raw" => Ok(Word::Raw),
        "json" => Ok(Word::Json),
        "multipart" => Ok(Word::Multipart),
        _ => Err(format!(
            "`{text}` is no way to compare bodies: write \"auto\", \"raw\", \"json\" or \"multipart\""
        )),
    }
}

/// Which values count. A default for all routes is ignored on a route that compares bodies in
/// another way.
fn selection(section: &Section<'_>, word: Word) -> Selection {
    for name in ["fingerprint_omit", "fingerprint_only"] {
        if word != Word::Json && section.says(name) {
            let message = format!(
                "`{name}` names values of a JSON text: write fingerprint = \"json\" too, or leave it out"
            );
            section.mistake(&[name, "fingerprint"], message);
        }
    }
    let (omits, takes_only) = (
        section.says("fingerprint_omit"),
        section.says("fingerprint_only"),
    );
    if omits && takes_only {
        section.mistake(
            &["fingerprint_only", "fingerprint_omit"],
            "`fingerprint_only` leaves out everything else already: leave out `fingerprint_omit`, or name there what not to count instead",
        );
    }
    if word != Word::Json {
        return Selection::All;
    }
    let omit = || {
        section
            .get("fingerprint_omit", |value, _| {
                parse_texts("/sent_at", pointer, value)
            })
            .map(Selection::Omit)
    };
    let only = || {
        section
            .get("fingerprint_only", |value, _| {
                parse_texts("/amount", pointer, value)
            })
            .map(Selection::Only)
    };
    let selection = if omits { omit() } else { only().or_else(omit) };
    selection.unwrap_or(Selection::All)
}
