//! How configuration files are read.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax::core::fingerprint::{BodyMode, Selection};
use hapax::core::outcome::Class;
use hapax::core::policy::{KeySource, Part, Velocity};
use hapax::{KeyRule, Mode};
use hapax_server::config::file::Overrides;
use hapax_server::config::{
    Config, Environment, PrincipalSource, PrincipalSources, Protocol, StoreUrl,
};

use crate::{directory, example, good, load, upstream};

#[test]
fn an_empty_file_is_all_defaults() {
    let config = good("");
    assert_eq!(config.listen.to_string(), "127.0.0.1:4000");
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:4001");
    assert_eq!(config.store, StoreUrl::Sqlite("hapax.db".into()));
    assert_eq!(config.principal, PrincipalSources::default());
    assert!(config.routes.is_empty());
    let defaults = Config::new(config.upstream.url.clone());
    assert_eq!(format!("{config:?}"), format!("{defaults:?}"));
}

#[test]
fn a_route_says_what_its_policy_is() {
    let config = good(
        r#"
        [[routes]]
        name = "charges"
        method = ["PUT", "POST"]
        path = "/v1/charges/{id}"
        mode = "rerun"
        key = "required"
        key_field = "X-Idempotency-Key"
        strict_key = true
        key_bits_min = 64
        fingerprint = "json"
        fingerprint_omit = ["/sent_at", "/items/*/seen"]
        fingerprint_headers = "X-Api-Version"
        retention = "48h"
        tombstone = "0s"
        lease = "500ms"
        longest_attempt = "1m"
        attempts_max = 7
        wait = "2s"
        wait_max = "3s"
        store_timeout = "250ms"
        classes = { "404" = "release", "500" = "keep", "5xx" = "unknown" }
        velocity = [{ by = "header:X-Merchant", keys = 100, per = "1m" }, { by = "body:/card", keys = 3, per = "1h" }]
        answer_bytes_max = "64KiB"
        answer_version = "2025-01"
        replay_cookies = true
        naturally_idempotent = true
        fail_open = true
        body_bytes_max = 1000
        "#,
    );
    let route = &config.routes[0];
    assert_eq!(&*route.name, "charges");
    assert!(
        route.matches(&http::Method::PUT, "/v1/charges/7")
            && !route.matches(&http::Method::PATCH, "/v1/charges/7")
    );
    let policy = &route.policy;
    assert!(policy.guards("PUT") && policy.guards("POST") && !policy.guards("GET"));
    assert_eq!(
        (policy.mode, policy.key, &*policy.key_field),
        (Mode::Rerun, KeyRule::Required, "X-Idempotency-Key")
    );
    assert_eq!(
        (policy.strict_key, policy.key_bits_min, policy.attempts_max),
        (true, 64, 7)
    );
    assert_eq!(
        (policy.retention, policy.tombstone),
        (Duration::from_secs(48 * 3600), Duration::ZERO)
    );
    assert_eq!(
        (policy.lease, policy.longest_attempt),
        (Duration::from_millis(500), Duration::from_secs(60))
    );
    assert_eq!(
        (policy.wait, policy.wait_max),
        (Duration::from_secs(2), Duration::from_secs(3))
    );
    assert_eq!(policy.store_timeout, Duration::from_millis(250));
    assert_eq!(
        (
            policy.answer_bytes_max,
            policy.body_bytes_max,
            policy.body_memory_bytes_max
        ),
        (64 << 10, 1_000, 1_000)
    );
    assert_eq!(
        (policy.answer_version.as_deref(), policy.replay_cookies),
        (Some("2025-01"), true)
    );
    assert!(
        policy.naturally_idempotent && policy.fail_open && policy.keep_answers && !policy.shadow
    );
    let omitted = Selection::Omit(vec![
        "/sent_at".parse().unwrap(),
        "/items/*/seen".parse().unwrap(),
    ]);
    assert_eq!(policy.fingerprint.body, BodyMode::Json(omitted));
    assert_eq!(
        policy.fingerprint.headers().collect::<Vec<_>>(),
        ["content-encoding", "content-type", "x-api-version"]
    );
    let mut classes: BTreeMap<u16, Class> =
        (501..600).map(|status| (status, Class::Unknown)).collect();
    classes.extend([(404, Class::Release), (500, Class::Keep)]);
    assert_eq!(policy.classes, classes, "a status goes before its hundred");
    let (merchant, card) = (
        Part::Header("x-merchant".into()),
        Part::Body("/card".parse().unwrap()),
    );
    assert_eq!(
        policy.velocity,
        [
            Velocity {
                by: merchant,
                keys: 100,
                per: Duration::from_secs(60)
            },
            Velocity {
                by: card,
                keys: 3,
                per: Duration::from_secs(3600)
            }
        ]
    );
}

#[test]
fn a_derived_key_lives_shortly() {
    let config = good(
        r#"
        [defaults]
        retention = "48h"
        strict_key = true
        key_bits_min = 64

        [[routes]]
        path = "/v1"
        key_from = "derived:header:X-Order, body:/amount, principal"

        [[routes]]
        path = "/v2"
        key_from = "derived:body:/amount"
        retention = "30s"

        [[routes]]
        path = "/v3"
        key_from = "body:/client~1token"
        "#,
    );
    let policy = |at: usize| &config.routes[at].policy;
    let parts = vec![
        Part::Header("x-order".into()),
        Part::Body("/amount".parse().unwrap()),
        Part::Principal,
    ];
    assert_eq!(policy(0).key_source, KeySource::Derived(parts));
    assert_eq!(
        (policy(0).retention, policy(0).tombstone),
        (Duration::from_secs(300), Duration::ZERO),
        "not what others say"
    );
    assert_eq!(
        (policy(0).strict_key, policy(0).key_bits_min),
        (false, 0),
        "what was said for keys that callers send"
    );
    assert_eq!(
        (policy(1).retention, policy(1).tombstone),
        (Duration::from_secs(30), Duration::ZERO)
    );
    assert_eq!(
        policy(2).key_source,
        KeySource::Body("/client~1token".parse().unwrap())
    );
    assert_eq!(
        (policy(2).retention, policy(2).key_bits_min),
        (Duration::from_secs(48 * 3600), 64)
    );
}

#[test]
fn defaults_are_for_every_route_that_does_not_say_otherwise() {
    let config = good(
        r#"
        [defaults]
        mode = "rerun"
        retention = "48h"
        fingerprint = "json"
        fingerprint_omit = "/sent_at"
        key_field = "X-Key"

        [[routes]]
        path = "/v1"
        retention = "1h"
        fingerprint = "raw"

        [[routes]]
        path = "/v2"
        fingerprint_only = "/amount"

        [[routes]]
        path = "/v3"
        key = "off"
        "#,
    );
    let [one, two, three] = [0, 1, 2].map(|at| &config.routes[at].policy);
    assert_eq!(
        (one.mode, one.retention, &one.fingerprint.body),
        (Mode::Rerun, Duration::from_secs(3600), &BodyMode::Raw)
    );
    assert_eq!(
        two.fingerprint.body,
        BodyMode::Json(Selection::Only(vec!["/amount".parse().unwrap()]))
    );
    assert_eq!(
        three.key,
        KeyRule::Off,
        "a field that all routes have is no contradiction"
    );
    let unwritten = &config.all_routes()[3].policy;
    assert_eq!(
        (unwritten.mode, &*unwritten.key_field),
        (Mode::Rerun, "X-Key"),
        "the unwritten route too"
    );
}

#[test]
fn routes_that_leave_something_to_each_other_are_taken() {
    let config = good(
        r#"
        routes = [
            { method = "POST", path = "/v1/charges", mode = "rerun" },
            { method = ["POST", "PATCH"], path = "/v1/charges" },
            { path = "/v1/{thing}", key = "off" },
            { path = "/v1/**" },
            { path = "/**" },
        ]
        "#,
    );
    assert_eq!(config.routes.len(), 5);
    assert_eq!(&*config.routes[2].name, "/v1/{thing}");
    assert!(!config.routes[2].policy.guards("POST"));
}

#[test]
fn paths_begin_where_the_file_is() {
    let directory = directory();
    let text = "store = \"sqlite:data/hapax.db\"\n[tls]\ncertificate = \"certificate.pem\"\nkey = \"key.pem\"\n";
    let config = load(directory.path(), text, &upstream()).unwrap().config;
    assert_eq!(
        config.store,
        StoreUrl::Sqlite(directory.path().join("data/hapax.db"))
    );
    assert_eq!(config.tls.unwrap().key, directory.path().join("key.pem"));
    assert_eq!(
        good("store = \"sqlite:/var/lib/hapax.db\"").store,
        StoreUrl::Sqlite("/var/lib/hapax.db".into())
    );
}

#[test]
fn flags_go_before_variables_and_the_file() {
    let overrides = Overrides {
        upstream: Some("https://other.example".parse().unwrap()),
        listen: Some("127.0.0.1:1".parse().unwrap()),
        admin: Some(None),
        store: Some(StoreUrl::Memory),
        principal: Some(PrincipalSource::None.into()),
        environment: [
            ("HAPAX__LISTEN", "127.0.0.1:3"),
            ("HAPAX__UPSTREAM__URL", "http://two.example"),
        ]
        .into_iter()
        .collect(),
    };
    let text = "listen = \"127.0.0.1:2\"\nadmin = \"127.0.0.1:1\"\nstore = \"sqlite:a\"\n[upstream]\nurl = \"http://one.example\"\nprotocol = \"http2\"\n";
    let config = load(directory().path(), text, &overrides).unwrap().config;
    assert_eq!(config.upstream.url.to_string(), "https://other.example/");
    assert_eq!(config.upstream.protocol, Protocol::Http2);
    assert_eq!(
        (config.listen.port(), config.admin, config.store),
        (1, None, StoreUrl::Memory)
    );
    assert_eq!(config.principal, PrincipalSource::None.into());
}

#[test]
fn limits_that_follow_from_others_follow() {
    let config = good("[limits]\nconnections_max = 10\n[upstream]\nidle_max = \"100ms\"\n");
    assert_eq!(config.limits.silent_connections_max, 10);
    assert_eq!(config.upstream.reuse_max, Duration::from_millis(100));
}

#[test]
fn quotas_are_none_unless_they_are_written() {
    let limits = good("").limits;
    assert_eq!(
        (
            limits.records_per_principal_max,
            limits.bytes_per_principal_max
        ),
        (None, None)
    );
    let limits =
        good("[limits]\nrecords_per_principal_max = 5\nbytes_per_principal_max = \"1MiB\"\nvelocity_entries_max = 7").limits;
    assert_eq!(
        (
            limits.records_per_principal_max,
            limits.bytes_per_principal_max
        ),
        (Some(5), Some(1 << 20))
    );
    assert_eq!(limits.velocity_entries_max, 7);
}

#[test]
fn the_example_of_the_documentation_is_good_and_shows_the_defaults() {
    let directory = directory();
    let overrides = Overrides {
        environment: Environment::default(),
        ..Overrides::default()
    };
    let config = load(directory.path(), &example(), &overrides)
        .unwrap_or_else(|error| panic!("{error}"))
        .config;
    assert_eq!(config.routes.len(), 5);
    let defaults = Config::new(config.upstream.url.clone());
    assert_eq!(
        format!("{:?}", config.timeouts),
        format!("{:?}", defaults.timeouts)
    );
    assert_eq!(
        format!("{:?}", config.limits),
        format!("{:?}", defaults.limits)
    );
    assert_eq!(
        format!("{:?}", config.drain),
        format!("{:?}", defaults.drain)
    );
    assert_eq!(config.upstream, defaults.upstream);
    assert_eq!(
        config.routes[0].policy.retention,
        hapax::Policy::default().retention
    );
}
