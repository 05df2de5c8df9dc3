//! `hapax keys` on a Redis that a gateway is using.

use hapax_testkit::origin::{Origin, Step};
use hapax_testkit::servers::Redis;
use serde_json::Value;

use super::{gateway, hapax};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_and_forgotten_by_hand_counts_for_a_gateway_at_work() {
    let Some(redis) = Redis::start(&[]) else {
        return;
    };
    let (url, upstream) = (redis.url(), Origin::start().await);
    let gateway = gateway(&url, &upstream);
    upstream.script([Step::Read, Step::Reset]);
    let lost = gateway.charge("order-17", b"amount=1");
    assert!(lost.starts_with("HTTP/1.1 502"), "{lost}");

    let keys = |args: &[&str]| hapax(&[&["keys"], args, &["--store", &url]].concat());
    let listed = keys(&["list", "--state", "unknown", "--json"]);
    assert_eq!(listed.stderr, format!("looking into the store {url}\n"));
    let entry: Value = serde_json::from_str(&listed.stdout).expect("one key");
    let id = entry["id"].as_str().unwrap();
    let shown = keys(&["show", &id[..8]]);
    shown.assert_printed("key              order-17");
    shown.assert_printed("state            unknown");

    let reason = ["--reason", "it is in the books"];
    let done = ["--outcome", "done", "--status", "201"];
    let settled = keys(&[&["settle", id], &done[..], &reason].concat());
    settled.assert_code(0);
    settled.assert_printed(&format!("settled\t{id}\tcompleted"));
    let replay = gateway.charge("order-17", b"amount=1");
    assert!(
        replay.starts_with("HTTP/1.1 201") && replay.contains("idempotent-replayed: true"),
        "{replay}"
    );

    let forgotten = keys(&["forget", id, "--reason", "erasure request 7"]);
    forgotten.assert_code(0);
    forgotten.assert_printed("forgotten\t");
    for word in ["deleted", "append-only file", "dump", "backups"] {
        forgotten.assert_told(word);
    }
    let gone = gateway.charge("order-17", b"amount=1");
    assert!(
        gone.starts_with("HTTP/1.1 410"),
        "no copy is served any more: {gone}"
    );
    let log = keys(&["log"]);
    for reason in ["it is in the books", "erasure request 7"] {
        log.assert_printed(reason);
    }
    assert_eq!(upstream.ledger().count("order-17"), 1, "it ran once");
}
