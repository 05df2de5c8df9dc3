//! A Redis that goes away, and comes back.

use std::time::{Duration, Instant};

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Redis;

use super::harness::metric;
use super::{DURABLE, gateway, is_first, is_replay};

/// A caller is told sooner than this that the store is away.
const PATIENCE: Duration = Duration::from_secs(5);

/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

/// Requests get 503 within the deadline while Redis is away, and the gateway recovers without a
/// restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_goes_away_and_comes_back_needs_no_restart() {
    let Some(mut redis) = Redis::start(&DURABLE) else {
        return;
    };
    let upstream = Origin::start().await;
    let gateway = gateway(&redis.url(), &upstream);
    assert!(is_first(&gateway.charge("order-1", b"amount=1")));
    redis.kill();
    let begun = Instant::now();
    let away = gateway.charge("order-2", b"amount=1");
    assert!(
        away.starts_with("HTTP/1.1 503") && away.contains("store-unavailable"),
        "{away}"
    );
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    let ready = gateway.ask("/readyz");
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("the store fails"),
        "{ready}"
    );
    let failing = metric(&gateway.ask("/metrics"), "hapax_redis_failing");
    assert!(failing == 1.0, "{failing}");
    assert_eq!(
        upstream.ledger().count("order-2"),
        0,
        "nothing is dispatched without a claim"
    );

    redis.restart();
    let until = Instant::now() + GUARD;
    while !gateway.ask("/readyz").starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < until, "{}", gateway.ask("/readyz"));
    }
    assert!(is_first(&gateway.charge("order-2", b"amount=1")));
    assert!(is_replay(&gateway.charge("order-1", b"amount=1")));
    let failovers = metric(&gateway.ask("/metrics"), "hapax_redis_failovers_total");
    assert!(failovers == 1.0, "{failovers}");
    for key in ["order-1", "order-2"] {
        assert_eq!(upstream.ledger().count(key), 1, "{key}");
    }
}
