//! The settings of a route.

use hapax::{KeySource, Part, Policy, Velocity};

use crate::config::text::spelled;

/// Every setting of a policy and its value, as configuration spells them.
pub(super) fn settings(policy: &Policy) -> Vec<(&'static str, String)> {
    let Policy {
        mode,
        key,
        key_field,
        key_source,
        strict_key,
        key_bits_min,
        methods,
        fingerprint,
        retention,
        tombstone,
        lease,
        longest_attempt,
        attempts_max,
        wait,
        wait_max,
        classes,
        velocity,
        keep_answers,
        answer_version,
        answer_bytes_max,
        replay_cookies,
        keep_close_delimited,
        body_memory_bytes_max,
        body_bytes_max,
        store_timeout,
        naturally_idempotent,
        fail_open,
        shadow,
    } = policy;
    vec![
        ("mode", mode.word().to_owned()),
        ("key", key.word().to_owned()),
        ("key_field", key_field.to_string()),
        ("key_from", key_from(key_source)),
        ("strict_key", strict_key.to_string()),
        ("key_bits_min", key_bits_min.to_string()),
        ("method", methods.join(", ")),
        ("fingerprint", format!("{fingerprint:?}")),
        ("retention", spelled(*retention)),
        ("tombstone", spelled(*tombstone)),
        ("lease", spelled(*lease)),
        ("longest_attempt", spelled(*longest_attempt)),
        ("attempts_max", attempts_max.to_string()),
        ("wait", spelled(*wait)),
        ("wait_max", spelled(*wait_max)),
        ("classes", format!("{classes:?}")),
        (
            "velocity",
            velocity.iter().map(rate).collect::<Vec<_>>().join(", "),
        ),
        ("keep_answers", keep_answers.to_string()),
        (
            "answer_version",
            answer_version.as_deref().unwrap_or("none").to_owned(),
        ),
        ("answer_bytes_max", answer_bytes_max.to_string()),
        ("replay_cookies", replay_cookies.to_string()),
        ("keep_close_delimited", keep_close_delimited.to_string()),
        ("body_memory_bytes_max", body_memory_bytes_max.to_string()),
        ("body_bytes_max", body_bytes_max.to_string()),
        ("store_timeout", spelled(*store_timeout)),
        ("naturally_idempotent", naturally_idempotent.to_string()),
        ("fail_open", fail_open.to_string()),
        ("shadow", shadow.to_string()),
    ]
}

fn key_from(source: &KeySource) -> String {
    match source {
        KeySource::Field => "header".to_owned(),
        KeySource::Body(pointer) => format!("body:{pointer}"),
        KeySource::Derived(parts) => format!(
            "derived:{}",
            parts.iter().map(part).collect::<Vec<_>>().join(",")
        ),
    }
}

fn part(part: &Part) -> String {
    match part {
        Part::Principal => "principal".to_owned(),
        Part::Header(name) => format!("header:{name}"),
        Part::Body(pointer) => format!("body:{pointer}"),
    }
}

fn rate(Velocity { by, keys, per }: &Velocity) -> String {
    format!("{keys} in {} by {}", spelled(*per), part(by))
}
