//! Which token may call which path.

use hapax_server::config::{Config, Secret};
use hapax_server::gateway::Gateway;
use serde_json::Value;

use crate::world::{ADMIN_TOKEN, SETTLE_TOKEN, World, send, text, with_tokens};

#[tokio::test]
async fn beyond_loopback_only_with_a_token() {
    let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
    config.listen.set_port(0);
    config.store = hapax_server::config::StoreUrl::Memory;
    config.admin = Some("0.0.0.0:0".parse().unwrap());
    config.settle_token = Some(Secret::token(SETTLE_TOKEN).unwrap());
    let error = Gateway::start(config)
        .await
        .err()
        .expect("it must not start")
        .to_string();
    assert!(
        error.starts_with("admin: `0.0.0.0:0` can be reached from other machines")
            && error.contains("set `admin_token`"),
        "{error}"
    );

    let world = World::start(|config| {
        with_tokens(config);
        config.admin = Some("0.0.0.0:0".parse().unwrap());
    })
    .await;
    let from_here = ([127, 0, 0, 1], world.admin().port()).into();
    assert_eq!(
        send(from_here, "GET", "/v1/keys", &[], "").await.refusal(),
        (401, "unauthorized".to_owned())
    );
    let bearer = format!("Bearer {ADMIN_TOKEN}");
    assert_eq!(
        send(
            from_here,
            "GET",
            "/v1/keys",
            &[("Authorization", &bearer), ("Host", "hapax.internal")],
            ""
        )
        .await
        .status,
        200
    );
    world.end().await;
}

#[tokio::test]
async fn without_the_token_there_is_nothing_but_health() {
    let world = World::guarded().await;
    world.completed("k").await;
    let document = world.ask("GET", "/openapi.json", "").await.json();
    let wrong = [
        None,
        Some("Bearer the-token-of-operatorS"),
        Some("Basic YTpi"),
        Some("Bearer"),
        Some(""),
    ];
    let mut refused = 0;
    for (path, method) in operations(&document).into_iter().chain([
        ("/".to_owned(), "get".to_owned()),
        ("/v2".to_owned(), "put".to_owned()),
    ]) {
        for credential in wrong {
            let fields: Vec<_> = credential
                .map(|credential| ("Authorization", credential))
                .into_iter()
                .collect();
            let target = path.replace("{id}", &"0".repeat(64));
            let got = send(
                world.admin(),
                &method.to_ascii_uppercase(),
                &target,
                &fields,
                "",
            )
            .await;
            if ["/healthz", "/readyz"].contains(&path.as_str()) {
                assert_eq!(got.status, 200, "{path}");
            } else {
                assert_eq!(
                    got.refusal(),
                    (401, "unauthorized".to_owned()),
                    "{method} {path} {credential:?}"
                );
                assert_eq!(
                    got.field("www-authenticate"),
                    Some("Bearer realm=\"hapax\"")
                );
                refused += 1;
            }
        }
    }
    let metrics = world.ask("GET", "/metrics", "").await;
    let counted = |reason: &str| -> usize {
        let line = format!("hapax_admin_refused_total{{reason=\"{reason}\"}} ");
        metrics
            .text()
            .lines()
            .find_map(|have| have.strip_prefix(&line))
            .expect(reason)
            .parse()
            .unwrap()
    };
    assert_eq!(counted("token-missing") + counted("token-wrong"), refused);
    assert_eq!(
        counted("token-wrong"),
        counted("token-missing") * (wrong.len() - 1)
    );
    world.end().await;
}

/// Paths that are added later stay closed to it, because its paths are a list of two.
#[tokio::test]
async fn the_settle_token_opens_two_paths_and_no_other() {
    let world = World::guarded().await;
    world.lost("lost").await;
    let document = world.ask("GET", "/openapi.json", "").await.json();
    let id = world.found("state=unknown").await["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut closed = 0;
    for (path, method) in operations(&document) {
        let got = world
            .ask_as_job(
                &method.to_ascii_uppercase(),
                &path.replace("{id}", &id),
                r#"{"by":"job","reason":"r","outcome":"not-done"}"#,
            )
            .await;
        match path.as_str() {
            "/healthz" | "/readyz" | "/v1/unknown" => assert_eq!(got.status, 200, "{path}"),
            "/v1/settle" => assert_eq!(
                got.status, 400,
                "{path}: it says neither operation nor fence"
            ),
            _ => {
                assert_eq!(got.refusal(), (403, "not-allowed".to_owned()), "{path}");
                closed += 1;
            }
        }
    }
    assert!(closed >= 6, "{closed}");
    assert_eq!(world.found("key=lost").await["state"], "unknown");
    world.end().await;
}

#[tokio::test]
async fn the_command_presents_the_token() {
    let world = World::guarded().await;
    world.completed("k").await;
    let ran = world.run(&["list"]).await;
    assert_eq!(
        (ran.status.code(), text(&ran.stdout).lines().count()),
        (Some(0), 1),
        "{}",
        text(&ran.stderr)
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    for (content, code, word) in [
        (format!("{ADMIN_TOKEN}\n"), 0, "asking the gateway"),
        ("short".to_owned(), 2, "a token has at least 16 bytes"),
        (
            "not-the-token-of-operators".to_owned(),
            2,
            "the token is wrong",
        ),
    ] {
        std::fs::write(&file, content).unwrap();
        let ran = world
            .keys(&["list", "--token-file", file.to_str().unwrap()])
            .env("HAPAX__ADMIN_TOKEN", "")
            .output()
            .await
            .unwrap();
        assert_eq!(
            (ran.status.code(), text(&ran.stderr).contains(word)),
            (Some(code), true),
            "{}",
            text(&ran.stderr)
        );
    }
    let ran = world
        .keys(&["list"])
        .env_remove("HAPAX__ADMIN_TOKEN")
        .output()
        .await
        .unwrap();
    let stderr = text(&ran.stderr);
    assert!(
        ran.status.code() == Some(2)
            && stderr.contains("the token is missing")
            && stderr.contains("--token-file"),
        "{stderr}"
    );
    world.end().await;
}

/// Every operation of the document.
pub fn operations(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().expect("paths");
    paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .expect("an item")
                .keys()
                .map(move |method| (path.clone(), method.clone()))
        })
        .collect()
}
