//! The OpenAPI document and the routes agree.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::tokens::operations;
use crate::world::World;

#[tokio::test]
async fn every_route_is_in_the_document_and_nothing_else_is_answered() {
    let world = World::guarded().await;
    let document = world.ask("GET", "/openapi.json", "").await;
    assert_eq!(document.field("content-type"), Some("application/json"));
    let document = document.json();
    let documented: BTreeSet<_> = operations(&document).into_iter().collect();
    let paths: BTreeSet<_> = documented.iter().map(|(path, _)| path.clone()).collect();
    for path in &paths {
        let target = path
            .replace("{id}", &"0".repeat(64))
            .replace("{name}", "to-nats")
            .replace("{consumer}", "stock");
        for method in ["get", "post", "put", "delete", "patch", "options", "trace"] {
            let got = world.ask(&method.to_ascii_uppercase(), &target, "").await;
            if documented.contains(&(path.clone(), method.to_owned())) {
                assert!(
                    document["paths"][path][method]["responses"][got.status.to_string()]
                        .is_object(),
                    "{method} {path}: {got:?}"
                );
            } else {
                assert_eq!(
                    got.refusal(),
                    (405, "method-not-allowed".to_owned()),
                    "{method} {path}"
                );
                assert!(got.field("allow").is_some(), "{method} {path}: {got:?}");
            }
        }
    }
    for target in [
        "/",
        "/v1",
        "/v1/",
        "/v1/keys/",
        "/v1/keys/a/b",
        "/v1/keys/%ff/settle",
        "/metrics/",
        "//",
        "/%00",
        "/v1/key\u{73}?x",
    ] {
        let got = world.ask("GET", target, "").await;
        assert!(
            got.status == 404 || got.status == 405 || got.status == 400,
            "{target}: {got:?}"
        );
        got.refusal();
    }
    world.end().await;
}

#[tokio::test]
async fn what_is_sent_wrong_is_a_documented_problem() {
    let world = World::guarded().await;
    world.lost("lost").await;
    let id = world.found("state=unknown").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let settle = format!("/v1/keys/{id}/settle");
    for (method, target, body, status) in [
        ("GET", "/v1/keys?limit=-1", "", 400),
        ("GET", "/v1/keys?limit=1&limit=2", "", 400),
        ("GET", "/v1/keys?path=%ff", "", 400),
        ("GET", "/v1/keys?operation_id=XYZ", "", 400),
        ("GET", "/v1/keys?state=%00", "", 400),
        ("GET", "/v1/keys/%ff", "", 400),
        ("GET", "/v1/unknown?after=1", "", 400),
        ("POST", &settle, "", 400),
        ("POST", &settle, &deep, 400),
        ("POST", &settle, "\u{feff}{}", 400),
        (
            "POST",
            &settle,
            r#"{"by":"a","by":"b","reason":"r","outcome":"not-done"}"#,
            400,
        ),
        (
            "POST",
            &settle,
            r#"{"by":"\ud800","reason":"r","outcome":"not-done"}"#,
            400,
        ),
        (
            "POST",
            "/v1/settle",
            r#"{"operation_id":"x","fence":1,"outcome":"not-done","reason":"r"}"#,
            400,
        ),
        (
            "POST",
            "/v1/settle",
            r#"{"fence":1,"outcome":"not-done","reason":"r"}"#,
            400,
        ),
        (
            "POST",
            "/v1/settle",
            r#"{"fence":1e99,"outcome":"not-done","reason":"r"}"#,
            400,
        ),
    ] {
        let got = world.ask(method, target, body).await;
        assert_eq!(
            got.refusal().0,
            status,
            "{method} {target} {}",
            &body[..body.len().min(100)]
        );
        assert_eq!(
            (
                got.field("x-content-type-options"),
                got.field("cache-control")
            ),
            (Some("nosniff"), Some("no-store"))
        );
    }
    let long = format!(r#"{{"by":"{}"}}"#, "x".repeat(3 << 20));
    assert_eq!(
        world.ask("POST", &settle, &long).await.refusal(),
        (413, "body-unreadable".to_owned())
    );
    assert_eq!(
        world.found("key=lost").await["state"],
        "unknown",
        "nothing of this has changed anything"
    );
    world.end().await;
}

/// The human-readable page must list every path too.
#[test]
fn the_page_names_every_path() {
    let page = include_str!("../../../../docs/admin.md");
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/v1/keys",
        "/v1/keys/{id}",
        "/v1/keys/{id}/settle",
        "/v1/keys/{id}/forget",
        "/v1/log",
        "/v1/unknown",
        "/v1/settle",
        "/v1/reload",
        "/v1/outbox/readers",
        "/v1/outbox/readers/{name}/start",
        "/v1/outbox/messages",
        "/v1/outbox/messages/{id}",
        "/v1/outbox/messages/{id}/retry",
        "/v1/inbox/consumers",
        "/v1/inbox/messages",
        "/v1/inbox/messages/{consumer}/{id}",
        "/v1/inbox/messages/{consumer}/{id}/retry",
    ] {
        assert!(
            page.contains(&format!("`GET {path}")) || page.contains(&format!("`POST {path}")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_document_stands_on_its_own() {
    let world = World::start(|_| {}).await;
    let document = world.found_document().await;
    let mut refs = Vec::new();
    references(&document, &mut refs);
    for reference in &refs {
        let target = reference
            .strip_prefix('#')
            .and_then(|pointer| document.pointer(pointer));
        assert!(target.is_some(), "{reference} leads nowhere");
    }
    assert!(refs.len() > 20, "{}", refs.len());
    world.end().await;
}

fn references(value: &Value, refs: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            refs.extend(
                members
                    .get("$ref")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            members.values().for_each(|value| references(value, refs));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, refs)),
        _ => {}
    }
}

impl World {
    async fn found_document(&self) -> Value {
        crate::world::send(self.admin(), "GET", "/openapi.json", &[], "")
            .await
            .json()
    }
}
