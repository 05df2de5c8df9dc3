//! The configuration file: what is read, and what a person is told who made a mistake in it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use hapax::{KeyRule, Mode};
use hapax_server::config::file::{self, Overrides};
use hapax_server::config::{Config, ConfigError, PrincipalSource, Protocol, StoreUrl};
use tempfile::TempDir;

/// Cases and their messages: a title after `####`, the file, `----`, and what is said of it, with names of files as they were given.
const MISTAKES: &str = "tests/configuration/mistakes.txt";

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in ["certificate.pem", "key.pem", "ca.pem"] {
        fs::write(directory.path().join(name), "").unwrap();
    }
    directory
}

fn read(directory: &Path, text: &str, overrides: &Overrides) -> Result<Config, ConfigError> {
    let path = directory.join("hapax.toml");
    fs::write(&path, text).unwrap();
    file::read_with(&path, overrides)
}

fn upstream() -> Overrides {
    Overrides { upstream: Some("http://127.0.0.1:3000".parse().unwrap()), ..Overrides::default() }
}

fn good(text: &str) -> Config {
    read(directory().path(), text, &upstream()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn every_mistake_is_told_with_its_line_and_what_to_write() {
    let directory = directory();
    let told = |text: &str, overrides: &Overrides| match read(directory.path(), text, overrides) {
        Ok(_) => "ACCEPTED".to_owned(),
        Err(error) => error.to_string().replace(&format!("{}/", directory.path().display()), ""),
    };
    let cases = fs::read_to_string(MISTAKES).unwrap();
    let mut actual = String::new();
    let mut count = 0;
    for case in cases.split("#### ").skip(1) {
        let (title, rest) = case.split_once('\n').unwrap();
        let (text, _) = rest.split_once("----\n").unwrap();
        let overrides = if title.contains("without --upstream") { Overrides::default() } else { upstream() };
        actual += &format!("#### {title}\n{text}----\n{}\n\n", told(text, &overrides));
        count += 1;
    }
    assert!(count >= 40, "only {count} cases were found");
    assert!(!actual.contains("ACCEPTED"), "{actual}");
    if std::env::var_os("HAPAX_BLESS").is_some() {
        fs::write(MISTAKES, &actual).unwrap();
    }
    for (expected, actual) in fs::read_to_string(MISTAKES).unwrap().split("#### ").zip(actual.split("#### ")) {
        assert_eq!(actual, expected, "HAPAX_BLESS=1 writes the new messages down");
    }
}

#[test]
fn an_empty_file_is_all_defaults() {
    let config = good("");
    assert_eq!(config.listen.to_string(), "127.0.0.1:4000");
    assert_eq!(config.admin.unwrap().to_string(), "127.0.0.1:4001");
    assert_eq!(config.store, StoreUrl::Sqlite("hapax.db".into()));
    assert_eq!(config.principal, PrincipalSource::default());
    assert!(config.routes.is_empty());
}

#[test]
fn a_route_says_what_its_policy_is() {
    let config = good(
        r#"
        [[routes]]
        method = ["PUT", "POST"]
        path = "/v1/charges/{id}"
        mode = "rerun"
        key = "required"
        key_field = "X-Idempotency-Key"
        retention = "48h"
        tombstone = "0s"
        lease = "500ms"
        longest_attempt = "1m"
        wait = "2s"
        wait_max = "3s"
        strict = true
        answer_bytes_max = "64KiB"
        body_bytes_max = 1000
        "#,
    );
    let route = &config.routes[0];
    assert_eq!(&*route.name, "PUT|POST /v1/charges/{id}");
    assert!(route.matches(&http::Method::PUT, "/v1/charges/7") && !route.matches(&http::Method::PATCH, "/v1/charges/7"));
    let policy = &route.policy;
    assert!(policy.guards("PUT") && policy.guards("POST") && !policy.guards("GET"));
    assert_eq!((policy.mode, policy.key, &*policy.key_field), (Mode::Rerun, KeyRule::Required, "X-Idempotency-Key"));
    assert_eq!((policy.retention, policy.tombstone), (Duration::from_secs(48 * 3600), Duration::ZERO));
    assert_eq!((policy.lease, policy.longest_attempt), (Duration::from_millis(500), Duration::from_secs(60)));
    assert_eq!((policy.wait, policy.wait_max, policy.strict), (Duration::from_secs(2), Duration::from_secs(3), true));
    assert_eq!((policy.answer_bytes_max, policy.body_bytes_max, policy.body_memory_bytes_max), (64 << 10, 1_000, 1_000));
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
    let config = read(directory.path(), text, &upstream()).unwrap();
    assert_eq!(config.store, StoreUrl::Sqlite(directory.path().join("data/hapax.db")));
    assert_eq!(config.tls.unwrap().key, directory.path().join("key.pem"));
    assert_eq!(good("store = \"sqlite:/var/lib/hapax.db\"").store, StoreUrl::Sqlite("/var/lib/hapax.db".into()));
}

#[test]
fn flags_go_before_the_file() {
    let overrides = Overrides {
        upstream: Some("https://other.example".parse().unwrap()),
        listen: Some("127.0.0.1:1".parse().unwrap()),
        admin: Some(None),
        store: Some(StoreUrl::Memory),
        principal: Some(PrincipalSource::None),
    };
    let text = "listen = \"127.0.0.1:2\"\nadmin = \"127.0.0.1:1\"\nstore = \"sqlite:a\"\n[upstream]\nurl = \"http://one.example\"\nprotocol = \"http2\"\n";
    let config = read(directory().path(), text, &overrides).unwrap();
    assert_eq!(config.upstream.url.to_string(), "https://other.example/");
    assert_eq!(config.upstream.protocol, Protocol::Http2);
    assert_eq!((config.listen.port(), config.admin, config.store), (1, None, StoreUrl::Memory));
    assert_eq!(config.principal, PrincipalSource::None);
}

#[test]
fn limits_that_follow_from_others_follow() {
    let config = good("[limits]\nconnections_max = 10\n[upstream]\nidle_max = \"100ms\"\n");
    assert_eq!(config.limits.silent_connections_max, 10);
    assert_eq!(config.upstream.reuse_max, Duration::from_millis(100));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = file::read(Path::new("/nowhere/hapax.toml")).unwrap_err().to_string();
    assert_eq!(error, "could not read the configuration /nowhere/hapax.toml: No such file or directory (os error 2)");
    let directory = directory();
    fs::write(directory.path().join("hapax.toml"), b"listen = \"\xff\"").unwrap();
    let error = file::read(&directory.path().join("hapax.toml")).unwrap_err().to_string();
    assert!(error.ends_with("hapax.toml: stream did not contain valid UTF-8"), "{error}");
}

/// Cuts and changes a good file at every place: whatever a person may write, they get an answer.
#[test]
fn no_file_makes_the_reader_panic() {
    let example = example();
    for at in (0..example.len()).filter(|at| example.is_char_boundary(*at)) {
        let (before, after) = example.split_at(at);
        let _ = file::parse(Path::new("hapax.toml"), before, &upstream());
        for inserted in ["\"", "\n", "[", "é", "0", "\u{0}", " = "] {
            let _ = file::parse(Path::new("hapax.toml"), &format!("{before}{inserted}{after}"), &Overrides::default());
        }
    }
}

#[test]
fn the_example_of_the_documentation_is_good_and_shows_the_defaults() {
    let directory = directory();
    let config = read(directory.path(), &example(), &Overrides::default()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.routes.len(), 3);
    let defaults = Config::new(config.upstream.url.clone());
    assert_eq!(format!("{:?}", config.timeouts), format!("{:?}", defaults.timeouts));
    assert_eq!(format!("{:?}", config.limits), format!("{:?}", defaults.limits));
    assert_eq!(format!("{:?}", config.drain), format!("{:?}", defaults.drain));
    assert_eq!(config.upstream.reuse_max, defaults.upstream.reuse_max);
    assert_eq!(config.routes[0].policy.retention, hapax::Policy::default().retention);
}

#[test]
fn every_setting_is_documented() {
    let documentation = documentation();
    for (section, setting) in file::settings() {
        assert!(
            documentation.contains(&format!("`{setting}`")),
            "docs/configuration.md does not say what `{setting}` in {section} is"
        );
    }
}

fn documentation() -> String {
    fs::read_to_string("../../docs/configuration.md").unwrap()
}

fn example() -> String {
    let documentation = documentation();
    let (_, rest) = documentation.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}
