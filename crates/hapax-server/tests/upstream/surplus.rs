//! Surplus bytes after an answer must never become an answer, above all not another caller's.
//!
//! The campaign: `HAPAX_SURPLUS_ROUNDS=20 cargo test -p hapax-server --test upstream surplus:: --
//! --nocapture`.

use std::net::SocketAddr;
use std::time::Duration;

use hapax_server::config::{PrincipalSources, Protocol};
use hapax_testkit::origin::{Origin, Step, answer};

use crate::bench::{gateway, soon};

use hapax_testkit::harness::{RawAnswer, send_raw};

/// The surplus after the answer to Ada: a complete answer that only she may get.
const CANARY: &str = "ada's balance is 17";

/// Answers with surplus: a name, Ada's method, and the first bytes of the service.
const KINDS: [(&str, &str, &str); 9] = [
    (
        "204 that declares a body",
        "POST",
        "HTTP/1.1 204 None\r\ncontent-length: 19\r\n\r\n",
    ),
    ("204", "POST", "HTTP/1.1 204 None\r\n\r\n"),
    (
        "304 that declares a body",
        "GET",
        "HTTP/1.1 304 Same\r\ncontent-length: 19\r\n\r\n",
    ),
    ("304", "GET", "HTTP/1.1 304 Same\r\n\r\n"),
    (
        "HEAD that declares a body",
        "HEAD",
        "HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\n",
    ),
    ("HEAD", "HEAD", "HTTP/1.1 200 OK\r\n\r\n"),
    (
        "more than its length",
        "POST",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nmine",
    ),
    (
        "more than its last chunk",
        "POST",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nmine\r\n0\r\n\r\n",
    ),
    (
        "a body where none is declared",
        "POST",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ),
];

/// The delay of the surplus, in milliseconds.
const DELAYS: [u64; 5] = [0, 1, 5, 20, 50];

fn rounds() -> usize {
    std::env::var("HAPAX_SURPLUS_ROUNDS").map_or(1, |rounds| {
        rounds.parse().expect("HAPAX_SURPLUS_ROUNDS is a number")
    })
}

async fn ask(gateway: SocketAddr, method: &str, who: &str, key: &str) -> RawAnswer {
    let length = if method == "POST" {
        "content-length: 2\r\n"
    } else {
        ""
    };
    let body = if method == "POST" { "ok" } else { "" };
    let request = format!(
        "{method} /balance HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nauthorization: Bearer {who}\r\nidempotency-key: {key}\r\n{length}\r\n{body}"
    );
    soon("the answer", send_raw(gateway, request.as_bytes())).await
}

/// How much of Ada's surplus other callers got.
#[derive(Debug, Default, PartialEq, Eq)]
struct Strayed {
    answers: usize,
    replays: usize,
}

async fn round(method: &str, head: &str, delay: Duration, is_trusted: bool) -> Strayed {
    let origin = Origin::start().await;
    let change =
        |config: &mut hapax_server::config::Config| config.principal = PrincipalSources::default();
    let gateway = gateway(origin.address(), Protocol::Http1, change).await;
    let at = gateway.address();
    if is_trusted {
        earn_trust(&origin, at).await;
    }
    let said = origin.ledger().all().len();
    let surplus = answer(200, "", CANARY);
    origin.script([
        Step::Read,
        Step::Write(head.into()),
        Step::Pause(delay),
        Step::Write(surplus),
        Step::Mark,
    ]);
    let mine = ask(at, method, "ada", "ada-1").await;
    // On a reused connection it cannot be known which of the bytes are hers.
    assert!(
        is_trusted || mine.status < 500,
        "Ada has her own answer: {}",
        mine.told()
    );

    let mut strayed = Strayed::default();
    for key in ["eve-1", "eve-2", "eve-3"] {
        strayed.answers += usize::from(is_canary(&ask(at, "POST", "eve", key).await));
    }
    soon(
        "the service has said too much",
        origin.ledger().until_marks(1),
    )
    .await;
    for key in ["eve-1", "eve-2", "eve-3", "eve-4"] {
        strayed.replays += usize::from(is_canary(&ask(at, "POST", "eve", key).await));
    }
    assert!(
        origin.ledger().all().len() > said,
        "the requests reached the service"
    );
    strayed
}

fn is_canary(answer: &RawAnswer) -> bool {
    String::from_utf8_lossy(&answer.body).contains(CANARY)
}

/// Sends requests until the gateway reuses connections without first waiting for them to be quiet.
async fn earn_trust(origin: &Origin, at: SocketAddr) {
    for round in 1.. {
        let before = origin.ledger().connections();
        // The second request reuses the idle connection at once, or opens a new one if connections
        // must be quiet first.
        for n in 0..2 {
            assert_eq!(
                ask(at, "POST", "ada", &format!("trust-{round}-{n}"))
                    .await
                    .told(),
                "200"
            );
        }
        if origin.ledger().connections() == before {
            return;
        }
        assert!(round < 200, "connections are never used at once");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_an_answer_is_nobodys() {
    let mut asked = 0;
    for (name, method, head) in KINDS {
        for delay in DELAYS {
            for _ in 0..rounds() {
                let strayed = round(method, head, Duration::from_millis(delay), false).await;
                assert_eq!(strayed, Strayed::default(), "{name}, {delay} ms late");
                asked += 7;
            }
        }
    }
    hapax_testkit::report!(
        "surplus: {} kinds x {} delays x {} rounds: {asked} answers to another caller, 0 strayed",
        KINDS.len(),
        DELAYS.len(),
        rounds()
    );
}

/// Even for a service that has behaved well so far: a body that follows by mistake follows an
/// answer without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_follows_an_answer_without_a_body_is_nobodys_though_the_service_was_trusted() {
    for (name, method, head) in &KINDS[..6] {
        for delay in DELAYS {
            for _ in 0..rounds().div_ceil(4) {
                let strayed = round(method, head, Duration::from_millis(delay), true).await;
                assert_eq!(strayed, Strayed::default(), "{name}, {delay} ms late");
            }
        }
    }
}

/// After its first surplus, no connection of this service is reused any more.
#[tokio::test]
async fn a_service_that_says_too_much_loses_the_reuse_of_its_connections() {
    let origin = Origin::start().await;
    let gateway = gateway(origin.address(), Protocol::Http1, |_| ()).await;
    let at = gateway.address();
    earn_trust(&origin, at).await;
    origin.script([
        Step::Read,
        Step::Write([answer(200, "", "mine"), answer(200, "", CANARY)].concat()),
    ]);
    assert_eq!(ask(at, "POST", "ada", "last").await.body, b"mine");
    let before = origin.ledger().connections();
    for n in 0..4 {
        assert_eq!(
            ask(at, "POST", "ada", &format!("after-{n}")).await.told(),
            "200"
        );
    }
    assert_eq!(origin.ledger().connections(), before + 4);
}
