//! A Redis behind TLS, with a user and a password.

use hapax_testkit::origin::Origin;
use hapax_testkit::servers::SecuredRedis;

use super::harness::said;
use super::{DURABLE, gateway, is_first, is_replay, serving};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_behind_tls_is_used_if_its_certificate_is_trusted() {
    let Some(redis) = SecuredRedis::start(&DURABLE) else {
        return;
    };
    let upstream = Origin::start().await;
    let trusting = format!("{}?ca_file={}", redis.url(), redis.authority().display());
    let running = gateway(&trusting, &upstream);
    assert!(is_first(&running.charge("order-1", b"amount=1")));
    assert!(is_replay(&running.charge("order-1", b"amount=1")));
    let keys = redis.server().cli(&["DBSIZE"]);
    assert_ne!(keys.trim(), "0", "the record is there");

    let other = redis.other_authority();
    let wrong = [
        format!("{}?ca_file={}", redis.url(), other.display()),
        // Those of the system do not know it either.
        redis.url(),
        trusting.replace("s3cret", "wr0ng"),
    ];
    for url in wrong {
        let said = said(&mut serving(&url, &upstream));
        said.assert_code(3);
        let told = format!("{}{}", said.stdout, said.stderr);
        assert!(
            !told.contains("s3cret") && !told.contains("wr0ng"),
            "{told}"
        );
        assert!(told.contains("could not open the store"), "{told}");
    }
    assert_eq!(upstream.ledger().count("order-1"), 1);
}
