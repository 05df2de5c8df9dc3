//! Unguarded requests are streamed in both directions.

use std::net::SocketAddr;

use hapax_server::config::Protocol;
use hapax_testkit::origin::{Origin, Origin2, Step, Step2};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::bench::{gateway, soon};

/// A client that sends and reads in parts.
struct Talk {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Talk {
    async fn begin(gateway: SocketAddr, request: &str) -> Talk {
        let mut talk = Talk {
            socket: TcpStream::connect(gateway).await.unwrap(),
            read: Vec::new(),
        };
        talk.say(request).await;
        talk
    }

    async fn say(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads until this text has arrived.
    async fn hear(&mut self, wanted: &str) {
        let reading = async {
            while !String::from_utf8_lossy(&self.read).contains(wanted) {
                assert_ne!(
                    self.socket.read_buf(&mut self.read).await.unwrap(),
                    0,
                    "closed before `{wanted}` came"
                );
            }
        };
        soon(wanted, reading).await;
    }
}

const GET: &str = "GET /feed HTTP/1.1\r\nhost: shop\r\n\r\n";
const CHUNKED: &str = "POST /upload HTTP/1.1\r\nhost: shop\r\ntransfer-encoding: chunked\r\n\r\n";
const CHUNKED_ANSWER: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

fn write(text: &str) -> Step {
    Step::Write(text.as_bytes().to_vec())
}

#[tokio::test]
async fn an_answer_passes_while_its_rest_is_still_to_come() {
    let origin = Origin::start().await;
    let gateway1 = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([
        Step::Read,
        write(CHUNKED_ANSWER),
        write("5\r\nfirst\r\n"),
        Step::Wait,
        write("4\r\nrest\r\n0\r\n\r\n"),
    ]);
    let mut talk = Talk::begin(gateway1.address(), GET).await;
    talk.hear("first").await;
    origin.go();
    talk.hear("rest\r\n0\r\n\r\n").await;

    let origin = Origin2::start().await;
    let gateway2 = gateway(origin.address(), Protocol::Http2, |_| ()).await;
    origin.script([
        Step2::Read,
        Step2::Head(200),
        Step2::Data("first"),
        Step2::Wait,
        Step2::End("rest"),
    ]);
    let mut talk = Talk::begin(gateway2.address(), GET).await;
    talk.hear("first").await;
    origin.go();
    talk.hear("rest\r\n0\r\n\r\n").await;
}

#[tokio::test]
async fn the_head_of_an_answer_passes_before_its_body() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([
        Step::Read,
        write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"),
        Step::Wait,
        write("rest"),
    ]);
    let mut talk = Talk::begin(gateway.address(), GET).await;
    talk.hear("\r\n\r\n").await;
    origin.go();
    talk.hear("rest").await;
}

#[tokio::test]
async fn a_request_passes_while_its_rest_is_still_to_come() {
    let origin = Origin::start().await;
    let gateway1 = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([
        Step::ReadHead,
        Step::ReadUntil("first"),
        Step::Mark,
        Step::Read,
        write("HTTP/1.1 204 None\r\n\r\n"),
    ]);
    let mut talk = Talk::begin(gateway1.address(), CHUNKED).await;
    talk.say("5\r\nfirst\r\n").await;
    soon("the first part arrives", origin.ledger().until_marks(1)).await;
    talk.say("4\r\nrest\r\n0\r\n\r\n").await;
    talk.hear("204").await;
    assert_eq!(origin.ledger().all()[0].body, b"firstrest");

    let origin = Origin2::start().await;
    let gateway2 = gateway(origin.address(), Protocol::Http2, |_| ()).await;
    origin.script([
        Step2::ReadUntil("first"),
        Step2::Mark,
        Step2::Read,
        Step2::HeadOnly(204),
    ]);
    let mut talk = Talk::begin(gateway2.address(), CHUNKED).await;
    talk.say("5\r\nfirst\r\n").await;
    soon("the first part arrives", origin.ledger().until_marks(1)).await;
    talk.say("4\r\nrest\r\n0\r\n\r\n").await;
    talk.hear("204").await;
    assert_eq!(origin.ledger().all()[0].body, b"firstrest");
}

#[tokio::test]
async fn request_and_answer_pass_in_turns() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |config| {
        config.upstream.connections_max = 1;
    })
    .await;
    origin.script([
        Step::ReadHead,
        Step::ReadUntil("ping"),
        write(CHUNKED_ANSWER),
        write("4\r\npong\r\n"),
        Step::ReadUntil("tick"),
        write("4\r\ntock\r\n"),
        Step::Read,
        write("0\r\n\r\n"),
    ]);
    let mut talk = Talk::begin(gateway.address(), CHUNKED).await;
    talk.say("4\r\nping\r\n").await;
    talk.hear("pong").await;
    talk.say("4\r\ntick\r\n").await;
    talk.hear("tock").await;
    talk.say("0\r\n\r\n").await;
    talk.hear("\r\n0\r\n\r\n").await;
    // Both directions ended cleanly, so the connection is reused for the next request.
    talk.say(GET).await;
    talk.hear("done").await;
    assert_eq!(origin.ledger().connections(), 1);
}

#[tokio::test]
async fn the_length_of_a_body_is_told_where_the_client_told_it() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    let mut talk = Talk::begin(
        gateway.address(),
        "POST / HTTP/1.1\r\nhost: shop\r\ncontent-length: 4\r\n\r\nbody",
    )
    .await;
    talk.hear("done").await;
    let head = origin.ledger().all()[0].head.to_ascii_lowercase();
    assert!(
        head.contains("content-length: 4\r\n") && !head.contains("transfer-encoding"),
        "{head}"
    );
}

#[tokio::test]
async fn a_client_that_waits_for_100_is_told_to_go_on_by_the_gateway() {
    for key in ["", "idempotency-key: k\r\n"] {
        let origin = Origin::start().await;
        let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
        let head = format!(
            "POST / HTTP/1.1\r\nhost: shop\r\n{key}expect: 100-continue\r\ncontent-length: 4\r\n\r\n"
        );
        let mut talk = Talk::begin(gateway.address(), &head).await;
        talk.hear("100 Continue\r\n\r\n").await;
        talk.say("body").await;
        talk.hear("done").await;
        let seen = &origin.ledger().all()[0];
        assert_eq!(seen.body, b"body");
        assert!(
            !seen.head.to_ascii_lowercase().contains("expect"),
            "{}",
            seen.head
        );
    }
}

#[tokio::test]
async fn the_stream_that_answers_a_guarded_request_passes_as_it_comes_and_is_not_kept() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    origin.script([
        Step::Read,
        write("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"),
        write("9\r\ndata: 1\n\n\r\n"),
        Step::Wait,
        write("9\r\ndata: 2\n\n\r\n0\r\n\r\n"),
    ]);
    let post = "POST /charges HTTP/1.1\r\nhost: shop\r\nidempotency-key: k\r\ncontent-length: 4\r\n\r\nbody";
    let mut first = Talk::begin(gateway.address(), post).await;
    first.hear("data: 1").await;
    let mut repeat = Talk::begin(gateway.address(), post).await;
    repeat.hear("answer-not-kept").await;
    origin.go();
    first.hear("data: 2").await;
    assert_eq!(origin.ledger().all().len(), 1);
}
