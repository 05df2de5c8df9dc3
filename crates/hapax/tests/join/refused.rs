//! Transactions that cannot be finished, and features of single drivers.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use diesel_async::{
    AnsiTransactionManager, AsyncConnection, AsyncPgConnection, TransactionManager,
};
use hapax::join::FinishError;
use hapax::join::tokio_postgres::Effect;
use hapax::{Hapax, Mode, Operation, Policy, Rejection, RunError};
use http_body_util::BodyExt;
use sqlx::Connection;
use tower::ServiceExt;

use crate::drivers::{SqlxPostgres, SqlxSqlite, TokioPostgres, TokioPostgresEffect, message};
use crate::place::Place;
use crate::script::{Driver, End, Failed, Script, answer, driver};
use crate::world::World;

/// Runs work that is refused with `expected` and leaves no effect. A repeat then runs normally.
async fn is_refused<D: Driver, F>(
    world: &World<D>,
    key: &str,
    expected: Failed,
    work: impl FnOnce(Operation) -> F + Send + 'static,
) where
    F: Future<Output = Failed> + Send + 'static,
{
    let found = Arc::new(Mutex::new(None));
    let finding = found.clone();
    let tries = async move |_, operation| {
        let failed = work(operation).await;
        *finding.lock().unwrap() = Some(failed.clone());
        Err(failed)
    };
    world
        .work(&world.once, key, tries)
        .await
        .expect_err("it was refused");
    assert_eq!(*found.lock().unwrap(), Some(expected), "{key}");
    assert_eq!(world.effects().await, 0, "{key}");
    world
        .drive(&world.once, key, &Script::new(End::Finish))
        .await;
    assert_eq!(world.effects().await, 1, "{key}");
}

/// Work without a transaction has already committed. It is not run again, even if the work reports
/// a failure.
async fn is_held<D: Driver, F>(
    world: &World<D>,
    key: &str,
    work: impl FnOnce(Operation) -> F + Send + 'static,
) where
    F: Future<Output = Failed> + Send + 'static,
{
    let tries = async move |_, operation| {
        let failed = work(operation).await;
        assert_eq!(failed, Failed::NoTransaction);
        Err(failed)
    };
    let told = world
        .work(&world.once, key, tries)
        .await
        .expect_err("it was refused");
    assert!(
        matches!(told, RunError::Rejected(Rejection::NotJoined)),
        "{key}: {told:?}"
    );
    let again = world
        .run(key, Script::new(End::Finish))
        .await
        .expect_err("it is held");
    assert!(
        matches!(again, RunError::Rejected(Rejection::OutcomeUnknown)),
        "{key}: {again:?}"
    );
    assert_eq!(world.effects().await, 0, "{key}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_within_another_can_join_and_cannot_finish() {
    let Some(world) = World::<SqlxPostgres>::new().await else {
        return;
    };
    let url = world.place.at().to_owned();
    let sqlx = async move |operation: Operation| {
        let mut connection = sqlx::PgConnection::connect(&url)
            .await
            .expect("a connection");
        let mut outer = connection.begin().await.expect("a transaction");
        let inner = outer.begin().await.expect("one within it");
        operation
            .finish(inner, answer(&operation))
            .await
            .expect_err("its end would commit nothing")
            .into()
    };
    is_refused(&world, "sqlx", Failed::Nested, sqlx).await;

    let url = world.place.at().to_owned();
    let diesel = async move |operation: Operation| {
        let mut connection = AsyncPgConnection::establish(&url)
            .await
            .expect("a connection");
        for _ in 0..2 {
            AnsiTransactionManager::begin_transaction(&mut connection)
                .await
                .expect("a transaction");
        }
        operation
            .finish(&mut connection, answer(&operation))
            .await
            .expect_err("its end would commit nothing")
            .into()
    };
    is_refused(&world, "diesel", Failed::Nested, diesel).await;

    let url = world.place.at().to_owned();
    let joins = async move |_, operation: Operation| {
        let mut connection = sqlx::PgConnection::connect(&url)
            .await
            .expect("a connection");
        let mut outer = connection.begin().await.expect("a transaction");
        let mut inner = outer.begin().await.expect("one within it");
        let kept = operation.join(&mut *inner, answer(&operation)).await?;
        inner.rollback().await.expect("back to where it was");
        outer.commit().await.expect("the outermost");
        Ok(kept)
    };
    // The join was rolled back with the inner transaction, although the outer one committed.
    let first = world.work(&world.once, "join", joins).await;
    assert!(
        matches!(first, Err(RunError::Rejected(Rejection::NotJoined))),
        "{first:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_a_transaction_cannot_join_and_what_it_did_is_held() {
    let Some(world) = World::<SqlxPostgres>::new().await else {
        return;
    };
    let url = world.place.at().to_owned();
    let sqlx = async move |operation: Operation| {
        let mut connection = sqlx::PgConnection::connect(&url)
            .await
            .expect("a connection");
        operation
            .join(&mut connection, answer(&operation))
            .await
            .expect_err("nothing would hold it together")
            .into()
    };
    is_held(&world, "sqlx", sqlx).await;

    let url = world.place.at().to_owned();
    let diesel = async move |operation: Operation| {
        let mut connection = AsyncPgConnection::establish(&url)
            .await
            .expect("a connection");
        operation
            .finish(&mut connection, answer(&operation))
            .await
            .expect_err("nothing would hold it together")
            .into()
    };
    is_held(&world, "diesel", diesel).await;

    let Some(world) = World::<SqlxSqlite>::new().await else {
        return;
    };
    let path = world.place.at().to_owned();
    let sqlite = async move |operation: Operation| {
        let mut connection = sqlx::SqliteConnection::connect(&path)
            .await
            .expect("a connection");
        operation
            .join(&mut connection, answer(&operation))
            .await
            .expect_err("nothing would hold it together")
            .into()
    };
    is_held(&world, "sqlite", sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_in_another_kind_of_database_cannot_finish() {
    let Some(world) = World::<TokioPostgres>::new().await else {
        return;
    };
    let in_memory = async move |operation: Operation| {
        let mut connection = sqlx::SqliteConnection::connect("sqlite::memory:")
            .await
            .expect("a connection");
        let tx = connection.begin().await.expect("a transaction");
        operation
            .finish(tx, answer(&operation))
            .await
            .expect_err("the records are elsewhere")
            .into()
    };
    is_refused(&world, "sqlite", Failed::AnotherDatabase, in_memory).await;
}

/// Finishing an inner transaction commits the outer one too, so the effect is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_tokio_postgres_a_transaction_within_another_finishes_both() {
    let Some(world) = World::<TokioPostgres>::new().await else {
        return;
    };
    let url = world.place.at().to_owned();
    let nested = async move |_, operation: Operation| {
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        let mut outer = client.transaction().await.expect("a transaction");
        let fence = i64::try_from(operation.fence().as_u64()).expect("a fence fits");
        let effect = "INSERT INTO effects (record, fence) VALUES ($1, $2)";
        outer
            .execute(effect, &[&operation.record().as_bytes().as_slice(), &fence])
            .await
            .expect("an effect");
        let mut inner = outer.transaction().await.expect("one within it");
        let emitted = operation.emit(&mut inner, message(&operation)).await;
        emitted.map_err(driver)?;
        let kept = operation.finish(inner, answer(&operation)).await?;
        drop(outer);
        Ok(kept)
    };
    world
        .work(&world.once, "nested", nested)
        .await
        .expect("it ran");
    assert_eq!(world.effects().await, 1);
}

/// A query in place of the effect would not be run, because its result is not used: Postgres would
/// complete the record without an effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_is_a_statement_that_changes_something() {
    let Some(place) = Place::new::<TokioPostgres>().await else {
        return;
    };
    let _store = place.store().await;
    let (client, connection) = tokio_postgres::connect(place.at(), tokio_postgres::NoTls)
        .await
        .expect("a connection");
    tokio::spawn(connection);
    for effect in [
        "INSERT INTO effects (record, fence) VALUES ($1, $2)",
        "UPDATE effects SET fence = fence + $1::int8",
        "DELETE FROM effects",
        "INSERT INTO effects (record, fence) SELECT $1::bytea, $2::int8 ON CONFLICT DO NOTHING",
        "DELETE FROM effects -- all of them",
    ] {
        Effect::prepare(&client, effect)
            .await
            .unwrap_or_else(|error| panic!("{effect}: {error}"));
    }
    for other in [
        "SELECT pg_sleep($1)",
        "SELECT 1",
        "VALUES (1)",
        "DELETE FROM effects RETURNING fence",
        "DELETE FROM effects;",
        "DELETE FROM effects; DELETE FROM effects",
        "TRUNCATE effects",
        "BEGIN",
        "",
    ] {
        Effect::prepare(&client, other).await.expect_err(other);
    }
}

/// The record stays open also when the statement fails because of its effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_fails_leaves_no_record_of_it() {
    let Some(world) = World::<TokioPostgresEffect>::new().await else {
        return;
    };
    let url = world.place.at().to_owned();
    let fails = async move |operation: Operation| {
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        let effect = Effect::prepare(
            &client,
            "INSERT INTO effects (record, fence) VALUES ($1, 1 / $2::int8)",
        )
        .await
        .expect("an effect");
        let record = operation.record();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
            [&record.as_bytes().as_slice(), &0_i64];
        match effect
            .finish(&operation, &mut client, &values, answer(&operation))
            .await
        {
            Err(FinishError::RolledBack(error)) if error.to_string().contains("db error") => {
                Failed::OnPurpose
            }
            other => panic!("{other:?}"),
        }
    };
    is_refused(&world, "fails", Failed::OnPurpose, fails).await;
}

/// An axum handler with extractors that returns another answer than the one it finished with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_finishes_and_answers_500_is_answered_for_by_its_record() {
    let Some(place) = Place::new::<TokioPostgres>().await else {
        return;
    };
    let driver = Arc::new(TokioPostgres::new(place.at()));
    let hapax = Hapax::builder_shared(place.store().await)
        .sweep(None)
        .build();
    let policy = Policy {
        mode: Mode::Transaction,
        ..Policy::default()
    };
    let layer = hapax.guard().policy(policy).anonymous().build().unwrap();
    let app = Router::new()
        .route("/orders", post(fails))
        .layer(layer)
        .with_state(driver);
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/orders")
            .header("idempotency-key", "k")
            .body(Body::from("a book"))
            .expect("a request");
        let response = app.clone().oneshot(request).await.expect("an answer");
        let (status, is_replay) = (
            response.status(),
            response.headers().contains_key("idempotent-replayed"),
        );
        answers.push((
            status,
            is_replay,
            response
                .into_body()
                .collect()
                .await
                .expect("a body")
                .to_bytes(),
        ));
    }
    assert_eq!((answers[0].0, answers[0].1), (StatusCode::CREATED, false));
    assert_eq!(
        (answers[1].0, answers[1].1, &answers[1].2),
        (StatusCode::CREATED, true, &answers[0].2)
    );
    assert!(answers[0].2.starts_with(b"done by "), "{:?}", answers[0]);
    let rows = place.rows().await;
    crate::place::agree(&rows);
    assert_eq!(rows.len(), 1);
}

async fn fails(State(driver): State<Arc<TokioPostgres>>, operation: Operation) -> Response {
    driver
        .perform(&operation, &Script::new(End::Finish))
        .await
        .expect("it finishes");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}
