//! A namespace belongs to `hapax.start`, or to gateways and the library.

use std::time::Duration;

use hapax_core::Store;
use hapax_core::store::Change;
use hapax_testkit::servers;

use super::{Shop, code, is_run};
use crate::{lanes, place};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_takes_only_a_namespace_that_it_was_given() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let session = shop.session().await;
    for namespace in ["'other'", "''", "NULL"] {
        let call = format!(
            "SELECT * FROM hapax.start({namespace}, 'ada', 'POST /orders', 'key', hapax.fingerprint('{{}}'))"
        );
        let said = session.batch_execute(&call).await;
        assert_eq!(said.map_err(code), Err("HX008".to_owned()), "{namespace}");
    }
}

/// The claims of other namespaces in the same batch go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_is_refused_in_a_namespace_of_start_and_told_why() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let store = std::sync::Arc::new(place::open(&shop.url).await);
    let claims = (0..16).map(|number| {
        let mut put = lanes::claim(&format!("key-{number}"));
        let is_shop = number % 4 == 0;
        if let (true, Change::Claim(claim)) = (is_shop, &mut put.change) {
            let mut scope = (*claim.scope).clone();
            scope.namespace = "shop".into();
            claim.scope = scope.into();
        }
        let store = store.clone();
        tokio::spawn(async move { (is_shop, store.put_if(put).await) })
    });
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.expect("no panic") {
            (false, claimed) => drop(lanes::won(claimed)),
            (true, claimed) => {
                let said = claimed.expect_err("refused").to_string();
                assert!(
                    said.contains("the namespace shop belongs to hapax.start")
                        && said.contains("another namespace"),
                    "{said}"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_with_records_of_gateways_is_not_given_to_start() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let store = place::open(&shop.url).await;
    let put = lanes::claim("key");
    let Change::Claim(claim) = &put.change else {
        panic!("a claim");
    };
    let namespace = claim.scope.namespace.clone();
    lanes::won(store.put_if(put).await);
    let session = shop.session().await;
    let given = session
        .execute("SELECT hapax.set_namespace($1)", &[&&*namespace])
        .await;
    assert_eq!(given.map_err(code), Err("HX008".to_owned()));
    // Records of its own, as a copy of a store brings them, are no reason.
    assert!(is_run(&shop.order("hat", "{}").await));
    shop.sql("DELETE FROM hapax.namespaces; SELECT hapax.set_namespace('shop')")
        .await;
    assert_eq!(shop.order("hat", "{}").await, Ok(super::ordered("hat")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_says_how_long_its_answers_are_kept() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for (number, (retention, tombstone)) in [
        ("24 hours", "7 days"),
        ("2 hours", "0"),
        ("2 minutes", "1 day"),
    ]
    .into_iter()
    .enumerate()
    {
        if number > 0 {
            shop.sql(&format!(
                "SELECT hapax.set_namespace('shop', '{retention}', '{tombstone}')"
            ))
            .await;
        }
        let key = format!("key-{number}");
        assert!(is_run(&shop.order(&key, "{}").await));
        let sql = "SELECT (expires_at - finished_at) * interval '1 microsecond' = $2::text::interval,
                          (tombstone_until - expires_at) * interval '1 microsecond' = $3::text::interval
                   FROM hapax.heads WHERE key = convert_to($1, 'UTF8')";
        let row = shop.session().await;
        let row = row.query_one(sql, &[&key, &retention, &tombstone]).await;
        let row = row.expect("asked");
        assert_eq!((row.get(0), row.get(1)), (true, true), "{retention}");
    }
    let session = shop.session().await;
    for wrong in [
        "'', '1 day'",
        "'shop', '119 seconds'",
        "'shop', '1 day', '-1 day'",
        "'shop', NULL",
    ] {
        let said = session
            .batch_execute(&format!("SELECT hapax.set_namespace({wrong})"))
            .await;
        assert_eq!(said.map_err(code), Err("22023".to_owned()), "{wrong}");
    }
}

/// Without a gateway nobody compares the server's clock with another one. One that jumps ahead must
/// not end every retention at once; and while nobody sweeps, keys go on being claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_ahead_runs_nothing_again() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    // A month: retention and tombstone are over by this clock.
    let jump = Duration::from_secs(31 * 24 * 60 * 60).as_micros();
    shop.sql(&format!(
        "CREATE OR REPLACE FUNCTION hapax.clock() RETURNS int8 LANGUAGE sql VOLATILE AS
         $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 + {jump} $$"
    ))
    .await;
    assert_eq!(shop.order("hat", "{}").await, Ok(super::ordered("hat")));
    assert!(is_run(&shop.order("coat", "{}").await));
    assert_eq!(shop.order("coat", "{}").await, Ok(super::ordered("coat")));
    assert_eq!(
        (shop.orders("hat").await, shop.orders("coat").await),
        (1, 1)
    );
    // What was written by that clock is not in a table that is emptied by the right one.
    let sql = "SELECT slot FROM hapax.heads WHERE key = 'coat'";
    let row = shop.session().await.query_one(sql, &[]).await;
    assert_eq!(row.expect("asked").get::<_, i16>(0), 32);
}

/// A database whose rows were restored without the trigger would let an effect commit without its
/// record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_trigger_nothing_starts_until_it_is_made_again() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    shop.sql("DROP TRIGGER must_be_completed ON hapax.heads")
        .await;
    for key in ["hat", "coat"] {
        assert_eq!(shop.order(key, "{}").await, Err("HX008".to_owned()));
    }
    shop.sql("SELECT hapax.set_namespace('shop')").await;
    assert!(is_run(&shop.order("coat", "{}").await));
    let session = shop.session().await;
    let alone = super::start(&session, "scarf", "{}", None).await;
    assert_eq!(alone, Err("HX009".to_owned()));
}

/// A dump in plain text is restored by psql, which reads the words of a `CREATE FUNCTION`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_of_the_database_is_restored_whole() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    assert!(is_run(&shop.order("hat", "{}").await));
    let server = servers::Postgres::shared().expect("it runs");
    let (from, to) = (&shop.url, server.database());
    let database = |url: &str| url.rsplit('/').next().expect("a database").to_owned();
    let mut dump = server.client("pg_dump");
    let dump = dump.args(["--dbname", &database(from)]).output();
    let dump = String::from_utf8(dump.expect("a dump").stdout).expect("a text");
    server.psql(&database(&to), &dump);
    let restored = Shop { url: to };
    assert_eq!(restored.order("hat", "{}").await, Ok(super::ordered("hat")));
    assert!(is_run(&restored.order("coat", "{}").await));
    let alone = super::start(&restored.session().await, "scarf", "{}", None).await;
    assert_eq!(alone, Err("HX009".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_counted_by_namespace_and_state() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for key in ["a", "b", "c"] {
        assert!(is_run(&shop.order(key, "{}").await));
    }
    shop.sql("UPDATE hapax.heads SET state = 5, lost = true WHERE key = 'c'")
        .await;
    let session = shop.session().await;
    let rows = session
        .query(
            "SELECT namespace, state, records FROM hapax.stats() ORDER BY 2",
            &[],
        )
        .await
        .expect("asked");
    let rows: Vec<(String, String, i64)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    assert_eq!(
        rows,
        [
            ("shop".to_owned(), "completed".to_owned(), 2),
            ("shop".to_owned(), "unknown".to_owned(), 1)
        ]
    );
}
