//! What an operator reads: a line for each request, and every line of a request with its id.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::logged::{Logged, command, is_access};
use crate::service::{Ledger, Service};
use crate::wire::{Connection, Got, get, post};

struct World {
    program: Logged,
    service: Service,
    ledger: Ledger,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start(settings: &str) -> World {
        let (directory, ledger) = (tempfile::tempdir().unwrap(), Ledger::default());
        let service = Service::start("service", &ledger).await;
        let program = Logged::start(directory.path(), &with(&service, settings));
        World { program, service, ledger, _directory: directory }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        Connection::open(self.program.address, None).await.send(request).await.unwrap()
    }
}

fn with(service: &Service, settings: &str) -> String {
    format!("store = \"sqlite:hapax.db\"\n{settings}\n[upstream]\nurl = \"{}\"\n", service.url())
}

fn called(mut request: Request<Full<Bytes>>, id: &str) -> Request<Full<Bytes>> {
    request.headers_mut().insert("x-request-id", id.parse().unwrap());
    request
}

/// Bytes on a connection of their own: the answer, head and all.
async fn raw(to: SocketAddr, bytes: &str) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// The id that an answer has, once.
fn id_of(got: &Got) -> &str {
    let ids: Vec<_> = got.headers.get_all("x-request-id").iter().collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0].to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_carries_the_id_of_its_request() {
    let world = World::start("").await;
    let requests = [
        ("first", post("/charges", "k1"), 201),
        ("replay", post("/charges", "k1"), 201),
        ("rejection", post("/charges", "a b"), 400),
        ("passed", get("/charges"), 201),
        ("published", get("/.well-known/idempotency"), 200),
        ("lost", post("/charges", "lost-1"), 502),
        ("ambiguous", get("/charges/../x"), 201),
    ];
    for (id, request, status) in requests {
        let got = world.send(called(request, id)).await;
        assert_eq!((got.status, id_of(&got)), (status, id), "{}", got.body);
    }
    let got = world.send(get("/charges")).await;
    assert!(!id_of(&got).is_empty() && id_of(&got) != "the-services-own", "one is made where there is none");
    let got = world.send(called(get("/charges"), "not plain")).await;
    assert_ne!(id_of(&got), "not plain");
    let refused = raw(world.program.address, "GET / HTTP/9.9\r\nHost: h\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("\r\nx-request-id: "), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_has_a_line_that_says_what_was_done() {
    let mut world =
        World::start("access_log = \"all\"\n[[routes]]\npath = \"/v1/{id}\"\nmethod = \"POST\"\nkey = \"required\"\n").await;
    let anonymous =
        |path: &str| Request::post(path).header("host", "h").header("idempotency-key", "k").body(Full::default()).unwrap();
    for (id, request) in [
        ("ran", post("/v1/17?card=4242", "k1")),
        ("replayed", post("/v1/17?card=4242", "k1")),
        ("reused", post("/v1/17?card=1111", "k1")),
        ("missing", Request::post("/v1/17").header("host", "h").body(Full::default()).unwrap()),
        ("anonymous", anonymous("/charges")),
        ("passed", get("/charges")),
        ("published", get("/.well-known/idempotency")),
        ("lost", post("/v1/17", "lost-1")),
    ] {
        world.send(called(request, id)).await;
    }
    let refused = raw(world.program.address, "GET / HTTP/9.9\r\nHost: h\r\n\r\n").await;
    let refused = refused.split("x-request-id: ").nth(1).unwrap().lines().next().unwrap();

    for (id, action, status, upstream) in [
        ("ran", "ran", 201, Some(201)),
        ("replayed", "replayed", 201, None),
        ("reused", "rejected:key-reused", 422, None),
        ("missing", "rejected:key-missing", 400, None),
        ("anonymous", "ran", 201, Some(201)),
        ("passed", "passed", 201, Some(201)),
        ("published", "published", 200, None),
        ("lost", "rejected:outcome-unknown", 502, Some(502)),
        (refused, "refused:version", 400, None),
    ] {
        let line = world.program.access(id);
        let said = (&line["hapax.action"], &line["http.response.status_code"], line["hapax.upstream.status_code"].as_u64());
        assert_eq!(said, (&Value::from(action), &Value::from(status), upstream), "{line}");
        let (total, in_upstream) = (line["hapax.duration_ms"].as_f64().unwrap(), line["hapax.upstream.duration_ms"].as_f64());
        assert!(in_upstream.is_none_or(|time| time <= total) && in_upstream.is_some() == upstream.is_some(), "{line}");
        assert!(!line.to_string().contains("4242"), "a query is nobody's business: {line}");
    }
    let ran = world.program.access("ran");
    let named = ["http.request.method", "url.path", "http.route", "hapax.route"].map(|name| ran[name].as_str().unwrap());
    assert_eq!(named, ["POST", "/v1/17", "/v1/{id}", "POST /v1/{id}"]);
    let principal = ran["hapax.principal"].as_str().unwrap();
    assert!(principal.len() == 8 && principal.bytes().all(|digit| digit.is_ascii_hexdigit()), "{ran}");
    assert_eq!(ran["hapax.principal"], world.program.access("replayed")["hapax.principal"]);
    assert_eq!(world.program.access("anonymous")["hapax.principal"], "anonymous");
    assert!(world.program.access("passed").get("hapax.principal").is_none(), "nobody asked");
    assert_eq!(world.program.access(refused).get("url.path"), None, "nothing of it could be read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_for_a_running_attempt_is_told_apart() {
    let mut world = World::start("").await;
    let address = world.program.address;
    let slow = |id: &'static str| async move {
        let mut request = called(post("/slow", "k1"), id);
        request.headers_mut().insert("prefer", "wait=20".parse().unwrap());
        Connection::open(address, None).await.send(request).await.unwrap().status
    };
    let first = tokio::spawn(slow("first"));
    world.service.arrived.acquire().await.unwrap().forget();
    let second = tokio::spawn(slow("second"));
    // The second has joined when it is counted.
    loop {
        let admin = world.program.admin.strip_prefix("http://").unwrap().parse().unwrap();
        let metrics = Connection::open(admin, None).await.send(get("/metrics")).await.unwrap().body;
        if metrics.contains("hapax_waits_total 1") {
            break;
        }
    }
    world.service.gate.add_permits(1);
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (201, 201));
    assert_eq!(world.program.access("first")["hapax.action"], "ran");
    assert_eq!(world.program.access("second")["hapax.action"], "waited");
    assert_eq!(world.ledger.count("k1"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_pass_is_logged_only_if_all_are_and_nothing_if_none_is() {
    let settings = |lines: &str| format!("access_log = \"{lines}\"\n");
    let mut world = World::start("").await;
    let requests = |world: &World, round: &str| {
        let of = |id: &str| format!("{round}-{id}");
        let address = world.program.address;
        let sent = [called(get("/a"), &of("passed")), called(post("/a", &of("key")), &of("ran"))];
        async move {
            for request in sent {
                Connection::open(address, None).await.send(request).await.unwrap();
            }
        }
    };
    requests(&world, "notable").await;
    for lines in ["all", "off"] {
        let directory = world._directory.path().to_owned();
        drop(command(&directory, &with(&world.service, &settings(lines))));
        world.program.signal(Signal::HUP);
        world.program.wait_for("it changed", |line| line["setting"] == "access_log" && line["to"] == lines);
        world.program.wait_for("it was reloaded", |line| line["message"] == "the configuration was reloaded");
        requests(&world, lines).await;
    }
    let lines = world.program.end();
    let logged: Vec<_> = lines.iter().filter(|line| is_access(line)).map(|line| line["request_id"].as_str().unwrap()).collect();
    assert_eq!(logged, ["notable-ran", "all-passed", "all-ran"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_follows_the_end_of_its_answer() {
    let mut world = World::start("access_log = \"all\"").await;
    let address = world.program.address;
    // Gone before it is answered.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST /slow HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k1\r\nX-Request-Id: gone\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    world.service.arrived.acquire().await.unwrap().forget();
    drop(stream);
    world.service.gate.add_permits(1);
    let line = world.program.access("gone");
    assert!(["hung-up", "ran"].contains(&line["hapax.action"].as_str().unwrap()), "{line}");
    let got = world.send(called(get("/large"), "large")).await;
    let line = world.program.access("large");
    assert!(line.get("error.type").is_none() && got.status == 201, "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_json_every_line_is_json_and_the_banner_is_one_of_them() {
    let world = World::start("").await;
    let lines = world.program.end();
    let serves: Vec<_> = lines.iter().filter(|line| line["message"] == "the gateway serves").collect();
    assert_eq!(serves.len(), 1, "{lines:#?}");
    for name in ["listen", "upstream", "store", "principal", "admin", "routes", "access_log", "version"] {
        assert!(serves[0][name].is_string(), "{name}: {}", serves[0]);
    }
    assert_eq!(serves[0]["routes"], "POST|PATCH /**: hold, key optional");
    assert!(lines.last().unwrap()["message"].as_str().unwrap().starts_with("stopped: "), "{lines:#?}");
}

#[test]
fn a_start_that_fails_says_so_in_json_only_where_json_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let failed = |args: &[&str]| {
        let output = command(directory.path(), "store = 7\n").args(args).output().unwrap();
        assert!(output.status.code() == Some(2) && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = failed(&[]);
    assert!(text.starts_with("hapax: ") && text.contains("hapax.toml:3:9"), "{text}");
    let json = failed(&["--log", "json"]);
    let line: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert!(line["message"].as_str().unwrap().contains("hapax.toml:3:9"), "{line}");
}
