//! `hapax store copy`: from a file to Redis and on to Postgres, with gateways all the way.

use hapax_testkit::origin::{Origin, Step};
use hapax_testkit::servers::{Postgres, Redis};

use super::harness::{migrated, said};
use super::{gateway, hapax, is_first, is_replay, serving};

fn copy(from: &str, to: &str) -> String {
    let said = hapax(&["store", "copy", from, to]);
    said.assert_code(0);
    said.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_on_a_file_is_replayed_from_redis_and_from_postgres_and_never_done_twice() {
    let (Some(redis), Some(postgres)) = (Redis::start(&[]), Postgres::shared()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", directory.path().join("hapax.db").display());
    let (cache, database) = (redis.url(), migrated(postgres));
    let upstream = Origin::start().await;

    let on_file = gateway(&file, &upstream);
    assert!(is_first(&on_file.charge("order-1", b"amount=1")));
    upstream.script([Step::Read, Step::Reset]);
    let lost = on_file.charge("order-2", b"amount=2");
    assert!(lost.starts_with("HTTP/1.1 502"), "{lost}");
    on_file.end();

    assert!(copy(&file, &cache).starts_with("2 records"));
    let on_redis = gateway(&cache, &upstream);
    assert!(is_replay(&on_redis.charge("order-1", b"amount=1")));
    let unknown = on_redis.charge("order-2", b"amount=2");
    assert!(unknown.contains("outcome-unknown"), "{unknown}");
    assert!(is_first(&on_redis.charge("order-3", b"amount=3")));

    assert!(copy(&cache, &database).starts_with("3 records"));
    // A node that was not stopped still uses the old store: it causes no second effect.
    let left_behind = on_redis.charge("order-4", b"amount=4");
    assert!(left_behind.starts_with("HTTP/1.1 503"), "{left_behind}");
    let refused = said(&mut serving(&cache, &upstream));
    refused.assert_code(2);
    refused.assert_told("was moved to postgres://");

    let on_postgres = gateway(&database, &upstream);
    for (key, body) in [("order-1", b"amount=1"), ("order-3", b"amount=3")] {
        assert!(is_replay(&on_postgres.charge(key, body)), "{key}");
    }
    assert!(is_first(&on_postgres.charge("order-4", b"amount=4")));
    for key in ["order-1", "order-2", "order-3", "order-4"] {
        assert_eq!(upstream.ledger().count(key), 1, "{key}");
    }
}
