//! A route in shadow mode, in front of a service that ignores keys: no request is refused or
//! changed, and what would have been replayed or refused is counted.

use hapax_testkit::origin::{Origin, Step, answer};

use crate::harness::{Client, ClientRequest, With, get, post};
use crate::world::World;

/// Fields that any proxy adds to a request: `docs/gateway.md` lists them.
const PROXYS: [&str; 6] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "forwarded",
    "via",
    "x-request-id",
];

/// A request as a client of an old service sends it: with unusual fields, a content coding, and
/// possibly a key.
fn ask(key: Option<&str>, body: &str) -> ClientRequest {
    let request = post("/v1/charges?x=%2F&y=", body.to_owned())
        .with("host", "shop.example")
        .with("authorization", "Bearer ada")
        .with("accept-encoding", "gzip, br")
        .with("x-Odd", "a, b")
        .with("prefer", "wait=3");
    // The gateway always declares a length; this client would omit it for an empty body.
    let length = body.is_empty().then_some(("content-length", "0"));
    let key = key.map(|key| ("idempotency-key", key));
    let more = length.into_iter().chain(key);
    more.fold(request, |request, (name, value)| request.with(name, value))
}

/// The requests in order: the key, the body, and the service's status.
const SENT: [(Option<&str>, &str, u16); 11] = [
    (Some("k1"), "5", 201),
    // Two repeats: they run, and would have been replayed.
    (Some("k1"), "5", 201),
    (Some("k1"), "5", 200),
    // A different request under the same key.
    (Some("k1"), "6", 201),
    // An invalid key, and one for which the service answers 503.
    (Some("a, b"), "5", 201),
    (Some("k2"), "5", 503),
    (Some("k2"), "5", 201),
    // A service further behind did not answer: the outcome is unknown, and the repeat would have
    // been refused.
    (Some("k3"), "5", 502),
    (Some("k3"), "5", 201),
    (None, "5", 204),
    (None, "", 400),
];

/// What the shadow counts for these and for the two after them. Requests without a key are not
/// counted.
const FORESEEN: [(&str, f64); 6] = [
    ("run", 5.0),
    ("reject-in-flight", 1.0),
    ("replay", 2.0),
    ("reject-key-reused", 1.0),
    ("reject-key-malformed", 1.0),
    ("reject-outcome-unknown", 1.0),
];

#[tokio::test]
async fn nothing_is_refused_or_changed_and_what_would_have_been_is_counted() {
    let (behind, direct) = (Origin::start().await, Origin::start().await);
    let settings = format!(
        "[upstream]\nurl = \"http://{}\"\n[drain]\nnotice = \"0s\"\n[[routes]]\npath = \"/v1/**\"\nshadow = true\n",
        behind.address()
    );
    let world = World::start(&settings).await;
    for (number, (key, body, status)) in SENT.into_iter().enumerate() {
        for origin in [&behind, &direct] {
            let fields = "content-type: text/odd\r\nx-effect: 1\r\nset-cookie: a=b\r\ncache-control: no-store\r\n";
            let text = if status == 204 {
                String::new()
            } else {
                format!("effect {number}")
            };
            let answer = if status == 204 {
                b"HTTP/1.1 204 Scripted\r\nx-effect: 1\r\n\r\n".to_vec()
            } else {
                answer(status, fields, &text)
            };
            origin.script([Step::Read, Step::Write(answer)]);
        }
        let through = world.send(ask(key, body)).await;
        let without = Client::new(direct.address()).send(ask(key, body)).await;
        assert_eq!(
            (through.status, &through.body),
            (without.status, &without.body),
            "{key:?} {body}"
        );
        assert_eq!(
            plain(&through.headers),
            plain(&without.headers),
            "{key:?} {body}"
        );
    }

    // Every request had its effect, with the same bytes.
    let (through, without) = (behind.ledger().all(), direct.ledger().all());
    assert_eq!((through.len(), without.len()), (SENT.len(), SENT.len()));
    for (through, without) in through.iter().zip(&without) {
        assert_eq!(through.body, without.body);
        assert_eq!(head(&through.head), head(&without.head));
    }

    // A repeat while the first request runs: a conflict, which nevertheless reaches the service.
    behind.script([Step::Read, Step::Wait, Step::Write(answer(201, "", "slow"))]);
    behind.script([Step::Read, Step::Write(answer(201, "", "quick"))]);
    let mut connection = world.connect().await;
    let slow = tokio::spawn(async move { connection.send(ask(Some("k4"), "5")).await });
    behind.ledger().until_requests(SENT.len() + 1).await;
    assert_eq!(world.send(ask(Some("k4"), "5")).await.text(), "quick");
    behind.go();
    assert_eq!(slow.await.unwrap().unwrap().text(), "slow");

    let text = world.metrics().await;
    for (would, count) in FORESEEN {
        assert_eq!(
            world
                .metric(&format!(
                    "hapax_shadow_total{{route=\"/v1/**\",would=\"{would}\"}}"
                ))
                .await,
            count,
            "{text}"
        );
    }
    let foreseen = text
        .lines()
        .filter(|line| line.starts_with("hapax_shadow_total"))
        .count();
    assert_eq!(foreseen, FORESEEN.len(), "{text}");
    assert_eq!(
        world
            .metric("hapax_requests_total{route=\"/v1/**\",outcome=\"unguarded\"}")
            .await,
        (SENT.len() + 2) as f64
    );
    assert_eq!(
        world.metric("hapax_duplicates_prevented_total").await,
        0.0,
        "nothing was prevented"
    );
    hapax_testkit::report!(
        "{} requests through a shadow, all of them equal to a direct run; foreseen: {FORESEEN:?}",
        SENT.len() + 2
    );

    let published = world.send(get("/.well-known/idempotency")).await;
    let published = published.text();
    assert!(published.contains("\"shadow\": true"), "{published}");

    // A service that sets such fields itself: its fields are not counted as replays of the gateway.
    behind.script([
        Step::Read,
        Step::Write(answer(201, "idempotent-replayed: true\r\n", "its own")),
    ]);
    assert_eq!(world.send(ask(Some("k5"), "5")).await.text(), "its own");
    assert_eq!(
        world
            .metric("hapax_requests_total{route=\"/v1/**\",outcome=\"unguarded\"}")
            .await,
        (SENT.len() + 3) as f64
    );
    let replayed = world.metrics().await;
    assert!(
        !replayed.contains("hapax_requests_total{route=\"/v1/**\",outcome=\"replayed\"} 1"),
        "{replayed}"
    );

    // When shadow mode is turned off, guarding starts without records: what the shadow saw is not
    // replayed.
    world
        .reload(&settings.replace("shadow = true", ""))
        .await
        .unwrap();
    let first = world.send(ask(Some("k1"), "5")).await;
    assert!(
        first.status == 200
            && !first.is_replay()
            && world.send(ask(Some("k1"), "5")).await.is_replay()
    );
    world.gateway.drain().await;
}

/// The fields of an answer, except those that change.
fn plain(headers: &http::HeaderMap) -> Vec<(String, Vec<u8>)> {
    let fields = headers
        .iter()
        .filter(|(name, _)| *name != "date" && *name != "x-request-id");
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    fields.sort();
    fields
}

/// The lines of a request's head, without the fields of proxies; sorted, because proxies do not
/// keep their order.
fn head(head: &str) -> Vec<String> {
    let is_proxys = |line: &str| {
        PROXYS
            .iter()
            .any(|name| line.to_ascii_lowercase().starts_with(&format!("{name}:")))
    };
    let mut lines: Vec<String> = head
        .lines()
        .filter(|line| !line.is_empty() && !is_proxys(line))
        .map(str::to_owned)
        .collect();
    lines[1..].sort();
    lines
}
