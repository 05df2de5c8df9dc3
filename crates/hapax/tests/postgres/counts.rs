//! Counts that all nodes share.

use std::sync::Arc;
use std::time::Duration;

use hapax::{BoxError, Hapax, Limits, Postgres, RunError};
use hapax_core::Store;
use hapax_core::rejection::Rejection;
use hapax_core::scope::{Principal, PrincipalId};
use hapax_core::store::{Counts, ListQuery};

use crate::place;

const RECORDS_MAX: u64 = 20;

/// A node on the database: its store and its engine.
struct Node {
    store: Arc<Postgres>,
    hapax: Hapax,
}

impl Node {
    async fn start(url: &str) -> Node {
        let store = Arc::new(place::open(url).await);
        let limits = Limits {
            records_max: Some(RECORDS_MAX),
            ..Limits::default()
        };
        Node {
            hapax: Hapax::builder_shared(store.clone())
                .limits(limits)
                .sweep(None)
                .build(),
            store,
        }
    }

    /// Pays under a key of this principal. Returns whether the key was accepted.
    async fn pay(&self, user: &str, key: String) -> bool {
        let once = self.hapax.once("pay").principal(Principal::named(user));
        match once
            .run(key, "5", async |_| Ok::<_, BoxError>("paid".into()))
            .await
        {
            Ok(_) => true,
            Err(RunError::Rejected(Rejection::StoreFull)) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Sweeps until the store has counted `records` records.
    async fn count(&self, records: u64) {
        until(async || {
            self.store.sweep(1).await.unwrap();
            self.store.info().await.unwrap().counts
                == Some(Counts {
                    records,
                    refused: 0,
                })
        })
        .await;
    }
}

/// Waits until the condition is true.
async fn until(mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting)
        .await
        .expect("within half a minute");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_share_the_limit_on_records_and_who_has_some() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let here = Node::start(&url).await;
    for key in 0..18 {
        assert!(here.pay("ann", format!("here-{key}")).await);
    }
    here.count(18).await;
    let head = here
        .store
        .list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        })
        .await
        .unwrap()
        .remove(0);
    let ann = PrincipalId::of(&head.scope).unwrap();
    until(async || here.store.knows(ann).await.unwrap()).await;

    // This node has not begun any of these attempts, nor seen their principals.
    let there = Node::start(&url).await;
    assert!(
        !there.pay("bob", "there-0".to_owned()).await,
        "what is left is for those who have records"
    );
    assert!(
        there.pay("ann", "there-0".to_owned()).await
            && there.pay("ann", "there-1".to_owned()).await
    );
    assert!(
        !there.pay("ann", "there-2".to_owned()).await,
        "as many as there may be"
    );
    assert!(
        there.pay("ann", "here-17".to_owned()).await,
        "repeats are free"
    );
    there.count(20).await;
    until(async || !here.pay("ann", "here-18".to_owned()).await).await;
}
