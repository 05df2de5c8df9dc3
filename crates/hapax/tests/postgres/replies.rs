//! Lost replies: the write has happened, and its caller does not know.

use std::time::Duration;

use hapax::Postgres;
use hapax_core::store::{Seen, StoreError, StoreErrorKind, Written};
use hapax_core::{Put, State, Store};
use hapax_testkit::servers::FaultProxy;

use crate::lanes::{claim, finish, won};
use crate::place;

const ROUNDS: u64 = 8;

/// A caller that is wrongly told that there is no record would run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_whose_reply_is_lost_is_an_error_and_sent_again_finds_itself() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let proxy = FaultProxy::in_front_of(server.address()).await;
    let database = url.rsplit('/').next().expect("a database");
    let store = place::open(&format!(
        "postgres://postgres@{}/{database}",
        proxy.address()
    ))
    .await;
    // The first claim stores what is sent only once, such as policies.
    won(store.put_if(claim("before")).await);

    for round in 0..ROUNDS {
        let claim = claim(&format!("round {round}"));
        let seen = lost_and_sent_again(&store, &proxy, round * 7, &claim).await;
        let head = seen.record.expect("it took place").head;
        assert_eq!(
            (head.state, head.token),
            (State::Running, won_token(&claim))
        );
        let finish = finish(&head, "paid");
        let seen = lost_and_sent_again(&store, &proxy, round * 7, &finish).await;
        let record = seen.record.expect("it took place");
        assert_eq!(
            (record.head.state, record.head.fence, record.answer.as_ref()),
            (State::Completed, head.fence, finish.change.answer())
        );
    }
    assert!(proxy.faults() >= 2 * ROUNDS, "{} faults", proxy.faults());
}

/// Sends the write, cuts the connection after `bytes` bytes of the reply, and sends it again until
/// it is answered.
async fn lost_and_sent_again(store: &Postgres, proxy: &FaultProxy, bytes: u64, put: &Put) -> Seen {
    proxy.cut_next_statement_after(bytes);
    let error = store
        .put_if(put.clone())
        .await
        .expect_err("nobody can know");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    for _ in 0..1_000 {
        match store.put_if(put.clone()).await {
            Ok(Written::Lost(seen)) => return seen,
            Ok(Written::Won(won)) => panic!("it took place twice: {won:?}"),
            Err(error) => not_yet(error).await,
        }
    }
    panic!("never served");
}

async fn not_yet(error: StoreError) {
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    tokio::time::sleep(Duration::from_millis(5)).await;
}

fn won_token(put: &Put) -> hapax_core::AttemptToken {
    let hapax_core::store::Change::Claim(claim) = &put.change else {
        unreachable!()
    };
    claim.token
}
