//! Which fields of a request reach the upstream, and which of an answer reach the client.

use http::HeaderMap;

use crate::client::{WAYS, Way, post, without_key};
use crate::harness::{ClientRequest, With};
use crate::world::World;

fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next()?;
    assert!(lines.next().is_none(), "{name} stands once: {headers:?}");
    Some(line.to_str().unwrap())
}

async fn seen(way: Way, request: ClientRequest) -> HeaderMap {
    let world = World::start(way, |_| ()).await;
    assert_eq!(world.send(request).await.status, 201);
    let seen = world.upstream.last_seen();
    world.end().await;
    seen.headers
}

/// Adds fields that a client must not be able to pass to the upstream.
fn impostor(request: ClientRequest) -> ClientRequest {
    request
        .with("hapax-fence", "999")
        .with("hapax_fence", "999")
        .with("hapax-operation", "made-up")
        .with("hapax_operation", "made-up")
        .with("idempotency_key", "another")
        .with("idempotency_expires", "never")
        .with("idempotent-replayed", "true")
        .with("x_forwarded_for", "10.0.0.1")
        .with("content_length", "0")
        .with("transfer_encoding", "chunked")
        .with("x-real-ip", "10.0.0.1")
        .with("forwarded", "for=10.0.0.1")
        .with("x-forwarded-for", "10.0.0.1")
        .with("x-forwarded-host", "elsewhere")
        .with("x-forwarded-proto", "gopher")
}

#[tokio::test]
async fn the_upstream_is_told_who_asks_and_how_and_nothing_that_a_client_made_up() {
    for way in WAYS {
        let headers = seen(
            way,
            impostor(
                post("\"k\"", "charge")
                    .bearer("ada")
                    .with("accept-encoding", "br")
                    .with("x_own", "1"),
            ),
        )
        .await;
        let proto = if way.is_tls { "https" } else { "http" };
        assert_eq!(
            value(&headers, "forwarded"),
            Some(&*format!("for=127.0.0.1;proto={proto};host=\"localhost\"")),
            "{way}"
        );
        assert_eq!(
            value(&headers, "x-forwarded-for"),
            Some("127.0.0.1"),
            "{way}"
        );
        assert_eq!(value(&headers, "x-forwarded-proto"), Some(proto), "{way}");
        assert_eq!(
            value(&headers, "x-forwarded-host"),
            Some("localhost"),
            "{way}"
        );
        assert_eq!(value(&headers, "host"), Some("localhost"), "{way}");
        assert_eq!(
            value(&headers, "via"),
            Some(if way.is_http2 { "2 hapax" } else { "1.1 hapax" }),
            "{way}"
        );
        assert_eq!(
            value(&headers, "accept-encoding"),
            Some("identity"),
            "{way}"
        );
        assert_eq!(value(&headers, "idempotency-key"), Some("k"), "{way}: bare");
        let fence: u64 = value(&headers, "hapax-fence").unwrap().parse().unwrap();
        assert!(fence > 999 && fence < 1 << 53, "{way}: {fence}");
        assert_ne!(value(&headers, "hapax-operation"), Some("made-up"), "{way}");
        assert!(
            value(&headers, "x-request-id").is_some_and(|id| !id.is_empty()),
            "{way}"
        );
        for name in ["idempotent-replayed", "x-real-ip"] {
            assert_eq!(value(&headers, name), None, "{way}");
        }
        let with_underscore: Vec<_> = headers
            .keys()
            .filter(|name| name.as_str().contains('_'))
            .collect();
        assert_eq!(with_underscore, ["x_own"], "{way}");
    }
}

#[tokio::test]
async fn an_unguarded_request_cannot_imitate_us_either() {
    for way in WAYS {
        let headers = seen(
            way,
            impostor(without_key("/do", "charge")).with("accept-encoding", "br"),
        )
        .await;
        for name in [
            "hapax-fence",
            "hapax-operation",
            "idempotent-replayed",
            "idempotency-key",
            "x-real-ip",
        ] {
            assert_eq!(value(&headers, name), None, "{way}");
        }
        assert!(
            headers.keys().all(|name| !name.as_str().contains('_')),
            "{way}: {headers:?}"
        );
        assert_eq!(value(&headers, "accept-encoding"), Some("br"), "{way}");
    }
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_and_added_to() {
    let trusted = |config: &mut hapax_server::config::Config| {
        config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    };
    let world = World::start(WAYS[0], trusted).await;
    let request = post("k", "charge")
        .with("x-forwarded-for", "10.0.0.1")
        .with("x-forwarded-proto", "https");
    world.send(request).await;
    let headers = world.upstream.last_seen().headers;
    let chain: Vec<_> = headers
        .get_all("x-forwarded-for")
        .iter()
        .map(|line| line.to_str().unwrap())
        .collect();
    assert_eq!(chain.join(", "), "10.0.0.1, 127.0.0.1");
    assert_eq!(value(&headers, "x-forwarded-proto"), Some("https"));
    world.end().await;
}

#[tokio::test]
async fn what_only_we_may_say_an_upstream_cannot() {
    for way in WAYS {
        let world = World::start(way, |_| ()).await;
        let guarded = world.send(post("k", "charge")).await;
        let unguarded = world.send(without_key("/do", "charge")).await;
        for got in [&guarded, &unguarded] {
            for name in [
                "idempotent-replayed",
                "hapax-fence",
                "hapax-operation",
                "hapax-keep",
                "hapax-trace",
                "x-hop",
            ] {
                assert_eq!(got.field(name), None, "{way}: {name}");
            }
        }
        assert_ne!(
            guarded.field("idempotency-expires"),
            Some("Mon, 01 Jan 2029 00:00:00 GMT"),
            "{way}"
        );
        assert_eq!(unguarded.field("idempotency-expires"), None, "{way}");
        assert_eq!(value(&guarded.headers, "x-other"), Some("1"), "{way}");
        world.end().await;
    }
}
