//! A header that names the caller, from an untrusted client: in no spelling does the gateway
//! believe it or pass it to the upstream.

use std::convert::Infallible;

use bytes::Bytes;
use hapax_server::config::{Config, Protocol};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;

use crate::client::{Tells, post, unguarded};
use crate::harness::{Answer, Client, ClientRequest, With};
use crate::world::World;

/// The address of a client that is not a trusted proxy.
const STRANGER: &str = "127.0.0.2";

/// The field as one line, in every spelling that a server behind could read as this field.
const LINES: [&str; 31] = [
    "X-User: ada",
    "x-user: ada",
    "X-USER: ada",
    "x-UsEr: ada",
    "X-User:ada",
    "X-User:   ada   ",
    "X-User:\tada\t",
    "X-User: \"ada\"",
    "X_User: ada",
    "x_user: ada",
    "X_USER: ada",
    "x.user: ada",
    "x!user: ada",
    "x#user: ada",
    "x$user: ada",
    "x%user: ada",
    "x&user: ada",
    "x'user: ada",
    "x*user: ada",
    "x+user: ada",
    "x^user: ada",
    "x`user: ada",
    "x|user: ada",
    "x~user: ada",
    "X-User : ada",
    "X-User\t: ada",
    " X-User: ada",
    "\tX-User: ada",
    "X-User\u{0}: ada",
    "X-User: ada\u{0}",
    "X\u{2010}User: ada",
];

/// Several lines: repeated, folded, after other fields, or named in `Connection`.
const PARAGRAPHS: [&str; 16] = [
    "X-User: ada\r\nX-User: ada",
    "X-User: eve\r\nX-User: ada",
    "X-User: ada\r\nX_User: ada",
    "X_User: eve\r\nX-User: ada",
    "X-User:\r\n ada",
    "X-User:\r\n\tada",
    "Accept: a\r\n X-User: ada",
    "Accept: a\nX-User: ada",
    "Accept: a\rX-User: ada",
    "Accept: a\r\n\r\nX-User: ada",
    "X-User: ada\r\nConnection: x-user",
    "X-User: ada\r\nConnection: close, X-User",
    "X_User: ada\r\nConnection: x_user",
    "X-User: ada\r\nTrailer: X-User",
    "X-User: ada\r\nForwarded: for=127.0.0.1\r\nX-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1",
    "X-User: ada\r\nProxy-Connection: x-user\r\nKeep-Alive: x-user",
];

/// As trailers, after the body.
const TRAILERS: [&str; 5] = [
    "X-User: ada",
    "x-user: ada",
    "X_User: ada",
    "x.user: ada",
    "X-User:\r\n ada",
];

fn believing_one_proxy(config: &mut Config) {
    config.principal = "header:x-user".parse().unwrap();
    config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
}

/// Whether the most lenient server would read the name as the field's.
fn is_the_field(name: &HeaderName) -> bool {
    let plain = |byte: u8| {
        if byte.is_ascii_alphanumeric() {
            byte
        } else {
            b'-'
        }
    };
    name.as_str().bytes().map(plain).eq(*b"x-user")
}

/// The number of such fields that the upstream has seen, except in the trusted proxy's request.
fn spoofed(world: &World) -> usize {
    let names = |headers: &HeaderMap| headers.keys().filter(|name| is_the_field(name)).count();
    world
        .upstream
        .all()
        .iter()
        .skip(1)
        .map(|seen| names(&seen.headers) + names(&seen.trailers))
        .sum()
}

async fn of_ada(world: &World) -> Answer {
    let first = world.send(false, post("k").with("x-user", "ada")).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(
        world.upstream.last().headers["x-user"],
        "ada",
        "from a trusted proxy it goes on to the upstream"
    );
    first
}

#[tokio::test]
async fn a_spoofed_header_is_believed_in_no_spelling_over_http1() {
    let world = World::start(|config, _| believing_one_proxy(config)).await;
    let first = of_ada(&world).await;
    let canary = first.field("x-canary").unwrap();
    let stranger = Client::new(world.address()).from(STRANGER);
    let (mut tried, mut passed, mut refused) = (0, 0, 0);
    let mut requests = Vec::new();
    for fields in LINES.iter().chain(&PARAGRAPHS) {
        for key in ["Idempotency-Key: k\r\n", ""] {
            for version in ["1.1", "1.0"] {
                let head = format!("POST /charges?a=1 HTTP/{version}\r\nHost: localhost\r\n{key}");
                requests.push((
                    fields,
                    format!("{head}{fields}\r\nContent-Length: 12\r\n\r\n{{\"amount\":5}}"),
                ));
            }
        }
    }
    for trailer in &TRAILERS {
        for key in ["Idempotency-Key: k\r\n", ""] {
            let head = format!(
                "POST /charges?a=1 HTTP/1.1\r\nHost: localhost\r\n{key}Transfer-Encoding: chunked\r\nTrailer: x-user\r\n\r\n"
            );
            requests.push((
                trailer,
                format!("{head}c\r\n{{\"amount\":5}}\r\n0\r\n{trailer}\r\n\r\n"),
            ));
        }
    }
    for (spelling, request) in &requests {
        let is_guarded = request.contains("Idempotency-Key");
        let answer = stranger.raw(request.as_bytes()).await;
        let told =
            answer.contains(canary) || answer.to_ascii_lowercase().contains("idempotent-replayed");
        assert!(!told, "{spelling:?}: {answer}");
        match answer.contains("201 Created") {
            true => passed += 1,
            false => refused += 1,
        }
        assert!(
            !is_guarded || !answer.contains("201 Created"),
            "nobody is known to ask: {spelling:?} {answer}"
        );
        tried += 1;
    }
    assert_eq!(spoofed(&world), 0, "the upstream was shown a spoofed field");
    let guarded = world
        .upstream
        .all()
        .iter()
        .filter(|seen| seen.headers.contains_key("idempotency-key"))
        .count();
    assert_eq!(guarded, 1, "only what the proxy vouched for had its effect");
    hapax_testkit::report!(
        "{tried} requests with a spoofed header over HTTP/1: {refused} refused, {passed} passed unguarded without it; 0 replays, 0 seen by the upstream"
    );
    assert!(passed >= 40 && refused >= 90, "{passed} {refused}");
    let again = world.send(false, post("k").with("x-user", "ada")).await;
    assert!(again.is_replay() && again.tells(&first));
    world.end().await;
}

#[tokio::test]
async fn a_spoofed_header_is_believed_in_no_spelling_over_http2() {
    // With an HTTP/2 upstream, because only there are trailers passed on.
    let world = World::try_start(Protocol::Http2, |config, _| believing_one_proxy(config))
        .await
        .unwrap();
    let first = of_ada(&world).await;
    let stranger = Client::new(world.address()).http2(true).from(STRANGER);
    let names: Vec<HeaderName> = LINES
        .iter()
        .filter_map(|line| line.split_once(':')?.0.to_ascii_lowercase().parse().ok())
        .collect();
    let (mut tried, mut passed) = (0, 0);
    for name in &names {
        for lines in 1..=2 {
            let spoof = |request: ClientRequest| {
                (0..lines).fold(request, |request, _| request.with(name.as_str(), "ada"))
            };
            let guarded = stranger.send(spoof(post("k"))).await;
            assert_eq!(
                guarded.refusal(),
                (400, "principal-missing".to_owned()),
                "{name}"
            );
            assert!(!guarded.tells(&first) && !guarded.is_replay(), "{name}");
            assert_eq!(
                stranger.send(spoof(unguarded())).await.status,
                201,
                "{name}"
            );
            (tried, passed) = (tried + 2, passed + 1);
        }
        for request in [post("k"), unguarded()] {
            let got = stranger.send(request.map(|_| trailing(name))).await;
            assert!(!got.tells(&first) && !got.is_replay(), "{name}");
            (tried, passed) = (tried + 1, passed + usize::from(got.status == 201));
        }
        // Even from a trusted proxy the field does not count as a trailer.
        let got = world
            .send(
                true,
                post(&format!("t-{name}"))
                    .with("x-user", "ada")
                    .map(|_| trailing(name)),
            )
            .await;
        assert_eq!(got.status, 201);
    }
    let trailers: usize = world
        .upstream
        .all()
        .iter()
        .map(|seen| {
            seen.trailers
                .keys()
                .filter(|name| is_the_field(name))
                .count()
        })
        .sum();
    assert_eq!(trailers, 0);
    let kept = world
        .upstream
        .all()
        .iter()
        .filter(|seen| seen.trailers.contains_key("x-checksum"))
        .count();
    assert!(
        kept >= names.len(),
        "other trailers pass, or this test would show nothing"
    );
    let from_strangers = world
        .upstream
        .all()
        .into_iter()
        .filter(|seen| !seen.headers.contains_key("hapax-fence"));
    assert_eq!(
        from_strangers
            .filter(|seen| seen.headers.keys().any(is_the_field))
            .count(),
        0
    );
    hapax_testkit::report!(
        "{tried} requests with a spoofed header over HTTP/2: {passed} passed unguarded without it; 0 replays, 0 seen by the upstream"
    );
    world.end().await;
}

/// A body with the field as a trailer.
fn trailing(name: &HeaderName) -> BoxBody<Bytes, Infallible> {
    let trailers = HeaderMap::from_iter([
        (name.clone(), HeaderValue::from_static("ada")),
        (
            HeaderName::from_static("x-checksum"),
            HeaderValue::from_static("17"),
        ),
    ]);
    let frames = vec![
        Frame::data(Bytes::from_static(b"{\"amount\":5}")),
        Frame::trailers(trailers),
    ];
    Frames(frames.into()).boxed()
}

struct Frames(std::collections::VecDeque<Frame<Bytes>>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test]
async fn a_trusted_proxy_must_name_one_caller() {
    let world = World::start(|config, _| believing_one_proxy(config)).await;
    let first = of_ada(&world).await;
    for is_http2 in [false, true] {
        for lines in [
            &[][..],
            &["ada", "ada"],
            &["ada", "eve"],
            &[""],
            &[" "],
            &["a\tb"],
        ] {
            let request = lines
                .iter()
                .fold(post("k"), |request, line| request.with("x-user", line));
            let got = world.send(is_http2, request).await;
            assert_eq!(
                got.refusal(),
                (400, "principal-missing".to_owned()),
                "{lines:?}"
            );
            assert!(!got.tells(&first) && !got.is_replay());
        }
    }
    let imitated = world.send(false, post("k").with("x_user", "ada")).await;
    assert_eq!(
        imitated.code(),
        "principal-missing",
        "a spelling of its own is no proxy's"
    );
    assert_eq!(world.upstream.effects(), 1);
    world.end().await;
}
