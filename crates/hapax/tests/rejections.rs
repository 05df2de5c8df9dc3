//! The whole table of `docs/http.md`: each row through the layer without ports, and again through
//! axum over a real socket.
//!
//! Each row sets up a world in which its rejection is due; both ways use the same worlds.

mod common;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post as handle;
use bytes::Bytes;
use common::{Gate, Got, Ledger};
use hapax::{Event, Hapax, KeyRule, KeySource, Limits, Mode, Part, Policy, Principal, Velocity};
use hapax_core::{Memory, Secret};
use hapax_testkit::{Fault, Faulty, ManualClock, Verb};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tower::ServiceExt;

/// A service behind the layer, its store, its clock and its ledger.
struct World {
    app: Router,
    hapax: Hapax,
    store: Arc<Faulty>,
    clock: ManualClock,
    ledger: Ledger,
    gate: Gate,
    /// How many requests have begun to wait.
    waiting: Arc<watch::Sender<usize>>,
}

#[derive(Clone)]
struct Service {
    ledger: Ledger,
    gate: Gate,
}

/// Does what the body says: answers with a status, waits at the gate, fails, or is never
/// dispatched.
async fn obey(State(service): State<Service>, body: Bytes) -> Response {
    service.ledger.add(String::from_utf8_lossy(&body));
    match &body[..] {
        b"wait" => {
            service.gate.pass().await;
            StatusCode::CREATED.into_response()
        }
        b"wait, then 503" => {
            service.gate.pass().await;
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
        b"panic" => panic!("as told"),
        b"forget it" => ([("hapax-keep", "no")], StatusCode::CREATED).into_response(),
        status => match std::str::from_utf8(status)
            .ok()
            .and_then(|status| status.parse::<u16>().ok())
        {
            Some(status) => StatusCode::from_u16(status).unwrap().into_response(),
            None => StatusCode::CREATED.into_response(),
        },
    }
}

impl World {
    fn new(policy: Policy, limits: Limits) -> World {
        let clock = ManualClock::new();
        let memory = Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
        let store = Arc::new(Faulty::new(Arc::new(memory)));
        let waiting = Arc::new(watch::Sender::new(0));
        let counter = waiting.clone();
        let observer = move |event: &Event<'_>| {
            counter.send_modify(|count| *count += usize::from(matches!(event, Event::Waiting(_))));
        };
        let hapax = Hapax::builder_shared(store.clone())
            .sweep(None)
            .limits(limits)
            .observer(observer)
            .build();
        let service = Service {
            ledger: Ledger::default(),
            gate: Gate::new(),
        };
        let layer = hapax
            .guard()
            .policy(common::with_dialects(policy))
            .principal(|parts| {
                // As from a trusted proxy: no user is anonymous, an empty user name is refused.
                match parts.headers.get("x-user").map(HeaderValue::as_bytes) {
                    None => Some(Principal::Anonymous),
                    Some(b"") => None,
                    Some(user) => Some(Principal::named(String::from_utf8_lossy(user))),
                }
            })
            .build()
            .unwrap();
        let app = Router::new()
            .route("/{*path}", handle(obey))
            .layer(layer)
            .with_state(service.clone());
        World {
            app,
            hapax,
            store,
            clock,
            ledger: service.ledger,
            gate: service.gate,
            waiting,
        }
    }
}

/// How a request reaches a world.
#[derive(Clone)]
enum Way {
    /// By calling the service.
    Direct(Router),
    /// Over a socket, with hyper at both ends.
    Socket(std::net::SocketAddr),
}

impl Way {
    async fn socket(app: Router) -> Way {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        Way::Socket(address)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Got {
        match self {
            Way::Direct(app) => {
                Got::read(app.clone().oneshot(request.map(Body::new)).await.unwrap()).await
            }
            Way::Socket(address) => {
                let stream = tokio::net::TcpStream::connect(address).await.unwrap();
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(TokioIo::new(stream))
                        .await
                        .unwrap();
                tokio::spawn(connection);
                let mut request = request;
                request
                    .headers_mut()
                    .insert("host", HeaderValue::from_static("localhost"));
                Got::read(sender.send_request(request).await.unwrap()).await
            }
        }
    }

    fn spawn(&self, request: Request<Full<Bytes>>) -> tokio::task::JoinHandle<Got> {
        let way = self.clone();
        tokio::spawn(async move { way.send(request).await })
    }
}

fn post(key: &str, body: &'static str) -> Request<Full<Bytes>> {
    common::post("/do", key, body)
}

fn without_key(target: &str) -> Request<Full<Bytes>> {
    Request::post(target).body(Full::from("201")).unwrap()
}

fn with(
    mut request: Request<Full<Bytes>>,
    name: &'static str,
    value: &str,
) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .append(name, HeaderValue::try_from(value).unwrap());
    request
}

/// A row of the table: name, status, problem, whether to retry, and the number of effects.
type Row = (&'static str, u16, &'static str, bool, usize);

const ROWS: &[Row] = &[
    ("required key missing", 400, "key-missing", false, 0),
    ("key not in the body", 400, "key-missing", false, 0),
    (
        "part of a derived key missing",
        400,
        "key-missing",
        false,
        0,
    ),
    ("key in the body malformed", 400, "key-malformed", false, 0),
    ("key can be guessed", 400, "key-guessable", false, 0),
    ("key malformed", 400, "key-malformed", false, 0),
    ("key repeated", 400, "key-malformed", false, 0),
    ("bare key on a strict route", 400, "key-malformed", false, 0),
    ("key in the URL", 400, "key-in-url", false, 0),
    ("token forged", 400, "token-invalid", false, 0),
    ("token of somebody else", 400, "token-invalid", false, 0),
    ("credentials absent", 400, "principal-missing", false, 0),
    ("deadline malformed", 400, "deadline-malformed", false, 0),
    ("still running", 409, "in-flight", true, 1),
    ("just ended retryable", 409, "in-flight", true, 1),
    ("outcome unknown", 409, "outcome-unknown", false, 1),
    (
        "outcome unknown and past retention",
        409,
        "outcome-unknown",
        false,
        1,
    ),
    ("answer not kept", 409, "answer-not-kept", false, 1),
    (
        "answer kept under another version",
        409,
        "answer-not-kept",
        false,
        1,
    ),
    ("tried too often", 409, "attempts-exhausted", false, 1),
    ("past its retention", 410, "key-expired", false, 1),
    ("token past its life", 410, "key-expired", false, 0),
    ("deadline passed", 412, "deadline-passed", false, 0),
    ("body too large", 413, "body-too-large", false, 0),
    ("no room for the body", 503, "buffer-full", true, 1),
    ("same key, other request", 422, "key-reused", false, 1),
    ("too many operations", 429, "too-many-keys", true, 1),
    ("too many new keys", 429, "too-many-keys", true, 1),
    ("too many records", 429, "quota-reached", false, 1),
    ("upstream broke off", 502, "outcome-unknown", false, 1),
    ("upstream broke off, rerun", 502, "outcome-unknown", true, 1),
    ("store unreachable", 503, "store-unavailable", true, 0),
    ("node shutting down", 503, "draining", true, 0),
];

/// Sets up the world of a row and sends its request.
async fn ask(row: &str, is_socket: bool) -> (Got, usize) {
    let world = World::new(policy_of(row), limits_of(row));
    let way = if is_socket {
        Way::socket(world.app.clone()).await
    } else {
        Way::Direct(world.app.clone())
    };
    let got = provoke(row, &world, &way).await;
    (got, world.ledger.len())
}

fn policy_of(row: &str) -> Policy {
    let base = Policy {
        store_timeout: Duration::from_millis(100),
        ..Policy::default()
    };
    match row {
        "required key missing" => Policy {
            key: KeyRule::Required,
            ..base
        },
        "key not in the body" | "key in the body malformed" => Policy {
            key: KeyRule::Required,
            key_source: KeySource::Body("/k".parse().unwrap()),
            ..base
        },
        "part of a derived key missing" => Policy {
            key: KeyRule::Required,
            key_source: KeySource::Derived(vec![Part::Header("x-order".into())]),
            retention: Duration::from_secs(60),
            tombstone: Duration::ZERO,
            ..base
        },
        "key can be guessed" => Policy {
            key_bits_min: 64,
            ..base
        },
        "too many new keys" => Policy {
            velocity: vec![Velocity {
                by: Part::Principal,
                keys: 1,
                per: Duration::from_secs(60),
            }],
            ..base
        },
        "bare key on a strict route" => Policy {
            strict_key: true,
            ..base
        },
        row if row.starts_with("token") => Policy {
            key: KeyRule::Issued,
            ..base
        },
        "tried too often" => Policy {
            attempts_max: 1,
            ..base
        },
        "body too large" => Policy {
            body_memory_bytes_max: 4,
            body_bytes_max: 8,
            ..base
        },
        "upstream broke off, rerun" => Policy {
            mode: Mode::Rerun,
            ..base
        },
        _ => base,
    }
}

fn limits_of(row: &str) -> Limits {
    match row {
        "too many operations" => Limits {
            attempts_in_flight_max: 1,
            ..Limits::default()
        },
        "no room for the body" => Limits {
            buffered_memory_bytes_max: 6,
            ..Limits::default()
        },
        "too many records" => Limits {
            records_per_principal_max: Some(1),
            ..Limits::default()
        },
        _ => Limits::default(),
    }
}

async fn provoke(row: &str, world: &World, way: &Way) -> Got {
    let day = Duration::from_secs(24 * 60 * 60);
    match row {
        "required key missing" => way.send(without_key("/do")).await,
        "key not in the body" => way.send(post("k", "{}")).await,
        "key in the body malformed" => way.send(post("k", "{\"k\":1.5}")).await,
        "part of a derived key missing" => way.send(post("k", "201")).await,
        "key can be guessed" => way.send(post("order-17", "201")).await,
        "too many new keys" | "too many records" => {
            assert_eq!(way.send(post("one", "201")).await.status, 201);
            way.send(post("two", "201")).await
        }
        "key malformed" => way.send(post("a b", "201")).await,
        "key repeated" => {
            way.send(with(post("a", "201"), "idempotency-key", "a"))
                .await
        }
        "bare key on a strict route" => way.send(post("a", "201")).await,
        "key in the URL" => way.send(without_key("/do?idempotency_key=a")).await,
        "token forged" => way.send(post("made-up", "201")).await,
        "token of somebody else" => {
            let token = world
                .hapax
                .issue(&Principal::named("ada"), day)
                .await
                .unwrap();
            way.send(with(post(token.as_str(), "201"), "x-user", "bob"))
                .await
        }
        "credentials absent" => way.send(with(post("k", "201"), "x-user", "")).await,
        "deadline malformed" => {
            way.send(with(post("k", "201"), "idempotency-deadline", "tomorrow"))
                .await
        }
        "still running" => {
            let _first = way.spawn(post("k", "wait"));
            world.gate.wait_for(1).await;
            way.send(post("k", "wait")).await
        }
        "just ended retryable" => {
            let first = way.spawn(post("k", "wait, then 503"));
            world.gate.wait_for(1).await;
            let waiter = way.spawn(with(post("k", "wait, then 503"), "prefer", "wait=30"));
            world
                .waiting
                .subscribe()
                .wait_for(|waiting| *waiting == 1)
                .await
                .unwrap();
            world.gate.open(1);
            assert_eq!(first.await.unwrap().status, 503);
            waiter.await.unwrap()
        }
        "outcome unknown" => {
            way.send(post("k", "502")).await;
            way.send(post("k", "502")).await
        }
        "outcome unknown and past retention" => {
            way.send(post("k", "502")).await;
            world.clock.advance(day * 30);
            world.hapax.sweep_once().await.unwrap();
            way.send(post("k", "502")).await
        }
        "answer kept under another version" => {
            way.send(post("k", "201")).await;
            let layer = world
                .hapax
                .guard()
                .policy(Policy {
                    answer_version: Some("2".into()),
                    retry_dialects: true,
                    ..Policy::default()
                })
                .anonymous()
                .build()
                .unwrap();
            let app = Router::new()
                .route("/{*path}", handle(|| async { StatusCode::CREATED }))
                .layer(layer);
            match way {
                Way::Direct(_) => Way::Direct(app).send(post("k", "201")).await,
                Way::Socket(_) => Way::socket(app).await.send(post("k", "201")).await,
            }
        }
        "answer not kept" => {
            way.send(post("k", "forget it")).await;
            way.send(post("k", "forget it")).await
        }
        "tried too often" => {
            assert_eq!(way.send(post("k", "503")).await.status, 503);
            way.send(post("k", "503")).await
        }
        "past its retention" => {
            way.send(post("k", "201")).await;
            world.clock.advance(day);
            // A new node, because the first one's cache runs by the runtime's clock.
            world.store.fail_next(Verb::Info, Fault::ErrorBefore, 1);
            let fresh = Hapax::builder_shared(world.store.clone())
                .sweep(None)
                .build();
            let layer = fresh
                .guard()
                .policy(common::with_dialects(Policy::default()))
                .anonymous()
                .build()
                .unwrap();
            let app = Router::new()
                .route("/{*path}", handle(|| async { StatusCode::CREATED }))
                .layer(layer);
            match way {
                Way::Direct(_) => Way::Direct(app).send(post("k", "201")).await,
                Way::Socket(_) => Way::socket(app).await.send(post("k", "201")).await,
            }
        }
        "token past its life" => {
            let token = world
                .hapax
                .issue(&Principal::Anonymous, Duration::ZERO)
                .await
                .unwrap();
            way.send(post(token.as_str(), "201")).await
        }
        "deadline passed" => {
            way.send(with(
                post("k", "201"),
                "idempotency-deadline",
                "@1700000000",
            ))
            .await
        }
        "body too large" => way.send(post("k", "123456789")).await,
        "no room for the body" => {
            let _first = way.spawn(post("k", "wait"));
            world.gate.wait_for(1).await;
            way.send(post("another", "201")).await
        }
        "same key, other request" => {
            way.send(post("k", "201")).await;
            way.send(post("k", "202")).await
        }
        "too many operations" => {
            let _first = way.spawn(post("k", "wait"));
            world.gate.wait_for(1).await;
            way.send(post("another", "201")).await
        }
        "upstream broke off" | "upstream broke off, rerun" => way.send(post("k", "panic")).await,
        "store unreachable" => {
            world.store.down(true);
            way.send(post("k", "201")).await
        }
        "node shutting down" => {
            world.hapax.drain(Duration::ZERO).await;
            way.send(post("k", "201")).await
        }
        other => panic!("no world for {other:?}"),
    }
}

#[tokio::test]
async fn every_row_of_the_table_directly_and_over_a_socket() {
    for &(row, status, problem, again, effects) in ROWS {
        for is_socket in [false, true] {
            let (got, happened) = ask(row, is_socket).await;
            let context = format!("{row}, over a socket: {is_socket}");
            assert_eq!(
                (got.status.as_u16(), got.problem().as_str(), happened),
                (status, problem, effects),
                "{context}"
            );
            assert_advice(&got, again, &context);
        }
    }
    hapax_testkit::report!("{} rows, each directly and over a socket", ROWS.len());
}

/// Checks the retry advice: every field must say the same.
fn assert_advice(got: &Got, again: bool, context: &str) {
    let word = if again { "true" } else { "false" };
    assert_eq!(
        (
            got.header("x-should-retry"),
            got.header("stripe-should-retry")
        ),
        (Some(word), Some(word)),
        "{context}"
    );
    assert_eq!(
        (
            got.header("retry-after").is_some(),
            got.header("retry-after-ms").is_some()
        ),
        (again, again),
        "{context}"
    );
    assert_eq!(got.header("cache-control"), Some("no-store"), "{context}");
    let text = std::str::from_utf8(&got.body).unwrap();
    let members = [
        "\"type\":\"/.well-known/idempotency/problems/",
        "\"title\":\"",
        "\"detail\":\"",
        &format!("\"status\":{}", got.status.as_u16()),
    ];
    for member in members {
        assert!(text.contains(member), "{context}: no {member} in {text}");
    }
}

#[tokio::test]
async fn a_token_works_for_whom_it_was_issued_and_finds_its_answer_after_its_life() {
    // Tokens expire by the machine's clock.
    let hapax = Hapax::new(hapax::store::memory());
    let layer = hapax
        .guard()
        .policy(Policy {
            key: KeyRule::Issued,
            ..Policy::default()
        })
        .principal(|parts| {
            Some(Principal::named(
                parts.headers.get("x-user")?.to_str().ok()?,
            ))
        })
        .build()
        .unwrap();
    let service = Service {
        ledger: Ledger::default(),
        gate: Gate::new(),
    };
    let way = Way::Direct(
        Router::new()
            .route("/{*path}", handle(obey))
            .layer(layer)
            .with_state(service),
    );
    let token = hapax
        .issue(&Principal::named("ada"), Duration::from_millis(50))
        .await
        .unwrap();
    let ask = || with(common::post("/do", token.as_str(), "201"), "x-user", "ada");
    assert_eq!(way.send(ask()).await.status, 201);
    // The token has expired once it can begin no new operation; the answer it began is still
    // replayed.
    for operation in 0.. {
        let other = with(
            common::post(&format!("/other/{operation}"), token.as_str(), "201"),
            "x-user",
            "ada",
        );
        assert!(way.send(ask()).await.is_replay());
        if way.send(other).await.status == 410 {
            break;
        }
    }
    assert!(way.send(ask()).await.is_replay());
}

/// The rows that need another service, store or client than the rest.
mod others {
    use hapax::NeverDispatched;
    use hyper_util::service::TowerToHyperService;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tower::{Layer, service_fn};

    use super::*;

    #[tokio::test]
    async fn an_upstream_that_was_never_reached_or_did_not_answer_in_time() {
        let never = || NeverDispatched("refused".into());
        fails_with(never, (502, "upstream-unreachable", true)).await;
        let late = || hapax::middleware::TimedOut {
            after: Duration::from_secs(1),
            limit: "answer",
        };
        fails_with(late, (504, "outcome-unknown", false)).await;
        // An error that is caused by a timeout and is not one itself.
        let caused = || {
            std::io::Error::other(hapax::middleware::TimedOut {
                after: Duration::from_secs(1),
                limit: "answer",
            })
        };
        fails_with(caused, (502, "outcome-unknown", false)).await;
    }

    /// Plain tower, served by hyper, as in a proxy.
    async fn fails_with<E>(
        error: impl Fn() -> E + Clone + Send + Sync + 'static,
        expected: (u16, &str, bool),
    ) where
        E: std::error::Error + Send + Sync + 'static,
    {
        let (store, _) = common::faulty();
        let failing = move |_: Request<hapax::Body>| {
            let error = error();
            async { Err::<http::Response<hapax::Body>, _>(error) }
        };
        let service = common::quiet(store)
            .guard()
            .policy(common::with_dialects(Policy::default()))
            .anonymous()
            .build()
            .unwrap()
            .layer(service_fn(failing));
        let direct = Got::read(service.clone().oneshot(post("k", "x")).await.unwrap()).await;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Way::Socket(listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service);
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
        });
        let (status, problem, again) = expected;
        for got in [direct, way.send(post("another", "x")).await] {
            assert_eq!(
                (got.status.as_u16(), got.problem().as_str()),
                (status, problem)
            );
            assert_advice(&got, again, problem);
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hapax.db");
        let ledger = Ledger::default();
        let app = async || {
            let service = Service {
                ledger: ledger.clone(),
                gate: Gate::new(),
            };
            let layer = common::quiet(Arc::new(common::open_when_free(&path).await))
                .guard()
                .policy(common::with_dialects(Policy::default()))
                .anonymous()
                .build()
                .unwrap();
            Router::new()
                .route("/{*path}", handle(obey))
                .layer(layer)
                .with_state(service)
        };
        let sound = Way::Direct(app().await);
        assert_eq!(sound.send(post("k", "x")).await.status, 201);
        drop(sound);
        rusqlite::Connection::open(&path)
            .unwrap()
            .execute(
                "UPDATE answers SET content = CAST(content || x'00' AS BLOB)",
                [],
            )
            .unwrap();
        let damaged = app().await;
        for way in [Way::Direct(damaged.clone()), Way::socket(damaged).await] {
            let got = way.send(post("k", "x")).await;
            assert_eq!(
                (got.status.as_u16(), got.problem().as_str(), ledger.len()),
                (500, "answer-corrupt", 1)
            );
            assert_advice(&got, false, "damaged");
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off() {
        let world = World::new(Policy::default(), Limits::default());
        let frames = http_body_util::StreamBody::new(Breaks(Some(std::io::Error::other("reset"))));
        let request = Request::post("/do")
            .header("idempotency-key", "k")
            .body(Body::new(frames))
            .unwrap();
        let direct = Got::read(world.app.clone().oneshot(request).await.unwrap()).await;
        assert_eq!(
            (direct.status.as_u16(), direct.problem().as_str()),
            (400, "body-unreadable")
        );
        assert_advice(&direct, false, "broke off");

        let Way::Socket(address) = Way::socket(world.app.clone()).await else {
            unreachable!()
        };
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = "POST /do HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfive!\r\nnonsense\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.contains("\"code\":\"body-unreadable\""),
            "{answer}"
        );
        assert_eq!(world.ledger.len(), 0);
    }

    /// A stream that fails at once.
    struct Breaks(Option<std::io::Error>);

    impl futures_core::Stream for Breaks {
        type Item = Result<http_body::Frame<Bytes>, std::io::Error>;

        fn poll_next(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(self.0.take().map(Err))
        }
    }
}
