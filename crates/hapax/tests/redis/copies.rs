//! Copying a store out of Redis, and back.

use std::time::Duration;

use hapax::store::copy::{CopyError, End, copy};
use hapax::store::redis::{Mover, OpenError, Options, Redis};
use hapax_core::audit::{LogQuery, Signed};
use hapax_core::store::{Change, Lifetime, Put, Written};
use hapax_core::{Condition, Head, State, Store};
use hapax_testkit::servers;

use crate::place::{self, claimed, complete, open, repeat};

fn options(server: &servers::Redis) -> Options {
    Options::best_effort(&server.url()).expect("an address")
}

async fn mover(server: &servers::Redis) -> Mover {
    Mover::open(options(server)).await.expect("a server")
}

async fn forget(store: &Redis, head: &Head) {
    let put = Put {
        id: head.id,
        condition: Condition::Version {
            version: head.version,
        },
        change: Change::Forget(
            Lifetime::default(),
            Signed::new("ada", "asked to").expect("signed"),
        ),
    };
    let forgotten = store.put_if(put).await.expect("put_if");
    assert!(matches!(forgotten, Written::Won(_)), "{forgotten:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_copied_out_and_back_is_all_there_and_goes_on() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let kept = claimed(&store, "kept").await;
    complete(&store, &kept, "done").await;
    for key in ["a", "b", "c"] {
        let head = claimed(&store, key).await;
        complete(&store, &head, "done").await;
        forget(&store, &repeat(&store, key).await.expect("kept").head).await;
    }
    // Its tombstone is over, and nobody sweeps.
    let over = claimed(&store, "over").await;
    let at_once = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    place::end_for(&store, &over, State::Retryable, None, at_once).await;
    place::lapsed(&store, "lapsed").await;
    let (epoch, logged) = (
        store.info().await.expect("info").epoch,
        store.log(LogQuery::after(0, 10)).await.expect("log"),
    );
    assert_eq!((epoch, logged.len()), (3, 3));

    let elsewhere = hapax::store::memory();
    let out = mover(&server).await;
    copy(
        End::new("redis", &out),
        End::new("memory", &elsewhere),
        |_| {},
    )
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    let refused = Redis::open(options(&server)).await.err().expect("moved");
    assert!(matches!(refused, OpenError::Standing { .. }), "{refused}");
    let error = store
        .put_if(place::claim("new", 1))
        .await
        .expect_err("moved");
    assert!(error.to_string().contains("takes no writes"), "{error}");
    copy(
        End::new("memory", &elsewhere),
        End::new("redis", &out),
        |_| {},
    )
    .await
    .unwrap_or_else(|error| panic!("{error}"));

    let store = open(&server.url()).await;
    let record = repeat(&store, "kept").await.expect("copied");
    assert_eq!(record.answer.expect("copied").body, "done");
    assert_eq!(
        store.log(LogQuery::after(0, 10)).await.expect("log"),
        logged
    );
    let swept = store.sweep(10).await.expect("sweep");
    assert_eq!(swept.lost, 1, "a copied attempt is found: {swept:?}");
    // Each of the partitions that had entries before has one more.
    for (number, entry) in (1..).zip(&logged) {
        let id = entry.touched.as_ref().expect("a record").id;
        let of_record = store.log(LogQuery::after(0, 10).of(id)).await.expect("log");
        assert_eq!(of_record, std::slice::from_ref(entry), "once each");
        let head = store.get(vec![id]).await.expect("get").records.remove(0);
        forget(&store, &head.expect("a tombstone").head).await;
        assert_eq!(store.info().await.expect("info").epoch, epoch + number);
    }
    let log = store.log(LogQuery::after(3, 10)).await.expect("log");
    assert_eq!(
        log.iter().map(|entry| entry.sequence).collect::<Vec<_>>(),
        [4, 5, 6]
    );
    claimed(&store, "new").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_in_use_is_not_copied_and_goes_on() {
    let Some(server) = servers::Redis::start(&[]) else {
        return;
    };
    let store = open(&server.url()).await;
    let running = claimed(&store, "running").await;
    let elsewhere = hapax::store::memory();
    let out = mover(&server).await;
    let (from, to) = (End::new("redis", &out), End::new("memory", &elsewhere));
    let error = copy(from, to, |_| {}).await.expect_err("in use");
    assert!(matches!(error, CopyError::Busy { live: 1, .. }), "{error}");
    complete(&store, &running, "done").await;
    claimed(&open(&server.url()).await, "another").await;
}
