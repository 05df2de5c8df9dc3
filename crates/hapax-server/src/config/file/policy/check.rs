//! Checks a policy for contradictions.

use hapax::core::policy::{KeySource, PolicyError};
use hapax::{KeyRule, Mode, Policy};

use super::super::section::Section;
use crate::config::settings::ROUTES;
use crate::config::{Timeouts, text};

/// Reports contradictions. If two settings contradict each other, one from the defaults yields to
/// one of this route. Returns the settings that the policy itself refuses.
pub(super) fn contradictions(
    section: &Section<'_>,
    policy: &mut Policy,
    timeouts: &Timeouts,
) -> Vec<&'static str> {
    keys(section, policy);
    answers(section, policy);
    if policy.shadow && policy.fail_open {
        give_way(
            section,
            "fail_open",
            "shadow",
            &mut policy.fail_open,
            "a route that only watches lets everything through anyhow",
        );
    }
    if policy.fail_open && matches!(policy.mode, Mode::Transaction | Mode::Fenced | Mode::Probe) {
        let why =
            "all that the mode promises rests on a fence, and without the store there is none";
        give_way(section, "fail_open", "mode", &mut policy.fail_open, why);
    }
    let mistakes = policy.mistakes();
    if !mistakes.is_empty() {
        return mistakes
            .iter()
            .flat_map(|error| {
                let message = worded(error);
                let blamed = blamed(&message);
                section.mistake(&blamed, message);
                blamed
            })
            .collect();
    }
    if policy.longest_attempt <= timeouts.connect {
        let (longest, connect) = (
            text::spelled(policy.longest_attempt),
            text::spelled(timeouts.connect),
        );
        section.mistake(
            &["longest_attempt"],
            format!("`longest_attempt` ({longest}) could be over before the upstream is reached: lengthen it, or shorten `connect` in [timeouts] ({connect})"),
        );
    }
    Vec::new()
}

fn give_way<T: Default>(
    section: &Section<'_>,
    weaker: &'static str,
    stronger: &str,
    value: &mut T,
    why: &str,
) {
    if section.says(weaker) {
        section.mistake(
            &[weaker, stronger],
            format!("`{weaker}` does nothing beside `{stronger}`: {why}: leave one out"),
        );
    }
    section.report_ignored(weaker, why);
    *value = T::default();
}

/// Reports settings that have no effect because of another one.
fn are_idle(section: &Section<'_>, settings: &[&str], other: &str, message: &str, why: &str) {
    for name in settings {
        if section.says(name) {
            section.mistake(&[name, other], format!("`{name}` is about {message}"));
        }
        section.report_ignored(name, why);
    }
}

fn keys(section: &Section<'_>, policy: &mut Policy) {
    if policy.key == KeyRule::Off {
        are_idle(
            section,
            &[
                "key_field",
                "key_from",
                "strict_key",
                "key_bits_min",
                "velocity",
                "shadow",
            ],
            "key",
            "keys, and key = \"off\" ignores them: leave it out, or write key = \"optional\"",
            "key is off",
        );
        policy.shadow = false;
    }
    if policy.strict_key && policy.key_source != KeySource::Field {
        give_way(
            section,
            "strict_key",
            "key_from",
            &mut policy.strict_key,
            "only a key in a header field can be quoted",
        );
    }
    if policy.key_bits_min > 0 && matches!(policy.key_source, KeySource::Derived(_)) {
        give_way(
            section,
            "key_bits_min",
            "key_from",
            &mut policy.key_bits_min,
            "nobody chooses a derived key",
        );
    }
}

fn answers(section: &Section<'_>, policy: &Policy) {
    if !policy.keep_answers {
        are_idle(
            section,
            &[
                "answer_bytes_max",
                "answer_version",
                "replay_cookies",
                "keep_close_delimited",
            ],
            "keep_answers",
            "answers that are kept, and keep_answers = false keeps none: leave one out",
            "no answers are kept",
        );
    }
}

/// The settings that an error names, in its order.
fn blamed(error: &str) -> Vec<&'static str> {
    let named = error.split('`').skip(1).step_by(2);
    named
        .filter_map(|name| ROUTES.find_name(name.split('.').next().unwrap_or_default()))
        .collect()
}

/// An error of the policy, with the names that the file uses for its settings.
fn worded(error: &PolicyError) -> String {
    format!("{error}{}", fix(error))
        .replace("`methods`", "`method`")
        .replace("`key_source`", "`key_from`")
}

/// Advice on what to do, if the error itself gives none.
fn fix(error: &PolicyError) -> &'static str {
    match error {
        PolicyError::LeaseTooShort => ": write at least \"1ms\", or better \"10s\"",
        PolicyError::Wait { .. } => ": shorten `wait` or lengthen `wait_max`",
        PolicyError::KeyField(_) => ": write \"idempotency-key\", for example",
        PolicyError::MemoryOverBody { .. } => ": lower it, or leave it out",
        PolicyError::Zero(_) => "; leave it out for the default",
        PolicyError::TooLong(_) => ": shorten it",
        PolicyError::DerivedRetention(_) => ": shorten it, or leave it out for \"5m\"",
        PolicyError::DerivedTombstone(_) => ": write \"0s\", or leave it out",
        _ => "",
    }
}
