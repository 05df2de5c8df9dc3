//! Reads the sections about the gateway itself, and checks them for contradictions.

use hapax_contract::NAMESPACE;

use super::Overrides;
use super::section::Section;
use crate::config::settings::Settings;
use crate::config::{Config, Limits, OnUnknown, Route, Timeouts, Tls, Upstream, text};

pub(crate) fn namespace(text: &str) -> Result<String, String> {
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

/// Reports settings that the store needs or does not have.
pub(super) fn store(top: &Section<'_>, config: &Config, overrides: &Overrides) {
    for (setting, mistake) in config.store_mistakes() {
        // A durability that was refused as a mistake still counts as said.
        if setting == "store" && top.has("durability") {
            continue;
        }
        if setting == "store" && overrides.store.is_some() {
            top.mistake_nowhere(mistake);
        } else {
            top.mistake(&[setting], mistake);
        }
    }
}

pub(super) fn upstream(section: &Section<'_>, overrides: &Overrides) -> Upstream {
    let mut upstream = Upstream::read(Some(section));
    if let Some(url) = &overrides.upstream {
        upstream.url = url.clone();
        let shown = url.to_string().trim_end_matches('/').to_owned();
        section.report_flag("url", "--upstream", shown);
    } else if !section.has("url") {
        section.mistake(
            &[],
            "no upstream: give --upstream http://127.0.0.1:3000, `url` in [upstream] of the \
             configuration, or HAPAX__UPSTREAM__URL",
        );
    }
    for (name, part) in [
        ("unguarded_per_peer_max", upstream.unguarded_per_peer_max),
        ("tunnels_max", upstream.tunnels_max),
    ] {
        let part = part.unwrap_or_default() as u64;
        let whole = ("connections_max", upstream.connections_max as u64);
        is_part(section, (name, part), whole, |count| count.to_string());
    }
    if upstream.ca_file.is_some() && upstream.url.scheme_str() == Some("http") {
        section.mistake(
            &["ca_file"],
            "`ca_file` is for an upstream with https, and this one has http: leave it out, or \
             write https in `url`",
        );
    }
    let (reuse, idle) = (upstream.reuse_max, upstream.idle_max);
    if reuse > idle {
        let (reuse, idle) = (text::spelled(reuse), text::spelled(idle));
        if section.has("reuse_max") {
            section.mistake(
                &["reuse_max"],
                format!(
                    "`reuse_max` ({reuse}) is over `idle_max` ({idle}), and no connection is kept \
                     for longer: shorten it"
                ),
            );
        } else {
            section.report_follows("reuse_max", idle, "follows from idle_max");
        }
    }
    upstream.reuse_max = reuse.min(idle);
    upstream
}

/// Reports a number that exceeds the whole it is a part of.
fn is_part(
    section: &Section<'_>,
    (name, part): (&str, u64),
    (whole_name, whole): (&str, u64),
    spell: fn(u64) -> String,
) {
    if part > whole {
        let (part, whole) = (spell(part), spell(whole));
        section.mistake(
            &[name, whole_name],
            format!(
                "`{name}` ({part}) is over `{whole_name}` ({whole}): lower it, or raise the other"
            ),
        );
    }
}

pub(super) fn tls(section: &Section<'_>) -> Option<Tls> {
    for (needed, other) in [("certificate", "key"), ("key", "certificate")] {
        if section.is_present() && !section.has(needed) {
            section.mistake(
                &[other],
                format!(
                    "[tls] lacks `{needed}`: write {needed} = \"{needed}.pem\", or remove the \
                     section"
                ),
            );
        }
    }
    section.is_present().then(|| Tls::read(Some(section)))
}

pub(super) fn on_unknown(section: &Section<'_>) -> Option<OnUnknown> {
    let lacks = |name: &str, write: &str| {
        if section.is_present() && !section.has(name) {
            section.mistake(&[], format!("[on_unknown] lacks `{name}`: write {write}"));
        }
    };
    lacks("url", "url = \"https://ops.internal/hooks/hapax\"");
    lacks(
        "secret_files",
        "secret_files = [\"/etc/hapax/webhook.secret\"], so that the receiver knows whom a request is from",
    );
    section.is_present().then(|| OnUnknown::read(Some(section)))
}

pub(super) fn timeouts(section: &Section<'_>) -> Timeouts {
    let timeouts = Timeouts::read(Some(section));
    if timeouts.answer < timeouts.connect {
        let (answer, connect) = (
            text::spelled(timeouts.answer),
            text::spelled(timeouts.connect),
        );
        section.mistake(
            &["answer", "connect"],
            format!(
                "`answer` ({answer}) is under `connect` ({connect}): a service that takes so long \
                 to be reached cannot answer sooner; lengthen `answer` or shorten `connect`"
            ),
        );
    }
    timeouts
}

pub(super) fn limits(section: &Section<'_>) -> Limits {
    let mut limits = Limits::read(Some(section));
    for (name, share, whole) in [
        (
            "buffered_memory_bytes_per_peer_max",
            limits.memory_share(),
            (
                "buffered_memory_bytes_max",
                limits.buffered_memory_bytes_max,
            ),
        ),
        (
            "buffered_disk_bytes_per_peer_max",
            limits.disk_share(),
            ("buffered_disk_bytes_max", limits.buffered_disk_bytes_max),
        ),
    ] {
        is_part(section, (name, share), whole, text::spelled_size);
    }
    let (silent, all) = (limits.silent_connections_max, limits.connections_max);
    if section.has("silent_connections_max") {
        let whole = ("connections_max", all as u64);
        let part = ("silent_connections_max", silent as u64);
        is_part(section, part, whole, |count| count.to_string());
    } else {
        let why = if silent > all {
            "follows from connections_max"
        } else {
            "default"
        };
        let counts = i64::try_from(silent.min(all)).unwrap_or(i64::MAX);
        section.report_follows("silent_connections_max", counts, why);
    }
    limits.silent_connections_max = silent.min(all);
    limits
}

/// Reports routes that accept bodies larger than the budget of one peer.
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
