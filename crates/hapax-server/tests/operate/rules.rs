//! What a reload changes, what it keeps, and what it refuses.

use crate::harness::{self, With, get};
use crate::service::{Ledger, Service};
use crate::world::{HEAD, World, post};

fn upstream(service: &Service) -> String {
    format!(
        "[upstream]\nurl = \"{}\"\n[drain]\nnotice = \"0s\"\ndeadline = \"1s\"\n",
        service.url()
    )
}

#[tokio::test]
async fn what_began_under_the_old_configuration_ends_under_it() {
    let ledger = Ledger::default();
    let (one, two) = (
        Service::start("one", &ledger),
        Service::start("two", &ledger),
    );
    let world = World::start(&upstream(&one)).await;
    let mut before = world.connect().await;
    let slow = tokio::spawn(async move { (before.send(post("/slow", "k1")).await, before) });
    one.slow.wait_held(1).await;

    let route = "[[routes]]\npath = \"/v1/**\"\nretention = \"48h\"\n";
    let changes = world
        .reload(&format!("{}{route}", upstream(&two)))
        .await
        .unwrap();
    assert!(
        changes
            .iter()
            .any(|change| change.starts_with("`upstream.url` changed from http://127.0.0.1:")),
        "{changes:?}"
    );
    assert!(
        changes.contains(&"`routes` changed from  to /v1/**".to_owned()),
        "{changes:?}"
    );
    assert!(
        world
            .send(post("/v1/a", "k2"))
            .await
            .text()
            .starts_with("two k2"),
        "a new request goes by the new configuration"
    );
    one.slow.open(1);
    let (answered, mut before) = slow.await.unwrap();
    assert!(
        answered.unwrap().text().starts_with("one k1"),
        "an old one by the old"
    );
    let again = before.send(post("/slow", "k1")).await.unwrap();
    assert!(
        again.is_replay() && again.text().starts_with("one k1"),
        "and its connection stays: {}",
        again.text()
    );

    let published = world.send(get("/.well-known/idempotency")).await;
    let published = published.text();
    assert!(
        published.contains("\"/v1/**\"") && published.contains("172800"),
        "{published}"
    );
    let text = world.metrics().await;
    for line in [
        "hapax_requests_total{route=\"/v1/**\",outcome=\"first\"} 1",
        "hapax_requests_total{route=\"default\",outcome=\"first\"} 1",
        "hapax_requests_total{route=\"default\",outcome=\"replayed\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
    }
    // A removed route keeps its metrics.
    world.reload(&upstream(&two)).await.unwrap();
    assert_eq!(
        world
            .metric("hapax_requests_total{route=\"/v1/**\",outcome=\"first\"}")
            .await,
        1.0
    );
    assert_eq!((ledger.count("k1"), ledger.count("k2")), (1, 1));
    world.gateway.drain().await;
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_configuration_and_shows_the_line() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&upstream(&service)).await;
    let line = HEAD.lines().count() + 1;
    let error = world
        .reload("nonsense = 7\n[upstream]\nurl = \"http://127.0.0.1:1\"\n")
        .await
        .unwrap_err();
    assert!(
        error.contains(&format!("hapax.toml:{line}:1: unknown setting `nonsense`"))
            && error.contains("^^^^^^^^"),
        "{error}"
    );
    assert_eq!(
        world.send(post("/v1/a", "k")).await.status,
        201,
        "the old one is at work"
    );
    assert_eq!(
        world.metric("hapax_config_last_reload_successful").await,
        0.0
    );
    world.reload(&upstream(&service)).await.unwrap();
    assert_eq!(
        world.metric("hapax_config_last_reload_successful").await,
        1.0
    );
    world.gateway.drain().await;
}

#[tokio::test]
async fn what_only_a_start_can_change_is_refused_as_a_whole() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&upstream(&service)).await;
    let text = format!("namespace = \"other\"\n{}", upstream(&service));
    world.write_whole(&format!("{HEAD}{text}").replace("sqlite:hapax.db", "memory:"));
    let error = world
        .gateway
        .reloader()
        .reload(true)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("needs a restart: `store` changed from sqlite:")
            && error.contains("to memory:"),
        "{error}"
    );
    assert!(
        error.contains("The next start takes the file with all that is in it"),
        "{error}"
    );
    assert_eq!(
        world.gateway.config().namespace,
        "default",
        "all or nothing"
    );
    world.gateway.drain().await;
}

#[tokio::test]
async fn a_broken_promise_is_refused_with_the_number_of_keys_unless_it_is_allowed() {
    let ledger = Ledger::default();
    let service = Service::start("one", &ledger);
    let route = "[[routes]]\npath = \"/v1/**\"\n";
    let world = World::start(&format!("{}{route}", upstream(&service))).await;
    for (path, key, status) in [
        ("/v1/a", "k1", 201),
        ("/v1/b", "k2", 201),
        ("/v1/c", "lost", 502),
        ("/else", "k3", 201),
    ] {
        assert_eq!(world.send(post(path, key)).await.status, status, "{key}");
    }
    for (change, told) in [
        (
            "mode = \"rerun\"\n",
            "route `/v1/**` changes from hold to rerun: what is held as unknown would run again when it is repeated (1 unknown key now)",
        ),
        (
            "key = \"off\"\n",
            "route `/v1/**` would no longer guard POST and PATCH: a retry would run again (3 live keys now)",
        ),
        (
            "key_field = \"x-key\"\n",
            "would look for the key elsewhere: a retry would not find its own (3 live keys now)",
        ),
    ] {
        let error = world
            .reload(&format!("{}{route}{change}", upstream(&service)))
            .await
            .unwrap_err();
        assert!(
            error.contains(told)
                && error.contains("hapax reload --allow-scope-change --reason TEXT"),
            "{error}"
        );
        assert!(
            error.contains("the next start would take it as it is, unasked"),
            "{error}"
        );
    }
    let namespace = format!("namespace = \"other\"\n{}", upstream(&service));
    let error = world.reload(&namespace).await.unwrap_err();
    assert!(
        error.contains("`namespace` changes from \"default\" to \"other\": no key would be found again (4 live keys now)"),
        "{error}"
    );
    assert!(
        world.send(post("/v1/a", "k1")).await.is_replay(),
        "nothing has changed"
    );
    assert_eq!(
        world
            .metric("hapax_reloads_total{result=\"refused\"}")
            .await,
        4.0
    );

    world.gateway.reloader().reload(true).await.unwrap();
    assert!(
        !world.send(post("/v1/a", "k1")).await.is_replay(),
        "as was said"
    );
    assert_eq!(ledger.count("k1"), 2);
    world.gateway.drain().await;
}

#[tokio::test]
async fn a_proxy_that_is_trusted_no_more_is_not_believed_on_its_open_connection_either() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&format!(
        "trusted_proxies = [\"127.0.0.1\"]\n{}",
        upstream(&service)
    ))
    .await;
    let mut connection = world.connect().await;
    let from = |key: &str| {
        let mut request = post("/v1/a", key);
        request
            .headers_mut()
            .insert("x-forwarded-for", "10.1.2.3".parse().unwrap());
        request
    };
    assert!(
        connection
            .send(from("k1"))
            .await
            .unwrap()
            .text()
            .ends_with("for 10.1.2.3")
    );
    world.reload(&upstream(&service)).await.unwrap();
    assert!(
        connection
            .send(from("k2"))
            .await
            .unwrap()
            .text()
            .ends_with("for 127.0.0.1")
    );
    world.gateway.drain().await;
}

#[tokio::test]
async fn operators_are_told_what_came_of_it() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&upstream(&service)).await;
    let reload = async |body: &str| {
        let request = harness::post("/v1/reload", body.to_owned());
        let got = world
            .ask(request.with("content-type", "application/json"))
            .await;
        (got.status, got.json())
    };
    world.write(&format!(
        "{}[timeouts]\nstall = \"30s\"\n",
        upstream(&service)
    ));
    let (status, answer) = reload(r#"{"by":"ada"}"#).await;
    let change = serde_json::json!({"setting": "timeouts.stall", "from": "20s", "to": "30s"});
    assert_eq!(
        (status, &answer["changes"]),
        (200, &serde_json::json!([change]))
    );

    world.write("nonsense");
    let (status, answer) = reload(r#"{"by":"ada"}"#).await;
    assert!(
        status == 422 && answer["detail"].as_str().unwrap().contains("^"),
        "{answer}"
    );
    world.write(&format!("namespace = \"other\"\n{}", upstream(&service)));
    let (status, answer) = reload(r#"{"by":"ada"}"#).await;
    assert!(
        status == 409 && answer["code"] == "promises-broken",
        "{answer}"
    );
    assert_eq!(
        reload(r#"{"by":"ada","allow_scope_change":true}"#).await.0,
        400,
        "why must be said"
    );
    assert_eq!(reload(r#"{"by":"","reason":"x"}"#).await.0, 400);
    let (status, _) =
        reload(r#"{"by":"ada","allow_scope_change":true,"reason":"the old one was a mistake"}"#)
            .await;
    assert_eq!(
        (status, world.gateway.config().namespace.as_str()),
        (200, "other")
    );
    // The log distinguishes refused reloads from those that happened.
    let log = world
        .gateway
        .hapax()
        .log(hapax::core::audit::LogQuery::after(0, 10))
        .await
        .unwrap();
    let actions: Vec<_> = log
        .iter()
        .map(|entry| entry.action.word().to_owned())
        .collect();
    assert_eq!(
        actions,
        [
            "reload",
            "reload-refused",
            "reload-refused",
            "reload-with-scope-change"
        ]
    );
    world.gateway.drain().await;
}

#[tokio::test]
async fn an_upstream_that_leads_back_here_is_noticed() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&upstream(&service)).await;
    let circle = format!(
        "[upstream]\nurl = \"http://{}\"\n[drain]\nnotice = \"0s\"\ndeadline = \"1s\"\n",
        world.gateway.address()
    );
    world.reload(&circle).await.unwrap();
    let got = world.send(get("/v1/a")).await;
    assert!(
        got.status == 508 && got.text().contains("loop-detected"),
        "{} {}",
        got.status,
        got.text()
    );
    // With a key the request meets its own running attempt.
    let got = world.send(post("/v1/a", "k")).await;
    assert!(
        got.status == 409 && got.text().contains("in-flight"),
        "{} {}",
        got.status,
        got.text()
    );
    world.gateway.drain().await;
}

#[tokio::test]
async fn reloads_take_turns() {
    let service = Service::start("one", &Ledger::default());
    let world = World::start(&upstream(&service)).await;
    let reloader = world.gateway.reloader().clone();
    let reloads: Vec<_> = (0..16)
        .map(|_| {
            let reloader = reloader.clone();
            tokio::spawn(async move { reloader.reload(false).await.map(drop) })
        })
        .collect();
    for reload in reloads {
        reload.await.unwrap().unwrap();
    }
    assert_eq!(
        world.metric("hapax_reloads_total{result=\"ok\"}").await,
        16.0
    );
    world.gateway.drain().await;
}
