//! Environment variables: what they may contain, and that no other variables are read.

use std::time::Duration;

use hapax::{KeyRule, Mode};
use hapax_server::config::file::{self, Overrides};
use hapax_server::config::{Environment, Protocol, StoreUrl};

use crate::{directory, load, of_variables, upstream};

#[test]
fn every_kind_of_value_can_be_a_variable() {
    let config = of_variables(&[
        ("HAPAX__LISTEN", "127.0.0.1:5000"),
        ("HAPAX__ADMIN", "off"),
        ("HAPAX__STORE", "memory:"),
        ("HAPAX__TRUSTED_PROXIES", "[\"10.0.0.1\", \"fd00::/8\"]"),
        ("HAPAX__UPSTREAM__PROTOCOL", "http2"),
        ("HAPAX__UPSTREAM__CONNECTIONS_MAX", "7"),
        ("HAPAX__TIMEOUTS__CONNECT", "3s"),
        ("HAPAX__LIMITS__HEADER_BYTES_MAX", "16KiB"),
        ("HAPAX__LIMITS__RATE_MIN", "64"),
        ("HAPAX__DEFAULTS__STRICT_KEY", "true"),
        ("HAPAX__DEFAULTS__CLASSES", "{ \"404\" = \"release\" }"),
        ("HAPAX__ROUTES__0__PATH", "/v1"),
        ("HAPAX__ROUTES__0__METHOD", "PUT"),
        ("HAPAX__ROUTES__0__KEY", "required"),
        (
            "HAPAX__ROUTES__0__VELOCITY",
            "[{ by = \"principal\", keys = 1, per = \"1s\" }]",
        ),
        ("HAPAX__ROUTES__1__PATH", "/v2"),
        ("HAPAX__ROUTES__1__METHOD", "[\"POST\", \"PUT\"]"),
    ])
    .unwrap_or_else(|error| panic!("{error}"))
    .config;
    assert_eq!(
        (config.listen.port(), config.admin, config.store),
        (5000, None, StoreUrl::Memory)
    );
    assert_eq!(config.trusted_proxies.len(), 2);
    assert_eq!(
        (config.upstream.protocol, config.upstream.connections_max),
        (Protocol::Http2, 7)
    );
    assert_eq!(
        (config.timeouts.connect, config.limits.header_bytes_max),
        (Duration::from_secs(3), 16 << 10)
    );
    assert_eq!(config.limits.rate_min, 64);
    assert_eq!(
        (config.routes.len(), config.routes[0].policy.key),
        (2, KeyRule::Required)
    );
    assert!(config.routes[0].policy.guards("PUT") && config.routes[0].policy.velocity.len() == 1);
    assert_eq!(config.routes[1].methods.len(), 2);
    assert!(
        config
            .routes
            .iter()
            .all(|route| route.policy.strict_key && route.policy.classes.len() == 1)
    );
}

#[test]
fn variables_go_before_the_file_setting_by_setting() {
    let environment = [
        ("HAPAX__ROUTES__1__MODE", "rerun"),
        ("HAPAX__ROUTES__2__PATH", "/v3"),
        ("HAPAX__TIMEOUTS__STALL", "1s"),
    ];
    let text = "[timeouts]\nstall = \"2s\"\nconnect = \"3s\"\n[[routes]]\npath = \"/v1\"\n[[routes]]\npath = \"/v2\"\nlease = \"5s\"\n";
    let overrides = Overrides {
        environment: environment.into_iter().collect(),
        ..upstream()
    };
    let config = load(directory().path(), text, &overrides)
        .unwrap_or_else(|error| panic!("{error}"))
        .config;
    assert_eq!(
        (config.timeouts.stall, config.timeouts.connect),
        (Duration::from_secs(1), Duration::from_secs(3))
    );
    assert_eq!(
        [0, 1, 2].map(|at| config.routes[at].policy.mode),
        [Mode::Hold, Mode::Rerun, Mode::Hold]
    );
    assert_eq!(
        config.routes[1].policy.lease,
        Duration::from_secs(5),
        "what the variable does not say stays"
    );
    assert_eq!(&*config.routes[2].name, "/v3");
}

#[test]
fn variables_of_others_are_left_alone() {
    // In Kubernetes, a service named hapax adds such variables to every container.
    for name in [
        "HAPAX_PORT",
        "HAPAX_SERVICE_HOST",
        "HAPAX_BLESS",
        "HAPAXX__LISTEN",
        "PATH",
    ] {
        of_variables(&[(name, "nonsense")]).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn what_is_no_text_is_a_mistake() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let environment: Environment = [("HAPAX__LISTEN", OsStr::from_bytes(b"\xff"))]
        .into_iter()
        .collect();
    let error = file::load(
        None,
        &Overrides {
            environment,
            ..upstream()
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.starts_with("HAPAX__LISTEN: this is no text in UTF-8"),
        "{error}"
    );
}
