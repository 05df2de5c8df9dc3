//! Two versions of the schema: the next one is installed while programs of this version are
//! running.

use std::sync::Arc;
use std::time::Instant;

use hapax::store::postgres::OpenError;
use hapax::store::postgres::schema::{self, Migration, VERSION};
use hapax::{Postgres, Rejection, Store};
use hapax_core::store::StoreErrorKind;

use super::shop::{Books, Load, Shop};
use super::subject::{LONG, Subject};
use super::watched::Watched;
use super::world::{Server, migrate, open, prepared};

const CALLERS: usize = 16;
const BETWEEN: usize = 200;

/// A next version that still supports programs of version `oldest`.
fn next(oldest: u32) -> Vec<Migration> {
    let mut migrations = schema::migrations();
    migrations.push(Migration {
        version: VERSION + 1,
        name: "next",
        sql: include_str!("next.sql").to_owned(),
        oldest,
    });
    migrations
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_of_two_schema_versions_work_side_by_side() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let books = Arc::new(Books::default());
    let (before, sight) = Watched::new(open(&url).await);
    let load = Load::start("before", &[Shop::on(before.clone(), &books)], CALLERS);
    books.more(BETWEEN).await;
    let begun = Instant::now();
    migrate(&url, &next(1)).await;
    let took = begun.elapsed();
    books.more(BETWEEN).await;

    let (after, sight_after) = Watched::new(open(&url).await);
    let beside = Load::start(
        "after",
        &[
            Shop::on(before.clone(), &books),
            Shop::on(after.clone(), &books),
        ],
        CALLERS,
    );
    books.more(BETWEEN).await;
    load.end().await;
    beside.end().await;
    let charges = books.judge();
    books.replay_all(Arc::new(open(&url).await)).await;
    let name = super::world::name(&url);
    let editions = server
        .psql(name, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND prosrc LIKE '%second edition%'");
    hapax_testkit::report!(
        "the next schema version, with {editions} functions anew, took {took:?} under load; {charges} charges, {} writes failed",
        sight.failed()
    );
    assert!(
        editions.parse::<u32>().unwrap() > 15,
        "void: {editions} functions were replaced"
    );
    assert_eq!(
        server.psql(
            name,
            "SELECT schema, oldest, (SELECT hapax.census()) > 0 FROM hapax.meta"
        ),
        format!("{}|1|t", VERSION + 1)
    );
    assert_eq!(
        (sight.failed(), sight_after.failed(), books.unavailable()),
        (0, 0, 0),
        "nobody noticed"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_has_left_a_program_behind_is_not_written_to() {
    let Some(server) = Server::shared() else {
        return;
    };
    let url = prepared(server).await;
    let books = Arc::new(Books::default());
    let store = Arc::new(open(&url).await);
    let shop = Shop::on(store.clone(), &books);
    shop.charge("before").await;
    migrate(&url, &next(VERSION + 1)).await;

    match Postgres::open(&url).await.err() {
        Some(error @ OpenError::TooNew { .. }) => assert!(
            error.to_string().contains("run a newer version of Hapax"),
            "{error}"
        ),
        other => panic!("{other:?}"),
    }
    // A running program finds out when it next reads the store info, which it does each second.
    let error = store.info().await.expect_err("it is left behind");
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(
        error.to_string().contains("run a newer version of Hapax"),
        "{error}"
    );
    let error = store
        .put_if(Subject::new("after").claim(LONG))
        .await
        .expect_err("it is left behind");
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(matches!(
        shop.send("after").await,
        Err(Rejection::StoreUnavailable)
    ));
    assert!(
        store
            .stats()
            .failing
            .is_some_and(|why| why.contains("run a newer version"))
    );
    assert_eq!(
        server.psql(super::world::name(&url), "SELECT count(*) FROM hapax.heads"),
        "1",
        "nothing was written since"
    );
}
