//! Reads the routes of the file, and checks them for contradictions with each other.

use std::str::FromStr;
use std::sync::Arc;

use http::Method;
use toml::de::DeValue;

use super::policy::{self, Around};
use super::principals;
use super::section::Section;
use super::value::{kind, parsed};
use crate::config::settings::Kind;
use crate::config::{Pattern, Route};

pub(super) fn routes(sections: &[Section<'_>], around: &Around<'_>) -> Vec<Route> {
    // The section of each route is kept with it: a bad route must not shift those after it.
    let mut good: Vec<(&Section<'_>, Route)> = Vec::new();
    for section in sections {
        let Some(route) = route(section, around) else {
            continue;
        };
        if let Some((taker, takes)) = good
            .iter()
            .rev()
            .find(|(_, earlier)| takes_all(earlier, &route))
        {
            let place = taker.line().map_or_else(
                || format!("of {}", taker.words()),
                |line| format!("in line {line}"),
            );
            section.mistake(
                &["path"],
                format!("no request gets here: `{}` {place} takes them all: put this route before it, or remove it", takes.name),
            );
        } else if is_taken(&good, &route) {
            section
                .mistake(&["path"], "no request gets here: the routes before it take them all: put this one first, or remove it");
        }
        if let Some((other, _)) = good
            .iter()
            .find(|(_, earlier)| earlier.name == route.name && section.has("name"))
        {
            let place = other.words();
            section.mistake(
                &["name"],
                format!(
                    "`{}` is the name of the route in {place} already: give this one another",
                    route.name
                ),
            );
        }
        good.push((section, route));
    }
    good.into_iter().map(|(_, route)| route).collect()
}

fn route(section: &Section<'_>, around: &Around<'_>) -> Option<Route> {
    if !section.has("path") && section.is_present() {
        section.mistake(
            &[],
            "a route needs `path`: write path = \"/v1/charges\", or path = \"/**\" for every path",
        );
    }
    let methods = section.get("method", methods);
    let (mut policy, probe) = policy::policy(section, around);
    // Everything is read before giving up, so that all mistakes are reported at once.
    let pattern = section.get("path", parsed(Pattern::from_str));
    let name = section.get("name", parsed(name));
    let principal = section.get("principal", principals::sources);
    let pattern = pattern?;
    if section.has("method") && methods.is_none() {
        return None;
    }
    let methods = methods.unwrap_or_default();
    for method in methods.iter().map(Method::as_str) {
        if !policy.methods.iter().any(|guarded| **guarded == *method) {
            policy.methods.push(method.into());
        }
    }
    let name = name.unwrap_or_else(|| described(&methods, &pattern));
    Some(Route {
        name,
        methods,
        pattern,
        policy,
        probe,
        principal,
    })
}

/// A name that is valid in metrics and on a command line without quoting.
fn name(text: &str) -> Result<Arc<str>, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match text {
        "" => Err("a name has letters: write \"charges\", for example, or leave the setting out".to_owned()),
        "default" => Err("`default` is the route that stands unwritten after the last: choose another name".to_owned()),
        _ if text.len() > 64 || !text.bytes().all(is_plain) => {
            Err("a name is at most 64 letters, digits, `.`, `_` and `-`: write \"charges\", for example".to_owned())
        }
        _ => Ok(text.into()),
    }
}

/// The name of a route that has none.
fn described(methods: &[Method], pattern: &Pattern) -> Arc<str> {
    if methods.is_empty() {
        return pattern.to_string().into();
    }
    let methods: Vec<&str> = methods.iter().map(Method::as_str).collect();
    format!("{} {pattern}", methods.join("|")).into()
}

fn methods(value: &DeValue<'_>, _: Kind) -> Result<Vec<Method>, String> {
    let list: Vec<&DeValue<'_>> = match value {
        DeValue::Array(list) => list.iter().map(|item| item.get_ref()).collect(),
        one => vec![one],
    };
    if list.is_empty() {
        return Err(
            "a route without methods matches nothing: name one, or leave out `method`".to_owned(),
        );
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
        Ok(Method::CONNECT) => {
            Err("`CONNECT` opens a tunnel, and the gateway opens none: leave it out".to_owned())
        }
        Ok(method) if text == upper => Ok(method),
        Ok(_) => Err(format!("methods are sent in upper case: write \"{upper}\"")),
        Err(_) => Err(format!(
            "`{text}` is no method: write \"POST\", for example"
        )),
    }
}

/// Whether an earlier route matches every request of a later one.
fn takes_all(earlier: &Route, later: &Route) -> bool {
    let methods = earlier.methods.is_empty()
        || (!later.methods.is_empty()
            && later
                .methods
                .iter()
                .all(|method| earlier.methods.contains(method)));
    methods && earlier.pattern.covers(&later.pattern)
}

/// Whether earlier routes together match every request of this one: for each of its methods, one of
/// them does.
fn is_taken(earlier: &[(&Section<'_>, Route)], later: &Route) -> bool {
    let taken = |method: &Method| {
        earlier.iter().any(|(_, route)| {
            route.methods.contains(method) && route.pattern.covers(&later.pattern)
        })
    };
    !later.methods.is_empty() && later.methods.iter().all(taken)
}
