//! Forward-auth: without a yes from the auth service there is no replay and no effect, whatever it
//! does instead.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hapax_server::config::{Config, ForwardAuth};
use hapax_testkit::origin::{Origin, Step, answer};

use crate::client::{Tells, post, unguarded};
use crate::harness::{Answer, ClientRequest, Service, Serving, With, whole, with};
use crate::world::World;

const TIMEOUT: Duration = Duration::from_millis(300);

async fn asking(address: SocketAddr, settle: impl FnOnce(&mut ForwardAuth)) -> World {
    let mut auth = ForwardAuth {
        timeout: TIMEOUT,
        ..ForwardAuth::new("x-auth-user".parse().unwrap())
    };
    settle(&mut auth);
    let settle = |config: &mut Config| {
        config.principal = format!("forward-auth:http://{address}/verify?a=b")
            .parse()
            .unwrap();
        config.forward_auth = Some(auth);
    };
    World::start(|config, _| settle(config)).await
}

fn as_ada() -> ClientRequest {
    post("k").bearer("ada")
}

fn yes() -> Vec<Step> {
    vec![
        Step::Read,
        Step::Write(answer(200, "x-auth-user: ada\r\n", "")),
    ]
}

fn told(status: u16, fields: &str, body: &str) -> Vec<Step> {
    vec![Step::Read, Step::Write(answer(status, fields, body))]
}

/// Answers that are neither a clear yes nor a clear no, each with the reason it is counted under.
fn unclear() -> Vec<(&'static str, Vec<Step>, &'static str)> {
    let written = |bytes: &[u8], then: Step| vec![Step::Read, Step::Write(bytes.to_vec()), then];
    let named = "x-auth-user: ada\r\n";
    let long = "x".repeat(100 << 10);
    vec![
        ("500", told(500, named, ""), "status"),
        ("502", told(502, named, ""), "status"),
        ("404", told(404, named, ""), "status"),
        ("429", told(429, named, ""), "status"),
        ("400", told(400, named, ""), "status"),
        ("a redirect to nowhere", told(302, named, ""), "status"),
        ("304", told(304, named, ""), "status"),
        ("yes to nobody", told(200, "", ""), "answer"),
        (
            "yes to two",
            told(200, "x-auth-user: ada\r\nx-auth-user: ada\r\n", ""),
            "answer",
        ),
        (
            "yes to an empty name",
            told(200, "x-auth-user: \r\n", ""),
            "answer",
        ),
        (
            "yes to a name over 512 bytes",
            told(200, &format!("x-auth-user: {}\r\n", "a".repeat(513)), ""),
            "answer",
        ),
        (
            "a body over the limit",
            told(200, named, &long),
            "too_large",
        ),
        (
            "a head over the limit",
            told(200, &format!("{named}x-long: {long}\r\n"), ""),
            "broken",
        ),
        (
            "garbage",
            written(b"garbage\r\n\r\n", Step::Close),
            "broken",
        ),
        ("nothing", vec![Step::Read, Step::Close], "broken"),
        ("a reset", vec![Step::Read, Step::Reset], "broken"),
        (
            "a body cut short",
            written(
                b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx-auth-user: ada\r\n\r\nab",
                Step::Close,
            ),
            "broken",
        ),
        ("silence", vec![Step::Read, Step::Wait], "timeout"),
        (
            "half a head",
            written(b"HTTP/1.1 200 OK\r\nx-auth-user: ada\r\n", Step::Wait),
            "timeout",
        ),
        (
            "half a body",
            written(
                b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\nx-auth-user: ada\r\n\r\nab",
                Step::Wait,
            ),
            "timeout",
        ),
    ]
}

#[tokio::test]
async fn without_a_yes_there_is_no_replay() {
    let mut tried = 0;
    for (name, steps, reason) in unclear() {
        for is_http2 in [false, true] {
            // A new auth service for each case, so that no connection is reused by the next.
            let origin = Origin::start().await;
            let world = asking(origin.address(), |_| ()).await;
            origin.script(yes());
            let first = world.send(is_http2, as_ada()).await;
            assert_eq!(first.status, 201, "{name}: {first:?}");
            // For the idle connection, and for a new one if the idle one breaks.
            origin.script(steps.clone());
            origin.script(steps.clone());
            let begun = Instant::now();
            let got = world.send(is_http2, as_ada()).await;
            assert_eq!(
                got.refusal(),
                (503, "principal-unavailable".to_owned()),
                "{name}: {got:?}"
            );
            assert!(!got.is_replay() && !got.tells(&first), "{name}");
            assert!(
                got.field("retry-after").is_some() && got.field("x-should-retry") == Some("true"),
                "{name}: {got:?}"
            );
            assert!(begun.elapsed() < 10 * TIMEOUT, "{name}: bounded");
            let metric = format!("hapax_principal_unavailable_total{{reason=\"{reason}\"}}");
            assert_eq!(world.counted(&metric).await, 1, "{name} counts as {reason}");
            assert_eq!(world.upstream.effects(), 1, "{name}");
            world.end().await;
            tried += 1;
        }
    }
    hapax_testkit::report!("{tried} unclear answers of forward-auth: 0 replays, 0 effects");
}

#[tokio::test]
async fn a_service_that_is_not_there_gets_nobody_a_replay() {
    // Bound but not listening: connections fail, and no other process can take the port.
    let nobody = tokio::net::TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let world = asking(nobody.local_addr().unwrap(), |_| ()).await;
    let got = world.send(false, as_ada()).await;
    assert_eq!(got.refusal(), (503, "principal-unavailable".to_owned()));
    assert_eq!(
        world
            .counted("hapax_principal_unavailable_total{reason=\"connect\"}")
            .await,
        1
    );
    assert_eq!(world.upstream.effects(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_no_is_passed_on_in_its_own_words_and_a_caller_refused_now_gets_no_replay() {
    let origin = Origin::start().await;
    let world = asking(origin.address(), |_| ()).await;
    for is_http2 in [false, true] {
        origin.script(yes());
        let first = world.send(is_http2, as_ada()).await;
        assert_eq!(first.status, 201, "allowed earlier");
        for (status, fields) in [
            (401, "www-authenticate: Basic realm=\"x\"\r\n"),
            (403, ""),
            (
                302,
                "location: https://login.example/?back=1\r\nset-cookie: state=1\r\n",
            ),
            (307, "location: https://login.example/\r\n"),
        ] {
            let fields = format!(
                "{fields}content-type: text/plain\r\nx-auth-user: ada\r\nx-internal: 1\r\n"
            );
            origin.script(told(status, &fields, "no, and this is why"));
            let got = world.send(is_http2, as_ada()).await;
            assert_eq!((got.status, got.text()), (status, "no, and this is why"));
            assert!(!got.is_replay() && !got.tells(&first), "{got:?}");
            let lines = fields.lines().filter_map(|line| line.split_once(": "));
            for (name, value) in lines {
                let expected = (!name.starts_with("x-")).then_some(value);
                assert_eq!(got.field(name), expected, "{status}: {name}");
            }
            assert_eq!(got.field("cache-control"), Some("no-store"));
        }
        origin.script(yes());
        let again = world.send(is_http2, as_ada()).await;
        assert_eq!(
            (again.is_replay(), again.tells(&first)),
            (true, true),
            "and allowed again: {again:?}"
        );
    }
    assert_eq!(world.upstream.effects(), 1);
    assert_eq!(
        world
            .counted("hapax_credentials_refused_total{reason=\"forward_auth\"}")
            .await,
        8
    );
    world.end().await;
}

/// An auth service that accepts the name in `Authorization` and returns a role.
async fn friendly() -> Service {
    Service::start(Serving::default(), |asked| {
        let user = asked.field("authorization").replace("Bearer ", "");
        let reply = with(whole(200, ""), "x-auth-user", &user);
        with(reply, "x-auth-role", "clerk")
    })
}

#[tokio::test]
async fn it_is_shown_the_credentials_and_where_the_request_goes_but_not_what_it_says() {
    let auth = friendly().await;
    // The configuration file refuses fields that are sent anyway. Here they are set directly, and
    // no line is sent twice.
    let forward = [
        "x-tenant",
        "authorization",
        "cookie",
        "x-forwarded-for",
        "x-forwarded-uri",
        "x-tenant",
        "host",
        "user-agent",
    ];
    let world = asking(auth.address, |settings| {
        settings.forward = forward.map(|name| name.parse().unwrap()).to_vec();
    })
    .await;
    for is_http2 in [false, true] {
        let request = as_ada()
            .with("cookie", "session=1")
            .with("x-tenant", "blue")
            .with("x-other", "1")
            .with("user-agent", "shop/1")
            .with("x-forwarded-uri", "/made-up")
            .with("x-forwarded-method", "GET")
            .with("x-forwarded-for", "10.0.0.1");
        world.send(is_http2, request).await;
        let asked = auth.asked().pop().unwrap();
        assert_eq!(
            (&asked.method, asked.uri.to_string()),
            (&http::Method::GET, "/verify?a=b".to_owned())
        );
        let hosts: Vec<_> = asked.headers.get_all("host").iter().collect();
        assert_eq!(hosts, [&auth.address.to_string()]);
        for (name, value) in [
            ("authorization", "Bearer ada"),
            ("cookie", "session=1"),
            ("x-tenant", "blue"),
            ("user-agent", "shop/1"),
            ("accept", "*/*"),
            ("x-forwarded-method", "POST"),
            ("x-forwarded-uri", "/charges?a=1"),
            ("x-forwarded-host", "localhost"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-for", "127.0.0.1"),
        ] {
            let lines: Vec<_> = asked.headers.get_all(name).iter().collect();
            assert_eq!(lines, [value], "{name}");
        }
        for name in [
            "idempotency-key",
            "x-other",
            "content-type",
            "content-length",
        ] {
            assert!(!asked.headers.contains_key(name), "{name}");
        }
        assert!(asked.body.is_empty(), "never the body");
    }
    world.end().await;
}

#[tokio::test]
async fn what_it_says_of_a_caller_reaches_the_upstream_and_nobody_else_can_say_it() {
    let auth = friendly().await;
    let world = asking(auth.address, |settings| {
        settings.pass = vec!["x-auth-role".parse().unwrap()];
    })
    .await;
    let spoof = |request: ClientRequest| {
        request
            .with("x-auth-role", "admin")
            .with("x_auth_role", "admin")
            .with("X.Auth.Role", "admin")
    };
    for is_http2 in [false, true] {
        let key = format!("k-{is_http2}");
        world.send(is_http2, spoof(post(&key).bearer("ada"))).await;
        let roles = |headers: &http::HeaderMap| -> Vec<String> {
            let is_role =
                |name: &http::HeaderName| name.as_str().replace(['_', '.'], "-") == "x-auth-role";
            headers
                .iter()
                .filter(|(name, _)| is_role(name))
                .map(|(_, value)| value.to_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(roles(&world.upstream.last().headers), ["clerk"]);
        world.send(is_http2, spoof(unguarded())).await;
        assert!(
            roles(&world.upstream.last().headers).is_empty(),
            "unguarded requests are not asked about"
        );
    }
    world.end().await;
}

#[tokio::test]
async fn a_repeat_that_is_ready_to_wait_is_asked_about_too() {
    let origin = Origin::start().await;
    let world = asking(origin.address(), |_| ()).await;
    origin.script(yes());
    origin.script(told(403, "", ""));
    let first = world.send(false, as_ada()).await;
    let waiting = world.send(false, as_ada().with("prefer", "wait=5")).await;
    assert_eq!((first.status, waiting.status), (201, 403));
    assert_eq!(origin.ledger().all().len(), 2);
    world.end().await;
}

#[tokio::test]
async fn no_more_are_asked_about_at_a_time_than_it_takes() {
    let origin = Origin::start().await;
    let world = asking(origin.address(), |settings| settings.concurrency_max = 1).await;
    origin.script([Step::Read, Step::Mark, Step::Wait]);
    let client = world.client(false);
    let stuck = tokio::spawn(async move { client.send(as_ada()).await });
    origin.ledger().until_marks(1).await;
    let got: Answer = world.send(false, as_ada()).await;
    assert_eq!(got.code(), "principal-unavailable");
    assert_eq!(stuck.await.unwrap().code(), "principal-unavailable");
    assert_eq!(world.upstream.effects(), 0);
    world.end().await;
}
