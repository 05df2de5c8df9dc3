//! What a route promises, as it is written: read setting by setting, then held against itself
//! (`check.rs`).

mod check;
mod classes;
mod fingerprint;
mod key;
mod mode;

use std::sync::Arc;
use std::time::Duration;

use hapax::Policy;
use hapax::core::policy::{KeySource, Velocity};
use http::uri::PathAndQuery;

use super::names::VELOCITY;
use super::section::Section;
use super::value::{count, duration, parsed, size, switch};
use crate::config::{StoreUrl, Timeouts, text};

/// Two people may well mean two things with the same words: without a key of their own, for a short
/// time only.
const DERIVED_RETENTION: Duration = Duration::from_secs(5 * 60);

/// What the rest of the file says that a policy must fit to.
pub(super) struct Around<'a> {
    pub(super) timeouts: &'a Timeouts,
    /// Where records are kept; `None` where that could not be read.
    pub(super) store: Option<&'a StoreUrl>,
}

/// Reads the policy of a route or of `[defaults]`, and whom to ask after a lost attempt; notes what
/// contradicts itself.
pub(super) fn policy(section: &Section<'_>, around: &Around<'_>) -> (Policy, Option<PathAndQuery>) {
    let mut policy = Policy::default();
    section.read("mode", &mut policy.mode, parsed(mode::mode));
    section.read("shadow", &mut policy.shadow, switch);
    section.read(
        "naturally_idempotent",
        &mut policy.naturally_idempotent,
        switch,
    );
    section.read("fail_open", &mut policy.fail_open, switch);
    section.read("key", &mut policy.key, parsed(key::rule));
    section.read("key_field", &mut policy.key_field, parsed(key::field));
    section.read("key_from", &mut policy.key_source, parsed(key::source));
    section.read("strict_key", &mut policy.strict_key, switch);
    section.read("key_bits_min", &mut policy.key_bits_min, count);
    policy.fingerprint = Arc::new(fingerprint::read(section));
    lifetimes(section, &mut policy);
    section.read("lease", &mut policy.lease, duration);
    section.read("longest_attempt", &mut policy.longest_attempt, duration);
    section.read("wait", &mut policy.wait, duration);
    section.read("wait_max", &mut policy.wait_max, duration);
    section.read("store_timeout", &mut policy.store_timeout, duration);
    section.read("attempts_max", &mut policy.attempts_max, count);
    section.read("classes", &mut policy.classes, classes::read);
    section.read("keep_answers", &mut policy.keep_answers, switch);
    section.read("answer_bytes_max", &mut policy.answer_bytes_max, size);
    policy.answer_version = section.get("answer_version", parsed(answer_version));
    section.read("replay_cookies", &mut policy.replay_cookies, switch);
    section.read(
        "keep_close_delimited",
        &mut policy.keep_close_delimited,
        switch,
    );
    bodies(section, &mut policy);
    policy.velocity = velocity(section);
    let probe = mode::needs(section, &policy, around.store);
    check::contradictions(section, &mut policy, around.timeouts);
    (policy, probe)
}

/// A key that is derived lives shortly, unless this very route says how long: what all routes say
/// was not meant for it.
fn lifetimes(section: &Section<'_>, policy: &mut Policy) {
    let is_derived = matches!(policy.key_source, KeySource::Derived(_));
    if is_derived {
        (policy.retention, policy.tombstone) = (DERIVED_RETENTION, Duration::ZERO);
    }
    let is_meant = |name| section.says(name) || !is_derived || !section.says("key_from");
    for (name, lifetime) in [
        ("retention", &mut policy.retention),
        ("tombstone", &mut policy.tombstone),
    ] {
        if section.has(name) && is_meant(name) {
            section.read(name, lifetime, duration);
        } else {
            section.follows(
                name,
                text::spelled(*lifetime),
                if is_derived {
                    "default of a derived key"
                } else {
                    "default"
                },
            );
        }
    }
}

/// What is held in memory is a part of the whole.
fn bodies(section: &Section<'_>, policy: &mut Policy) {
    section.read("body_bytes_max", &mut policy.body_bytes_max, size);
    section.read(
        "body_memory_bytes_max",
        &mut policy.body_memory_bytes_max,
        size,
    );
    if !section.says("body_memory_bytes_max")
        && (section.says("body_bytes_max") || !section.has("body_memory_bytes_max"))
    {
        let body = usize::try_from(policy.body_bytes_max).unwrap_or(usize::MAX);
        let is_less = body < policy.body_memory_bytes_max;
        policy.body_memory_bytes_max = policy.body_memory_bytes_max.min(body);
        if is_less || !section.has("body_memory_bytes_max") {
            let bytes = text::spelled_size(policy.body_memory_bytes_max as u64);
            section.follows(
                "body_memory_bytes_max",
                bytes,
                if is_less {
                    "follows from body_bytes_max"
                } else {
                    "default"
                },
            );
        }
    }
}

fn answer_version(text: &str) -> Result<Arc<str>, String> {
    match text {
        "" => Err("a version has a name: write \"2\" or \"2025-01\", for example, or leave the setting out".to_owned()),
        _ if text.len() > 64 || !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err("a version is at most 64 letters, digits and signs without spaces: write \"2025-01\", for example".to_owned())
        }
        _ => Ok(text.into()),
    }
}

fn velocity(section: &Section<'_>) -> Vec<Velocity> {
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
            entry.get("keys", count),
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
