//! Messages that break off at every point, in every protocol and both directions: a partial request
//! is never executed as a complete one, and a partial answer is never replayed as a complete one.
//!
//! The campaign: `HAPAX_WIRE=full cargo test -p hapax-server --test upstream wire:: --
//! --nocapture`. Without the variable a sample runs. The service's own ledger, read after the
//! gateway has drained, shows what reached it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use hapax_server::config::Protocol;
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::{Ledger, Origin, Origin2, Step, Step2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench::{gateway, soon};

use hapax_testkit::harness::frames::{
    self, ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS, frame,
};
use hapax_testkit::harness::{RawAnswer, send_raw};

/// The body of a request, in the parts in which it is sent.
const PARTS: [&str; 3] = ["pay 10", "0 to b", "ob now"];
/// The complete body. With less, a service would pay another sum, or another person.
const BODY: &str = "pay 100 to bob now";
/// The service's answer.
const RECEIPT: &str = "paid 100 to bob";

/// The step between tested cut points: one of `sample` unless the full campaign runs.
fn stride(sample: usize) -> usize {
    match std::env::var("HAPAX_WIRE").as_deref() {
        Ok("full") => 1,
        _ => sample,
    }
}

/// A service of either protocol, with its ledger.
enum Service {
    Http1(Origin),
    Http2(Origin2),
}

impl Service {
    async fn start(protocol: Protocol) -> Service {
        match protocol {
            Protocol::Http2 => Service::Http2(Origin2::start().await),
            _ => Service::Http1(Origin::start().await),
        }
    }

    async fn gateway(&self) -> Gateway {
        let (address, protocol) = match self {
            Service::Http1(origin) => (origin.address(), Protocol::Http1),
            Service::Http2(origin) => (origin.address(), Protocol::Http2),
        };
        gateway(address, protocol, |config| {
            config.drain.deadline = Duration::from_secs(20);
        })
        .await
    }

    fn ledger(&self) -> &Ledger {
        match self {
            Service::Http1(origin) => origin.ledger(),
            Service::Http2(origin) => origin.ledger(),
        }
    }
}

/// How a client gives up.
#[derive(Clone, Copy, Debug)]
enum GivesUp {
    /// Closes its connection, or only its sending side and waits for an answer.
    Closes,
    HalfCloses,
    /// Resets its connection.
    Resets,
    /// Over HTTP/2: resets its stream with this code, and keeps its connection.
    Stream(u32),
    /// Over HTTP/2: sends GOAWAY with this code, and closes.
    Goodbye(u32),
}

async fn end(mut socket: TcpStream, how: GivesUp) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    match how {
        GivesUp::Resets => socket.set_zero_linger()?,
        GivesUp::HalfCloses => {
            socket.shutdown().await?;
            let _ = socket.read_to_end(&mut answer).await;
        }
        _ => {}
    }
    Ok(answer)
}

/// Checks that the service saw only complete requests, at most as many as were sent completely.
fn judge(ledger: &Ledger, whole: usize, cell: &str) {
    let seen = ledger.all();
    let parts: Vec<_> = seen
        .iter()
        .filter(|seen| seen.body != BODY.as_bytes())
        .map(|seen| String::from_utf8_lossy(&seen.body))
        .collect();
    assert!(
        parts.is_empty(),
        "{cell}: the service carried out parts of a request: {parts:?}"
    );
    assert_eq!(
        seen.len(),
        whole,
        "{cell}: what was sent whole is carried out, and nothing else"
    );
}

fn http1_request(is_chunked: bool, key: Option<&str>) -> Vec<u8> {
    let key = key.map_or(String::new(), |key| format!("idempotency-key: {key}\r\n"));
    let mut request = format!("POST /pay HTTP/1.1\r\nhost: shop\r\n{key}").into_bytes();
    if is_chunked {
        request.extend(b"transfer-encoding: chunked\r\n\r\n");
        PARTS
            .iter()
            .for_each(|part| request.extend(format!("{:x}\r\n{part}\r\n", part.len()).bytes()));
        request.extend(b"0\r\n\r\n");
    } else {
        request.extend(format!("content-length: {}\r\n\r\n{BODY}", BODY.len()).bytes());
    }
    request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_http1_that_breaks_off_is_never_carried_out() {
    let (mut cuts, mut cells) = (0, 0);
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for is_chunked in [false, true] {
            for is_keyed in [false, true] {
                let service = Service::start(protocol).await;
                let gateway = service.gateway().await;
                let at = gateway.address();
                let length = http1_request(is_chunked, is_keyed.then_some("cut-100-c")).len();
                for cut in (1..length).rev().step_by(stride(5)) {
                    for (n, how) in [GivesUp::Closes, GivesUp::HalfCloses, GivesUp::Resets]
                        .into_iter()
                        .enumerate()
                    {
                        let key = format!("cut-{cut:03}-{n}");
                        let request = http1_request(is_chunked, is_keyed.then_some(&key));
                        let mut socket = TcpStream::connect(at).await.unwrap();
                        socket.write_all(&request[..cut]).await.unwrap();
                        let answer = soon("the end", end(socket, how)).await.unwrap();
                        let told = RawAnswer::parse(&answer).status;
                        assert!(
                            told == 0 || told >= 400,
                            "{protocol:?}, chunked {is_chunked}, cut at {cut}, {how:?}: told {told}"
                        );
                        cuts += 1;
                    }
                }
                let whole = http1_request(is_chunked, is_keyed.then_some("whole"));
                assert_eq!(
                    soon("the whole request", exchange(at, &whole)).await.status,
                    200
                );
                soon("the drain", gateway.drain()).await;
                judge(
                    service.ledger(),
                    1,
                    &format!("{protocol:?}, chunked {is_chunked}, keyed {is_keyed}"),
                );
                cells += 1;
            }
        }
    }
    hapax_testkit::report!(
        "wire: {cuts} requests over HTTP/1 broken off in {cells} cells, none carried out"
    );
}

/// Sends a request on a connection that stays open, and reads the answer by its length.
async fn exchange(at: SocketAddr, request: &[u8]) -> RawAnswer {
    let mut socket = TcpStream::connect(at).await.unwrap();
    socket.write_all(request).await.unwrap();
    socket.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes).await;
    RawAnswer::parse(&bytes)
}

fn http2_head(stream: u32, key: Option<&str>, has_length: bool) -> Vec<u8> {
    let length = BODY.len().to_string();
    let mut block = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "shop"),
        (":path", "/pay"),
    ] {
        frames::literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    if let Some(key) = key {
        frames::literal(&mut block, b"idempotency-key", key.as_bytes());
    }
    if has_length {
        frames::literal(&mut block, b"content-length", length.as_bytes());
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The first frames of a request on this stream: its head, and `parts` parts of its body.
fn http2_frames(
    stream: u32,
    key: Option<&str>,
    has_length: bool,
    parts: usize,
    ends: bool,
) -> Vec<u8> {
    let mut bytes = http2_head(stream, key, has_length);
    for (n, part) in PARTS.iter().take(parts).enumerate() {
        let flags = if ends && n + 1 == PARTS.len() {
            END_STREAM
        } else {
            0
        };
        bytes.extend(frame(DATA, flags, stream, part.as_bytes()));
    }
    bytes
}

fn http2_end(how: GivesUp, stream: u32) -> Vec<u8> {
    match how {
        GivesUp::Stream(code) => frame(RST_STREAM, 0, stream, &code.to_be_bytes()),
        GivesUp::Goodbye(code) => frame(
            GOAWAY,
            0,
            0,
            &[0_u32.to_be_bytes(), code.to_be_bytes()].concat(),
        ),
        _ => Vec::new(),
    }
}

/// Reads frames until the answer on this stream has ended.
async fn until_answered(socket: &mut TcpStream, stream: u32) -> io::Result<()> {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        socket.read_exact(&mut payload).await?;
        if kind == SETTINGS && flags & ACK == 0 {
            socket.write_all(&frame(SETTINGS, ACK, 0, &[])).await?;
        }
        if u32::from_be_bytes(id) == stream
            && (flags & END_STREAM != 0 && matches!(kind, DATA | HEADERS) || kind == RST_STREAM)
        {
            return Ok(());
        }
    }
}

/// Breaks a request off in the middle, beside another on the same connection that is sent
/// completely.
async fn cut_http2(
    at: SocketAddr,
    key: Option<&str>,
    has_length: bool,
    parts: usize,
    how: GivesUp,
) -> io::Result<()> {
    let mut socket = TcpStream::connect(at).await?;
    let beside = key.map(|key| format!("{key}-beside"));
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(http2_frames(1, key, has_length, parts, false));
    bytes.extend(http2_frames(
        3,
        beside.as_deref(),
        has_length,
        PARTS.len(),
        true,
    ));
    socket.write_all(&bytes).await?;
    until_answered(&mut socket, 3).await?;
    socket.write_all(&http2_end(how, 1)).await?;
    if let GivesUp::Stream(_) = how {
        // The connection stays open: the gateway has read the reset once it answers the request
        // after it.
        let last = key.map(|key| format!("{key}-last"));
        socket
            .write_all(&http2_frames(
                5,
                last.as_deref(),
                has_length,
                PARTS.len(),
                true,
            ))
            .await?;
        until_answered(&mut socket, 5).await?;
    }
    end(socket, how).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_over_http2_that_breaks_off_is_never_carried_out() {
    let codes: Vec<u32> = (0..=13).step_by(stride(4)).collect();
    let ways = codes.iter().map(|code| GivesUp::Stream(*code)).chain([
        GivesUp::Goodbye(0),
        GivesUp::Goodbye(2),
        GivesUp::Closes,
        GivesUp::Resets,
    ]);
    let ways: Vec<_> = ways.collect();
    let (mut cuts, mut cells) = (0, 0);
    for protocol in [Protocol::Http1, Protocol::Http2] {
        for has_length in [false, true] {
            for is_keyed in [false, true] {
                let service = Service::start(protocol).await;
                let gateway = service.gateway().await;
                let mut whole = 0;
                for parts in 0..=PARTS.len() {
                    for (n, how) in ways.iter().enumerate() {
                        let key = is_keyed.then(|| format!("cut-{parts}-{n}"));
                        let cut =
                            cut_http2(gateway.address(), key.as_deref(), has_length, parts, *how);
                        soon("the cut", cut)
                            .await
                            .unwrap_or_else(|error| panic!("{parts} parts, {how:?}: {error}"));
                        whole += if let GivesUp::Stream(_) = how { 2 } else { 1 };
                        cuts += 1;
                    }
                }
                soon("the drain", gateway.drain()).await;
                judge(
                    service.ledger(),
                    whole,
                    &format!("{protocol:?}, length {has_length}, keyed {is_keyed}"),
                );
                cells += 1;
            }
        }
    }
    hapax_testkit::report!(
        "wire: {cuts} requests over HTTP/2 broken off in {cells} cells, none carried out"
    );
}

/// What the first caller and a repeat get.
async fn ask_twice(at: SocketAddr, key: &str) -> (RawAnswer, RawAnswer) {
    let request = format!(
        "POST /pay HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let first = soon("the first answer", send_raw(at, request.as_bytes())).await;
    (
        first,
        soon("the repeat", send_raw(at, request.as_bytes())).await,
    )
}

/// Checks that a partial answer neither looks complete to the first caller nor is replayed.
fn judge_answers((first, again): &(RawAnswer, RawAnswer), cell: &str) {
    for answer in [first, again] {
        let told = answer.told();
        if told.starts_with("200") && !told.contains("cut") {
            let body = String::from_utf8_lossy(&answer.body);
            // `done` is the answer to a second request, if the service had not processed the first.
            assert!(
                body == RECEIPT || body == "done",
                "{cell}: told {told} with {body:?}"
            );
        }
    }
    assert!(
        !again.told().contains("cut"),
        "{cell}: the repeat was told {}",
        again.told()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_over_http1_that_breaks_off_is_never_taken_for_whole() {
    let length = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{RECEIPT}",
        RECEIPT.len()
    );
    let chunks = format!(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{}\r\na\r\n{}\r\n0\r\n\r\n",
        &RECEIPT[..5],
        &RECEIPT[5..]
    );
    let (mut cuts, mut whole) = (0, 0);
    for answer in [length, chunks] {
        let service = Origin::start().await;
        let gateway = gateway(service.address(), Protocol::Http1, |_| ()).await;
        for cut in (0..=answer.len()).rev().step_by(stride(4)) {
            for last in [Step::Close, Step::Reset] {
                service.script([
                    Step::Read,
                    Step::Write(answer.as_bytes()[..cut].to_vec()),
                    last.clone(),
                ]);
                let answers = ask_twice(gateway.address(), &format!("cut-{cut}-{last:?}")).await;
                judge_answers(
                    &answers,
                    &format!("cut at {cut} of {}, {last:?}", answer.len()),
                );
                whole += usize::from(answers.1.told() == "200 replayed");
                cuts += 1;
            }
        }
    }
    assert!(whole >= 2, "what was whole is kept: {whole} of {cuts}");
    hapax_testkit::report!(
        "wire: {cuts} answers over HTTP/1 broken off, {whole} of them whole by then"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_over_http2_that_breaks_off_is_never_taken_for_whole() {
    let parts = [&RECEIPT[..5], &RECEIPT[5..10], &RECEIPT[10..]];
    let mut ends: Vec<Vec<Step2>> = (0..=13)
        .step_by(stride(4))
        .map(|code| vec![Step2::Reset(code)])
        .collect();
    ends.extend([
        vec![Step2::GoAway(0, 0), Step2::Drop],
        vec![Step2::GoAway(-2, 0), Step2::Drop],
        vec![Step2::Drop],
        vec![Step2::DropHard],
    ]);
    let mut cuts = 0;
    for has_length in [false, true] {
        let service = Origin2::start().await;
        let gateway = gateway(service.address(), Protocol::Http2, |_| ()).await;
        for cut in 0..=parts.len() + 1 {
            for (n, end) in ends.iter().enumerate() {
                let head = if has_length {
                    Step2::HeadWith(200, "content-length", RECEIPT.len().to_string())
                } else {
                    Step2::Head(200)
                };
                let data = parts.iter().map(|part| Step2::Data(part));
                let script = [Step2::Read, head]
                    .into_iter()
                    .chain(data)
                    .take(cut + 1)
                    .chain(end.iter().cloned());
                service.script(script);
                let answers = ask_twice(gateway.address(), &format!("cut-{cut}-{n}")).await;
                judge_answers(
                    &answers,
                    &format!("length {has_length}, after {cut} frames, {end:?}"),
                );
                cuts += 1;
            }
        }
    }
    hapax_testkit::report!("wire: {cuts} answers over HTTP/2 broken off");
}

/// An answer that ends with its connection may have lost any part: the first caller gets what
/// arrived.
#[tokio::test]
async fn an_answer_that_ends_with_its_connection_is_not_kept() {
    for (is_accepted, expected) in [(false, "409 answer-not-kept"), (true, "200 replayed")] {
        let service = Origin::start().await;
        let gateway = gateway(service.address(), Protocol::Http1, |config| {
            config.defaults.keep_close_delimited = is_accepted;
        })
        .await;
        for (n, cut) in [RECEIPT, &RECEIPT[..7], ""].into_iter().enumerate() {
            service.script([
                Step::Read,
                Step::Write(format!("HTTP/1.1 200 OK\r\n\r\n{cut}").into_bytes()),
                Step::Close,
            ]);
            let (first, again) = ask_twice(gateway.address(), &format!("key-{n}")).await;
            assert_eq!(
                (first.told().as_str(), &*first.body),
                ("200", cut.as_bytes())
            );
            assert_eq!(again.told(), expected);
        }
        assert_eq!(service.ledger().all().len(), 3);
    }
    let service = Origin::start().await;
    let gateway = gateway(service.address(), Protocol::Http1, |_| ()).await;
    service.script([
        Step::Read,
        Step::Write(b"HTTP/1.0 200 OK\r\n\r\npaid".to_vec()),
        Step::Reset,
    ]);
    let (first, again) = ask_twice(gateway.address(), "reset").await;
    assert!(
        first.told().contains("cut"),
        "that it was reset is seen: {}",
        first.told()
    );
    assert_eq!(again.told(), "409 answer-not-kept");
}

#[tokio::test]
async fn an_answer_in_another_coding_is_unknown() {
    for coding in ["gzip", "gzip, chunked", "identity", "chunked, chunked"] {
        let service = Origin::start().await;
        let gateway = gateway(service.address(), Protocol::Http1, |_| ()).await;
        let said =
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: {coding}\r\n\r\n4\r\npaid\r\n0\r\n\r\n");
        service.script([Step::Read, Step::Write(said.into_bytes()), Step::Close]);
        let (first, again) = ask_twice(gateway.address(), "key").await;
        assert_eq!(
            (first.told().as_str(), again.told().as_str()),
            ("502 outcome-unknown", "409 outcome-unknown"),
            "{coding}"
        );
        assert_eq!(service.ledger().all().len(), 1, "{coding}");
    }
}

#[tokio::test]
async fn an_answer_may_have_many_fields() {
    let service = Origin::start().await;
    let gateway = gateway(service.address(), Protocol::Http1, |_| ()).await;
    let fields: String = (0..200).map(|n| format!("x-field-{n}: {n}\r\n")).collect();
    service.script([
        Step::Read,
        Step::Write(hapax_testkit::origin::answer(200, &fields, RECEIPT)),
    ]);
    let (first, again) = ask_twice(gateway.address(), "key").await;
    assert_eq!(
        (first.told().as_str(), again.told().as_str()),
        ("200", "200 replayed")
    );
    assert_eq!(again.field("x-field-199"), Some("199"));
}
