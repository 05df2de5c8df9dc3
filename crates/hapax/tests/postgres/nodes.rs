//! Several nodes on one database: what they do at once, they do on connections of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hapax::Postgres;
use hapax_contract::{Bench, CASES};
use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::scope::PrincipalId;
use hapax_core::store::{
    Change, Finish, KnownPrincipal, Lifetime, ListQuery, Reading, Renewal, Reply, StoreInfo, Swept,
    Written,
};
use hapax_core::{AttemptToken, Head, Put, RecordId, Store};
use tokio::sync::Barrier;

use crate::lanes::{claim, finish, won};
use crate::place;

const NODES: usize = 4;
const ROUNDS: usize = 4;

/// Callers of one node take turns at a record before the database hears of them; those of several
/// do not.
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

/// Several stores on the same database as one: each call goes to the next.
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
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        self.next().get(ids)
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        self.next().put_if(put)
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        self.next().renew(renewals)
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        self.next().list(query)
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        self.next().sweep(limit)
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        self.next().info()
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        self.next().remember(principals)
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        self.next().knows(principal)
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        self.next().log(query)
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        self.next().note(note)
    }
}
