//! The log as operators read it: an access line for each request, and the request's id in every
//! line.

use hapax_testkit::servers::Postgres;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{self, Answer, Client, ClientRequest, Signal, With, get, migrated};
use crate::logged::{Logged, command, is_access};
use crate::service::{Ledger, Service};
use crate::world::post;
use std::process::Stdio;

struct World {
    program: Logged,
    service: Service,
    ledger: Ledger,
    _directory: tempfile::TempDir,
}

impl World {
    async fn start(settings: &str) -> World {
        let (directory, ledger) = (tempfile::tempdir().unwrap(), Ledger::default());
        let service = Service::start("service", &ledger);
        let program = Logged::start(directory.path(), &with(&service, settings));
        World {
            program,
            service,
            ledger,
            _directory: directory,
        }
    }

    async fn send(&self, request: ClientRequest) -> Answer {
        Client::new(self.program.address).send(request).await
    }
}

fn with(service: &Service, settings: &str) -> String {
    format!(
        "store = \"sqlite:hapax.db\"\n{settings}\n[upstream]\nurl = \"{}\"\n",
        service.url()
    )
}

fn called(request: ClientRequest, id: &str) -> ClientRequest {
    request.with("x-request-id", id)
}

/// The request id of an answer, which must have exactly one.
fn id_of(got: &Answer) -> &str {
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
        assert_eq!((got.status, id_of(&got)), (status, id), "{}", got.text());
    }
    let got = world.send(get("/charges")).await;
    assert!(
        !id_of(&got).is_empty() && id_of(&got) != "the-services-own",
        "one is made where there is none"
    );
    let got = world.send(called(get("/charges"), "not plain")).await;
    assert_ne!(id_of(&got), "not plain");
    let refused = Client::new(world.program.address)
        .raw("GET / HTTP/9.9\r\nHost: h\r\n\r\n".as_bytes())
        .await;
    assert!(
        refused.starts_with("HTTP/1.1 400") && refused.contains("\r\nx-request-id: "),
        "{refused}"
    );
}

/// A full pipe must not block a request, neither by its access line nor by a line that says why it
/// failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_has_to_read_the_log() {
    let (directory, ledger) = (tempfile::tempdir().unwrap(), Ledger::default());
    let service = Service::start("service", &ledger);
    let mut command = command(directory.path(), &with(&service, ""));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.args(["--log", "text"]).spawn().unwrap();
    let unread = child.stderr.take().unwrap();
    let banner = std::io::BufReader::new(child.stdout.take().unwrap());
    let address = std::io::BufRead::lines(banner).find_map(|line| {
        line.unwrap().trim().strip_prefix("clients").map(|rest| {
            rest.trim()
                .strip_prefix("http://")
                .unwrap()
                .parse()
                .unwrap()
        })
    });
    let mut connection = Client::new(address.expect("the banner says where it listens"))
        .connect()
        .await
        .unwrap();
    // Each request writes a line of over a hundred bytes: together they are more than a pipe holds.
    for number in 0..1_500 {
        assert_eq!(
            connection
                .send(post("/charges", &format!("k-{number}")))
                .await
                .unwrap()
                .status,
            201
        );
    }
    for number in 0..20 {
        assert_eq!(
            connection
                .send(post("/charges", &format!("lost-{number}")))
                .await
                .unwrap()
                .status,
            502
        );
    }
    assert_eq!(
        connection
            .send(post("/charges", "k-0"))
            .await
            .unwrap()
            .status,
        201
    );
    child.kill().unwrap();
    child.wait().unwrap();
    drop(unread);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_has_a_line_that_says_what_was_done() {
    let mut world =
        World::start("access_log = \"all\"\n[[routes]]\npath = \"/v1/{id}\"\nmethod = \"POST\"\nkey = \"required\"\n").await;
    let anonymous = |path: &str| harness::post(path, "").key("k");
    for (id, request) in [
        ("ran", post("/v1/17?card=4242", "k1")),
        ("replayed", post("/v1/17?card=4242", "k1")),
        ("reused", post("/v1/17?card=1111", "k1")),
        ("missing", harness::post("/v1/17", "")),
        ("anonymous", anonymous("/charges")),
        ("passed", get("/charges")),
        ("published", get("/.well-known/idempotency")),
        ("lost", post("/v1/17", "lost-1")),
    ] {
        world.send(called(request, id)).await;
    }
    let refused = Client::new(world.program.address)
        .raw("GET / HTTP/9.9\r\nHost: h\r\n\r\n".as_bytes())
        .await;
    let refused = refused
        .split("x-request-id: ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();

    for (id, action, status, upstream) in [
        ("ran", "ran", 201, Some(201)),
        ("replayed", "replayed", 201, None),
        ("reused", "rejected:key-reused", 422, None),
        ("missing", "rejected:key-missing", 400, None),
        ("anonymous", "ran", 201, Some(201)),
        ("passed", "passed", 201, Some(201)),
        ("published", "published", 200, None),
        ("lost", "ran", 502, Some(502)),
        (refused, "refused:version", 400, None),
    ] {
        let line = world.program.access(id);
        let said = (
            &line["hapax.action"],
            &line["http.response.status_code"],
            line["hapax.upstream.status_code"].as_u64(),
        );
        assert_eq!(
            said,
            (&Value::from(action), &Value::from(status), upstream),
            "{line}"
        );
        let (total, in_upstream) = (
            line["hapax.duration_ms"].as_f64().unwrap(),
            line["hapax.upstream.duration_ms"].as_f64(),
        );
        assert!(
            in_upstream.is_none_or(|time| time <= total)
                && in_upstream.is_some() == upstream.is_some(),
            "{line}"
        );
        assert!(
            !line.to_string().contains("4242"),
            "a query is nobody's business: {line}"
        );
    }
    let ran = world.program.access("ran");
    let named = [
        "http.request.method",
        "url.path",
        "http.route",
        "hapax.route",
    ]
    .map(|name| ran[name].as_str().unwrap());
    assert_eq!(named, ["POST", "/v1/17", "/v1/{id}", "POST /v1/{id}"]);
    let principal = ran["hapax.principal"].as_str().unwrap();
    assert!(
        principal.len() == 8 && principal.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "{ran}"
    );
    assert_eq!(
        ran["hapax.principal"],
        world.program.access("replayed")["hapax.principal"]
    );
    assert_eq!(
        world.program.access("anonymous")["hapax.principal"],
        "anonymous"
    );
    assert!(
        world
            .program
            .access("passed")
            .get("hapax.principal")
            .is_none(),
        "nobody asked"
    );
    assert_eq!(
        world.program.access(refused).get("url.path"),
        None,
        "nothing of it could be read"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waited_for_a_running_attempt_is_told_apart() {
    let mut world = World::start("").await;
    let address = world.program.address;
    let slow = |id: &'static str| async move {
        let request = called(post("/slow", "k1"), id).with("prefer", "wait=20");
        Client::new(address).send(request).await.status
    };
    let first = tokio::spawn(slow("first"));
    world.service.slow.wait_held(1).await;
    let second = tokio::spawn(slow("second"));
    // Waits until the metrics count the second request as waiting.
    loop {
        let metrics = Client::new(world.program.admin).send(get("/metrics")).await;
        if metrics.text().contains("hapax_waits_total 1") {
            break;
        }
    }
    world.service.slow.open(1);
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
        let sent = [
            called(get("/a"), &of("passed")),
            called(post("/a", &of("key")), &of("ran")),
        ];
        async move {
            for request in sent {
                Client::new(address).send(request).await;
            }
        }
    };
    requests(&world, "notable").await;
    for lines in ["all", "off"] {
        let directory = world._directory.path().to_owned();
        drop(command(&directory, &with(&world.service, &settings(lines))));
        world.program.signal(Signal::HUP);
        world.program.wait_for("it changed", |line| {
            line["setting"] == "access_log" && line["to"] == lines
        });
        world.program.wait_for("it was reloaded", |line| {
            line["message"] == "the configuration was reloaded"
        });
        requests(&world, lines).await;
    }
    let lines = world.program.end();
    let logged: Vec<_> = lines
        .iter()
        .filter(|line| is_access(line))
        .map(|line| line["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(logged, ["notable-ran", "all-passed", "all-ran"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_follows_the_end_of_its_answer() {
    let mut world = World::start("access_log = \"all\"").await;
    let address = world.program.address;
    // The client disconnects before the answer.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"POST /slow HTTP/1.1\r\nHost: h\r\nIdempotency-Key: k1\r\nX-Request-Id: gone\r\nContent-Length: 0\r\n\r\n")
        .await
        .unwrap();
    world.service.slow.wait_held(1).await;
    drop(stream);
    world.service.slow.open(1);
    let line = world.program.access("gone");
    assert!(
        ["hung-up", "ran"].contains(&line["hapax.action"].as_str().unwrap()),
        "{line}"
    );
    let got = world.send(called(get("/large"), "large")).await;
    let line = world.program.access("large");
    assert!(
        line.get("error.type").is_none() && got.status == 201,
        "{line}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_json_every_line_is_json_and_the_banner_is_one_of_them() {
    let world = World::start("").await;
    let lines = world.program.end();
    let serves: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "the gateway serves")
        .collect();
    assert_eq!(serves.len(), 1, "{lines:#?}");
    for name in [
        "listen",
        "upstream",
        "store",
        "principal",
        "admin",
        "routes",
        "access_log",
        "version",
    ] {
        assert!(serves[0][name].is_string(), "{name}: {}", serves[0]);
    }
    assert_eq!(serves[0]["routes"], "POST|PATCH /**: hold, key optional");
    assert!(
        lines.last().unwrap()["message"]
            .as_str()
            .unwrap()
            .starts_with("stopped: "),
        "{lines:#?}"
    );
}

#[test]
fn a_start_that_fails_says_so_in_json_only_where_json_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let failed = |args: &[&str]| {
        let output = command(directory.path(), "store = 7\n")
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.code() == Some(2) && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = failed(&[]);
    assert!(
        text.starts_with("hapax: ") && text.contains("hapax.toml:3:9"),
        "{text}"
    );
    let json = failed(&["--log", "json"]);
    let line: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(line["level"], "ERROR");
    assert!(
        line["message"].as_str().unwrap().contains("hapax.toml:3:9"),
        "{line}"
    );
}

/// The log lines of a request, except its access line.
fn told(lines: &[Value], id: &str) -> Vec<Value> {
    lines
        .iter()
        .filter(|line| line["request_id"] == id && !is_access(line))
        .cloned()
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_ends_badly_says_why_once() {
    let (directory, silent) = (
        tempfile::tempdir().unwrap(),
        tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    // A service that reads a request and closes the connection, or never answers.
    let upstream = silent.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = silent.accept().await {
            let mut head = [0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            if head[..length].starts_with(b"POST /silent") {
                kept.push(stream);
            }
        }
    });
    let settings = format!(
        "store = \"memory:\"\n[upstream]\nurl = \"http://{upstream}\"\n[timeouts]\nconnect = \"200ms\"\nanswer = \"300ms\"\n"
    );
    let program = Logged::start(directory.path(), &settings);
    let send = async |request: ClientRequest| Client::new(program.address).send(request).await;
    assert_eq!(
        send(called(post("/cut?card=4242", "k1"), "cut"))
            .await
            .status,
        502
    );
    assert_eq!(
        send(called(post("/silent", "k2"), "silent")).await.status,
        504
    );
    assert_eq!(
        send(called(get("/cut?card=4242"), "unguarded"))
            .await
            .status,
        502
    );
    // A mistake of the caller appears only in the access log.
    assert_eq!(
        send(called(post("/cut?card=4242", "k1"), "repeat"))
            .await
            .status,
        409
    );
    assert_eq!(
        send(called(post("/cut", "a b"), "malformed")).await.status,
        400
    );
    let mut cookie = called(post("/cut", "k3"), "cookie");
    cookie.headers_mut().remove("authorization");
    cookie
        .headers_mut()
        .insert("cookie", "session=1".parse().unwrap());
    assert_eq!(send(cookie).await.status, 400);

    let lines = program.end();
    for (id, path, cause) in [
        ("cut", "/cut", "connection closed"),
        (
            "silent",
            "/silent",
            "the service did not answer within 300ms (timeouts.answer)",
        ),
        ("unguarded", "/cut", "connection closed"),
    ] {
        let told = told(&lines, id);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert_eq!(
            (&told[0]["level"], &told[0]["path"]),
            (&"WARN".into(), &path.into()),
            "{}",
            told[0]
        );
        assert!(
            told[0]["method"].is_string() && told[0]["cause"].as_str().unwrap().contains(cause),
            "{}",
            told[0]
        );
    }
    for id in ["repeat", "malformed"] {
        assert!(told(&lines, id).is_empty(), "{lines:#?}");
    }
    assert!(
        !lines.iter().any(|line| line.to_string().contains("4242")),
        "{lines:#?}"
    );
    let cookie = lines
        .iter()
        .find(|line| is_access(line) && line["request_id"] == "cookie")
        .unwrap();
    assert_eq!(
        cookie["hapax.cause"],
        "looked at header authorization, and found only cookie"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_nobody_reaches_and_the_status_that_was_rewritten_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = "store = \"memory:\"\n[upstream]\nurl = \"http://127.0.0.1:1\"\n";
    let program = Logged::start(directory.path(), nobody);
    let got = Client::new(program.address)
        .send(called(post("/charges", "k1"), "unreached"))
        .await;
    assert_eq!(got.status, 502);
    let told_of = told(&program.end(), "unreached");
    assert_eq!(told_of.len(), 1, "{told_of:#?}");
    assert!(
        told_of[0]["cause"].as_str().unwrap().contains("refused")
            && told_of[0]["path"] == "/charges",
        "{}",
        told_of[0]
    );

    let world = World::start("").await;
    assert_eq!(
        world
            .send(called(post("/charges", "lost-1"), "lost"))
            .await
            .status,
        502
    );
    let told_of = told(&world.program.end(), "lost");
    assert_eq!(told_of.len(), 1, "{told_of:#?}");
    assert_eq!(told_of[0]["cause"], "the service answered 502");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_after_a_crash_says_how_many_attempts_it_found_lost() {
    let World {
        program,
        service,
        ledger,
        _directory: directory,
    } = World::start("").await;
    let address = program.address;
    for (held, key) in [(1, "k1"), (2, "k2")] {
        tokio::spawn(async move {
            Client::new(address)
                .try_send(post("/slow", key))
                .await
                .map(|got| got.status)
        });
        service.slow.wait_held(held).await;
    }
    program.kill();
    let lines = Logged::start(directory.path(), &with(&service, "")).end();
    let lost: Vec<_> = lines
        .iter()
        .filter(|line| line.get("lost").is_some())
        .collect();
    assert_eq!(lost.len(), 1, "{lines:#?}");
    assert!(
        lost[0]["lost"] == 2 && lost[0]["see"] == "hapax keys list --state unknown",
        "{}",
        lost[0]
    );
    let lines = Logged::start(directory.path(), &with(&service, "")).end();
    assert!(
        lines.iter().all(|line| line.get("lost").is_none()),
        "once: {lines:#?}"
    );
    assert_eq!((ledger.count("k1"), ledger.count("k2")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_is_told_when_it_goes_and_when_it_is_back() {
    let Some(mut postgres) = Postgres::start() else {
        return;
    };
    let url = migrated(&postgres);
    let (directory, service) = (
        tempfile::tempdir().unwrap(),
        Service::start("service", &Ledger::default()),
    );
    let settings = format!(
        "store = \"{url}\"\n[upstream]\nurl = \"{}\"\n",
        service.url()
    );
    let mut program = Logged::start(directory.path(), &settings);
    let address = program.address;
    let send = async |key: &str| {
        Client::new(address)
            .send(post("/charges", key))
            .await
            .status
    };
    assert_eq!(send("k1").await, 201);
    postgres.kill();
    for key in ["k2", "k3", "k4"] {
        assert_eq!(send(key).await, 503);
    }
    postgres.start_again();
    let back = program.wait_for("it is back", |line| line["message"] == "the store is back");
    assert!(
        back["refused"] == 3 && back["seconds"].as_f64().unwrap() > 0.0,
        "{back}"
    );
    assert_eq!(send("k2").await, 201);
    let lines = program.end();
    let of = |words: &str| {
        lines
            .iter()
            .filter(|line| line["message"].as_str().unwrap_or_default().contains(words))
            .count()
    };
    assert_eq!(
        (
            of("the store is away"),
            of("the store is back"),
            of("the store failed")
        ),
        (1, 1, 0),
        "{lines:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_was_joined_before_its_service_broke_off_is_not_told_as_unknown() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = migrated(postgres);
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let service = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = service.local_addr().unwrap();
    // A service that commits with its record and closes the connection.
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = service.accept().await {
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
            let field = |name: &str| {
                head.split(&format!("\r\n{name}: "))
                    .nth(1)
                    .map(|rest| rest.split("\r\n").next().unwrap().to_owned())
            };
            let (Some(operation), Some(fence)) = (field("hapax-operation"), field("hapax-fence"))
            else {
                continue;
            };
            let fence: i64 = fence.parse().unwrap();
            let complete = "SELECT hapax.complete($1, $2, 201, '{}'::jsonb, $3::bytea)";
            client
                .execute(complete, &[&operation, &fence, &&b"done"[..]])
                .await
                .unwrap();
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let settings = format!(
        "store = \"{url}\"\n[upstream]\nurl = \"http://{upstream}\"\n[defaults]\nmode = \"transaction\"\n"
    );
    let program = Logged::start(directory.path(), &settings);
    let got = Client::new(program.address)
        .send(called(post("/orders", "k1"), "joined"))
        .await;
    assert_eq!((got.status, got.text()), (201, "done"));
    let lines = program.end();
    assert!(
        told(&lines, "joined").is_empty(),
        "{:#?}",
        told(&lines, "joined")
    );
    let line = lines.iter().find(|line| is_access(line)).unwrap();
    assert_eq!(
        (&line["hapax.action"], &line["http.response.status_code"]),
        (&"ran".into(), &201.into()),
        "{line}"
    );
}
