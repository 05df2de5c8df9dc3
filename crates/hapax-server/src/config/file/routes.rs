//! The routes of the file, and what contradicts itself in or between them.

use std::str::FromStr;
use std::sync::Arc;

use hapax::core::policy::PolicyError;
use hapax::{KeyRule, Mode, Policy};
use http::{HeaderName, Method};
use toml::de::DeValue;

use super::section::Section;
use super::value::{duration, kind, memory_size, parsed, size, switch};
use crate::config::{Pattern, Route, Timeouts, text};
use crate::gateway::forward;

pub(super) fn routes(sections: &[Section<'_>], timeouts: &Timeouts) -> Vec<Route> {
    // The place of each is kept beside it: one that is not good must not shift those after it.
    let mut good: Vec<(&Section<'_>, Route)> = Vec::new();
    for section in sections {
        let Some(route) = route(section, timeouts) else { continue };
        if let Some((taker, takes)) = good.iter().rev().find(|(_, earlier)| takes_all(earlier, &route)) {
            section.mistake(
                &["path"],
                format!(
                    "no request gets here: `{}` in line {} takes them all: put this route before it, or remove it",
                    takes.name,
                    taker.line()
                ),
            );
        } else if is_taken(&good, &route) {
            section
                .mistake(&["path"], "no request gets here: the routes before it take them all: put this one first, or remove it");
        }
        good.push((section, route));
    }
    good.into_iter().map(|(_, route)| route).collect()
}

fn route(section: &Section<'_>, timeouts: &Timeouts) -> Option<Route> {
    if !section.has("path") {
        section.mistake(&[], "a route needs `path`: write path = \"/v1/charges\", or path = \"/**\" for every path");
    }
    let methods = section.get("method", methods);
    let policy = policy(section, methods.as_deref().unwrap_or_default());
    check(section, &policy, timeouts);
    let pattern = section.get("path", parsed(Pattern::from_str))?;
    if section.has("method") && methods.is_none() {
        return None;
    }
    let methods = methods.unwrap_or_default();
    Some(Route { name: name(&methods, &pattern), methods, pattern, policy })
}

fn name(methods: &[Method], pattern: &Pattern) -> Arc<str> {
    if methods.is_empty() {
        return pattern.to_string().into();
    }
    let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
    format!("{} {pattern}", methods.join("|")).into()
}

fn policy(section: &Section<'_>, methods: &[Method]) -> Policy {
    let mut policy = Policy::default();
    section.read("mode", &mut policy.mode, parsed(mode));
    section.read("key", &mut policy.key, parsed(key));
    section.read("key_field", &mut policy.key_field, parsed(key_field));
    section.read("retention", &mut policy.retention, duration);
    section.read("tombstone", &mut policy.tombstone, duration);
    section.read("lease", &mut policy.lease, duration);
    section.read("longest_attempt", &mut policy.longest_attempt, duration);
    section.read("wait", &mut policy.wait, duration);
    section.read("wait_max", &mut policy.wait_max, duration);
    section.read("strict", &mut policy.strict, switch);
    section.read("answer_bytes_max", &mut policy.answer_bytes_max, memory_size);
    section.read("body_bytes_max", &mut policy.body_bytes_max, size);
    // Only the whole is a setting: the part of it that is held in memory follows.
    let body = usize::try_from(policy.body_bytes_max).unwrap_or(usize::MAX);
    policy.body_memory_bytes_max = policy.body_memory_bytes_max.min(body);
    for method in methods.iter().map(Method::as_str) {
        if !policy.methods.iter().any(|guarded| **guarded == *method) {
            policy.methods.push(method.into());
        }
    }
    policy
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "hold" => Ok(Mode::Hold),
        "rerun" => Ok(Mode::Rerun),
        "transaction" | "fenced" | "probe" => Err(format!("mode `{text}` is not there yet: write \"hold\" or \"rerun\"")),
        _ => Err(format!("`{text}` is no mode: write \"hold\", or \"rerun\" if running twice is harmless")),
    }
}

fn key(text: &str) -> Result<KeyRule, String> {
    match text {
        "required" => Ok(KeyRule::Required),
        "optional" => Ok(KeyRule::Optional),
        "off" => Ok(KeyRule::Off),
        "issued" => Err("the gateway issues no keys yet: write \"required\", \"optional\" or \"off\"".to_owned()),
        _ => Err(format!("`{text}` is no rule for keys: write \"required\", \"optional\" or \"off\"")),
    }
}

fn methods(value: &DeValue<'_>) -> Result<Vec<Method>, String> {
    let list: Vec<&DeValue<'_>> = match value {
        DeValue::Array(list) => list.iter().map(|item| item.get_ref()).collect(),
        one => vec![one],
    };
    if list.is_empty() {
        return Err("a route without methods matches nothing: name one, or leave out `method`".to_owned());
    }
    let mut methods = Vec::new();
    for item in list {
        let DeValue::String(text) = item else {
            return Err(format!(
                "this must be a method in quotes or a list of them, as in [\"POST\", \"PATCH\"], and is {}",
                kind(item)
            ));
        };
        let method = method(text)?;
        if methods.contains(&method) {
            return Err(format!("`{method}` is there twice: leave one out"));
        }
        methods.push(method);
    }
    Ok(methods)
}

fn method(text: &str) -> Result<Method, String> {
    let upper = text.to_ascii_uppercase();
    match Method::from_bytes(text.as_bytes()) {
        Ok(Method::CONNECT) => Err("`CONNECT` opens a tunnel, and the gateway opens none: leave it out".to_owned()),
        Ok(method) if text == upper => Ok(method),
        Ok(_) => Err(format!("methods are sent in upper case: write \"{upper}\"")),
        Err(_) => Err(format!("`{text}` is no method: write \"POST\", for example")),
    }
}

fn check(section: &Section<'_>, policy: &Policy, timeouts: &Timeouts) {
    if let Err(error) = policy.validate() {
        let (settings, fix) = blame(&error);
        section.mistake(settings, format!("{error}{fix}"));
    } else if policy.longest_attempt <= timeouts.connect {
        let (longest, connect) = (text::spelled(policy.longest_attempt), text::spelled(timeouts.connect));
        section.mistake(
            &["longest_attempt"],
            format!("`longest_attempt` ({longest}) could be over before the upstream is reached: lengthen it, or shorten `connect` in [timeouts] ({connect})"),
        );
    }
}

const LEAVE_OUT: &str = "; leave it out for the default";

/// Which settings a contradiction is shown at, and what to do where the error does not say it.
fn blame(error: &PolicyError) -> (&'static [&'static str], &'static str) {
    match error {
        PolicyError::LeaseOverRetention { .. } => (&["lease", "retention"], ""),
        PolicyError::LeaseTooShort => (&["lease"], ": write at least \"1ms\", or better \"10s\""),
        PolicyError::Wait { .. } => (&["wait", "wait_max"], ": shorten `wait` or lengthen `wait_max`"),
        PolicyError::KeyField(_) => (&["key_field"], ": write \"idempotency-key\", for example"),
        PolicyError::Method(_) => (&["method"], ""),
        PolicyError::Zero("lease") => (&["lease"], LEAVE_OUT),
        PolicyError::Zero("retention") => (&["retention"], LEAVE_OUT),
        PolicyError::Zero("longest_attempt") => (&["longest_attempt"], LEAVE_OUT),
        PolicyError::Zero("body_bytes_max") => (&["body_bytes_max"], LEAVE_OUT),
        PolicyError::TooLong("lease") => (&["lease"], ": shorten it"),
        PolicyError::TooLong("retention") => (&["retention"], ": shorten it"),
        PolicyError::TooLong("tombstone") => (&["tombstone"], ": shorten it"),
        PolicyError::TooLong("longest_attempt") => (&["longest_attempt"], ": shorten it"),
        PolicyError::TooLong("wait_max") => (&["wait_max"], ": shorten it"),
        _ => (&[], ""),
    }
}

/// Whether an earlier route leaves nothing to a later one.
fn takes_all(earlier: &Route, later: &Route) -> bool {
    let methods = earlier.methods.is_empty()
        || (!later.methods.is_empty() && later.methods.iter().all(|method| earlier.methods.contains(method)));
    methods && earlier.pattern.covers(&later.pattern)
}

/// Whether earlier routes together leave nothing to this one: each of its methods is taken by one of them.
fn is_taken(earlier: &[(&Section<'_>, Route)], later: &Route) -> bool {
    let taken =
        |method: &Method| earlier.iter().any(|(_, route)| route.methods.contains(method) && route.pattern.covers(&later.pattern));
    !later.methods.is_empty() && later.methods.iter().all(taken)
}

/// A field that reaches the guard as it was sent. Whether it is one at all, the policy says.
fn key_field(text: &str) -> Result<Arc<str>, String> {
    match HeaderName::try_from(text) {
        Ok(name) if forward::is_ours(&name) => {
            Err(format!("`{text}` is a field that the gateway itself sets or takes off: no key can be in it"))
        }
        _ => Ok(text.into()),
    }
}
