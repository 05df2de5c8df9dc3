//! Joined records prove that a database was set back, just as records that the store wrote itself.

use std::sync::Arc;

use hapax::{Answer, BoxError, Hapax, Mode, Operation, Policy};
use hapax_core::Condition;

use super::{HOUR, Shop, claim};
use crate::lanes::until_served;
use crate::place;

/// A database that has the claims but not the joins was set back, and has lost their effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_on_without_a_join_is_noticed() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let database = url.rsplit('/').next().expect("a database").to_owned();
    let shop = Shop::at(url).await;
    let policy = Policy {
        mode: Mode::Transaction,
        ..Policy::default()
    };
    let once = Hapax::builder_shared(shop.store.clone())
        .sweep(None)
        .build()
        .once("order")
        .policy(policy)
        .expect("a policy");
    let url = Arc::new(shop.url.clone());
    for way in [Way::Finish, Way::Join, Way::Complete] {
        let url = url.clone();
        let work = async move |operation: Operation| {
            way.order(&url, &operation).await;
            Ok::<_, BoxError>(bytes::Bytes::from_static(b"ordered"))
        };
        once.run(format!("{way:?}"), "a book", work)
            .await
            .expect("an order");
    }
    server.psql(
        &database,
        "UPDATE hapax.heads SET state = 1, version = version - 1, slot = NULL",
    );
    assert!(server.terminate_backends(&database) > 0);

    until_served(&shop.store, claim("after", Condition::Absent, HOUR, None)).await;
    assert_eq!(
        shop.store.stats().commits_lost,
        3,
        "{:?}",
        shop.store.stats()
    );
}

/// The ways in which work joins: the engine learns of it from the work, or finds it in the store.
#[derive(Clone, Copy, Debug)]
enum Way {
    Finish,
    Join,
    Complete,
}

impl Way {
    async fn order(self, url: &str, operation: &Operation) {
        let mut client = place::session(url).await;
        let mut tx = client.transaction().await.expect("a transaction");
        let answer = Answer::new(201, "ordered");
        match self {
            Way::Finish => drop(operation.finish(tx, answer).await.expect("finished")),
            Way::Join => {
                operation.join(&mut tx, answer).await.expect("joined");
                tx.commit().await.expect("committed");
            }
            Way::Complete => {
                let fence =
                    i64::try_from(operation.fence().as_u64()).expect("fences are below 2^53");
                super::complete(tx.client(), operation.id().as_str(), fence, 201)
                    .await
                    .expect("completed");
                tx.commit().await.expect("committed");
            }
        }
    }
}
