//! Upgrades: an unguarded WebSocket passes, and nothing else does.

use std::net::SocketAddr;

use hapax::Policy;
use hapax_server::config::{Config, Protocol, Route};
use hapax_testkit::origin::{Origin, Step, answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench::{gateway, soon};
use hapax_testkit::harness::send_raw;

/// The handshake of RFC 6455 section 1.2.
pub const ASKS: &str = "GET /chat HTTP/1.1\r\nhost: shop\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
pub const AGREES: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
    sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
/// "Hello", masked, as in RFC 6455 section 5.7.
pub const HELLO: [u8; 11] = [
    0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
];

fn write(text: &str) -> Step {
    Step::Write(text.as_bytes().to_vec())
}

pub async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(
            soon("the head of the answer", socket.read_u8())
                .await
                .unwrap(),
        );
    }
    String::from_utf8(head).unwrap().to_ascii_lowercase()
}

async fn upgraded(gateway: SocketAddr) -> TcpStream {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    socket.write_all(ASKS.as_bytes()).await.unwrap();
    let head = read_head(&mut socket).await;
    for field in [
        "http/1.1 101",
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=",
    ] {
        assert!(head.contains(field), "{field} is not in {head}");
    }
    socket
}

#[tokio::test]
async fn a_websocket_passes_both_ways_until_the_client_closes() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([Step::ReadHead, write(AGREES), Step::Echo]);
    let mut socket = upgraded(gateway.address()).await;
    for _ in 0..3 {
        socket.write_all(&HELLO).await.unwrap();
        let mut echoed = [0; HELLO.len()];
        soon("the echo", socket.read_exact(&mut echoed))
            .await
            .unwrap();
        assert_eq!(echoed, HELLO);
    }
    drop(socket);
    soon("the service sees the end", origin.ledger().until_closed(1)).await;
}

#[tokio::test]
async fn a_websocket_ends_for_the_client_when_the_service_closes() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |config| {
        config.upstream.connections_max = 1;
    })
    .await;
    origin.script([Step::ReadHead, write(AGREES), write("bye"), Step::Close]);
    let mut socket = upgraded(gateway.address()).await;
    let mut rest = Vec::new();
    soon("the end", socket.read_to_end(&mut rest))
        .await
        .unwrap();
    assert_eq!(rest, b"bye");
    drop(socket);
    // The tunnel's place is free again.
    origin.script([Step::ReadHead, write(AGREES), Step::Close]);
    drop(soon("the next", upgraded(gateway.address())).await);
}

#[tokio::test]
async fn a_service_that_does_not_want_to_upgrade_says_so() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([Step::Read, Step::Write(answer(403, "", "no chat"))]);
    let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
    socket.write_all(ASKS.as_bytes()).await.unwrap();
    assert!(read_head(&mut socket).await.starts_with("http/1.1 403"));
}

/// Guards every request with a key, including GET.
fn guard_get(config: &mut Config) {
    let policy = Policy {
        methods: vec!["GET".into()],
        ..Policy::default()
    };
    config.routes = vec![Route {
        name: "all".into(),
        ..Route::everywhere(policy)
    }];
}

/// The head that the origin receives, in lower case, and the answer.
async fn passed_on(request: &str, change: impl FnOnce(&mut Config)) -> (String, String) {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, change).await;
    let told = soon(
        "the answer",
        send_raw(gateway.address(), request.as_bytes()),
    )
    .await
    .told();
    (origin.ledger().all()[0].head.to_ascii_lowercase(), told)
}

#[tokio::test]
async fn a_guarded_request_is_not_upgraded() {
    let request = ASKS.replace(
        "connection: Upgrade",
        "idempotency-key: k\r\nconnection: Upgrade, close",
    );
    let (head, told) = passed_on(&request, guard_get).await;
    assert!(!head.contains("upgrade"), "{head}");
    assert_eq!(told, "200");
}

#[tokio::test]
async fn only_websocket_is_passed_on_and_only_when_asked_for_in_full() {
    let ask = |fields: &str| format!("GET / HTTP/1.1\r\nhost: shop\r\n{fields}\r\n\r\n");
    for request in [
        ask(
            "connection: close, upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__",
        ),
        ask("connection: close, upgrade\r\nupgrade: h2c, websocket"),
        ask("connection: close, upgrade\r\nupgrade: websocket\r\nupgrade: h2c"),
        // Without `upgrade` in `Connection` it does not ask for an upgrade.
        ask("connection: close\r\nupgrade: websocket"),
        ask("connection: close, upgrade\r\nupgrade: chat"),
    ] {
        let (head, told) = passed_on(&request, |_| ()).await;
        assert!(
            !head.contains("upgrade") && !head.contains("http2-settings") && !head.contains("h2c"),
            "{request}{head}"
        );
        assert_eq!(told, "200", "{request}");
    }
}
