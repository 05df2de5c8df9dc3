//! Tests the wire under a real server connection of the HTTP library.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::{Handle, Wire};
use super::settings;

const GET: &str = "GET /good HTTP/1.1\r\nHost: a\r\n\r\n";

/// A client's side of a connection, and the server on the other side.
struct Pair {
    client: DuplexStream,
    server: JoinHandle<hyper::Result<()>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Pair {
    /// `buffer` limits the bytes in flight; `sniffed` are the bytes that the listener has already
    /// read.
    fn new(buffer: usize, sniffed: &[u8]) -> Pair {
        let (client, server) = duplex(buffer);
        let (wire, handle) = Wire::new(server, BytesMut::from(sniffed), settings());
        let log = Arc::new(Mutex::new(Vec::new()));
        let entries = log.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            serve(request, handle.clone(), entries.clone())
        });
        let connection = http1::Builder::new()
            .half_close(true)
            .serve_connection(wire, service)
            .with_upgrades();
        Pair {
            client,
            server: tokio::spawn(connection),
            log,
        }
    }

    async fn send(&mut self, bytes: &str) {
        self.client.write_all(bytes.as_bytes()).await.unwrap();
    }

    /// Everything that the server sends until it closes.
    async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        self.client.read_to_end(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// One answer, which ends in an empty line and a body of two bytes.
    async fn answer(&mut self) -> String {
        let mut bytes = Vec::new();
        while !bytes.windows(4).any(|window| window == b"\r\n\r\n") {
            bytes.push(self.client.read_u8().await.unwrap());
        }
        let body = usize::from(!bytes.starts_with(b"HTTP/1.1 101")) * 2;
        for _ in 0..body {
            bytes.push(self.client.read_u8().await.unwrap());
        }
        String::from_utf8(bytes).unwrap()
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }
}

async fn serve(
    request: Request<Incoming>,
    handle: Handle,
    log: Arc<Mutex<Vec<String>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if let (Some(refusal), _) = handle.next_request() {
        log.lock().unwrap().push(refusal.code().to_owned());
        return Ok(answer(refusal.status()));
    }
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/upgrade" => {
            handle.open();
            tokio::spawn(echo(request));
            Ok(answer(StatusCode::SWITCHING_PROTOCOLS))
        }
        "/early" => Ok(answer(StatusCode::PAYLOAD_TOO_LARGE)),
        "/large" => Ok(Response::new(Full::new(vec![b'x'; 1 << 20].into()))),
        _ => {
            let body = request
                .into_body()
                .collect()
                .await
                .map(|body| body.to_bytes());
            log.lock()
                .unwrap()
                .push(body.map_or(format!("{path} broke off"), |body| {
                    format!("{path} {}", body.len())
                }));
            Ok(answer(StatusCode::OK))
        }
    }
}

fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let body = if status == StatusCode::SWITCHING_PROTOCOLS {
        Bytes::new()
    } else {
        Bytes::from_static(b"ok")
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        response
            .headers_mut()
            .insert("upgrade", http::HeaderValue::from_static("odd"));
        response
            .headers_mut()
            .insert("connection", http::HeaderValue::from_static("upgrade"));
    }
    response
}

/// The other protocol: it echoes what it receives.
async fn echo(request: Request<Incoming>) {
    let upgraded = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
    let (mut reader, mut writer) = tokio::io::split(upgraded);
    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
}

#[tokio::test]
async fn requests_pass_whole_in_pieces_and_from_what_was_sniffed() {
    let mut pair = Pair::new(1 << 16, b"GET /sniffed HTTP/1.1\r\nHo");
    pair.send("st: a\r\n\r\n").await;
    pair.answer().await;
    pair.send(GET).await;
    pair.answer().await;
    for byte in
        "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            .chars()
    {
        pair.send(&byte.to_string()).await;
        tokio::task::yield_now().await;
    }
    pair.answer().await;
    assert_eq!(pair.log(), ["/sniffed 0", "/good 0", "/slow 3"]);
}

#[tokio::test]
async fn a_refused_request_is_answered_in_its_turn_and_nothing_after_it_is_served() {
    for parts in [1, 7] {
        let mut pair = Pair::new(1 << 16, b"");
        let bytes = format!(
            "{GET}{GET}POST /bad HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n{GET}{GET}"
        );
        for part in bytes.as_bytes().chunks(bytes.len().div_ceil(parts)) {
            pair.send(std::str::from_utf8(part).unwrap()).await;
            tokio::task::yield_now().await;
        }
        let answers = pair.rest().await;
        assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
        assert_eq!(answers.matches("HTTP/1.1 400").count(), 1, "{answers}");
        assert_eq!(answers.matches("HTTP/1.1").count(), 3, "{answers}");
        assert_eq!(pair.log(), ["/good 0", "/good 0", "both-lengths"]);
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_answered() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(&"x".repeat(20_000)).await;
    assert!(pair.rest().await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn a_bad_chunk_breaks_the_body_off_and_ends_the_connection() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(&format!(
        "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n+3\r\n{GET}"
    ))
    .await;
    let answers = pair.rest().await;
    assert!(answers.matches("HTTP/1.1").count() <= 1, "{answers}");
    assert_eq!(pair.log(), ["/x broke off"]);
}

#[tokio::test]
async fn who_half_closes_still_gets_the_answer() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(GET).await;
    pair.client.shutdown().await.unwrap();
    assert!(pair.rest().await.starts_with("HTTP/1.1 200"));
    pair.server.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_follows_an_upgrade_waits_for_the_answer_and_then_passes_unread() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(
        "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: odd\r\n\r\nearly\n\0",
    )
    .await;
    assert!(pair.answer().await.starts_with("HTTP/1.1 101"));
    pair.send("late\n\0").await;
    pair.client.shutdown().await.unwrap();
    assert_eq!(pair.rest().await, "early\n\0late\n\0");
}

#[tokio::test]
async fn what_follows_a_declined_upgrade_is_a_request_or_refused() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(&format!(
        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: odd\r\n\r\n{GET}\0\n"
    ))
    .await;
    let answers = pair.rest().await;
    assert_eq!(answers.matches("HTTP/1.1 200").count(), 2, "{answers}");
    assert_eq!(pair.log(), ["/1 0", "/good 0", "line-end"]);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_takes_too_long_is_answered_with_408() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send(GET).await;
    pair.answer().await;
    let start = Instant::now();
    pair.send("GET / HTTP/1.1\r\n").await;
    assert!(
        tokio::time::timeout(Duration::from_secs(6), pair.client.read_u8())
            .await
            .is_err(),
        "six seconds are not too long"
    );
    pair.send("X: y\r\n").await;
    assert!(pair.rest().await.starts_with("HTTP/1.1 408"));
    assert_eq!(start.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_in_good_order() {
    let mut pair = Pair::new(1 << 16, b"");
    for pause in [0, 50, 60] {
        tokio::time::advance(Duration::from_secs(pause)).await;
        pair.send(GET).await;
        pair.answer().await;
    }
    let start = Instant::now();
    // An empty line is not a request.
    pair.send("\r\n").await;
    assert_eq!(pair.rest().await, "");
    assert!(
        (75..=76).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    drop(pair.client);
    pair.server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stalls_or_trickles_breaks_off() {
    for (pause, bytes) in [(600, 1), (1, 10)] {
        let mut pair = Pair::new(1 << 16, b"");
        let start = Instant::now();
        pair.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
            .await;
        while !pair.server.is_finished() && pair.log().is_empty() {
            // Wakes when the server gives up, or when the next bytes are due.
            let due = Duration::from_secs(pause);
            if tokio::time::timeout(due, pair.client.read_u8())
                .await
                .is_ok()
            {
                break;
            }
            pair.send(&"x".repeat(bytes)).await;
        }
        assert_eq!(pair.log(), ["/x broke off"]);
        assert!(
            (20..=21).contains(&start.elapsed().as_secs()),
            "{:?}",
            start.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_in_good_pace_may_take_its_time() {
    let mut pair = Pair::new(1 << 16, b"");
    pair.send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n")
        .await;
    for _ in 0..100 {
        tokio::time::advance(Duration::from_secs(1)).await;
        pair.send(&"x".repeat(200)).await;
        tokio::task::yield_now().await;
    }
    pair.answer().await;
    assert_eq!(pair.log(), ["/x 20000"]);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_take_the_answer_is_dropped() {
    let mut pair = Pair::new(4 << 10, b"");
    let start = Instant::now();
    pair.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let error = pair.server.await.unwrap().unwrap_err();
    let source = std::error::Error::source(&error)
        .unwrap()
        .downcast_ref::<std::io::Error>()
        .unwrap();
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_arrives_although_the_client_is_still_sending() {
    let mut pair = Pair::new(8 << 10, b"");
    pair.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
        .await;
    // Twelve times what fits into the buffer: the send succeeds only if the server reads on after
    // its answer.
    pair.send(&"x".repeat(100_000)).await;
    assert!(pair.rest().await.starts_with("HTTP/1.1 413"));
    let start = Instant::now();
    pair.server.await.unwrap().unwrap();
    assert!(
        start.elapsed() <= Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}
