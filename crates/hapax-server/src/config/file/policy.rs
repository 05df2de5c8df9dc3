//! Reads the policy of a route, setting by setting, then checks it for contradictions (`check.rs`).

mod check;
pub(crate) mod classes;
pub(crate) mod fingerprint;
pub(crate) mod key;
pub(crate) mod mode;

use std::sync::Arc;
use std::time::Duration;

use hapax::Policy;
use hapax::core::policy::{KeySource, Velocity};
use http::uri::PathAndQuery;

use super::section::Section;
use super::value::{duration, number, parsed};
use crate::config::settings::{Settings, VELOCITY};
use crate::config::{StoreUrl, Timeouts, text};

/// The retention of derived keys. Two callers may send the same content and mean two requests, so
/// it is short.
const DERIVED_RETENTION: Duration = Duration::from_secs(5 * 60);

/// The parts of the configuration that a policy must be consistent with.
pub(super) struct Around<'a> {
    pub(super) timeouts: &'a Timeouts,
    /// The store of the records; `None` if it could not be read.
    pub(super) store: Option<&'a StoreUrl>,
}

/// Reads the policy of a route or of `[defaults]`, and the path to probe after a lost attempt.
/// Reports contradictions.
pub(super) fn policy(section: &Section<'_>, around: &Around<'_>) -> (Policy, Option<PathAndQuery>) {
    let mut policy = Policy::read(Some(section));
    lifetimes(section, &mut policy);
    bodies(section, &mut policy);
    let probe = mode::needs(section, &policy, around.store);
    let blamed = check::contradictions(section, &mut policy, around.timeouts);
    if blamed.iter().any(|name| section.says(name)) {
        // A policy reports one contradiction at a time: without these settings it may have others.
        self::policy(&section.without(&blamed), around);
    }
    (policy, probe)
}

/// A derived key has a short life, unless this very route sets one: the defaults for all routes
/// were not meant for derived keys.
fn lifetimes(section: &Section<'_>, policy: &mut Policy) {
    let is_derived = matches!(policy.key_source, KeySource::Derived(_));
    let is_meant = |name| section.says(name) || !is_derived || !section.says("key_from");
    for (name, lifetime, derived) in [
        ("retention", &mut policy.retention, DERIVED_RETENTION),
        ("tombstone", &mut policy.tombstone, Duration::ZERO),
    ] {
        if section.has(name) && is_meant(name) {
            continue;
        }
        let mut why = "default";
        if is_derived {
            *lifetime = derived;
            why = "default of a derived key";
        }
        section.report_follows(name, text::spelled(*lifetime), why);
    }
}

/// The part of a body held in memory must not exceed the limit on the whole.
fn bodies(section: &Section<'_>, policy: &mut Policy) {
    let name = "body_memory_bytes_max";
    if section.says(name) || (section.has(name) && !section.says("body_bytes_max")) {
        return;
    }
    let body = usize::try_from(policy.body_bytes_max).unwrap_or(usize::MAX);
    let is_less = body < policy.body_memory_bytes_max;
    policy.body_memory_bytes_max = policy.body_memory_bytes_max.min(body);
    if is_less || !section.has(name) {
        let why = if is_less {
            "follows from body_bytes_max"
        } else {
            "default"
        };
        let bytes = text::spelled_size(policy.body_memory_bytes_max as u64);
        section.report_follows(name, bytes, why);
    }
}

pub(crate) fn answer_version(text: &str) -> Result<Option<Arc<str>>, String> {
    match text {
        "" => Err("a version has a name: write \"2\" or \"2025-01\", for example, or leave the setting out".to_owned()),
        _ if text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("a version is at most 64 letters, digits and signs without spaces: write \"2025-01\", for example".to_owned())
        }
        _ => Ok(Some(text.into())),
    }
}

pub(crate) fn velocity(section: &Section<'_>) -> Vec<Velocity> {
    let mut rules: Vec<Velocity> = Vec::new();
    let _ = section.get("velocity", |_, _| Ok(()));
    for entry in section.sections(&VELOCITY) {
        for (needed, example) in [
            ("by", "by = \"principal\""),
            ("keys", "keys = 100"),
            ("per", "per = \"1m\""),
        ] {
            if entry.is_present() && !entry.has(needed) {
                entry.mistake(
                    &[],
                    format!("a velocity needs `{needed}`: write {example}, for example"),
                );
            }
        }
        let (by, keys, per) = (
            entry.get("by", parsed(key::part)),
            entry
                .get("keys", number)
                .and_then(|keys| keys.try_into().ok()),
            entry.get("per", duration),
        );
        let (Some(by), Some(keys), Some(per)) = (by, keys, per) else {
            continue;
        };
        if rules.iter().any(|rule| rule.by == by && rule.per == per) {
            entry.mistake(
                &["by"],
                "the same is counted above for the same time: leave one of the two out",
            );
        }
        rules.push(Velocity { by, keys, per });
    }
    rules
}
