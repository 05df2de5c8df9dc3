//! `hapax keys` against a running admin listener, and the listener's answers to other clients.

use std::net::SocketAddr;
use std::sync::Arc;

use hapax::core::audit::Signed;
use hapax::core::record::State;
use hapax::core::store::{Change, Lifetime};
use hapax::core::{Condition, Put};
use hapax::{Answer, Hapax, Store};
use hapax_server::admin::{Admin, Rules, router};
use hapax_server::config::{Config, Route};
use hapax_server::telemetry::Metrics;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::fixture::{charges, ended, fill, hapax, id};
use super::harness::{Said, words};

/// The admin service for a store, with two named routes.
async fn admin_of(store: Arc<dyn Store>) -> Admin {
    let mut config = Config::new(http::Uri::default());
    let route = |name: &str, text: &str| Route {
        name: name.into(),
        ..text.parse().unwrap()
    };
    config.routes = vec![
        route("refunds", "POST /v1/refunds"),
        route("versioned", "/v1/**"),
    ];
    let operation_ids = store.info().await.expect("the store works").operation_ids();
    let hapax = Hapax::builder_shared(store).sweep(None).build();
    Admin::new(
        Arc::default(),
        Metrics::new(),
        hapax,
        operation_ids,
        Rules::new(&config),
    )
}

/// An admin listener on a free port.
async fn serve(store: Arc<dyn Store>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let admin = admin_of(store).await;
    tokio::spawn(hapax_server::admin::serve(
        listener,
        router(admin.clone()),
        admin.metrics,
        Default::default(),
    ));
    address
}

async fn filled() -> SocketAddr {
    let store = Arc::new(hapax::store::memory());
    fill(&*store).await;
    serve(store).await
}

async fn keys(address: SocketAddr, line: &str) -> Said {
    let line = format!("keys {line} --admin http://{address}");
    let run = move || {
        let directory = tempfile::tempdir().expect("a directory");
        hapax(directory.path(), &words(&line))
    };
    tokio::task::spawn_blocking(run).await.expect("it runs")
}

/// Sends a request. Returns the status, content type and body.
async fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    content_type: &str,
    body: &str,
) -> (u16, String, Value) {
    let (head, body) = ask_for_text(address, method, target, content_type, body).await;
    let status = head[9..12].parse().expect("a status");
    let content_type = head
        .lines()
        .find_map(|line| line.strip_prefix("content-type: "))
        .unwrap_or_default()
        .to_owned();
    (
        status,
        content_type,
        serde_json::from_str(&body).unwrap_or(Value::Null),
    )
}

async fn ask_for_text(
    address: SocketAddr,
    method: &str,
    target: &str,
    content_type: &str,
    body: &str,
) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("answered");
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

#[tokio::test]
async fn the_command_asks_the_gateway() {
    let address = filled().await;
    let listed = keys(address, "list --state unknown --path /v1/charges").await;
    listed.assert_lines(0, 2);
    assert_eq!(
        listed.stderr,
        format!("asking the gateway at http://{address}\n")
    );

    let id = id(&charges(), "order-2").to_string();
    let shown = keys(address, &format!("show {}", &id[..7])).await;
    assert!(
        shown.stdout.starts_with(&format!(
            "id               {id}\nstate            unknown\n"
        )),
        "{}",
        shown.stdout
    );
    let operation = shown
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("operation id     "))
        .expect("an operation id");
    assert_eq!(
        keys(address, &format!("show {operation}")).await.stdout,
        shown.stdout,
        "it is found by what the upstream was given"
    );
    let nobody = keys(address, &format!("show {}", "0".repeat(64))).await;
    nobody.assert_code(1);

    let settled = keys(
        address,
        &format!("settle {} --outcome done --status 204 --reason r", &id[..7]),
    )
    .await;
    assert_eq!(
        settled.stdout,
        format!("settled\t{id}\tcompleted\tPOST /v1/charges\torder-2\n"),
        "{}",
        settled.stderr
    );
    let again = keys(
        address,
        &format!("settle {id} --outcome not-done --reason r"),
    )
    .await;
    assert_eq!(again.code, 1);
    again.assert_told("is completed: only an unknown outcome can be settled");

    let all = keys(
        address,
        "settle --state unknown --outcome not-done --reason r --yes",
    )
    .await;
    all.assert_lines(0, 2);
    let forgotten = keys(address, "forget --path /v1/charges --reason r --yes").await;
    forgotten.assert_lines(0, 3);
    let missing = keys(address, &format!("show {}", "0".repeat(64))).await;
    missing.assert_code(1);
    missing.assert_told("there is no record");
}

#[tokio::test]
async fn a_route_is_what_no_earlier_one_takes() {
    let address = filled().await;
    let listed = async |line: &str| {
        let said = keys(address, &format!("list {line}")).await;
        let mut keys: Vec<_> = said
            .stdout
            .lines()
            .filter_map(|line| line.split('\t').nth(3))
            .map(str::to_owned)
            .collect();
        keys.sort();
        (said.code, keys.join(" "), said.stderr)
    };
    assert_eq!(listed("--route refunds").await.1, "bytes killed order-3");
    assert_eq!(
        listed("--route versioned").await.1,
        "k 4 order-1 order-2 order-3",
        "refunds are the first one's"
    );
    assert_eq!(
        listed("--route /v1/**").await.1,
        "bytes k 4 killed order-1 order-2 order-3 order-3",
        "written out it stands alone"
    );
    assert_eq!(listed("--route 'post|patch /v1/orders/*'").await.1, "k 4");
    assert_eq!(
        listed("--route default").await.1,
        "",
        "the unwritten one comes last"
    );
    assert_eq!(
        listed("--namespace default --route refunds --state unknown")
            .await
            .1,
        "order-3"
    );
    assert_eq!(listed("--namespace another").await.1, "");
    assert_eq!(listed("--older 1h").await.1, "");
    let (code, _, stderr) = listed("--route charges").await;
    assert_eq!(
        (
            code,
            stderr.contains("there are `refunds`, `versioned`, `default`")
        ),
        (2, true),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_dry_run_shows_and_changes_nothing() {
    let address = filled().await;
    let args = "--state unknown --route versioned --outcome not-done --reason r --by ada";
    let said = keys(address, &format!("settle --dry-run {args}")).await;
    said.assert_lines(0, 0);
    said.assert_told("2 keys would be settled as not done");
    let (done, unknown) = (
        id(&charges(), "order-1").to_string(),
        id(&charges(), "order-2").to_string(),
    );
    let said = keys(
        address,
        &format!("forget --dry-run {done} --reason r --by ada"),
    )
    .await;
    said.assert_code(0);
    said.assert_told("1 key would be forgotten");
    let said = keys(
        address,
        &format!("forget --dry-run {unknown} --reason r --by ada"),
    )
    .await;
    said.assert_code(1);
    said.assert_told("settle it first");
    let settle = "settle --dry-run --outcome not-done --reason r --by ada";
    let said = keys(address, &format!("{settle} {unknown} {done}")).await;
    said.assert_code(1);
    said.assert_told(&format!("would not be settled: {done}: it is completed"));
    said.assert_told("1 key would be settled as not done");
    let said = keys(address, &format!("{settle} {}", "0".repeat(64))).await;
    said.assert_code(1);
    said.assert_told("there is no record");
    let all = keys(address, "list --state unknown").await;
    assert_eq!(all.stdout.lines().count(), 3, "{}", all.stdout);
}

#[tokio::test]
async fn what_is_unknown_is_not_forgotten() {
    let address = filled().await;
    let forget = format!("/v1/keys/{}/forget", id(&charges(), "order-2"));
    let (status, _, problem) = ask(
        address,
        "POST",
        &forget,
        "application/json",
        r#"{"by":"ada","reason":"r"}"#,
    )
    .await;
    assert_eq!(
        (status, &problem["code"]),
        (409, &"not-now".into()),
        "{problem}"
    );
    assert!(
        problem["detail"]
            .as_str()
            .unwrap()
            .contains("settle it first"),
        "{problem}"
    );
    let said = keys(
        address,
        "forget --path /v1/charges --limit 1 --reason r --by ada --yes",
    )
    .await;
    said.assert_lines(0, 1);
    assert!(
        said.stdout.contains("order-1"),
        "those that are left out do not count: {}",
        said.stdout
    );
    let said = keys(
        address,
        "forget --path /v1/charges --reason r --by ada --dry-run",
    )
    .await;
    said.assert_told("left out: 2 keys of unknown outcome, to be settled first");
    assert_eq!(
        keys(address, "list --state unknown")
            .await
            .stdout
            .lines()
            .count(),
        3
    );
}

/// Earlier versions could forget an unknown record, which cannot be settled after that.
#[tokio::test]
async fn what_was_forgotten_while_unknown_waits_for_nobody() {
    let store = Arc::new(hapax::store::memory());
    fill(&*store).await;
    let head = store
        .get(vec![id(&charges(), "order-2")])
        .await
        .unwrap()
        .records
        .remove(0)
        .unwrap()
        .head;
    let change = Change::Forget(
        Lifetime::default(),
        Signed::new("ada", "as it was").unwrap(),
    );
    store
        .put_if(Put {
            id: head.id,
            condition: Condition::Version {
                version: head.version,
            },
            change,
        })
        .await
        .unwrap();
    let address = serve(store).await;
    assert_eq!(
        keys(address, "list --state unknown")
            .await
            .stdout
            .lines()
            .count(),
        2
    );
    let (_, _, open) = ask(address, "GET", "/v1/unknown", "", "").await;
    assert_eq!(open["unknown"].as_array().unwrap().len(), 2, "{open}");
    let (_, metrics) = ask_for_text(address, "GET", "/metrics", "", "").await;
    assert!(metrics.contains("\nhapax_unknown 2\n"), "{metrics}");
    let said = keys(
        address,
        &format!("settle {} --outcome not-done --reason r", head.id),
    )
    .await;
    said.assert_code(1);
    said.assert_told("was forgotten while its outcome was unknown");
}

#[tokio::test]
async fn somebody_else_on_the_port_is_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    let said = keys(address, "list").await;
    said.assert_code(3);
    said.assert_told("no admin listener of Hapax");
}

#[tokio::test]
async fn changes_are_taken_only_as_json() {
    let address = filled().await;
    let settle = format!("/v1/keys/{}/settle", id(&charges(), "order-2"));
    let body = r#"{"outcome":"not-done","by":"ada","reason":"r"}"#;
    for content_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "",
    ] {
        let (status, kind, problem) = ask(address, "POST", &settle, content_type, body).await;
        assert_eq!(
            (status, kind.as_str()),
            (415, "application/problem+json"),
            "{content_type}"
        );
        assert_eq!(problem["code"], "unsupported-media-type");
    }
    let (status, _, entry) = ask(
        address,
        "POST",
        &settle,
        "application/json; charset=utf-8",
        body,
    )
    .await;
    assert_eq!((status, &entry["state"]), (200, &"retryable".into()));
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let address = filled().await;
    let (unknown, done) = (id(&charges(), "order-2"), id(&charges(), "order-1"));
    for (method, target, body, status, word) in [
        (
            "GET",
            "/v1/keys?state=lost".to_owned(),
            "",
            400,
            "`lost` is no state",
        ),
        (
            "GET",
            "/v1/keys?path=v1".to_owned(),
            "",
            400,
            "begins with `/`",
        ),
        ("GET", "/v1/keys?sort=age".to_owned(), "", 400, "sort"),
        (
            "GET",
            "/v1/keys?after=x".to_owned(),
            "",
            400,
            "64 lower-case hexadecimal digits",
        ),
        (
            "GET",
            "/v1/keys/abc".to_owned(),
            "",
            400,
            "64 lower-case hexadecimal digits",
        ),
        (
            "GET",
            format!("/v1/keys/{}", "0".repeat(64)),
            "",
            404,
            "there is no record",
        ),
        (
            "POST",
            format!("/v1/keys/{unknown}/settle"),
            "{",
            400,
            "not what this takes",
        ),
        (
            "POST",
            format!("/v1/keys/{unknown}/settle"),
            r#"{"outcome":"not-done","by":"a"}"#,
            400,
            "reason",
        ),
        (
            "POST",
            format!("/v1/keys/{unknown}/settle"),
            r#"{"outcome":"not-done","by":"a","reason":" "}"#,
            400,
            "`reason` is empty",
        ),
        (
            "POST",
            format!("/v1/keys/{unknown}/settle"),
            r#"{"outcome":"done","by":"a","reason":"r"}"#,
            400,
            "say the status",
        ),
        (
            "POST",
            format!("/v1/keys/{done}/settle"),
            r#"{"outcome":"not-done","by":"a","reason":"r"}"#,
            409,
            "is completed",
        ),
        (
            "POST",
            format!("/v1/keys/{unknown}/forget"),
            r#"{"by":"","reason":"r"}"#,
            400,
            "`by` is empty",
        ),
    ] {
        let (code, kind, problem) = ask(address, method, &target, "application/json", body).await;
        assert_eq!(
            (code, kind.as_str()),
            (status, "application/problem+json"),
            "{target}: {problem}"
        );
        let detail = problem["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(word), "{target}: {problem}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let mut router = router(admin_of(Arc::new(hapax::store::memory())).await);
    let request = http::Request::post(format!("/v1/keys/{}/settle", "0".repeat(64)))
        .header("content-type", "application/json");
    let request = request
        .body(axum::body::Body::from("x".repeat(3 << 20)))
        .expect("a request");
    let Ok(answer) = tower_service::Service::call(&mut router, request).await;
    assert_eq!(answer.status(), 413);
}

#[tokio::test]
async fn an_answer_is_shown_when_asked_for() {
    let address = filled().await;
    let target = format!("/v1/keys/{}", id(&charges(), "order-1"));
    let (status, _, shown) = ask(address, "GET", &target, "", "").await;
    assert_eq!(
        (status, &shown["status"], shown.get("answer")),
        (200, &201.into(), None)
    );
    let (_, _, shown) = ask(address, "GET", &format!("{target}?answer=true"), "", "").await;
    assert_eq!(
        shown["answer"]["headers"][0],
        serde_json::json!(["content-type", "application/json"])
    );
    assert!(
        shown["answer"]["body"]
            .as_str()
            .unwrap()
            .starts_with("{\"id\":\"ch_1\""),
        "{shown}"
    );
}

#[tokio::test]
async fn a_filter_that_matches_nothing_walks_a_bounded_way_and_says_where_to_go_on() {
    const KEYS: usize = 10_500;
    let store = Arc::new(hapax::store::memory());
    for number in 0..KEYS {
        ended(
            &*store,
            &charges(),
            &format!("k{number}"),
            State::Completed,
            Some(Answer::new(200, "")),
        )
        .await;
    }
    let address = serve(store).await;
    let (_, _, first) = ask(address, "GET", "/v1/keys?state=failed", "", "").await;
    assert_eq!(first["keys"].as_array().unwrap().len(), 0);
    let next = first["next"].as_str().expect("where to go on").to_owned();
    let (_, _, second) = ask(
        address,
        "GET",
        &format!("/v1/keys?state=failed&after={next}"),
        "",
        "",
    )
    .await;
    assert_eq!(
        (second["keys"].as_array().unwrap().len(), &second["next"]),
        (0, &Value::Null)
    );
    let all = keys(address, "list --json --path /v1/* --by-id --limit 20000").await;
    assert_eq!((all.code, all.stdout.lines().count()), (0, KEYS));
    // The newest of all keys, whatever their ids: sorted by the gateway, or by the command.
    let last = |count: usize| {
        (0..KEYS)
            .rev()
            .take(count)
            .map(|number| format!("k{number}"))
            .collect::<Vec<_>>()
    };
    for limit in [5, 2_000] {
        let newest = keys(address, &format!("list --limit {limit}")).await;
        let listed: Vec<&str> = newest
            .stdout
            .lines()
            .filter_map(|line| line.split('\t').nth(3))
            .collect();
        assert!(listed == last(limit), "{limit}: {:?}", &listed[..5]);
    }
    let found = keys(address, "show --key k7").await;
    assert!(
        found.code == 0 && found.stdout.contains("key              k7\n"),
        "{}{}",
        found.stdout,
        found.stderr
    );
    let (_, _, page) = ask(address, "GET", "/v1/keys?limit=100000", "", "").await;
    assert_eq!(page["keys"].as_array().unwrap().len(), 1_000);
}
