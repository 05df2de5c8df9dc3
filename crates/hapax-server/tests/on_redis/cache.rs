//! `hapax serve` on a Postgres with a Redis in front of it.

use std::time::{Duration, Instant};

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::{Postgres, Redis};

use super::harness::{Program, metric, migrated};
use super::{is_first, is_replay, serving};

/// Only a broken test waits this long.
const GUARD: Duration = Duration::from_secs(60);

fn node(postgres: &str, redis: &str, upstream: &Origin) -> Program {
    Program::serve(serving(postgres, upstream).env("HAPAX__CACHE", redis))
}

/// Waits until a metric of this node has reached a number.
fn reached(node: &Program, name: &str, number: f64) {
    let until = Instant::now() + GUARD;
    while metric(&node.ask("/metrics"), name) < number {
        assert!(Instant::now() < until, "{name} is below {number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_on_another_node_comes_from_redis_and_without_redis_from_postgres() {
    let (Some(postgres), Some(mut redis)) = (Postgres::shared(), Redis::start(&[])) else {
        return;
    };
    let url = migrated(postgres);
    let upstream = Origin::start().await;
    let [one, other] = [(); 2].map(|()| node(&url, &redis.url(), &upstream));
    assert!(is_first(&one.charge("order-1", b"amount=1")));
    reached(&one, "hapax_cache_kept_total", 1.0);
    assert!(is_replay(&other.charge("order-1", b"amount=1")));
    assert_eq!(
        metric(&other.ask("/metrics"), "hapax_cache_hits_total"),
        1.0
    );
    let reused = other.charge("order-1", b"amount=2");
    assert!(reused.starts_with("HTTP/1.1 422"), "{reused}");

    redis.kill();
    assert!(is_first(&one.charge("order-2", b"amount=1")));
    assert!(is_replay(&other.charge("order-2", b"amount=1")));
    assert!(one.ask("/readyz").starts_with("HTTP/1.1 200"));
    redis.restart();
    assert!(is_first(&one.charge("order-3", b"amount=1")));
    for order in ["order-1", "order-2", "order-3"] {
        assert!(is_replay(&other.charge(order, b"amount=1")));
        assert_eq!(upstream.ledger().count(order), 1, "{order}");
    }
    let said = one.end();
    assert!(
        said.contains("for repeats; Postgres decides")
            && said.contains("cannot be used as a cache: Postgres does its work"),
        "{said}"
    );
}
