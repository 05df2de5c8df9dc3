//! HTTP/1.1, and the TLS handshake before it.

use crate::crowd::{Crowd, Script};
use crate::{Target, at_most, wait_given_up};

const KEY: &str = "Idempotency-Key: slow\r\n";

fn tally(crowd: &Crowd, status: &str) -> String {
    let total = crowd.last_words.len();
    let told = crowd
        .last_words
        .iter()
        .filter(|words| words.starts_with(&format!("HTTP/1.1 {status} ")))
        .count();
    let other = crowd
        .last_words
        .iter()
        .find(|words| !words.is_empty() && !words.starts_with(&format!("HTTP/1.1 {status} ")));
    assert_eq!(other, None, "an answer that nobody deserved");
    format!("{total} closed, {told} with {status}")
}

fn post(fields: &str) -> String {
    format!("POST /slow HTTP/1.1\r\nHost: h\r\n{fields}\r\n")
}

const HEAD: &str = "POST /slow HTTP/1.1\r\nHost: h\r\n";
const ENDLESS: &[u8] = b"GET /endless HTTP/1.1\r\nHost: h\r\n\r\n";

pub fn silent(target: &Target<'_>) -> String {
    let count = if target.trusted.is_some() {
        1_000
    } else {
        at_most(10_000)
    };
    let crowd = Crowd::connect(target.gateway.clients, count, b"").wait();
    assert!(crowd.last_words.iter().all(String::is_empty));
    format!("{} closed", crowd.last_words.len())
}

pub fn slow_heads(target: &Target<'_>) -> String {
    tally(
        &Crowd::connect(target.gateway.clients, 1_000, b"POST")
            .trickle(&Script::new(HEAD, "A: b\r\n")),
        "408",
    )
}

pub fn stopped_heads(target: &Target<'_>) -> String {
    tally(
        &Crowd::connect(target.gateway.clients, 1_000, HEAD.as_bytes()).wait(),
        "408",
    )
}

pub fn endless_heads(target: &Target<'_>) -> String {
    tally(
        &Crowd::connect(target.gateway.clients, 50, b"POST")
            .flood(&Script::new(format!("{HEAD}A: "), "b")),
        "431",
    )
}

pub fn endless_fields(target: &Target<'_>) -> String {
    tally(
        &Crowd::connect(target.gateway.clients, 50, b"POST").flood(&Script::new(HEAD, "A: b\r\n")),
        "431",
    )
}

pub fn slow_guarded_bodies(target: &Target<'_>) -> String {
    slow_body(target, &format!("{KEY}Content-Length: 9999\r\n"), "400")
}

pub fn slow_bodies(target: &Target<'_>) -> String {
    slow_body(target, "Content-Length: 9999\r\n", "400")
}

fn slow_body(target: &Target<'_>, fields: &str, status: &str) -> String {
    let head = post(fields);
    tally(
        &Crowd::connect(target.gateway.clients, 1_000, head.as_bytes())
            .trickle(&Script::new(head, "x")),
        status,
    )
}

pub fn stopped_bodies(target: &Target<'_>) -> String {
    let head = post(&format!("{KEY}Content-Length: 9999\r\n"));
    tally(
        &Crowd::connect(target.gateway.clients, 1_000, head.as_bytes()).wait(),
        "400",
    )
}

/// Requests with room for their body stall; the others are refused before their body is read.
pub fn half_bodies(target: &Target<'_>) -> String {
    let head = post(&format!("{KEY}Content-Length: {}\r\n", 1 << 20));
    let half = [head.as_bytes(), &vec![b'x'; 1 << 19]].concat();
    let crowd = Crowd::connect(target.gateway.clients, 600, head.as_bytes())
        .say_all(&Script::new(half, ""));
    let told = |status: &str| {
        crowd
            .last_words
            .iter()
            .filter(|words| words.starts_with(&format!("HTTP/1.1 {status} ")))
            .count()
    };
    let (refused, stalled) = (told("503"), told("400"));
    let cut = crowd
        .last_words
        .iter()
        .filter(|words| words.is_empty())
        .count();
    assert_eq!(
        refused + stalled + cut,
        600,
        "an answer that nobody deserved"
    );
    assert!(
        stalled <= 64,
        "{stalled} bodies of a mebibyte were held for one address"
    );
    assert!(refused >= 300, "{refused} were refused");
    format!("{refused} refused, {stalled} stalled")
}

pub fn endless_guarded_bodies(target: &Target<'_>) -> String {
    let head = post(&format!("{KEY}Transfer-Encoding: chunked\r\n"));
    let script = Script::new(head.clone(), format!("1000\r\n{}\r\n", "x".repeat(4096)));
    tally(
        &Crowd::connect(target.gateway.clients, 16, head.as_bytes()).flood(&script),
        "413",
    )
}

/// Each connection exceeds the limit of chunk extensions long before that of bodies.
pub fn tiny_chunks(target: &Target<'_>) -> String {
    let head = post(&format!("{KEY}Transfer-Encoding: chunked\r\n"));
    tally(
        &Crowd::connect(target.gateway.clients, 16, head.as_bytes())
            .flood(&Script::new(head, "1;x=y\r\nx\r\n")),
        "400",
    )
}

pub fn unread_answers(target: &Target<'_>) -> String {
    let _crowd = Crowd::connect(target.gateway.clients, 100, ENDLESS);
    wait_given_up(target, 100, &mut || {});
    "100 given up".to_owned()
}

pub fn sipped_answers(target: &Target<'_>) -> String {
    let mut crowd = Crowd::connect(target.gateway.clients, 100, ENDLESS);
    wait_given_up(target, 100, &mut || crowd.sip());
    "100 given up".to_owned()
}

pub fn unused(target: &Target<'_>) -> String {
    tally(
        &Crowd::connect(
            target.gateway.clients,
            1_000,
            b"GET /once HTTP/1.1\r\nHost: h\r\n\r\n",
        )
        .wait(),
        "200",
    )
}

pub fn slow_handshakes(target: &Target<'_>) -> String {
    let hello = target.trusted.expect("it is about TLS").hello();
    let crowd =
        Crowd::connect(target.gateway.clients, 1_000, &hello[..1]).trickle(&Script::new(hello, ""));
    format!("{} closed", crowd.last_words.len())
}
