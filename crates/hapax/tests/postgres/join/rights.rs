//! A role for completion may complete the operations it was given, and nothing else.

use hapax::store::postgres::{ConnectOptions, schema};
use hapax_core::State;
use hapax_testkit::servers;
use tokio_postgres::Client;

use super::{Shop, code, complete};
use crate::place;

/// A session of a new role with these grants.
async fn as_role(shop: &Shop, name: &str, grants: &str) -> Client {
    let owner = shop.session().await;
    owner
        .batch_execute(&format!("CREATE ROLE {name} LOGIN; {grants}"))
        .await
        .expect("a role");
    place::session(&shop.url.replacen("postgres@", &format!("{name}@"), 1)).await
}

async fn texts(session: &Client, sql: &str) -> Vec<String> {
    session
        .query(sql, &[])
        .await
        .expect("asked")
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// A call of every function of the schema with NULL arguments.
const CALLS: &str = "
    SELECT format('SELECT hapax.%I(%s)', p.proname, (
        SELECT string_agg(format('%sNULL::%s', CASE WHEN p.provariadic <> 0 AND a.place = p.pronargs THEN 'VARIADIC ' END, a.type::regtype), ', ' ORDER BY a.place) FROM unnest(p.proargtypes) WITH ORDINALITY AS a(type, place)))
    FROM pg_proc AS p WHERE p.pronamespace = 'hapax'::regnamespace";

/// Every statement that reads or writes rows of the schema's tables and views.
const ACCESSES: &str = "
    SELECT format(verb, c.oid::regclass) FROM pg_class AS c,
        unnest(ARRAY['SELECT FROM %s LIMIT 1', 'INSERT INTO %s DEFAULT VALUES', 'DELETE FROM %s', 'TRUNCATE %s']) AS verb
    WHERE c.relnamespace = 'hapax'::regnamespace AND (c.relkind = 'r' OR c.relkind = 'v' AND verb LIKE 'SELECT %')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_completes_can_do_nothing_else() {
    let Some(server) = servers::Postgres::shared() else {
        return;
    };
    let url = server.database();
    place::migrate(&url).await;
    let shop = Shop::at(url).await;
    let owner = shop.session().await;
    let completer = as_role(&shop, "completer", "").await;
    let options = ConnectOptions::parse(&shop.url).expect("a URL");
    schema::grant_completion(&options, "completer")
        .await
        .expect("granted");

    let calls = texts(&owner, CALLS).await;
    let mut completions = 0;
    for call in &calls {
        let said = completer.batch_execute(call).await.map_err(code);
        if call.starts_with("SELECT hapax.complete(") {
            assert_eq!(said, Err("HX006".to_owned()), "{call}");
            completions += 1;
        } else {
            assert_eq!(said, Err("42501".to_owned()), "{call}");
        }
    }
    let accesses = texts(&owner, ACCESSES).await;
    for access in &accesses {
        assert_eq!(
            completer.batch_execute(access).await.map_err(code),
            Err("42501".to_owned()),
            "{access}"
        );
    }
    assert!(
        completions == 3 && calls.len() > 40 && accesses.len() > 120,
        "{} calls, {} accesses",
        calls.len(),
        accesses.len()
    );
    let create = completer.batch_execute("CREATE TABLE hapax.mine ()").await;
    assert_eq!(create.map_err(code), Err("42501".to_owned()));

    // The role can complete the operation it was given, together with an order; it cannot complete
    // one that it guesses.
    owner
        .batch_execute("GRANT INSERT ON public.orders TO completer")
        .await
        .expect("granted");
    let (handed, other) = (shop.claimed("handed").await, shop.claimed("other").await);
    completer
        .batch_execute(&format!("BEGIN; {}", handed.order()))
        .await
        .expect("an order");
    assert_eq!(
        complete(&completer, handed.operation.as_str(), handed.fence(), 201).await,
        Ok(())
    );
    completer.batch_execute("COMMIT").await.expect("a commit");
    assert_eq!(
        (shop.orders(&handed).await, shop.state(&handed).await),
        (1, State::Completed)
    );
    let guessed = format!(
        "{}{}",
        &handed.operation.as_str()[..32],
        &other.head.id.to_string()[..32]
    );
    assert_eq!(
        complete(&completer, &guessed, other.fence(), 201).await,
        Err("HX006".to_owned())
    );
    assert_eq!(shop.state(&other).await, State::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_granted_nothing_completes_nothing() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let attempt = shop.claimed("not granted").await;
    let stranger = as_role(&shop, "stranger_to_completion", "").await;
    assert_eq!(
        complete(&stranger, attempt.operation.as_str(), attempt.fence(), 201).await,
        Err("42501".to_owned())
    );
    // Nor can a role that has only USAGE on the schema.
    shop.session()
        .await
        .batch_execute("GRANT USAGE ON SCHEMA hapax TO stranger_to_completion")
        .await
        .expect("granted");
    assert_eq!(
        complete(&stranger, attempt.operation.as_str(), attempt.fence(), 201).await,
        Err("42501".to_owned())
    );
}

/// The role of a node needs no further grants to join.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_uses_the_store_joins_in_its_own_transactions() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    let grants = format!(
        "{} GRANT INSERT ON public.orders TO joining",
        schema::grants("joining")
    );
    let (attempt, session) = (
        shop.claimed("joining").await,
        as_role(&shop, "joining", &grants).await,
    );
    session
        .batch_execute(&format!("BEGIN; {}", attempt.order()))
        .await
        .expect("an order");
    super::run(&session, &shop.statement(&attempt))
        .await
        .expect("joined");
    session.batch_execute("COMMIT").await.expect("a commit");
    assert_eq!(
        (shop.orders(&attempt).await, shop.state(&attempt).await),
        (1, State::Completed)
    );
}
