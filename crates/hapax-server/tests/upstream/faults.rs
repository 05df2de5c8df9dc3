//! Misbehaviour of a service, and what callers get: the test prints a table and checks every cell.
//!
//! Each cell has its own gateway and origin. A guarded request is sent, then repeated; then an
//! unguarded one meets the same behaviour; finally another request shows that the gateway still
//! works.

use std::net::SocketAddr;
use std::time::Duration;

use hapax_server::config::Protocol;
use hapax_testkit::origin::{Ledger, Origin, Origin2, Step, Step2, answer, code};

use crate::bench::{gateway, soon};
use crate::client::{post, post_unguarded};

/// Long enough for anything on this machine, and short enough to wait for.
const PATIENCE: Duration = Duration::from_millis(400);

/// What happens to a request whose service behaves in this way.
#[derive(Clone, Copy)]
enum Fate {
    /// Answered, and the answer is replayed.
    Kept(u16),
    /// The effect may have happened: the outcome is unknown.
    Unknown,
    /// Unknown, because the answer does not tell; the first caller gets that answer unchanged.
    Held(u16),
    /// Unknown, because there was no answer in time.
    Late,
    /// Answered with a release-class status: runs again.
    Released(u16),
    /// Provably not processed: runs again.
    Unreached,
    /// Answered, and the answer is not kept because the service said so.
    NotKept(u16),
}

/// What the first caller and a repeat get, and how often the service has read the request after
/// both.
struct Seen {
    first: String,
    repeat: String,
    reads: usize,
}

impl Fate {
    /// `reads` is how often the service reads the request when it behaves in this way.
    fn guarded(self, reads: usize) -> Seen {
        let (first, repeat, again) = match self {
            Fate::Kept(status) => (status.to_string(), format!("{status} replayed"), 0),
            Fate::Unknown => (
                "502 outcome-unknown".into(),
                "409 outcome-unknown".into(),
                0,
            ),
            Fate::Held(status) => (status.to_string(), "409 outcome-unknown".into(), 0),
            Fate::Late => (
                "504 outcome-unknown".into(),
                "409 outcome-unknown".into(),
                0,
            ),
            Fate::Released(status) => (status.to_string(), "200".into(), 1),
            Fate::Unreached => ("502 upstream-unreachable".into(), "200".into(), 1),
            Fate::NotKept(status) => (status.to_string(), "409 answer-not-kept".into(), 0),
        };
        Seen {
            first,
            repeat,
            reads: reads + again,
        }
    }
}

struct Row<S> {
    behaviour: &'static str,
    script: Vec<S>,
    reads: usize,
    fate: Fate,
    unguarded: &'static str,
}

fn row<S>(
    behaviour: &'static str,
    script: impl IntoIterator<Item = S>,
    fate: Fate,
    unguarded: &'static str,
) -> Row<S> {
    Row {
        behaviour,
        script: script.into_iter().collect(),
        reads: 1,
        fate,
        unguarded,
    }
}

impl<S> Row<S> {
    /// The service does not read the request when it behaves in this way.
    fn unread(mut self) -> Self {
        self.reads = 0;
        self
    }
}

fn raw(text: &str) -> Step {
    Step::Write(text.as_bytes().to_vec())
}

/// Reads the request, and answers with these bytes.
fn says(text: &str) -> [Step; 2] {
    [Step::Read, raw(text)]
}

/// The same, and closes the connection.
fn last_says(text: &str) -> [Step; 3] {
    [Step::Read, raw(text), Step::Close]
}

fn http1_rows() -> Vec<Row<Step>> {
    use Fate::{Held, Kept, Late, NotKept, Released, Unknown};
    use Step::{Close, Read, ReadHead, Reset, Wait, Write};
    let status = |status: u16| [Read, Write(answer(status, "", "scripted"))];
    let many: String = (0..150).map(|n| format!("x-field-{n}: {n}\r\n")).collect();
    vec![
        row("answers", status(201), Kept(201), "201"),
        row(
            "answers without a body",
            says("HTTP/1.1 204 None\r\n\r\n"),
            Kept(204),
            "204",
        ),
        row(
            "answers and closes",
            last_says("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"),
            Kept(200),
            "200",
        ),
        row(
            "answers HTTP/1.0, up to the close",
            last_says("HTTP/1.0 200 OK\r\n\r\nok"),
            NotKept(200),
            "200",
        ),
        row(
            "answers in chunks",
            says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
            Kept(200),
            "200",
        ),
        row(
            "chunks with trailers",
            says(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n2\r\nok\r\n0\r\nx-sum: 1\r\n\r\n",
            ),
            Kept(200),
            "200",
        ),
        row(
            "answers bit by bit",
            [
                Read,
                raw("HTTP/1.1 200"),
                raw(" OK\r\ncontent-length: 4\r\n"),
                raw("\r\nab"),
                raw("cd"),
            ],
            Kept(200),
            "200",
        ),
        row(
            "100, then the answer",
            [
                Read,
                raw("HTTP/1.1 100 Continue\r\n\r\n"),
                Write(answer(200, "", "ok")),
            ],
            Kept(200),
            "200",
        ),
        row(
            "103, then the answer",
            [
                Read,
                raw("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
                Write(answer(200, "", "ok")),
            ],
            Kept(200),
            "200",
        ),
        row(
            "100, 102, 103, 103, then the answer",
            [
                Read,
                raw("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"),
                raw("HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 103 Hints\r\n\r\n"),
                Write(answer(200, "", "ok")),
            ],
            Kept(200),
            "200",
        ),
        row(
            "103, then closes",
            last_says("HTTP/1.1 103 Early Hints\r\n\r\n"),
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "101 that nobody asked for",
            says(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n",
            ),
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "stalls before its answer",
            [Read, Wait],
            Late,
            "504 upstream-timeout",
        ),
        row(
            "stalls within its answer",
            [
                Read,
                raw("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"),
                Wait,
            ],
            Unknown,
            "cut",
        ),
        row(
            "resets after reading",
            [Read, Reset],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "resets before reading the body",
            [ReadHead, Reset],
            Unknown,
            "502 upstream-failed",
        )
        .unread(),
        row(
            "closes after reading",
            [Read, Close],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "closes within the head",
            last_says("HTTP/1.1 200 O"),
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "body shorter than its length",
            last_says("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"),
            Unknown,
            "cut",
        ),
        row(
            "no body for its length",
            last_says("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"),
            Unknown,
            "cut",
        ),
        row(
            "body, then a reset",
            [
                Read,
                raw("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab"),
                Reset,
            ],
            Unknown,
            "cut",
        ),
        row(
            "chunks cut",
            last_says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n"),
            Unknown,
            "cut",
        ),
        row(
            "a chunk of no size",
            last_says("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nok\r\n"),
            Unknown,
            "cut",
        ),
        row(
            "garbage",
            last_says("\u{16}\u{3}\u{1} not HTTP at all\r\n\r\n"),
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "two lengths",
            last_says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok"),
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "answers before the body, and closes",
            [ReadHead, Write(answer(413, "", "no")), Close],
            Kept(413),
            "413",
        )
        .unread(),
        row(
            "a field of 24 KiB",
            [
                Read,
                Write(answer(
                    200,
                    &format!("x-large: {}\r\n", "a".repeat(24 << 10)),
                    "ok",
                )),
            ],
            Kept(200),
            "200",
        ),
        // More than hyper reads by default.
        row(
            "150 fields",
            [Read, Write(answer(200, &many, "ok"))],
            Kept(200),
            "200",
        ),
        // More than the gateway allows hyper to read: the content of the answer cannot be known.
        row(
            "300 fields",
            [Read, Write(answer(200, &many.repeat(2), "ok"))],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "redirects",
            [Read, Write(answer(302, "location: /elsewhere\r\n", ""))],
            Kept(302),
            "302",
        ),
        row(
            "redirects, keeping the method",
            [Read, Write(answer(307, "location: /elsewhere\r\n", ""))],
            Kept(307),
            "307",
        ),
        row("400", status(400), Kept(400), "400"),
        row("401", status(401), Released(401), "401"),
        row("429", status(429), Released(429), "429"),
        row("500", status(500), Held(500), "500"),
        row("503", status(503), Released(503), "503"),
        row("502", status(502), Held(502), "502"),
        row("504", status(504), Held(504), "504"),
        row(
            "imitates our fields",
            [
                Read,
                Write(answer(
                    200,
                    "Idempotent-Replayed: true\r\nHapax-Fence: 1\r\nHapax-Operation: x\r\nIdempotency-Expires: x\r\n",
                    "ok",
                )),
            ],
            Kept(200),
            "200",
        ),
        row(
            "asks not to be kept",
            [Read, Write(answer(200, "Hapax-Keep: no\r\n", "ok"))],
            NotKept(200),
            "200",
        ),
    ]
}

fn http2_rows() -> Vec<Row<Step2>> {
    use Fate::{Held, Kept, Late, Released, Unknown, Unreached};
    use Step2::{
        Data, Drop, DropHard, End, Garbage, GoAway, Head, HeadOnly, HeadWith, Read, Reset,
        Trailers, Wait,
    };
    let status = |status: u16| [Read, Head(status), End("scripted")];
    vec![
        row("answers", status(201), Kept(201), "201"),
        row(
            "answers without a body",
            [Read, HeadOnly(204)],
            Kept(204),
            "204",
        ),
        row(
            "answers with trailers",
            [Read, Head(200), Data("ok"), Trailers("x-sum", "1")],
            Kept(200),
            "200",
        ),
        row(
            "answers bit by bit",
            [Read, Head(200), Data("a"), Data("b"), End("")],
            Kept(200),
            "200",
        ),
        row(
            "100, then the answer",
            [Read, Head(100), Head(200), End("ok")],
            Kept(200),
            "200",
        ),
        row(
            "103, 103, then the answer",
            [Read, Head(103), Head(103), Head(200), End("ok")],
            Kept(200),
            "200",
        ),
        row(
            "stalls before its answer",
            [Read, Wait],
            Late,
            "504 upstream-timeout",
        ),
        row(
            "stalls within its answer",
            [Read, Head(200), Data("ab"), Wait],
            Unknown,
            "cut",
        ),
        row(
            "closes after reading",
            [Read, Drop],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "closes within its answer",
            [Read, Head(200), Data("ab"), Drop],
            Unknown,
            "cut",
        ),
        row(
            "resets the connection after reading",
            [Read, DropHard],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "resets the connection within its answer",
            [Read, Head(200), Data("ab"), DropHard],
            Unknown,
            "cut",
        ),
        row("garbage", [Read, Garbage], Unknown, "502 upstream-failed"),
        row(
            "REFUSED_STREAM before reading",
            [Reset(code::REFUSED_STREAM)],
            Unreached,
            "502 upstream-unreachable",
        )
        .unread(),
        row(
            "REFUSED_STREAM after reading",
            [Read, Reset(code::REFUSED_STREAM)],
            Unreached,
            "502 upstream-unreachable",
        ),
        row(
            "REFUSED_STREAM within its answer",
            [Read, Head(200), Data("ab"), Reset(code::REFUSED_STREAM)],
            Unknown,
            "cut",
        ),
        row(
            "INTERNAL_ERROR after reading",
            [Read, Reset(code::INTERNAL_ERROR)],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "INTERNAL_ERROR before reading",
            [Reset(code::INTERNAL_ERROR)],
            Unknown,
            "502 upstream-failed",
        )
        .unread(),
        row(
            "INTERNAL_ERROR within its answer",
            [Read, Head(200), Data("ab"), Reset(code::INTERNAL_ERROR)],
            Unknown,
            "cut",
        ),
        row(
            "CANCEL after reading",
            [Read, Reset(code::CANCEL)],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "NO_ERROR without an answer",
            [Read, Reset(code::NO_ERROR)],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "ENHANCE_YOUR_CALM",
            [Read, Reset(code::ENHANCE_YOUR_CALM)],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "answers early, then NO_ERROR",
            [
                HeadWith(413, "content-length", "2".to_owned()),
                End("no"),
                Reset(code::NO_ERROR),
            ],
            Kept(413),
            "413",
        )
        .unread(),
        row(
            "CANCEL within its answer",
            [Read, Head(200), Data("ab"), Reset(code::CANCEL)],
            Unknown,
            "cut",
        ),
        row(
            "NO_ERROR within its answer",
            [Read, Head(200), Data("ab"), Reset(code::NO_ERROR)],
            Unknown,
            "cut",
        ),
        row(
            "GOAWAY below, before reading",
            [GoAway(-2, code::NO_ERROR)],
            Unreached,
            "502 upstream-unreachable",
        )
        .unread(),
        row(
            "GOAWAY below, after reading",
            [Read, GoAway(-2, code::NO_ERROR)],
            Unreached,
            "502 upstream-unreachable",
        ),
        row(
            "GOAWAY below, then closes",
            [GoAway(-2, code::NO_ERROR), Drop],
            Unreached,
            "502 upstream-unreachable",
        )
        .unread(),
        row(
            "GOAWAY below with an error",
            [GoAway(-2, code::ENHANCE_YOUR_CALM), Drop],
            Unreached,
            "502 upstream-unreachable",
        )
        .unread(),
        row(
            "GOAWAY at it, then the answer",
            [Read, GoAway(0, code::NO_ERROR), Head(200), End("ok")],
            Kept(200),
            "200",
        ),
        row(
            "GOAWAY at it, then closes",
            [Read, GoAway(0, code::NO_ERROR), Drop],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "GOAWAY at it with an error, then closes",
            [Read, GoAway(0, code::INTERNAL_ERROR), Drop],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "GOAWAY above it, then closes",
            [Read, GoAway(1 << 20, code::NO_ERROR), Drop],
            Unknown,
            "502 upstream-failed",
        ),
        row(
            "GOAWAY below, within its answer",
            [Read, Head(200), Data("ab"), GoAway(-2, code::NO_ERROR)],
            Unknown,
            "cut",
        ),
        row(
            "a field of 24 KiB",
            [
                Read,
                HeadWith(200, "x-large", "a".repeat(24 << 10)),
                End("ok"),
            ],
            Kept(200),
            "200",
        ),
        row(
            "redirects",
            [
                Read,
                HeadWith(302, "location", "/elsewhere".to_owned()),
                End(""),
            ],
            Kept(302),
            "302",
        ),
        row(
            "imitates our fields",
            [
                Read,
                HeadWith(200, "idempotent-replayed", "true".to_owned()),
                End("ok"),
            ],
            Kept(200),
            "200",
        ),
        row("401", status(401), Released(401), "401"),
        row("429", status(429), Released(429), "429"),
        row("500", status(500), Held(500), "500"),
        row("503", status(503), Released(503), "503"),
        row("502", status(502), Held(502), "502"),
        row("504", status(504), Held(504), "504"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_http1_service_does_is_told_as_it_is() {
    let mut wrong = Vec::new();
    for row in http1_rows() {
        let origin = Origin::start().await;
        let script = || origin.script(row.script.clone());
        wrong.extend(
            hold(
                Protocol::Http1,
                &row,
                origin.address(),
                origin.ledger(),
                script,
            )
            .await,
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_an_http2_service_does_is_told_as_it_is() {
    let mut wrong = Vec::new();
    for row in http2_rows() {
        let origin = Origin2::start().await;
        let script = || origin.script(row.script.clone());
        wrong.extend(
            hold(
                Protocol::Http2,
                &row,
                origin.address(),
                origin.ledger(),
                script,
            )
            .await,
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs one row, prints it and compares it. Returns what is wrong.
async fn hold<S>(
    protocol: Protocol,
    row: &Row<S>,
    origin: SocketAddr,
    ledger: &Ledger,
    script: impl Fn(),
) -> Vec<String> {
    let gateway = gateway(origin, protocol, |config| config.timeouts.answer = PATIENCE).await;
    let at = gateway.address();
    let name = row.behaviour;

    script();
    let first = soon(name, post(at, "guarded")).await.told();
    let repeat = soon(name, post(at, "guarded")).await.told();
    let reads = ledger.count("guarded");
    script();
    let unguarded = soon(name, post_unguarded(at, "bare")).await.told();
    let bare_reads = ledger.count("bare");
    let after = soon(name, post(at, "after")).await.told();

    hapax_testkit::report!(
        "{protocol:?} | {name} | {first} | {repeat} | {reads} | {unguarded} | {bare_reads}"
    );
    let wanted = row.fate.guarded(row.reads);
    let cells = [
        ("first", first, wanted.first),
        ("repeat", repeat, wanted.repeat),
        ("reads", reads.to_string(), wanted.reads.to_string()),
        // Whether the head was sent before the connection was cut depends on timing.
        (
            "unguarded",
            if unguarded.ends_with(" cut") {
                "cut".to_owned()
            } else {
                unguarded
            },
            row.unguarded.to_owned(),
        ),
        (
            "reads of the unguarded",
            bare_reads.to_string(),
            row.reads.to_string(),
        ),
        ("the next request", after, "200".to_owned()),
    ];
    let wrong = cells.into_iter().filter(|(_, got, wanted)| got != wanted);
    wrong
        .map(|(cell, got, wanted)| {
            format!("{protocol:?}, {name}: {cell} is `{got}`, not `{wanted}`")
        })
        .collect()
}
