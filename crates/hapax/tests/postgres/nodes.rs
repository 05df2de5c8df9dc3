//! Several nodes on one database, each with its own connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax::Postgres;
use hapax_contract::{Bench, CASES};
use hapax_core::store::{Change, Finish, Lifetime, Written};
use hapax_core::{AttemptToken, Put, Store};
use tokio::sync::Barrier;

use crate::lanes::{claim, finish, won};
use crate::place;

const NODES: usize = 4;
const ROUNDS: usize = 4;

/// One node serializes the callers of a record before they reach the database; several nodes do
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_races_between_nodes_has_one_winner() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let bench = Bench::in_real_time(Arc::new(Nodes::new(open(&url).await)))
        .shared()
        .dropping_in_bulk();
    for case in CASES.iter().filter(|case| case.part == "race") {
        for _ in 0..ROUNDS {
            (case.run)(bench.clone()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_whose_tombstone_is_over_is_claimed_anew_by_one_node() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let nodes = open(&url).await.map(Arc::new);
    for round in 0..4 * ROUNDS {
        let key = format!("round {round}");
        let before = won(nodes[0].put_if(claim(&key)).await);
        won(nodes[0].put_if(gone_at_once(finish(&before, "paid"))).await);
        let start = Arc::new(Barrier::new(NODES));
        let claims = nodes.iter().enumerate().map(|(number, node)| {
            let (node, start, claim) =
                (node.clone(), start.clone(), as_attempt(claim(&key), number));
            tokio::spawn(async move {
                start.wait().await;
                node.put_if(claim).await.expect("served")
            })
        });
        let mut winners = Vec::new();
        let mut losers = Vec::new();
        for claim in claims.collect::<Vec<_>>() {
            match claim.await.expect("served") {
                Written::Won(won) => winners.push(won.head),
                Written::Lost(seen) => {
                    losers.push(seen.record.expect("the loser sees a record").head);
                }
            }
        }
        assert_eq!(winners.len(), 1, "{winners:#?}");
        assert!(winners[0].fence > before.fence);
        assert!(
            losers.iter().all(|seen| seen.token == winners[0].token),
            "{losers:#?}"
        );
    }
}

async fn open(url: &str) -> [Postgres; NODES] {
    [
        place::open(url).await,
        place::open(url).await,
        place::open(url).await,
        place::open(url).await,
    ]
}

fn gone_at_once(put: Put) -> Put {
    let Change::Finish(finish) = put.change else {
        unreachable!()
    };
    let lifetime = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    Put {
        change: Change::Finish(Finish { lifetime, ..finish }),
        ..put
    }
}

fn as_attempt(put: Put, number: usize) -> Put {
    let Change::Claim(claim) = put.change else {
        unreachable!()
    };
    let token = AttemptToken::from_bytes([u8::try_from(number).expect("few"); 16]);
    Put {
        change: Change::Claim(hapax_core::store::Claim { token, ..claim }),
        ..put
    }
}

/// Several stores on the same database, used as one: each call goes to the next store.
pub(crate) struct Nodes<S> {
    nodes: Vec<S>,
    calls: AtomicUsize,
}

impl<S: Store> Nodes<S> {
    pub(crate) fn new(nodes: impl IntoIterator<Item = S>) -> Nodes<S> {
        Nodes {
            nodes: nodes.into_iter().collect(),
            calls: AtomicUsize::new(0),
        }
    }

    fn next(&self) -> &S {
        &self.nodes[self.calls.fetch_add(1, Ordering::Relaxed) % self.nodes.len()]
    }
}

impl<S: Store> Store for Nodes<S> {
    hapax_core::forward_store!(
        self => self.next();
        get, put_if, renew, list, sweep, info, remember, knows, log, note
    );
}
