//! Reuse of connections to the service: when it is allowed, and what happens to a request on a
//! connection that the service closes.

use std::time::Duration;

use hapax_server::config::{Config, Protocol};
use hapax_server::gateway::Gateway;
use hapax_testkit::origin::{Origin, Origin2, Step, Step2, answer};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::bench::{gateway, soon};
use crate::client::{get, gets, post, post_unguarded, posts, posts_unguarded};
use hapax_testkit::harness::send_raw;

async fn before(origin: &Origin, change: impl FnOnce(&mut Config)) -> Gateway {
    gateway(origin.address(), Protocol::Http1, change).await
}

/// The connection closes when the first byte of a request arrives, so the request was sent.
fn closes_under_the_request() -> [Step; 2] {
    [Step::ReadByte, Step::Reset]
}

fn answers(text: &str) -> [Step; 2] {
    [Step::Read, Step::Write(text.as_bytes().to_vec())]
}

#[tokio::test]
async fn a_lost_post_is_sent_once_whatever_may_be_reused() {
    for reuse_max in [
        Duration::ZERO,
        Duration::from_nanos(1),
        Duration::from_secs(1),
    ] {
        let origin = Origin::start().await;
        let gateway = before(&origin, |config| config.upstream.reuse_max = reuse_max).await;
        origin.script([Step::Read, Step::Close]);
        assert_eq!(
            post(gateway.address(), "guarded").await.told(),
            "502 outcome-unknown",
            "{reuse_max:?}"
        );
        origin.script([Step::Read, Step::Close]);
        assert_eq!(
            post_unguarded(gateway.address(), "bare").await.told(),
            "502 upstream-failed",
            "{reuse_max:?}"
        );
        assert_eq!(origin.ledger().all().len(), 2, "{reuse_max:?}");
    }
}

#[tokio::test]
async fn a_connection_that_was_closed_at_rest_is_never_used() {
    let origin = Origin::start().await;
    origin.close_idle_after(Duration::from_millis(5));
    // However old the connection is: the gateway detects the close and does not rely on a timeout.
    let gateway = before(&origin, |config| {
        config.upstream.reuse_max = Duration::from_secs(60);
    })
    .await;
    for round in 1..=50 {
        posts(gateway.address(), &format!("key-{round}"), "200").await;
        soon("the service closes", origin.ledger().until_closed(round)).await;
    }
    assert_eq!(origin.ledger().connections(), 50);
}

#[tokio::test]
async fn an_http2_connection_that_was_closed_at_rest_is_never_used() {
    let origin = Origin2::start().await;
    origin.close_idle_after(Duration::from_millis(5));
    let gateway = gateway(origin.address(), Protocol::Http2, |_| ()).await;
    for round in 1..=50 {
        posts(gateway.address(), &format!("key-{round}"), "200").await;
        soon("the service closes", origin.ledger().until_closed(round)).await;
    }
    assert_eq!(origin.ledger().connections(), 50);
}

#[tokio::test]
async fn a_post_whose_connection_closes_under_it_is_not_sent_again() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| config.upstream.connections_max = 1).await;
    posts(gateway.address(), "first", "200").await;
    origin.script(closes_under_the_request());
    posts(gateway.address(), "guarded", "502 outcome-unknown").await;
    posts(gateway.address(), "guarded", "409 outcome-unknown").await;
    assert_eq!(origin.ledger().connections(), 1);

    posts_unguarded(gateway.address(), "second", "200").await;
    origin.script(closes_under_the_request());
    posts_unguarded(gateway.address(), "bare", "502 upstream-failed").await;
    assert_eq!(
        (
            origin.ledger().count("guarded"),
            origin.ledger().count("bare")
        ),
        (0, 0)
    );
    assert_eq!(origin.ledger().connections(), 2);
}

#[tokio::test]
async fn a_get_whose_old_connection_closes_under_it_is_sent_once_more() {
    let origin = Origin::start().await;
    // Every used connection counts as old.
    let change = |config: &mut Config| {
        config.upstream.reuse_max = Duration::ZERO;
        config.upstream.connections_max = 1;
    };
    let gateway = before(&origin, change).await;
    gets(gateway.address(), "/", "200").await;
    origin.script(closes_under_the_request());
    gets(gateway.address(), "/", "200").await;
    assert_eq!(origin.ledger().connections(), 2);

    // A request that was sent again is not sent a third time.
    origin.script(closes_under_the_request());
    origin.script(closes_under_the_request());
    gets(gateway.address(), "/", "502 upstream-failed").await;
    assert_eq!(origin.ledger().connections(), 3);
}

#[tokio::test]
async fn answers_without_a_body_leave_their_connection_for_the_next() {
    let origin = Origin::start().await;
    // With a limit of one, the next request waits for the same connection until that has been
    // quiet.
    let gateway = before(&origin, |config| config.upstream.connections_max = 1).await;
    let at = gateway.address();
    for (name, said) in [
        ("204", "HTTP/1.1 204 None\r\n\r\n"),
        ("304", "HTTP/1.1 304 Same\r\netag: \"a\"\r\n\r\n"),
        ("empty", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        (
            "chunks",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
    ] {
        origin.script(answers(said));
        get(at, "/").await;
        assert_eq!(origin.ledger().connections(), 1, "{name}");
        origin.script(answers(said));
        post(at, name).await;
        assert_eq!(origin.ledger().count(name), 1, "{name}");
        assert_eq!(origin.ledger().connections(), 1, "{name}, guarded");
    }
    origin.script(answers("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"));
    let head = send_raw(
        at,
        b"HEAD / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert_eq!(
        (head.status, head.field("content-length")),
        (200, Some("7"))
    );
    origin.script([Step::Read, Step::Write(answer(429, "", ""))]);
    posts(at, "released", "429").await;
    gets(at, "/", "200").await;
    assert_eq!(
        origin.ledger().connections(),
        2,
        "a body may follow the length that the answer to HEAD declares"
    );
}

#[tokio::test]
async fn more_than_was_asked_for_is_nobodys_answer() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    let at = gateway.address();
    // The surplus comes together with the answer.
    origin.script([
        Step::Read,
        Step::Write([answer(200, "", "one"), answer(200, "", "evil")].concat()),
    ]);
    assert_eq!(get(at, "/").await.body, b"one");
    assert_eq!(post(at, "next").await.body, b"done");
    // The surplus comes later, when the exchange seems to be over.
    origin.script([
        Step::Read,
        Step::Write(answer(200, "", "two")),
        Step::Wait,
        Step::Write(answer(200, "", "evil")),
        Step::Mark,
    ]);
    assert_eq!(get(at, "/").await.body, b"two");
    origin.go();
    soon("the origin speaks", origin.ledger().until_marks(1)).await;
    assert_eq!(post(at, "last").await.body, b"done");
    assert_eq!(get(at, "/").await.body, b"done");
}

#[tokio::test]
async fn an_answer_before_the_request_was_read_takes_its_connection_with_it() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    origin.script([
        Step::ReadHead,
        Step::Write(answer(413, "", "no")),
        Step::Wait,
    ]);
    let request = b"POST / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\nonly so much";
    assert_eq!(
        soon("the early answer", send_raw(gateway.address(), request))
            .await
            .told(),
        "413"
    );
    posts(gateway.address(), "next", "200").await;
    assert_eq!(origin.ledger().connections(), 2);
}

#[tokio::test]
async fn whoever_finds_no_connection_free_waits_for_one() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| config.upstream.connections_max = 1).await;
    let at = gateway.address();
    origin.script([Step::Read, Step::Wait, Step::Write(answer(200, "", "slow"))]);
    let slow = tokio::spawn(async move { post(at, "slow").await.told() });
    soon(
        "the first request arrives",
        origin.ledger().until_requests(1),
    )
    .await;
    let waiting: Vec<_> = (0..8)
        .map(|n| tokio::spawn(async move { post(at, &format!("waiting-{n}")).await.told() }))
        .collect();
    origin.go();
    assert_eq!(soon("the slow one", slow).await.unwrap(), "200");
    for waiting in waiting {
        assert_eq!(soon("one that waited", waiting).await.unwrap(), "200");
    }
    assert_eq!(origin.ledger().connections(), 1);
}

#[tokio::test]
async fn whoever_waits_gets_the_place_of_a_connection_that_is_lost() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |config| config.upstream.connections_max = 1).await;
    let at = gateway.address();
    origin.script([Step::Read, Step::Wait, Step::Reset]);
    let lost = tokio::spawn(async move { post(at, "lost").await.told() });
    soon(
        "the first request arrives",
        origin.ledger().until_requests(1),
    )
    .await;
    let waiting: Vec<_> = (0..4)
        .map(|n| tokio::spawn(async move { post(at, &format!("waiting-{n}")).await.told() }))
        .collect();
    origin.go();
    assert_eq!(
        soon("the lost one", lost).await.unwrap(),
        "502 outcome-unknown"
    );
    for waiting in waiting {
        assert_eq!(soon("one that waited", waiting).await.unwrap(), "200");
    }
    assert_eq!(origin.ledger().connections(), 2);
}

#[tokio::test]
async fn a_wait_for_a_connection_that_is_too_long_releases_the_key() {
    let origin = Origin::start().await;
    let change = |config: &mut Config| {
        config.upstream.connections_max = 1;
        config.timeouts.connect = Duration::from_millis(100);
    };
    let gateway = before(&origin, change).await;
    let at = gateway.address();
    origin.script([Step::Read, Step::Wait, Step::Write(answer(200, "", "slow"))]);
    let slow = tokio::spawn(async move { post(at, "slow").await.told() });
    soon(
        "the first request arrives",
        origin.ledger().until_requests(1),
    )
    .await;
    assert_eq!(
        soon("the wait ends", post(at, "waiting")).await.told(),
        "502 upstream-unreachable"
    );
    origin.go();
    assert_eq!(soon("the slow one", slow).await.unwrap(), "200");
    // No abandoned waiter is left in the queue that would take the connection.
    assert_eq!(soon("the repeat", post(at, "waiting")).await.told(), "200");
    assert_eq!(origin.ledger().connections(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_a_guarded_request() {
    let origin = Origin::start().await;
    let gateway = before(&origin, |_| ()).await;
    let at = gateway.address();
    origin.script([Step::Read, Step::Wait, Step::Write(answer(201, "", "made"))]);
    let mut socket = TcpStream::connect(at).await.unwrap();
    let request = b"POST /charges HTTP/1.1\r\nhost: shop\r\nidempotency-key: left\r\ncontent-length: 4\r\n\r\nleft";
    socket.write_all(request).await.unwrap();
    soon("the request arrives", origin.ledger().until_requests(1)).await;
    drop(socket);
    posts(at, "left", "409 in-flight").await;
    origin.go();
    let wait = b"POST /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nprefer: wait=10\r\nidempotency-key: left\r\ncontent-length: 4\r\n\r\nleft";
    let replay = soon("the replay", send_raw(at, wait)).await;
    assert_eq!(
        (replay.told().as_str(), &*replay.body),
        ("201 replayed", &b"made"[..])
    );
    assert_eq!(origin.ledger().count("left"), 1);
}

#[tokio::test]
async fn a_client_that_names_no_host_reaches_either_kind_of_service() {
    let request = b"POST /charges HTTP/1.0\r\nidempotency-key: old\r\ncontent-length: 3\r\n\r\nold";
    let origin = Origin::start().await;
    let gateway1 = before(&origin, |_| ()).await;
    assert_eq!(send_raw(gateway1.address(), request).await.told(), "200");
    let host = format!("host: {}\r\n", origin.address());
    assert!(
        origin.ledger().all()[0].head.contains(&host),
        "{}",
        origin.ledger().all()[0].head
    );

    let origin = Origin2::start().await;
    let gateway2 = gateway(origin.address(), Protocol::Http2, |_| ()).await;
    assert_eq!(send_raw(gateway2.address(), request).await.told(), "200");
    assert_eq!(origin.ledger().count("old"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http2_connection_that_opens_serves_all_who_waited_for_a_place() {
    let origin = Origin2::start().await;
    let gateway = gateway(origin.address(), Protocol::Http2, |config| {
        config.upstream.connections_max = 1;
    })
    .await;
    let at = gateway.address();
    for round in 0..10 {
        let sent: Vec<_> = (0..8)
            .map(|n| tokio::spawn(async move { post(at, &format!("{round}-{n}")).await.told() }))
            .collect();
        for sent in sent {
            assert_eq!(
                soon("the answer", sent).await.unwrap(),
                "200",
                "round {round}"
            );
        }
        origin.script([Step2::Read, Step2::Drop]);
        posts(at, &format!("{round}-lost"), "502 outcome-unknown").await;
    }
}
