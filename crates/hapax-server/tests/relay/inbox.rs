//! What operators do with messages that consumers have parked: by command and over HTTP, in
//! Postgres and in SQLite.

use hapax_flow::inbox::{Operators as _, SqliteInbox};
use hapax_testkit::origin::Origin;
use hapax_testkit::servers::Postgres;
use serde_json::{Value, json};

use crate::harness::{Client, With, database_name, get, migrated, post, serve_on};
use crate::{guest, hapax, lines};

const SIGNED: &str = "--by ada --reason 'the item is back'";

/// Parks a message that failed, one that is too old, and one whose earlier version is missing.
fn parked(postgres: &Postgres) -> String {
    let url = migrated(postgres);
    postgres.psql(
        database_name(&url),
        "SELECT hapax.park('stock', 'm-1', 'failed', 'no such item', 'orders', 'o-1', at => now(), headers => '{\"a\": \"b\"}', payload => 'one'),
                hapax.park('stock', 'm/2', 'too-old', 'older than the window', 'orders', 'o-2', at => now() - interval '20 days', payload => '\\xff'),
                hapax.park('stock', 'm-3', 'gap', NULL, 'orders', 'o-3', 'o-3', 2, now(), payload => 'three'),
                hapax.park('other', 'm-1', 'failed', payload => 'theirs')",
    );
    url
}

/// Whether this consumer would apply the message if it came now.
fn is_new(postgres: &Postgres, url: &str, id: &str) -> bool {
    let sql = format!("SELECT hapax.receive('stock', '{id}', now())");
    postgres.psql(database_name(url), &sql) == "t"
}

#[test]
fn what_is_parked_is_listed_shown_tried_again_and_skipped() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let url = parked(postgres);
    let inbox = |line: &str| hapax(&format!("inbox {line} --store {url}"));
    inbox("parked").assert_lines(0, 4);
    let listed = inbox("parked --consumer stock --json");
    listed.assert_lines(0, 3);
    let messages = lines(&listed.stdout);
    assert_eq!(
        (
            &messages[0]["id"],
            &messages[0]["cause"],
            &messages[0]["reason"]
        ),
        (&"m-1".into(), &"failed".into(), &"no such item".into())
    );
    inbox("parked --state trying").assert_code(1);
    inbox("parked --limit 2").assert_told("there may be more");
    let shown = inbox("show stock m-1");
    shown.assert_printed("reason    no such item\n");
    shown.assert_printed("header    a: b\n");
    shown.assert_printed("\none\n");
    let bytes = lines(&inbox("show stock m/2 --json").stdout).remove(0);
    assert_eq!(bytes["payload_base64"], "/w==");
    inbox("show stock m-9").assert_code(1);
    let consumers = lines(&inbox("consumers --json").stdout);
    assert_eq!(
        (
            &consumers[1]["consumer"],
            &consumers[1]["parked"],
            &consumers[1]["window_seconds"]
        ),
        (&"stock".into(), &3.into(), &(14 * 86_400).into())
    );

    inbox(&format!("retry stock m-1 {SIGNED}")).assert_code(0);
    inbox(&format!("retry stock m-1 {SIGNED}")).assert_code(1);
    inbox("parked --state again --consumer stock").assert_lines(0, 1);
    // Nobody can tell whether the old one was applied.
    let refused = inbox(&format!("retry stock m/2 {SIGNED}"));
    refused.assert_code(1);
    refused.assert_told("--was-not-applied");
    inbox("parked --state again --consumer stock").assert_lines(0, 1);
    inbox(&format!("retry stock m/2 --was-not-applied {SIGNED}")).assert_code(0);
    let taken = postgres.psql(
        database_name(&url),
        "SELECT string_agg(id || CASE WHEN not_applied THEN '!' ELSE '' END, ',' ORDER BY number) FROM hapax.parked WHERE state = 2",
    );
    assert_eq!(taken, "m-1,m/2!");
    let skipped = inbox(&format!("skip stock m-3 --json {SIGNED}"));
    assert_eq!(
        lines(&skipped.stdout),
        [json!({ "done": "skipped", "consumer": "stock", "id": "m-3" })]
    );
    assert!(!is_new(postgres, &url, "m-3"), "it is never applied");
    assert!(is_new(postgres, &url, "m-4"));
    let log = hapax(&format!("keys log --store {url}"));
    log.assert_printed("the item is back (stock, m-1)");
    log.assert_printed("the item is back (stock, m/2, not applied)");
    log.assert_printed("inbox-skip\tada\t");
    assert_eq!(log.stdout.lines().count(), 3, "{}", log.stdout);
}

#[tokio::test]
async fn a_sqlite_file_has_the_same_commands() {
    let (_directory, path) = guest().await;
    let store = format!("sqlite:{}", path.display());
    let inbox = |line: &str| hapax(&format!("inbox {line} --store {store}"));
    inbox("consumers").assert_told("there are no consumers");
    let connection = rusqlite::Connection::open(&path).unwrap();
    // Parked as the library does it: the receipt's id is a digest that only it makes.
    let receipt = |id: &str| *hapax::core::flow::ReceiptId::of("stock", id).as_bytes();
    connection
        .execute_batch("INSERT INTO hapax_consumers (id, name, time_window, created_at) VALUES (1, 'stock', 1209600000000, 0)")
        .unwrap();
    let park = |id: &str, kind: i64, days: i64, version: Option<i64>| {
        let entity = version.map(|_| b"0123456789abcdef");
        let sql = "INSERT INTO hapax_parked (consumer, receipt, id, state, kind, attempts, reason, topic, key, entity, version, at, headers, payload, parked_at)
                   SELECT 1, ?1, ?2, 1, ?3, 5, 'no such item', 'orders', 'o-1', ?4, ?5, now - ?6 * 86400000000, '{}', CAST('one' AS BLOB), now
                   FROM (SELECT CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER) AS now)";
        let values = rusqlite::params![receipt(id), id, kind, entity, version, days];
        connection.execute(sql, values).unwrap();
    };
    park("m-1", 1, 0, None);
    park("m-2", 2, 20, None);
    park("m-3", 4, 0, Some(2));
    park("m-4", 4, 0, Some(3));
    inbox("parked").assert_lines(0, 4);
    inbox("show stock m-1").assert_printed("\none\n");
    let consumers = lines(&inbox("consumers --json").stdout);
    assert_eq!(
        (&consumers[0]["parked"], &consumers[0]["again"]),
        (&4.into(), &0.into())
    );
    inbox(&format!("retry stock m-1 {SIGNED}")).assert_code(0);
    let refused = inbox(&format!("retry stock m-2 {SIGNED}"));
    refused.assert_code(1);
    refused.assert_told("--was-not-applied");
    inbox(&format!("retry stock m-2 --was-not-applied {SIGNED}")).assert_code(0);
    inbox(&format!("skip stock m-3 {SIGNED}")).assert_code(0);
    inbox(&format!("skip stock m-3 {SIGNED}")).assert_code(1);
    // The one that waited for it is tried.
    let again = lines(&inbox("parked --state again --json").stdout);
    let ids: Vec<&Value> = again.iter().map(|message| &message["id"]).collect();
    assert_eq!(ids, ["m-1", "m-2", "m-4"]);
    let sql = "SELECT count(*) FROM hapax_receipts WHERE id = ?1";
    let receipts: i64 = connection
        .query_row(sql, [receipt("m-3")], |row| row.get(0))
        .unwrap();
    assert_eq!(receipts, 1, "it is never applied");
    let sql = "SELECT group_concat(reason, '|') FROM hapax_audit WHERE action LIKE 'inbox-%'";
    let log: String = connection.query_row(sql, [], |row| row.get(0)).unwrap();
    assert!(
        log.contains("the item is back (stock, m-2, not applied)"),
        "{log}"
    );
    assert!(
        SqliteInbox::new(&path)
            .find("stock", "m-3")
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http_it_is_the_same() {
    let Some(postgres) = Postgres::shared() else {
        return;
    };
    let (url, origin) = (parked(postgres), Origin::start().await);
    let gateway = serve_on(&url, origin.address());
    let admin = Client::new(gateway.admin);
    let ask = async |target: &str| admin.send(get(target)).await;
    let change = async |target: &str, body: Value| {
        let request = post(target, body.to_string()).with("content-type", "application/json");
        admin.send(request).await
    };
    let printed = |line: &str| lines(&hapax(&format!("inbox {line} --json --store {url}")).stdout);
    let all = ask("/v1/inbox/messages").await.json();
    assert_eq!(all["messages"], json!(printed("parked")));
    assert_eq!(all["next"], Value::Null);
    let first = ask("/v1/inbox/messages?limit=3&consumer=stock")
        .await
        .json();
    let next = &first["next"];
    let rest = ask(&format!("/v1/inbox/messages?consumer=stock&after={next}")).await;
    assert_eq!(rest.json()["messages"], json!([]));
    let consumers = ask("/v1/inbox/consumers").await.json();
    assert_eq!(consumers["consumers"], json!(printed("consumers")));
    let shown = ask("/v1/inbox/messages/stock/m%2F2").await.json();
    assert_eq!(shown, printed("show stock m/2").remove(0));
    assert_eq!(
        ask("/v1/inbox/messages/stock/m-9").await.refusal(),
        (404, "message-not-found".into())
    );
    let signed = json!({ "by": "ada", "reason": "the item is back" });
    let retry = "/v1/inbox/messages/stock/m%2F2/retry";
    assert_eq!(
        change(retry, signed.clone()).await.refusal(),
        (409, "too-old".into())
    );
    let stated =
        json!({ "by": "ada", "reason": "it is not in the table", "was_not_applied": true });
    let done = change(retry, stated.clone()).await;
    assert_eq!(
        done.json(),
        json!({ "done": "to be tried again", "consumer": "stock", "id": "m/2" })
    );
    assert_eq!(
        change(retry, stated).await.refusal(),
        (409, "not-now".into())
    );
    let skip = "/v1/inbox/messages/stock/m-1/skip";
    assert_eq!(change(skip, json!({ "by": "ada" })).await.refusal().0, 400);
    assert_eq!(change(skip, signed.clone()).await.json()["done"], "skipped");
    assert_eq!(
        change(skip, signed).await.refusal(),
        (404, "message-not-found".into())
    );
    assert!(!is_new(postgres, &url, "m-1"), "it is never applied");
    let log = ask("/v1/log").await.json();
    assert_eq!(
        log["entries"][1]["reason"],
        "it is not in the table (stock, m/2, not applied)"
    );
}
