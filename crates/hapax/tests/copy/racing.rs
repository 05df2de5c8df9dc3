//! Nodes that keep running while their store is copied away, or while another store is copied into
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hapax::core::store::{StoreErrorKind, Written};
use hapax::core::transfer::Standing;
use hapax::core::{RecordId, Store};
use hapax::store::copy::CopyError;
use hapax_testkit::servers;

use super::ends::{Kind, Place, World, copy};
use super::filled::{claim, fill, standing, won};

/// Claims one key after the other until `stop` is set, with leases that are over at once. Returns
/// the acknowledged claims, and whether a claim was refused in the end.
async fn claim_on(
    store: Arc<dyn Store>,
    name: usize,
    stop: Arc<AtomicBool>,
) -> (Vec<RecordId>, bool) {
    let (mut acknowledged, mut is_refused) = (Vec::new(), false);
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        match store
            .put_if(claim(
                &format!("racer-{name}-{number}"),
                Duration::from_micros(1),
            ))
            .await
        {
            Ok(Written::Won(won)) => {
                assert!(!is_refused, "a store that was left took a claim");
                acknowledged.push(won.head.id);
            }
            Ok(Written::Lost(seen)) => panic!("nobody else claims this: {seen:?}"),
            Err(error) => {
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
                is_refused = true;
                tokio::task::yield_now().await;
            }
        }
    }
    (acknowledged, is_refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_claim_that_was_acknowledged_while_the_store_was_left_is_in_the_copy() {
    let world = World::new();
    let Some(here) = world.place(Kind::Postgres, "").await else {
        return;
    };
    let there = world.place(Kind::Sqlite, "there.db").await.unwrap();
    let (store, stop) = (here.open().await.unwrap(), Arc::new(AtomicBool::new(false)));
    let racers: Vec<_> = (0..8)
        .map(|name| tokio::spawn(claim_on(store.clone(), name, stop.clone())))
        .collect();
    let id = claim("racer-0-20", Duration::ZERO).id;
    while store.get(vec![id]).await.unwrap().records[0].is_none() {
        tokio::task::yield_now().await;
    }
    let copied = copy(&here, &there).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let target = there.open().await.unwrap();
    let mut claimed = 0;
    for racer in racers {
        let (acknowledged, is_refused) = racer.await.unwrap();
        assert!(is_refused, "it raced with nobody");
        claimed += acknowledged.len() as u64;
        let reading = target.get(acknowledged).await.unwrap();
        assert!(
            reading.records.iter().all(Option::is_some),
            "a claim that was acknowledged is lost"
        );
    }
    // A claim whose acknowledgement was lost may have been copied too.
    hapax_testkit::report!(
        "{claimed} claims acknowledged, {} records copied",
        copied.records
    );
    assert!(claimed >= 20 && copied.records >= claimed);
}

/// An open transaction has written, and its outcome is not known yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_not_left_while_somebody_is_writing() {
    let world = World::new();
    let Some(here) = world.place(Kind::Postgres, "").await else {
        return;
    };
    let there = world.place(Kind::Sqlite, "there.db").await.unwrap();
    fill(&*here.open().await.unwrap()).await;
    let Place::Postgres(url) = &here else {
        unreachable!()
    };
    let options: tokio_postgres::Config = url.parse().unwrap();
    let (client, connection) = options.connect(tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client
        .batch_execute("BEGIN; UPDATE hapax.heads SET attempts = attempts")
        .await
        .unwrap();
    let error = copy(&here, &there).await.unwrap_err();
    assert!(
        matches!(error, CopyError::Store { .. })
            && error.to_string().contains("somebody is writing"),
        "{error}"
    );
    assert_eq!(standing(&*here.open_to_copy().await).await, Standing::Live);
    client.batch_execute("COMMIT").await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
    copy(&here, &there).await.unwrap();
}

/// A node was started on the new database too early. It holds the secret of the empty store, with
/// which it would make other operation ids and tokens.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_on_a_database_into_which_another_store_was_copied_stops() {
    let world = World::new();
    let Some(there) = world.place(Kind::Postgres, "").await else {
        return;
    };
    let here = world.place(Kind::Sqlite, "here.db").await.unwrap();
    fill(&*here.open().await.unwrap()).await;
    let early = there.open().await.unwrap();
    early.info().await.unwrap();
    copy(&here, &there).await.unwrap();
    let error = early.info().await.unwrap_err();
    assert!(error.to_string().contains("another store in it"), "{error}");
    let error = early
        .put_if(claim("early", Duration::from_secs(1)))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("Restart the process"), "{error}");
    won(
        &*there.open().await.unwrap(),
        claim("in-time", Duration::from_secs(1)),
    )
    .await;
}

/// When the copy is given up, nodes that never stopped continue on the store.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_goes_on_by_itself_when_a_copy_is_given_up() {
    let world = World::new();
    let Some(here) = world.place(Kind::Postgres, "").await else {
        return;
    };
    let node = here.open().await.unwrap();
    won(&*node, claim("before", Duration::from_micros(1))).await;
    let Place::Postgres(url) = &here else {
        unreachable!()
    };
    let database = url.rsplit('/').next().unwrap();
    let ask = |sql: &str| servers::Postgres::shared().unwrap().psql(database, sql);
    ask("SELECT hapax.leave('00000000-0000-0000-0000-000000000001', 'x', 'is being copied to x')");
    let error = node
        .put_if(claim("meanwhile", Duration::from_secs(1)))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("is being copied to x"),
        "{error}"
    );
    ask("SELECT hapax.give_up()");
    while node
        .put_if(claim("after", Duration::from_secs(60)))
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ask("SELECT count(*) FROM hapax.heads"), "2");
}
