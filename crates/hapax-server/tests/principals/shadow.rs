//! Routes in shadow mode: requests that would have been refused are served unchanged, and counted.

use std::time::{Duration, Instant};

use hapax_server::config::{Config, ForwardAuth};
use hapax_testkit::origin::{Origin, Step, answer};
use jsonwebtoken::Algorithm;

use crate::client::post;
use crate::harness::With;
use crate::issuer::{Issuer, claims_but, jwks, now};
use crate::sources::by_keys;
use crate::world::World;

/// How often the shadow counted this result.
async fn foreseen(world: &World, would: &str) -> u64 {
    world
        .counted(&format!(
            "hapax_shadow_total{{route=\"default\",would=\"{would}\"}}"
        ))
        .await
}

#[tokio::test]
async fn a_token_that_is_no_good_passes_untouched_and_is_counted() {
    let (issuer, stranger) = (
        Issuer::new("one", Algorithm::ES256),
        Issuer::new("one", Algorithm::ES256),
    );
    let settle = |config: &mut Config, directory: &std::path::Path| {
        by_keys(config, directory, Algorithm::ES256, &jwks(&[&issuer]));
        config.defaults.shadow = true;
    };
    let world = World::start(settle).await;
    let expired = issuer.sign(
        &issuer.header(),
        &claims_but("ada", "exp", (now() - 3600).into()),
    );
    let bad = [
        (stranger.token("ada"), "signature"),
        (expired, "expired"),
        ("no token".to_owned(), "malformed"),
    ];
    for is_http2 in [false, true] {
        for (token, _) in &bad {
            let (before, credential) = (world.upstream.effects(), format!("Bearer {token}"));
            // The repeat too: nothing is stored for an unidentified caller.
            for _ in 0..2 {
                let got = world
                    .send(is_http2, post("k").with("authorization", &credential))
                    .await;
                assert!(
                    got.status == 201 && !got.is_replay() && got.field("x-canary").is_some(),
                    "{got:?}"
                );
                let seen = world.upstream.last().headers;
                assert!(
                    seen["authorization"] == credential && seen["idempotency-key"] == "k",
                    "{seen:?}"
                );
            }
            assert_eq!(world.upstream.effects() - before, 2);
        }
        let nobody = world.send(is_http2, post("k")).await;
        assert_eq!(nobody.status, 201, "{nobody:?}");
    }
    for (_, reason) in &bad {
        assert_eq!(
            world
                .counted(&format!(
                    "hapax_credentials_refused_total{{reason=\"{reason}\"}}"
                ))
                .await,
            4,
            "{reason}"
        );
    }
    assert_eq!(foreseen(&world, "reject-credentials-invalid").await, 12);
    assert_eq!(foreseen(&world, "reject-principal-missing").await, 2);

    // An identified caller has its own operation: one request would have run, the other been
    // replayed.
    for _ in 0..2 {
        assert_eq!(
            world
                .send(false, post("k").bearer(&issuer.token("ada")))
                .await
                .status,
            201
        );
    }
    assert_eq!(
        (
            foreseen(&world, "run").await,
            foreseen(&world, "replay").await
        ),
        (1, 1)
    );
    world.end().await;
}

#[tokio::test]
async fn forward_auth_that_says_no_or_nothing_stops_nobody_and_costs_its_timeout_at_most() {
    let auth = Origin::start().await;
    let timeout = Duration::from_millis(300);
    let settle = |config: &mut Config| {
        config.principal = format!("forward-auth:http://{}/verify", auth.address())
            .parse()
            .unwrap();
        config.forward_auth = Some(ForwardAuth {
            timeout,
            ..ForwardAuth::new("x-auth-user".parse().unwrap())
        });
        config.defaults.shadow = true;
    };
    let world = World::start(|config, _| settle(config)).await;
    auth.script([Step::Read, Step::Write(answer(403, "", "no"))]);
    auth.script([Step::Read, Step::Wait]);
    let begun = Instant::now();
    for effects in 1..=2 {
        let got = world.send(false, post("k").bearer("ada")).await;
        assert!(
            got.status == 201 && got.field("x-canary").is_some(),
            "{got:?}"
        );
        assert_eq!(world.upstream.effects(), effects);
    }
    assert!(begun.elapsed() < 10 * timeout, "bounded");
    assert_eq!(foreseen(&world, "reject-credentials-invalid").await, 1);
    assert_eq!(foreseen(&world, "reject-principal-unavailable").await, 1);
    assert_eq!(
        world
            .counted("hapax_principal_unavailable_total{reason=\"timeout\"}")
            .await,
        1
    );
    world.end().await;
}
