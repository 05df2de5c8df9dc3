//! `hapax store check`

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Redis;
use serde_json::Value;

use super::{gateway, hapax, is_first, is_replay};

/// Checks a Redis while a gateway serves from it and sweeps it.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_in_use_keeps_every_promise_and_is_left_tidy() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (url, upstream) = (redis.url(), Origin::start().await);
    let gateway = gateway(&url, &upstream);
    assert!(is_first(&gateway.charge("order-1", b"amount=1")));
    let said = hapax(&["store", "check", &url, "--json"]);
    said.assert_code(0);
    let told: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(told["broken"], 0);
    assert!(
        told["kept"].as_u64() > Some(100) && told["skipped"].as_u64() < Some(7),
        "{told}"
    );
    hapax_testkit::report!(
        "{} kept, {} skipped, {} s, left {}",
        told["kept"],
        told["skipped"],
        told["seconds"],
        told["left"]
    );
    for state in ["unknown", "running"] {
        let listed = hapax(&["keys", "list", "--state", state, "--store", &url]);
        assert_eq!(listed.stdout, "", "nobody has to settle anything");
        listed.assert_told("nothing matched");
    }
    assert!(is_replay(&gateway.charge("order-1", b"amount=1")));
    assert_eq!(upstream.ledger().count("order-1"), 1);
}
