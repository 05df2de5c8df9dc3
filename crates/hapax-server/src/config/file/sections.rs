//! The sections that are about the gateway itself, and not about a route or who is asking.

use std::str::FromStr;

use hapax_testkit::contract::NAMESPACE;

use super::Overrides;
use super::section::{Context, Section};
use super::value::{count, duration, parsed, size};
use crate::config::{Drain, Limits, Protocol, Route, Timeouts, Tls, Upstream, text};

pub(super) fn namespace(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a namespace has a name: write \"default\", or leave the setting out".to_owned()),
        _ if text.starts_with("shadow:") => {
            Err("namespaces that begin with `shadow:` are where routes that only watch note things: choose another beginning"
                .to_owned())
        }
        _ if text.starts_with(NAMESPACE) => {
            Err(format!("namespaces that begin with `{NAMESPACE}` are where `hapax store check` works: choose another beginning"))
        }
        _ if text.len() > 255 || text.chars().any(char::is_control) => {
            Err("a namespace is one line of at most 255 bytes: shorten it, and leave out control characters".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

pub(super) fn upstream(
    section: &Section<'_>,
    overrides: &Overrides,
    context: &Context<'_>,
) -> Upstream {
    let url = section.get("url", parsed(text::upstream_url));
    if url.is_none() && overrides.upstream.is_none() && !section.has("url") {
        section.mistake(
            &[],
            "no upstream: give --upstream http://127.0.0.1:3000, `url` in [upstream] of the configuration, or HAPAX__UPSTREAM__URL",
        );
    }
    if let Some(url) = &overrides.upstream {
        context.ledger.flag(
            "upstream",
            "url",
            "--upstream",
            url.to_string().trim_end_matches('/').to_owned(),
        );
    }
    let mut upstream = Upstream::new(overrides.upstream.clone().or(url).unwrap_or_default());
    section.read(
        "protocol",
        &mut upstream.protocol,
        parsed(Protocol::from_str),
    );
    section.read("connections_max", &mut upstream.connections_max, count);
    upstream.unguarded_per_peer_max =
        part_of_connections(section, "unguarded_per_peer_max", upstream.connections_max);
    upstream.tunnels_max = part_of_connections(section, "tunnels_max", upstream.connections_max);
    section.read("idle_max", &mut upstream.idle_max, duration);
    section.read("reuse_max", &mut upstream.reuse_max, duration);
    upstream.ca_file = section.file("ca_file");
    if upstream.ca_file.is_some() && upstream.url.scheme_str() == Some("http") {
        section.mistake(
            &["ca_file"],
            "`ca_file` is for an upstream with https, and this one has http: leave it out, or write https in `url`",
        );
    }
    if section.has("reuse_max") && upstream.reuse_max > upstream.idle_max {
        let (reuse, idle) = (
            text::spelled(upstream.reuse_max),
            text::spelled(upstream.idle_max),
        );
        section.mistake(
            &["reuse_max"],
            format!("`reuse_max` ({reuse}) is over `idle_max` ({idle}), and no connection is kept for longer: shorten it"),
        );
    }
    if !section.has("reuse_max") && upstream.reuse_max > upstream.idle_max {
        section.follows(
            "reuse_max",
            text::spelled(upstream.idle_max),
            "follows from idle_max",
        );
    }
    upstream.reuse_max = upstream.reuse_max.min(upstream.idle_max);
    upstream
}

/// A number of connections that is a part of all.
fn part_of_connections(
    section: &Section<'_>,
    name: &'static str,
    connections_max: usize,
) -> Option<usize> {
    let part: Option<usize> = section.get(name, count);
    if let Some(part) = part.filter(|part| *part > connections_max) {
        section.mistake(
            &[name],
            format!("`{name}` ({part}) is over `connections_max` ({connections_max}): lower it, or raise the other"),
        );
    }
    part
}

pub(super) fn tls(section: &Section<'_>) -> Option<Tls> {
    for (needed, given) in [("certificate", "key"), ("key", "certificate")] {
        if section.is_present() && !section.has(needed) {
            section.mistake(&[given], format!("[tls] lacks `{needed}`: write {needed} = \"{needed}.pem\", or remove the section"));
        }
    }
    let (certificate, key) = (section.file("certificate"), section.file("key"));
    Some(Tls {
        certificate: certificate?,
        key: key?,
    })
}

pub(super) fn timeouts(section: &Section<'_>) -> Timeouts {
    let mut timeouts = Timeouts::default();
    section.read("first_byte", &mut timeouts.first_byte, duration);
    section.read("handshake", &mut timeouts.handshake, duration);
    section.read("header", &mut timeouts.header, duration);
    section.read("keep_alive", &mut timeouts.keep_alive, duration);
    section.read("stall", &mut timeouts.stall, duration);
    section.read("connect", &mut timeouts.connect, duration);
    section.read("answer", &mut timeouts.answer, duration);
    section.read("tunnel_idle", &mut timeouts.tunnel_idle, duration);
    if timeouts.answer < timeouts.connect {
        let (answer, connect) = (
            text::spelled(timeouts.answer),
            text::spelled(timeouts.connect),
        );
        section.mistake(
            &["answer", "connect"],
            format!("`answer` ({answer}) is under `connect` ({connect}): a service that takes so long to be reached cannot answer sooner; lengthen `answer` or shorten `connect`"),
        );
    }
    timeouts
}

pub(super) fn limits(section: &Section<'_>) -> Limits {
    let mut limits = Limits::default();
    section.read("connections_max", &mut limits.connections_max, count);
    section.read(
        "silent_connections_max",
        &mut limits.silent_connections_max,
        count,
    );
    section.read("header_bytes_max", &mut limits.header_bytes_max, size);
    section.read("header_fields_max", &mut limits.header_fields_max, count);
    section.read("streams_max", &mut limits.streams_max, count);
    section.read("attempts_max", &mut limits.attempts_max, count);
    section.read("rate_min", &mut limits.rate_min, size);
    limits.records_per_principal_max = section.get("records_per_principal_max", count);
    limits.bytes_per_principal_max = section.get("bytes_per_principal_max", size);
    section.read("records_max", &mut limits.records_max, count);
    section.read(
        "refused_records_max",
        &mut limits.refused_records_max,
        count,
    );
    section.read(
        "velocity_entries_max",
        &mut limits.velocity_entries_max,
        count,
    );
    section.read(
        "buffered_memory_bytes_max",
        &mut limits.buffered_memory_bytes_max,
        size,
    );
    limits.buffered_memory_bytes_per_peer_max =
        section.get("buffered_memory_bytes_per_peer_max", size);
    section.read(
        "buffered_disk_bytes_max",
        &mut limits.buffered_disk_bytes_max,
        size,
    );
    limits.buffered_disk_bytes_per_peer_max = section.get("buffered_disk_bytes_per_peer_max", size);
    let memory = (
        "buffered_memory_bytes_per_peer_max",
        "buffered_memory_bytes_max",
    );
    share_of_buffer(
        section,
        memory,
        limits.memory_share(),
        limits.buffered_memory_bytes_max,
    );
    let disk = (
        "buffered_disk_bytes_per_peer_max",
        "buffered_disk_bytes_max",
    );
    share_of_buffer(
        section,
        disk,
        limits.disk_share(),
        limits.buffered_disk_bytes_max,
    );
    if section.has("silent_connections_max")
        && limits.silent_connections_max > limits.connections_max
    {
        let (silent, all) = (limits.silent_connections_max, limits.connections_max);
        section.mistake(
            &["silent_connections_max"],
            format!("`silent_connections_max` ({silent}) is over `connections_max` ({all}): lower it, or raise the other"),
        );
    }
    limits.silent_connections_max = limits.silent_connections_max.min(limits.connections_max);
    if !section.has("silent_connections_max") {
        let silent = i64::try_from(limits.silent_connections_max).unwrap_or(i64::MAX);
        let is_less = silent < 4_096;
        section.follows(
            "silent_connections_max",
            silent,
            if is_less {
                "follows from connections_max"
            } else {
                "default"
            },
        );
    }
    limits
}

/// What one peer may have of a budget.
fn share_of_buffer(
    section: &Section<'_>,
    (name, total_name): (&'static str, &'static str),
    share: u64,
    total: u64,
) {
    if share > total {
        let (share, total) = (text::spelled_size(share), text::spelled_size(total));
        section.mistake(
            &[name, total_name],
            format!(
                "`{name}` ({share}) is over `{total_name}` ({total}): lower it, or raise the other"
            ),
        );
    }
}

/// Notes routes that take bodies which no peer has room for.
pub(super) fn bodies_fit(section: &Section<'_>, routes: &[Route], limits: &Limits) {
    for Route {
        name: route,
        policy,
        ..
    } in routes
    {
        let memory = (policy.body_memory_bytes_max as u64, "body_memory_bytes_max");
        let disk = (policy.body_bytes_max, "body_bytes_max");
        for ((body, body_name), share, [name, total_name]) in [
            (
                memory,
                limits.memory_share(),
                [
                    "buffered_memory_bytes_per_peer_max",
                    "buffered_memory_bytes_max",
                ],
            ),
            (
                disk,
                limits.disk_share(),
                [
                    "buffered_disk_bytes_per_peer_max",
                    "buffered_disk_bytes_max",
                ],
            ),
        ] {
            if body > share {
                let (body, share) = (text::spelled_size(body), text::spelled_size(share));
                section.mistake(
                    &[name, total_name],
                    format!("`{body_name}` of the route {route} is {body}, and one client address has room for {share}, so that such a body could never be held: raise `{name}` in [limits], or lower `{body_name}`"),
                );
                return;
            }
        }
    }
}

pub(super) fn drain(section: &Section<'_>) -> Drain {
    let mut drain = Drain::default();
    section.read("notice", &mut drain.notice, duration);
    section.read("deadline", &mut drain.deadline, duration);
    drain
}
