//! `hapax keys` on a database that a gateway is using.

use hapax::Postgres as Store;
use hapax_testkit::origin::{Origin, Step};
use hapax_testkit::servers::Postgres;

use super::fixture::{charges, fill, id, orders, refunds, without_age};
use super::{hapax, migrated, nowhere};

/// A database with one key in each situation.
async fn filled(postgres: &Postgres) -> String {
    let url = migrated(postgres);
    fill(&Store::open(&url).await.expect("a store")).await;
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_is_listed_and_filters_hold() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = filled(postgres).await;
    let said = hapax(&["keys", "list", "--store", &url]);
    assert_eq!(
        (said.code, said.stderr),
        (0, format!("looking into the store {url}\n"))
    );
    let expected = [
        // In a database the lease stays valid whichever process took it.
        (
            id(&refunds(), "killed"),
            "running POST /v1/refunds killed (anonymous) 1 -",
        ),
        (
            id(&refunds(), "bytes"),
            "completed POST /v1/refunds bytes (anonymous) 1 200",
        ),
        (
            id(&orders(), "k 4"),
            "failed PATCH /v1/orders/7 k 4 eve\\u{202e}\\u{1b}[2J 1 404",
        ),
        (
            id(&refunds(), "order-3"),
            "unknown POST /v1/refunds order-3 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-3"),
            "unknown POST /v1/charges order-3 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-2"),
            "unknown POST /v1/charges order-2 (anonymous) 1 -",
        ),
        (
            id(&charges(), "order-1"),
            "completed POST /v1/charges order-1 (anonymous) 1 201",
        ),
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|(id, rest)| format!("{} {rest}", &id.to_string()[..8]))
        .collect();
    assert_eq!(without_age(&said.stdout), expected);
    let unknown = hapax(&[
        "keys",
        "list",
        "--state",
        "unknown",
        "--path",
        "/v1/charges",
        "--store",
        &url,
    ]);
    assert_eq!(unknown.stdout.lines().count(), 2, "{}", unknown.stdout);
    let id = id(&charges(), "order-1").to_string();
    let shown = hapax(&["keys", "show", &id[..8], "--answer", "--store", &url]);
    assert!(
        shown
            .stdout
            .contains("a repeat         gets the kept answer")
            && shown.stdout.contains("ch_1"),
        "{}",
        shown.stdout
    );
    assert_eq!(hapax(&["keys", "list", "--store", &nowhere()]).code, 3);
}

/// A database has no single owner: changes by hand take effect at once for a running gateway.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_settled_and_forgotten_by_hand_counts_for_a_gateway_at_work() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, upstream) = (migrated(postgres), Origin::start().await);
    let gateway = super::serve::gateway(&url, &upstream);
    upstream.script([Step::Read, Step::Reset]);
    assert!(
        gateway
            .charge("order-17", b"amount=1")
            .starts_with("HTTP/1.1 502")
    );
    let listed = hapax(&[
        "keys", "list", "--state", "unknown", "--json", "--store", &url,
    ]);
    let entry: serde_json::Value = serde_json::from_str(&listed.stdout).expect("one key");
    let id = entry["id"].as_str().unwrap();

    let args = [
        "keys",
        "settle",
        id,
        "--outcome",
        "done",
        "--status",
        "201",
        "--reason",
        "it is in the books",
        "--store",
        &url,
    ];
    let said = hapax(&args);
    assert!(
        said.code == 0
            && said
                .stdout
                .starts_with(&format!("settled\t{id}\tcompleted")),
        "{}{}",
        said.stdout,
        said.stderr
    );
    let replay = gateway.charge("order-17", b"amount=1");
    assert!(
        replay.starts_with("HTTP/1.1 201") && replay.contains("idempotent-replayed: true"),
        "{replay}"
    );

    let said = hapax(&[
        "keys",
        "forget",
        id,
        "--reason",
        "erasure request 7",
        "--store",
        &url,
    ]);
    assert!(
        said.code == 0 && said.stdout.starts_with("forgotten\t"),
        "{}{}",
        said.stdout,
        said.stderr
    );
    for word in [
        "deleted",
        "vacuum",
        "write-ahead log",
        "replicas",
        "backups",
    ] {
        assert!(said.stderr.contains(word), "{word}: {}", said.stderr);
    }
    assert!(
        gateway
            .charge("order-17", b"amount=1")
            .starts_with("HTTP/1.1 410"),
        "no copy is served any more"
    );
    let log = hapax(&["keys", "log", "--store", &url]);
    assert!(
        log.stdout.contains("it is in the books") && log.stdout.contains("erasure request 7"),
        "{}",
        log.stdout
    );
    assert_eq!(upstream.ledger().count("order-17"), 1, "it ran once");
}
