//! Routes imported from an OpenAPI description.

use std::fs;
use std::path::Path;

use hapax::KeyRule;
use hapax::core::policy::KeySource;
use hapax_server::config::Config;
use hapax_server::config::file;
use tempfile::TempDir;

use crate::{hapax, upstream};

const DOCUMENTS: [&str; 3] = ["payments.yaml", "orders.json", "hurtful.json"];

fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in DOCUMENTS {
        fs::copy(
            Path::new("tests/configuration/openapi").join(name),
            directory.path().join(name),
        )
        .unwrap();
    }
    directory
}

/// The routes of a document, as text and parsed.
fn imported(directory: &Path, name: &str) -> (String, Config) {
    let (code, stdout, stderr) = hapax(directory, &["openapi", "import", name], &[]);
    assert_eq!(code, 0, "{stderr}");
    let loaded = file::parse(Path::new("routes.toml"), &stdout, &upstream())
        .unwrap_or_else(|error| panic!("{error}\n{stdout}"));
    (stdout, loaded.config)
}

#[test]
fn each_operation_that_needs_it_gets_a_route_with_its_reasons() {
    let directory = directory();
    let (text, config) = imported(directory.path(), "payments.yaml");
    let routes: Vec<(String, String, KeyRule)> = config
        .routes
        .iter()
        .map(|route| {
            (
                route.name.to_string(),
                route.pattern.to_string(),
                route.policy.key,
            )
        })
        .collect();
    let route = |name: &str, path: &str, key| (name.to_owned(), format!("/live/v1{path}"), key);
    assert_eq!(
        routes,
        [
            route("createCharge", "/charges", KeyRule::Required),
            route("touchLatest", "/charges/latest", KeyRule::Optional),
            route("updateCharge", "/charges/{charge_id}", KeyRule::Optional),
            route("uploadEvidence", "/evidence/*", KeyRule::Optional),
            route(
                "refund-charge",
                "/charges/{charge_id}/refunds",
                KeyRule::Optional
            ),
        ]
    );
    for part in [
        "# Charge a card\n# The document requires the field Idempotency-Key.\n# The document has 409 of its own",
        "# In /live/v1/evidence/{id}.pdf a segment is more than a placeholder",
        "fingerprint = \"multipart\"",
        "# PUT /live/v1/charges/{charge_id}\n# DELETE /live/v1/charges/{charge_id}\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(
        !text.contains("listCharges"),
        "what only reads needs no route"
    );
}

#[test]
fn keys_under_other_names_are_found() {
    let directory = directory();
    let (text, config) = imported(directory.path(), "orders.json");
    let route = |name: &str| {
        config
            .routes
            .iter()
            .find(|route| *route.name == *name)
            .unwrap_or_else(|| panic!("{name}\n{text}"))
    };
    let order = route("placeOrder");
    assert_eq!(
        (order.pattern.to_string(), order.policy.key),
        ("/api/orders".to_owned(), KeyRule::Required)
    );
    assert_eq!(&*order.policy.key_field, "X-Idempotency-Key");
    let payout = route("placeOrder-2");
    assert_eq!(
        (&*payout.policy.key_field, payout.policy.key),
        ("PayPal-Request-Id", KeyRule::Optional)
    );
    let instances = route("runInstances");
    assert_eq!(
        instances.pattern.to_string(),
        "/2020/instances",
        "the nearest server counts"
    );
    assert_eq!(
        instances.policy.key_source,
        KeySource::Body("/ClientToken".parse().unwrap())
    );
}

/// Whatever a document contains, the result has only routes for its own paths, and no terminal
/// escapes.
#[test]
fn hurtful_names_become_plain_text() {
    let directory = directory();
    let (text, config) = imported(directory.path(), "hurtful.json");
    let usual = Config::new(config.upstream.url.clone());
    assert_eq!(
        (config.listen, config.upstream.url.to_string()),
        (usual.listen, "http://127.0.0.1:3000/".to_owned())
    );
    assert!(
        config
            .routes
            .iter()
            .all(|route| route.policy.key != KeyRule::Off),
        "{text}"
    );
    assert!(
        !config
            .routes
            .iter()
            .any(|route| route.matches(&http::Method::POST, "/stolen")
                && route.name.contains("stolen")),
        "{text}"
    );
    assert!(
        text.chars()
            .all(|c| c == '\n' || !(c.is_control() || ('\u{2028}'..='\u{202e}').contains(&c))),
        "{text:?}"
    );
    for line in text.lines() {
        assert!(
            [
                "# ",
                "[[routes]]",
                "name = ",
                "method = ",
                "path = ",
                "key",
                "fingerprint = "
            ]
            .iter()
            .any(|begin| line.starts_with(begin))
                || line.is_empty(),
            "{line}"
        );
    }
}

#[test]
fn routes_are_written_only_where_nothing_is() {
    let directory = directory();
    let write = ["openapi", "import", "orders.json", "--write", "routes.toml"];
    let (code, stdout, stderr) = hapax(directory.path(), &write, &[]);
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (
            0,
            "",
            "3 routes proposed into routes.toml: read each before you use it\n"
        )
    );
    let first = fs::read(directory.path().join("routes.toml")).unwrap();
    let (code, _, stderr) = hapax(directory.path(), &write, &[]);
    assert!(
        code == 2 && stderr.contains("name another, or remove it first"),
        "{stderr}"
    );
    assert_eq!(
        fs::read(directory.path().join("routes.toml")).unwrap(),
        first
    );
}

#[test]
fn what_is_no_document_is_refused_with_what_to_do() {
    let directory = directory();
    for (text, said) in [
        ("{\"swagger\": \"2.0\"}", "convert it first"),
        ("{\"openapi\": \"4.0.0\"}", "convert it first"),
        ("{}", "is no OpenAPI document"),
        ("{", "is no JSON"),
        ("a: [", "is no YAML"),
        ("", "is no OpenAPI document"),
    ] {
        fs::write(directory.path().join("x"), text).unwrap();
        let (code, _, stderr) = hapax(directory.path(), &["openapi", "import", "x"], &[]);
        assert!(code == 2 && stderr.contains(said), "{text}: {stderr}");
    }
    let (code, _, stderr) = hapax(
        directory.path(),
        &["openapi", "import", "nowhere.yaml"],
        &[],
    );
    assert!(
        code == 2 && stderr.contains("nowhere.yaml: could not be read"),
        "{stderr}"
    );
}
