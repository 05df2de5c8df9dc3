//! Routes out of a description of an API, and what the gateway adds to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use hapax::KeyRule;
use hapax::core::policy::KeySource;
use hapax_server::config::Config;
use hapax_server::config::file;
use serde_json::Value;
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

/// The routes of a document, as text and as they are read.
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

/// Whatever a document holds, it says nothing but routes for its own paths, and nothing that acts
/// on a terminal.
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

fn exported(directory: &Path, name: &str, config: &str) -> String {
    fs::write(directory.join("hapax.toml"), config).unwrap();
    let (code, stdout, stderr) = hapax(
        directory,
        &[
            "openapi",
            "export",
            name,
            "--upstream",
            "http://127.0.0.1:3000",
            "--config",
            "hapax.toml",
        ],
        &[],
    );
    assert_eq!(code, 0, "{stderr}");
    stdout
}

/// YAML or JSON, as a test can look into it.
fn value(text: &str) -> Value {
    if text.trim_start().starts_with('{') {
        serde_json::from_str(text).unwrap()
    } else {
        serde_saphyr::from_str(text).unwrap()
    }
}

fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get("$ref") {
                found.insert(to);
            }
            members
                .values()
                .for_each(|member| references(member, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

const ROUTES: &str = "[[routes]]\npath = \"/live/v1/evidence/*\"\nkey = \"off\"\n[[routes]]\nmethod = \"PUT\"\npath = \"/live/v1/charges/{id}\"\nkey = \"required\"\n\
                      [[routes]]\npath = \"/2020/**\"\nkey_from = \"body:/ClientToken\"\n";

#[test]
fn guarded_operations_say_what_callers_send_and_get() {
    let directory = directory();
    let text = exported(directory.path(), "payments.yaml", ROUTES);
    assert!(text.starts_with("openapi: "), "{text}");
    let document = value(&text);
    let paths = &document["paths"];
    let charge = &paths["/charges"]["post"];
    for status in ["409", "410", "422", "429", "503"] {
        assert!(charge["responses"].get(status).is_some(), "{status}");
    }
    assert_eq!(
        charge["parameters"].as_array().unwrap().len(),
        1,
        "it has its key already, by reference"
    );
    assert_eq!(
        charge["responses"]["409"]["description"], "The card is being charged already",
        "theirs stays"
    );
    assert!(
        charge["responses"]["409"]["content"]
            .get("application/problem+json")
            .is_some(),
        "and ours is another kind of body"
    );
    let created = &charge["responses"]["201"];
    assert_eq!(
        created["headers"]["Idempotent-Replayed"]["$ref"],
        "#/components/headers/HapaxReplayed"
    );
    assert_eq!(
        created["content"]["application/json"]["schema"]["$ref"],
        "#/components/schemas/Charge"
    );
    assert!(
        document["components"]["responses"]["Charged"]
            .get("headers")
            .is_none(),
        "what others refer to is not changed"
    );
    let refund = &paths["/charges/{charge_id}/refunds"]["post"];
    assert_eq!(
        refund["parameters"].as_array().unwrap().len(),
        1,
        "whatever the case of its letters"
    );
    assert_eq!(
        refund["responses"]["201"]["headers"]
            .as_object()
            .unwrap()
            .len(),
        3
    );
    let put = &paths["/charges/{charge_id}"]["put"];
    assert_eq!(
        (
            &put["parameters"][0]["name"],
            &put["parameters"][0]["required"]
        ),
        (&"Idempotency-Key".into(), &true.into())
    );
    let before = value(&fs::read_to_string(directory.path().join("payments.yaml")).unwrap());
    for (path, method) in [
        ("/charges", "get"),
        ("/charges/{charge_id}", "delete"),
        ("/evidence/{id}.pdf", "post"),
    ] {
        assert_eq!(
            paths[path][method], before["paths"][path][method],
            "what is not guarded stays as it is"
        );
    }
}

#[test]
fn what_is_exported_twice_is_exported_once_and_no_reference_breaks() {
    let directory = directory();
    for name in DOCUMENTS {
        let before = value(&fs::read_to_string(directory.path().join(name)).unwrap());
        let once = exported(directory.path(), name, ROUTES);
        fs::write(directory.path().join("once"), &once).unwrap();
        assert_eq!(exported(directory.path(), "once", ROUTES), once, "{name}");
        assert_eq!(
            once.trim_start().starts_with('{'),
            name.ends_with("json"),
            "{name}: the format stays"
        );
        let after = value(&once);
        let (mut old, mut new) = (BTreeSet::new(), BTreeSet::new());
        references(&before, &mut old);
        references(&after, &mut new);
        for reference in new.difference(&old) {
            let pointer = reference
                .strip_prefix('#')
                .unwrap_or_else(|| panic!("{reference}"));
            assert!(
                after.pointer(pointer).is_some(),
                "{name}: {reference} leads nowhere"
            );
        }
        for reference in &old {
            let is_there = |document: &Value| {
                reference
                    .strip_prefix('#')
                    .is_none_or(|pointer| document.pointer(pointer).is_some())
            };
            assert_eq!(is_there(&before), is_there(&after), "{name}: {reference}");
        }
    }
}

#[test]
fn a_component_of_somebody_else_is_not_written_over() {
    let directory = directory();
    let text = fs::read_to_string(directory.path().join("payments.yaml")).unwrap();
    fs::write(
        directory.path().join("x"),
        text.replace(
            "  schemas:\n",
            "  schemas:\n    HapaxProblem: { type: string }\n",
        ),
    )
    .unwrap();
    fs::write(directory.path().join("hapax.toml"), "").unwrap();
    let (code, stdout, stderr) = hapax(
        directory.path(),
        &[
            "openapi",
            "export",
            "x",
            "--upstream",
            "http://127.0.0.1:3000",
        ],
        &[],
    );
    assert!(
        code == 2 && stdout.is_empty() && stderr.contains("schemas/HapaxProblem"),
        "{stderr}"
    );
}

#[test]
fn another_validator_takes_what_is_exported() {
    let check = "import openapi_spec_validator as v, sys, json, yaml\nv.validate(yaml.safe_load(open(sys.argv[1])))\n";
    let has_it = Command::new("python3")
        .args(["-c", "import openapi_spec_validator, yaml"])
        .stderr(Stdio::null())
        .status();
    if !has_it.is_ok_and(|status| status.success()) {
        println!(
            "SKIPPED another_validator_takes_what_is_exported: needs python3 with openapi-spec-validator"
        );
        return;
    }
    let directory = directory();
    fs::write(
        directory.path().join("payments.out"),
        exported(directory.path(), "payments.yaml", ROUTES),
    )
    .unwrap();
    let output = Command::new("python3")
        .args(["-c", check, "payments.out"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
