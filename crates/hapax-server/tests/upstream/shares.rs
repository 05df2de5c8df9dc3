//! Unguarded requests and tunnels may use only a share of the connections to the upstream: guarded
//! requests get through, whatever other clients hold.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hapax_server::config::{Config, Protocol};
use hapax_testkit::origin::{Origin, Step};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::bench::{gateway, soon};
use crate::client::take_answered;
use crate::upgrade::{AGREES, ASKS, HELLO, read_head};
use hapax_testkit::harness::{RawAnswer, send_raw};

/// Unguarded requests may use six of these, and those of one peer four. There may be four tunnels,
/// two of one peer.
const CONNECTIONS: usize = 8;
const UNGUARDED: usize = 6;
const PER_PEER: usize = 4;

const ATTACKER: &str = "10.0.0.66";
const OTHER: &str = "10.0.0.7";

/// Longer than a guarded request should ever wait here; a request without a free connection waits
/// this long.
const CONNECT: Duration = Duration::from_secs(3);

/// The requests come through a trusted proxy, so that each can name its client's address.
fn settle(config: &mut Config) {
    config.upstream.connections_max = CONNECTIONS;
    config.timeouts.connect = CONNECT;
    config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
}

/// An unguarded upload of a peer that has begun and stalls.
async fn slow_upload(gateway: SocketAddr, peer: &str) -> TcpStream {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    let head = format!(
        "POST /slow HTTP/1.1\r\nhost: shop\r\nx-forwarded-for: {peer}\r\nconnection: close\r\ncontent-length: 9999\r\n\r\nx"
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

async fn guarded(gateway: SocketAddr, peer: &str, key: &str) -> RawAnswer {
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nx-forwarded-for: {peer}\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: 2\r\n\r\nhi"
    );
    send_raw(gateway, request.as_bytes()).await
}

async fn unguarded(gateway: SocketAddr, peer: &str) -> RawAnswer {
    let request = format!(
        "GET /stock HTTP/1.1\r\nhost: shop\r\nx-forwarded-for: {peer}\r\nconnection: close\r\n\r\n"
    );
    send_raw(gateway, request.as_bytes()).await
}

/// Waits until a condition that can only be polled is true.
async fn until(what: &str, reached: impl Fn() -> bool) {
    let asking = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(what, asking).await;
}

/// Checks that guarded requests of any peer, and an unguarded one of another peer, get through
/// while one peer holds all it can.
async fn assert_others_get_through(gateway: SocketAddr) {
    let started = tokio::time::Instant::now();
    for (peer, key) in [
        (OTHER, "other-1"),
        (ATTACKER, "same-1"),
        (OTHER, "other-2"),
        (ATTACKER, "same-2"),
    ] {
        assert_eq!(
            soon("a guarded answer", guarded(gateway, peer, key))
                .await
                .told(),
            "200",
            "{peer}"
        );
    }
    assert_eq!(
        soon("an unguarded answer", unguarded(gateway, OTHER))
            .await
            .told(),
        "200"
    );
    assert!(
        started.elapsed() < CONNECT,
        "they waited for {:?}",
        started.elapsed()
    );
}

fn assert_busy(answer: &RawAnswer, limit: &str) {
    assert_eq!(
        (answer.told().as_str(), answer.field("retry-after")),
        ("503 upstream-busy", Some("1"))
    );
    let body = String::from_utf8_lossy(&answer.body);
    assert!(body.contains(limit), "{limit} is not in {body}");
}

#[tokio::test]
async fn guarded_requests_of_one_peer_leave_connections_to_others() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    let at = gateway.address();
    for _ in 0..CONNECTIONS {
        origin.script([
            Step::Read,
            Step::Wait,
            Step::Write(hapax_testkit::origin::answer(200, "", "slow")),
        ]);
    }
    let most = CONNECTIONS - CONNECTIONS / 4;
    let held: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            tokio::spawn(async move { guarded(at, ATTACKER, &format!("slow-{n}")).await.told() })
        })
        .collect();
    soon(
        "the attack has landed",
        origin.ledger().until_requests(most),
    )
    .await;
    let other = tokio::spawn(async move { guarded(at, OTHER, "other").await.told() });
    // All requests of the attacker are still held.
    until("the other request arrives", || {
        origin.ledger().count("other") == 1
    })
    .await;
    assert_eq!(
        origin.ledger().all().len(),
        most + 1,
        "the attacker has its share and no more"
    );
    for _ in 0..CONNECTIONS {
        origin.go();
    }
    assert_eq!(soon("the other's answer", other).await.unwrap(), "200");
    for held in held {
        assert_eq!(
            soon("an answer of the attacker", held).await.unwrap(),
            "200",
            "it waits for its turn"
        );
    }
}

#[tokio::test]
async fn slow_uploads_of_one_peer_leave_connections_to_guarded_requests_and_to_others() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    let mut held = Vec::new();
    for _ in 0..3 * CONNECTIONS {
        held.push(slow_upload(gateway.address(), ATTACKER).await);
    }
    until("the attack has landed", || {
        origin.ledger().connections() >= PER_PEER
    })
    .await;
    assert_others_get_through(gateway.address()).await;
    // More peers take the rest of the unguarded share, and no more.
    let mut others = Vec::new();
    for last in 1..=6 {
        others.push(slow_upload(gateway.address(), &format!("10.0.1.{last}")).await);
    }
    until("the attack has landed", || {
        origin.ledger().connections() >= UNGUARDED
    })
    .await;
    assert_eq!(
        soon(
            "a guarded answer",
            guarded(gateway.address(), OTHER, "other-3")
        )
        .await
        .told(),
        "200"
    );
    // Requests that found no connection are refused.
    for answer in soon(
        "those that wait",
        take_answered(&mut held, 3 * CONNECTIONS - PER_PEER),
    )
    .await
    {
        assert_eq!(answer.told(), "503 upstream-busy");
    }
    for answer in soon(
        "those that wait",
        take_answered(&mut others, 6 - (UNGUARDED - PER_PEER)),
    )
    .await
    {
        assert_eq!(answer.told(), "503 upstream-busy");
    }
    assert_eq!(
        (held.len(), others.len()),
        (PER_PEER, UNGUARDED - PER_PEER),
        "these hold a connection"
    );
}

#[tokio::test]
async fn the_limit_that_was_reached_is_named() {
    let origin = Origin::start().await;
    let settle = |config: &mut Config| {
        settle(config);
        config.timeouts.connect = Duration::from_millis(300);
    };
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    let mut held = Vec::new();
    for _ in 0..PER_PEER {
        held.push(slow_upload(gateway.address(), ATTACKER).await);
    }
    until("the connections are held", || {
        origin.ledger().connections() == PER_PEER
    })
    .await;
    assert_busy(
        &unguarded(gateway.address(), ATTACKER).await,
        "unguarded_per_peer_max",
    );
    for _ in PER_PEER..UNGUARDED {
        held.push(slow_upload(gateway.address(), OTHER).await);
    }
    until("the connections are held", || {
        origin.ledger().connections() == UNGUARDED
    })
    .await;
    assert_busy(
        &unguarded(gateway.address(), "10.0.0.8").await,
        "connections_max",
    );
    // The held connections become free.
    drop(held);
    soon(
        "the service sees their end",
        origin.ledger().until_closed(UNGUARDED),
    )
    .await;
    assert_eq!(
        soon("an answer", unguarded(gateway.address(), ATTACKER))
            .await
            .told(),
        "200"
    );
}

/// A service that speaks HTTP/2 with eight streams. It answers a request once it has read it.
async fn service() -> (SocketAddr, Arc<watch::Sender<usize>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Arc::new(watch::Sender::new(0));
    let counting = begun.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let begun = counting.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                begun.send_modify(|count| *count += 1);
                async move {
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("done")))
                }
            });
            let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            builder.max_concurrent_streams(u32::try_from(CONNECTIONS).unwrap());
            tokio::spawn(builder.serve_connection(TokioIo::new(socket), answer));
        }
    });
    (address, begun)
}

#[tokio::test]
async fn slow_uploads_leave_streams_of_a_shared_connection_too() {
    let (address, begun) = service().await;
    let settle = |config: &mut Config| {
        settle(config);
        // There is one connection; its streams are the limit.
        config.upstream.connections_max = 1_024;
    };
    let gateway = gateway(address, Protocol::Http2, settle).await;
    let mut held = Vec::new();
    for _ in 0..3 * CONNECTIONS {
        held.push(slow_upload(gateway.address(), ATTACKER).await);
    }
    soon(
        "the attack has landed",
        begun.subscribe().wait_for(|begun| *begun >= PER_PEER),
    )
    .await
    .unwrap();
    assert_others_get_through(gateway.address()).await;
    for answer in soon(
        "those that wait",
        take_answered(&mut held, 3 * CONNECTIONS - PER_PEER),
    )
    .await
    {
        assert_busy(&answer, "unguarded_per_peer_max");
    }
    assert_eq!(held.len(), PER_PEER, "these hold a stream");
}

/// Asks for a tunnel. Returns the connection and the head of the answer.
async fn tunnel(gateway: SocketAddr, peer: &str) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(gateway).await.unwrap();
    let asks = ASKS.replace(
        "host: shop\r\n",
        &format!("host: shop\r\nx-forwarded-for: {peer}\r\n"),
    );
    socket.write_all(asks.as_bytes()).await.unwrap();
    let head = read_head(&mut socket).await;
    (socket, head)
}

#[tokio::test]
async fn idle_websockets_leave_connections_to_guarded_requests_and_to_others() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    // One script for each tunnel that may get through.
    for _ in 0..CONNECTIONS / 2 {
        origin.script([
            Step::ReadHead,
            Step::Write(AGREES.as_bytes().to_vec()),
            Step::Echo,
        ]);
    }
    let mut held = Vec::new();
    let mut busy = 0;
    for peer in [ATTACKER, "10.0.1.1", "10.0.1.2"] {
        for _ in 0..CONNECTIONS {
            let started = tokio::time::Instant::now();
            let (socket, head) = tunnel(gateway.address(), peer).await;
            if head.starts_with("http/1.1 101") {
                held.push(socket);
                continue;
            }
            assert!(
                head.starts_with("http/1.1 503") && head.contains("retry-after: 1"),
                "{head}"
            );
            assert!(started.elapsed() < CONNECT, "refused at once");
            busy += 1;
        }
    }
    assert_eq!(
        (held.len(), busy),
        (CONNECTIONS / 2, 3 * CONNECTIONS - CONNECTIONS / 2)
    );
    assert_others_get_through(gateway.address()).await;
    // The existing tunnels still work.
    for socket in &mut held {
        socket.write_all(&HELLO).await.unwrap();
        let mut echoed = [0; HELLO.len()];
        soon("the echo", socket.read_exact(&mut echoed))
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_tunnel_without_traffic_is_closed_and_its_place_is_free() {
    let origin = Origin::start().await;
    let settle = |config: &mut Config| {
        settle(config);
        config.upstream.connections_max = 1;
        config.timeouts.tunnel_idle = Duration::from_millis(200);
    };
    let gateway = gateway(origin.address(), Protocol::Http1, settle).await;
    for round in 1..=2 {
        origin.script([
            Step::ReadHead,
            Step::Write(AGREES.as_bytes().to_vec()),
            Step::Echo,
        ]);
        let (mut socket, head) = tunnel(gateway.address(), ATTACKER).await;
        assert!(head.starts_with("http/1.1 101"), "{head}");
        soon(
            "the service sees the end",
            origin.ledger().until_closed(round),
        )
        .await;
        assert_eq!(
            soon("the client sees the end", socket.read(&mut [0]))
                .await
                .unwrap(),
            0
        );
    }
}
