//! `/.well-known/idempotency`: what each route promises, for clients that check whether their
//! retries comply.

use bytes::Bytes;
use hapax::{KeySource, Policy};
use serde::Serialize;

use crate::config::{Config, PrincipalSources, Route};

pub(crate) const PATH: &str = "/.well-known/idempotency";

#[derive(Serialize)]
struct Document<'a> {
    principal: String,
    /// In order: the first that matches applies.
    routes: Vec<Published<'a>>,
}

#[derive(Serialize)]
struct Published<'a> {
    methods: Vec<&'a str>,
    path: String,
    /// How callers are identified on this route, if it differs from the global setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<String>,
    key: &'static str,
    key_field: &'a str,
    /// Where the key is, if not in that field.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_from: Option<&'static str>,
    /// The route only counts, and promises nothing yet.
    #[serde(skip_serializing_if = "is_false")]
    shadow: bool,
    mode: &'static str,
    retention_seconds: u64,
    tombstone_seconds: u64,
    lease_seconds: f64,
    longest_attempt_seconds: f64,
    wait_seconds: f64,
    wait_max_seconds: f64,
    attempts_max: u32,
    request_bytes_max: u64,
    answer_bytes_max: usize,
}

pub(super) fn document<'a>(config: &Config, routes: impl Iterator<Item = &'a Route>) -> Bytes {
    let document = Document {
        principal: config.principal.published(),
        routes: routes.map(|route| published(config, route)).collect(),
    };
    let mut text = serde_json::to_vec_pretty(&document).expect("words and numbers are JSON");
    text.push(b'\n');
    text.into()
}

fn published<'a>(config: &Config, route: &'a Route) -> Published<'a> {
    let Policy {
        mode,
        key,
        key_field,
        methods,
        retention,
        tombstone,
        lease,
        longest_attempt,
        wait,
        wait_max,
        ..
    } = &route.policy;
    let methods = if route.methods.is_empty() {
        methods.iter().map(|method| &**method).collect()
    } else {
        route.methods.iter().map(http::Method::as_str).collect()
    };
    Published {
        methods,
        path: route.pattern.to_string(),
        principal: Some(config.principal_of(route))
            .filter(|own| **own != config.principal)
            .map(PrincipalSources::published),
        key: key.word(),
        key_field,
        key_from: key_from(&route.policy.key_source),
        shadow: route.policy.shadow,
        mode: mode.word(),
        retention_seconds: retention.as_secs(),
        tombstone_seconds: tombstone.as_secs(),
        lease_seconds: lease.as_secs_f64(),
        longest_attempt_seconds: longest_attempt.as_secs_f64(),
        wait_seconds: wait.as_secs_f64(),
        wait_max_seconds: wait_max.as_secs_f64(),
        attempts_max: route.policy.attempts_max,
        request_bytes_max: route.policy.body_bytes_max,
        answer_bytes_max: route.policy.answer_bytes_max,
    }
}

/// Only the kind: clients need not know the exact place in the body.
fn key_from(source: &KeySource) -> Option<&'static str> {
    match source {
        KeySource::Field => None,
        KeySource::Body(_) => Some("body"),
        KeySource::Derived(_) => Some("derived"),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde gives it")]
fn is_false(value: &bool) -> bool {
    !value
}
