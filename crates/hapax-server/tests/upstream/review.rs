//! Former ways to bypass the guard or to confuse a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use hapax::{KeyRule, Policy};
use hapax_server::config::{Config, Protocol, Route};
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::{Origin, Step};
use http::{Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use crate::bench::{gateway, soon};
use crate::client::{post, posts};
use hapax_testkit::harness::{RawAnswer, send_raw};

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(60 * 60);

async fn before(origin: &Origin, change: impl FnOnce(&mut Config)) -> Gateway {
    gateway(origin.address(), Protocol::Http1, change).await
}

fn guarded_gets() -> Route {
    let policy = Policy {
        key: KeyRule::Required,
        methods: vec!["GET".into()],
        ..Policy::default()
    };
    Route {
        name: "GET /**".into(),
        methods: vec![Method::GET],
        ..Route::everywhere(policy)
    }
}

async fn get_guarded(gateway: SocketAddr, key: &str) -> RawAnswer {
    let request = format!(
        "GET /run HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nidempotency-key: {key}\r\n\r\n"
    );
    send_raw(gateway, request.as_bytes()).await
}

#[tokio::test]
async fn a_guarded_get_is_not_sent_again_because_its_method_is_safe() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| {
        config.routes = vec![guarded_gets()];
        // Every idle connection counts as too old.
        config.upstream.reuse_max = Duration::ZERO;
    })
    .await;
    assert_eq!(get_guarded(gateway.address(), "first").await.told(), "200");
    origin.script([Step::Read, Step::Close]);
    assert_eq!(
        get_guarded(gateway.address(), "second").await.told(),
        "502 outcome-unknown"
    );
    assert_eq!(
        get_guarded(gateway.address(), "second").await.told(),
        "409 outcome-unknown"
    );
    assert_eq!(origin.ledger().count("second"), 1);
}

/// An HTTP/2 service that accepts one stream at a time, reports which key has arrived, and answers
/// when the test lets it.
struct OneAtATime {
    address: SocketAddr,
    arrived: mpsc::UnboundedReceiver<String>,
    go: Arc<Semaphore>,
}

impl OneAtATime {
    async fn start() -> OneAtATime {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (address, go) = (listener.local_addr().unwrap(), Arc::new(Semaphore::new(0)));
        let (arriving, arrived) = mpsc::unbounded_channel();
        let permits = go.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(one_at_a_time(socket, arriving.clone(), permits.clone()));
            }
        });
        OneAtATime {
            address,
            arrived,
            go,
        }
    }
}

async fn one_at_a_time(
    socket: TcpStream,
    arriving: mpsc::UnboundedSender<String>,
    go: Arc<Semaphore>,
) {
    let mut builder = h2::server::Builder::new();
    let mut connection = builder
        .max_concurrent_streams(1)
        .handshake::<_, Bytes>(socket)
        .await
        .unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer_when_told(
            request,
            respond,
            arriving.clone(),
            go.clone(),
        ));
    }
}

async fn answer_when_told(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    arriving: mpsc::UnboundedSender<String>,
    go: Arc<Semaphore>,
) {
    let key = request.headers()["idempotency-key"]
        .to_str()
        .unwrap()
        .to_owned();
    let mut body = request.into_body();
    while body.data().await.is_some() {}
    arriving.send(key).unwrap();
    go.acquire().await.unwrap().forget();
    respond
        .send_response(Response::new(()), false)
        .unwrap()
        .send_data("done".into(), true)
        .unwrap();
}

#[tokio::test]
async fn a_request_that_finds_no_stream_free_is_released_and_never_sent() {
    let mut service = OneAtATime::start().await;
    let change = |config: &mut Config| config.timeouts.connect = Duration::from_millis(500);
    let gateway = gateway(service.address, Protocol::Http2, change).await;
    let at = gateway.address();
    let first = tokio::spawn(async move { post(at, "first").await });
    assert_eq!(
        soon("the first arrives", service.arrived.recv())
            .await
            .as_deref(),
        Some("first")
    );
    assert_eq!(
        soon("the second is given up", post(at, "second"))
            .await
            .told(),
        "502 upstream-unreachable"
    );

    service.go.add_permits(3);
    assert_eq!(soon("the first ends", first).await.unwrap().told(), "200");
    // This uses the same connection: if the abandoned request had been sent late, it would have
    // arrived before this one.
    assert_eq!(soon("another runs", post(at, "third")).await.told(), "200");
    assert_eq!(
        soon("the second runs", post(at, "second")).await.told(),
        "200"
    );
    posts(at, "second", "200 replayed").await;
    assert_eq!(
        [service.arrived.recv().await, service.arrived.recv().await].map(Option::unwrap),
        ["third", "second"]
    );
    assert!(service.arrived.is_empty());
}

/// The answers to one request and to a second one, `GET /next`, that follows it on the same
/// connection.
async fn with_next(gateway: SocketAddr, request: &str) -> (RawAnswer, RawAnswer) {
    let next = "GET /next HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    socket
        .write_all(format!("{request}{next}").as_bytes())
        .await
        .unwrap();
    let mut bytes = Vec::new();
    soon("both answers", socket.read_to_end(&mut bytes))
        .await
        .unwrap();
    let (first, next) = bytes.split_at(first_length(&bytes));
    (RawAnswer::parse(first), RawAnswer::parse(next))
}

/// The length of the first answer. Panics if its framing is ambiguous, because readers would then
/// find different ends.
fn first_length(bytes: &[u8]) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let head = text
        .split_inclusive("\r\n\r\n")
        .next()
        .unwrap()
        .to_ascii_lowercase();
    let lengths: Vec<&str> = head
        .lines()
        .filter_map(|line| line.strip_prefix("content-length: "))
        .collect();
    let is_chunked = head.contains("\r\ntransfer-encoding: chunked\r\n");
    match lengths[..] {
        [] if is_chunked => {
            head.len()
                + text[head.len()..]
                    .find("0\r\n\r\n")
                    .expect("the last chunk")
                + 5
        }
        [length] if !is_chunked => head.len() + length.parse::<usize>().unwrap(),
        _ => panic!("framed twice, or not at all:\n{head}"),
    }
}

#[tokio::test]
async fn an_answer_with_both_lengths_is_one_answer_to_the_client() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    for (index, framing) in [
        "content-length: 3\r\ntransfer-encoding: chunked",
        "content-length: 60\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 3",
        "transfer-encoding: chunked\r\ncontent-length: 60",
    ]
    .into_iter()
    .enumerate()
    {
        let both = || {
            let answer = format!(
                "HTTP/1.1 200 OK\r\n{framing}\r\n\r\n5\r\nwhole\r\n5\r\n body\r\n0\r\n\r\n"
            );
            origin.script([Step::Read, Step::Write(answer.into_bytes())]);
        };
        let key = format!("idempotency-key: key-{index}\r\n");
        for (fields, is_sent, told) in [
            ("", true, "200"),
            (&*key, true, "200"),
            (&*key, false, "200 replayed"),
        ] {
            if is_sent {
                both();
            }
            let request = format!(
                "POST /charges HTTP/1.1\r\nhost: shop\r\n{fields}content-length: 1\r\n\r\nx"
            );
            let (first, next) = with_next(gateway.address(), &request).await;
            assert_eq!(
                (first.told().as_str(), &*first.body),
                (told, &b"whole body"[..]),
                "{framing:?} {fields:?}"
            );
            assert_eq!(
                (next.told().as_str(), &*next.body),
                ("200", &b"done"[..]),
                "{framing:?} {fields:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_known_method_in_lower_case_walks_around_no_guard() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    for method in ["patch", "post", "Post", "pATCH", "get"] {
        for key in ["", "idempotency-key: a\r\n"] {
            let request = format!(
                "{method} /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n{key}content-length: 1\r\n\r\nx"
            );
            assert_eq!(
                send_raw(gateway.address(), request.as_bytes()).await.status,
                400,
                "{method} {key:?}"
            );
        }
        let request = Request::builder()
            .method(method)
            .uri("http://shop/charges")
            .header("idempotency-key", "a");
        assert_eq!(
            send_http2(gateway.address(), request.body(()).unwrap()).await,
            400,
            "{method}"
        );
    }
    assert_eq!(origin.ledger().connections(), 0);
}

/// Sends a request without a body over HTTP/2. Returns the status.
async fn send_http2(gateway: SocketAddr, request: Request<()>) -> u16 {
    let socket = TcpStream::connect(gateway).await.unwrap();
    let (mut requests, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    let (response, _) = requests.send_request(request, true).unwrap();
    soon("an answer", response).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn a_cookie_in_crumbs_arrives_whole() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    let request = Request::builder()
        .uri("http://shop/")
        .header("cookie", "a=1")
        .header("cookie", "b=2");
    assert_eq!(
        send_http2(gateway.address(), request.body(()).unwrap()).await,
        200
    );
    let head = origin.ledger().all()[0].head.to_ascii_lowercase();
    let cookies: Vec<&str> = head
        .lines()
        .filter(|line| line.starts_with("cookie"))
        .collect();
    assert_eq!(cookies, ["cookie: a=1; b=2"]);
}

/// Waits until the gateway has closed a connection on which nothing was sent.
async fn closed(socket: &mut TcpStream) {
    let read = soon("the gateway closes", socket.read(&mut [0])).await;
    assert_eq!(read.unwrap(), 0);
}

#[tokio::test]
async fn one_silent_connection_too_many_closes_the_oldest() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| {
        config.limits.silent_connections_max = 3;
        (config.timeouts.first_byte, config.timeouts.header) = (NEVER, NEVER);
    })
    .await;
    let mut sockets = Vec::new();
    for _ in 0..4 {
        sockets.push(TcpStream::connect(gateway.address()).await.unwrap());
    }
    closed(&mut sockets[0]).await;
    for socket in &mut sockets[1..] {
        socket
            .write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut bytes = Vec::new();
        soon("an answer", socket.read_to_end(&mut bytes))
            .await
            .unwrap();
        assert_eq!(RawAnswer::parse(&bytes).told(), "200");
    }
}

#[tokio::test]
async fn a_connection_that_stays_silent_is_closed() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| {
        (config.timeouts.first_byte, config.timeouts.header) = (Duration::from_millis(50), NEVER);
    })
    .await;
    closed(&mut TcpStream::connect(gateway.address()).await.unwrap()).await;
}

#[tokio::test]
async fn an_answer_without_a_length_that_is_cut_does_not_look_whole() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    for connection in ["close", "keep-alive"] {
        let half = Step::Write(b"HTTP/1.0 200 OK\r\n\r\nhalf".to_vec());
        origin.script([Step::Read, half, Step::Wait, Step::Reset]);
        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        let request = format!("GET / HTTP/1.1\r\nhost: shop\r\nconnection: {connection}\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        while !String::from_utf8_lossy(&bytes).contains("half") {
            assert_ne!(
                soon("half an answer", socket.read_buf(&mut bytes))
                    .await
                    .unwrap(),
                0
            );
        }
        origin.go();
        // The connection may end in any way; the test checks the bytes that arrived.
        let _ = soon("the end", socket.read_to_end(&mut bytes)).await;
        let answer = RawAnswer::parse(&bytes);
        assert_eq!(
            (answer.told().as_str(), &*answer.body),
            ("200 cut", &b"half"[..]),
            "{connection}"
        );
    }
}
