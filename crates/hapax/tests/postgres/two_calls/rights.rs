//! A role of a service that makes the two calls may do that, and nothing else.

use hapax::store::postgres::{ConnectOptions, schema};

use super::{Shop, code, complete, insert, order, ordered, start};
use crate::place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_begins_and_completes_can_do_nothing_else() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    shop.sql("DROP ROLE IF EXISTS two_calls; CREATE ROLE two_calls LOGIN; GRANT INSERT ON public.orders TO two_calls")
        .await;
    let options = ConnectOptions::parse(&shop.url).expect("a URL");
    let user = place::session(&shop.url.replacen("postgres@", "two_calls@", 1)).await;
    assert_eq!(
        start(&user, "hat", "{}", None).await,
        Err("42501".to_owned())
    );
    schema::grant_use(&options, "two_calls")
        .await
        .expect("granted");

    user.batch_execute("BEGIN").await.expect("begun");
    let begun = start(&user, "hat", "{}", None).await.expect("run");
    insert(&user, "hat").await.expect("inserted");
    complete(&user, &begun, 201, "ordered hat")
        .await
        .expect("completed");
    user.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(order(&user, "hat", "{}").await, Ok(ordered("hat")));

    let refused = "SELECT p.oid::regprocedure::text FROM pg_proc AS p
                   WHERE p.pronamespace = 'hapax'::regnamespace AND has_function_privilege('two_calls', p.oid, 'EXECUTE') ORDER BY 1";
    let may: Vec<String> = shop
        .session()
        .await
        .query(refused, &[])
        .await
        .expect("asked")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let names: Vec<_> = may
        .iter()
        .filter_map(|name| name.split('(').next())
        .collect();
    assert_eq!(
        names,
        [
            "hapax.complete",
            "hapax.complete",
            "hapax.complete",
            "hapax.derive",
            "hapax.fingerprint",
            "hapax.fingerprint",
            "hapax.fingerprint",
            "hapax.start",
            "hapax.stats"
        ]
    );
    for access in [
        "SELECT FROM hapax.heads",
        "SELECT FROM hapax.records",
        "SELECT FROM hapax.namespaces",
        "SELECT hapax.set_namespace('mine')",
        "UPDATE hapax.heads SET state = 4",
    ] {
        let said = user.batch_execute(access).await.map_err(code);
        assert_eq!(said, Err("42501".to_owned()), "{access}");
    }
}
