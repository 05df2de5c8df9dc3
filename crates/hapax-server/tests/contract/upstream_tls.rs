//! An upstream that speaks TLS, with a private certificate authority.

use std::path::Path;

use hapax_server::config::Config;
use http::Version;

use crate::client::{WAYS, post, without_key};
use crate::harness::{Authority, Serving};
use crate::upstream::Obedient;
use crate::world::World;

/// The gateway in front of an upstream with a certificate by `authority`. The gateway trusts the
/// authorities in `believed`.
async fn start(authority: &Authority, protocols: &[&[u8]], believed: &Path) -> World {
    let upstream = Obedient::start(Serving {
        tls: Some(authority.issue().server(protocols)),
        ..Serving::default()
    });
    let url = format!("https://{}", upstream.upstream.address);
    let url = url.parse().unwrap();
    let settle = |config: &mut Config| {
        (config.upstream.url, config.upstream.ca_file) = (url, Some(believed.to_owned()));
    };
    World::start_before(WAYS[0], upstream, settle).await
}

#[tokio::test]
async fn both_agree_on_the_protocol() {
    let cases: [(&[&[u8]], Version); 4] = [
        (&[b"h2", b"http/1.1"], Version::HTTP_2),
        (&[b"h2"], Version::HTTP_2),
        (&[b"http/1.1"], Version::HTTP_11),
        (&[], Version::HTTP_11),
    ];
    for (protocols, version) in cases {
        let (directory, authority) = (tempfile::tempdir().unwrap(), Authority::default());
        let ca_file = directory.path().join("ca.pem");
        authority.write(&ca_file);
        let world = start(&authority, protocols, &ca_file).await;
        let first = world.send(post("k", "charge")).await;
        assert_eq!(
            (first.status, first.is_replay()),
            (201, false),
            "{protocols:?}: {first:?}"
        );
        assert_eq!(world.upstream.last_seen().version, version, "{protocols:?}");
        assert!(
            world.send(post("k", "charge")).await.is_replay(),
            "{protocols:?}"
        );
        // An answer can be lost over TLS too.
        let lost = world.send(post("lost", "break off")).await;
        assert_eq!(
            lost.problem().as_deref(),
            Some("outcome-unknown"),
            "{protocols:?}: {lost:?}"
        );
        assert_eq!(
            world.send(post("lost", "break off")).await.status,
            409,
            "{protocols:?}"
        );
        assert_eq!(
            (
                world.upstream.effects_of("k"),
                world.upstream.effects_of("lost")
            ),
            (1, 1),
            "{protocols:?}"
        );
        world.end().await;
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_be_believed_gets_nothing() {
    let (directory, authority, another) = (
        tempfile::tempdir().unwrap(),
        Authority::default(),
        Authority::default(),
    );
    let ca_file = directory.path().join("ca.pem");
    another.write(&ca_file);
    let world = start(&authority, &[b"h2", b"http/1.1"], &ca_file).await;
    for attempt in 0..2 {
        let got = world.send(post("k", "charge")).await;
        assert_eq!(
            (got.status, got.problem().as_deref()),
            (502, Some("upstream-unreachable")),
            "attempt {attempt}"
        );
        assert_eq!(got.field("x-should-retry"), Some("true"));
    }
    let unguarded = world.send(without_key("/do", "charge")).await;
    assert_eq!(
        (unguarded.status, unguarded.problem().as_deref()),
        (502, Some("upstream-unreachable"))
    );
    assert_eq!(world.upstream.effects(), 0);
    world.end().await;
}
