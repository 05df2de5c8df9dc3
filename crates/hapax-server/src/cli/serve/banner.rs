//! The message at the start of `hapax serve`: what it guards, what that promises, and what it does
//! not guard.

use std::fmt::Write;
use std::net::SocketAddr;

use hapax::core::outcome::classify;
use hapax::{KeyRule, Mode};

use crate::config::text::spelled;
use crate::config::{Config, PrincipalSource, PrincipalSources, Route, StoreUrl};

pub(super) fn banner(config: &Config, address: SocketAddr, admin: Option<SocketAddr>) -> String {
    let routes = config.all_routes();
    let clients = clients(config, address);
    let mut text = format!(
        "hapax {} makes retries harmless\n\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut line = |name: &str, value: &str| {
        writeln!(text, "  {name:<10} {value}").expect("text can always be written to");
    };
    line("clients", &clients);
    line(
        "upstream",
        config.upstream.url.to_string().trim_end_matches('/'),
    );
    line("store", &store(&config.store));
    if let Some(cache) = &config.cache {
        line("cache", &format!("{cache}, for repeats; Postgres decides"));
    }
    line("principal", &principal(&config.principal));
    for route in &config.routes {
        if let Some(own) = route
            .principal
            .as_ref()
            .filter(|own| **own != config.principal)
        {
            line("", &format!("on {}: {}", route.name, principal(own)));
        }
    }
    line("operators", &operators(admin));
    text += "\nRoutes, the first that matches counts\n";
    text += &table(&routes);
    text += "\nWhat a key gets\n";
    let is_guarded = |route: &&Route| route.policy.key != KeyRule::Off;
    let is_promised = |mode: &Mode| {
        routes
            .iter()
            .filter(is_guarded)
            .any(|route| route.policy.mode == *mode && !route.policy.shadow)
    };
    let mut promises: Vec<(&str, &[&str])> = Mode::ALL
        .into_iter()
        .filter(is_promised)
        .map(|mode| (mode.word(), promise(mode)))
        .collect();
    if routes
        .iter()
        .filter(is_guarded)
        .any(|route| route.policy.shadow)
    {
        promises.push(("shadow", SHADOW));
    }
    text += &explained(&promises);
    if matches!(config.store, StoreUrl::Redis(_)) {
        text += BEST_EFFORT;
    }
    text += "\nNot guarded, and passed on as it is\n";
    text += "  Requests without a key, unless their route requires one; methods other than POST and PATCH, unless a route names them;\n";
    text += "  routes whose key is off.\n";
    text += "\nLook\n";
    text += &format!("  {clients}/.well-known/idempotency\n");
    if let Some(flags) = keys_flags(config, admin) {
        text += &format!("  hapax keys list --state unknown{flags}\n");
    }
    text + "\n"
}

/// The URL for clients.
pub(super) fn clients(config: &Config, address: SocketAddr) -> String {
    format!(
        "{}://{address}",
        if config.tls.is_some() {
            "https"
        } else {
            "http"
        }
    )
}

/// A short description of a route, where there is no space for a table.
pub(super) fn in_words(route: &Route) -> String {
    let [name, mode, key, ..] = row(route);
    if route.policy.key == KeyRule::Off {
        format!("{name}: not guarded")
    } else {
        format!("{name}: {mode}, key {key}")
    }
}

fn store(store: &StoreUrl) -> String {
    match store {
        StoreUrl::Sqlite(_) => format!("{store}, on the disk before anybody is told"),
        StoreUrl::Postgres(_) => {
            format!("{store}, committed before anybody is told; other nodes may share it")
        }
        StoreUrl::Redis(_) => {
            format!(
                "{store}, best effort: what Redis loses in a crash or a failover may run again; other nodes may share it"
            )
        }
        StoreUrl::Memory => {
            format!("{store} FORGETS EVERYTHING when this process ends: only for trying things out")
        }
    }
}

fn principal(principal: &PrincipalSources) -> String {
    match principal.first() {
        PrincipalSource::Digest(field) => format!(
            "{principal}: callers are told apart by a digest of {field}, unchecked: a refreshed token is a new caller; use jwt:CLAIM for those"
        ),
        PrincipalSource::Cookie(_) => {
            format!(
                "{principal}: a replay needs the same cookie; whether its session is still valid is not checked"
            )
        }
        PrincipalSource::Header(_) => {
            format!("{principal}: as trusted_proxies say; from anybody else the field is taken off")
        }
        PrincipalSource::Jwt(_) => {
            format!("{principal}: a replay needs a token of the same caller that is good now")
        }
        PrincipalSource::ForwardAuth(_) => {
            format!("{principal}: asked anew for every guarded request, replays too")
        }
        PrincipalSource::StandardWebhooks(_) => {
            format!("{principal}: webhooks of this sender, each with a good signature")
        }
        PrincipalSource::None => {
            format!("{principal}: all callers are one, and whoever knows a key gets its answer")
        }
    }
}

fn operators(admin: Option<SocketAddr>) -> String {
    match admin {
        Some(admin) => format!("http://{admin}/readyz, /healthz, /metrics"),
        None => "off".to_owned(),
    }
}

/// What a store limits all promises by.
const BEST_EFFORT: &str = "  All of this only for as long as Redis keeps the record: a key whose record it loses is a new key, and runs again.\n";

const SHADOW: &[&str] = &[
    "Nothing yet. Every request is passed on as it came, and what would have been replayed or refused is counted:",
    "see hapax_shadow_total in the metrics.",
];

fn promise(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Transaction => &[
            "One effect if it is completed, else none, because the service completes the record in the transaction of its effect.",
            "After a lost attempt a repeat runs again, and the lost one can commit no more.",
        ],
        Mode::Fenced => &[
            "At most one effect, because the service keeps fence, mark and answer for each operation, and refuses lower fences.",
            "After a lost attempt a repeat is sent again with a higher fence.",
        ],
        Mode::Probe => &[
            "At most one effect, because after a lost attempt the service is asked what became of it, and bars it.",
            "If it does not know, the key is held as unknown and the next repeat asks again.",
        ],
        Mode::Rerun => &[
            "One effect or more. After a lost attempt a repeat runs again, because you said the service is itself idempotent.",
        ],
        _ => &[
            "At most one dispatch, unless the service itself says that nothing happened (401, 403, 425, 429, 503, Hapax-Outcome: none).",
            "An attempt that may have had its effect (500, timed out, cut off, killed) is held as unknown: nothing runs again until",
            "its answer comes late or somebody settles it.",
        ],
    }
}

/// Words in a column, with their meanings next to them.
fn explained(promises: &[(&str, &[&str])]) -> String {
    let width = promises
        .iter()
        .map(|(word, _)| word.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for (word, lines) in promises {
        for (index, line) in lines.iter().enumerate() {
            let word = if index == 0 { word } else { "" };
            text += &format!("  {word:<width$}  {line}\n");
        }
    }
    text
}

/// The routes as a table with aligned columns.
fn table(routes: &[Route]) -> String {
    let mut rows = vec![
        [
            "route", "mode", "key", "a 500", "replays", "then 410", "lease", "waits",
        ]
        .map(str::to_owned),
    ];
    rows.extend(routes.iter().map(row));
    let widths: [usize; 8] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text += &format!("  {}\n", cells.join("  ").trim_end());
    }
    text
}

fn row(route: &Route) -> [String; 8] {
    let policy = &route.policy;
    // Without methods, a route matches every request, but guards only these.
    let name = if route.methods.is_empty() {
        format!("POST|PATCH {}", route.pattern)
    } else {
        route.name.to_string()
    };
    if policy.key == KeyRule::Off {
        let none = || "-".to_owned();
        return [
            name,
            none(),
            policy.key.word().to_owned(),
            none(),
            none(),
            none(),
            none(),
            none(),
        ];
    }
    [
        name,
        if policy.shadow {
            "shadow"
        } else {
            policy.mode.word()
        }
        .to_owned(),
        policy.key.word().to_owned(),
        classify(500, policy).word().to_owned(),
        spelled(policy.retention),
        spelled(policy.tombstone),
        spelled(policy.lease),
        format!(
            "{}, up to {}",
            spelled(policy.wait),
            spelled(policy.wait_max)
        ),
    ]
}

/// The flags with which other commands find the same records; `None` if no command can.
fn keys_flags(config: &Config, admin: Option<SocketAddr>) -> Option<String> {
    let usual = Config::new(http::Uri::default());
    match (admin, &config.store) {
        (Some(_), _) if admin == usual.admin => Some(String::new()),
        (Some(admin), _) => Some(format!(" --admin http://{admin}")),
        (None, StoreUrl::Sqlite(_) | StoreUrl::Postgres(_) | StoreUrl::Redis(_)) => {
            Some(format!(" --store {}", config.store))
        }
        (None, StoreUrl::Memory) => None,
    }
}

#[cfg(test)]
mod tests {
    use hapax::Policy;

    use super::*;

    #[test]
    fn a_route_that_only_watches_says_so() {
        let mut config = Config::new("http://127.0.0.1:3000".parse().unwrap());
        let policy = Policy {
            shadow: true,
            ..Policy::default()
        };
        config.routes.push(Route::everywhere(policy));
        let text = banner(&config, ([127, 0, 0, 1], 4000).into(), None);
        assert!(
            text.contains("POST|PATCH /**  shadow  optional")
                && text.contains("shadow  Nothing yet."),
            "{text}"
        );
    }

    #[test]
    fn a_redis_is_shown_as_best_effort_and_without_its_password() {
        let mut config = Config::new("http://127.0.0.1:3000".parse().unwrap());
        config.store = "redis://:s3@cache".parse().unwrap();
        let text = banner(&config, ([127, 0, 0, 1], 4000).into(), None);
        assert!(
            text.contains("store      redis://:***@cache, best effort: ")
                && text.contains("for as long as Redis keeps the record")
                && text.contains("hapax keys list --state unknown --store redis://:***@cache"),
            "{text}"
        );
    }

    #[test]
    fn the_banner_says_what_is_promised_and_what_is_not() {
        let mut config = Config::new("http://127.0.0.1:3000".parse().unwrap());
        config.store = StoreUrl::Memory;
        let policy = Policy {
            mode: Mode::Rerun,
            key: KeyRule::Required,
            ..Policy::default()
        };
        let (pattern, methods) = ("/v1/mails".parse().unwrap(), vec![http::Method::POST]);
        config.routes.push(Route {
            name: "POST /v1/mails".into(),
            methods,
            pattern,
            ..Route::everywhere(policy)
        });
        let text = banner(
            &config,
            ([127, 0, 0, 1], 4000).into(),
            Some(([127, 0, 0, 1], 4009).into()),
        );
        assert_eq!(
            text,
            include_str!("banner.txt").replace("VERSION", env!("CARGO_PKG_VERSION"))
        );
    }
}
