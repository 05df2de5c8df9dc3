//! One open transaction that has joined, and the callers of all other keys.

use std::time::{Duration, Instant};

use hapax_core::store::{Renewal, StoreErrorKind, Written};
use hapax_core::{State, Store};

use super::{HOUR, Shop, WAYS};
use crate::lanes::{claim, finish, won};

const CLIENTS: usize = 64;
const ROUNDS: usize = 8;
/// How long the held record may delay another call: the batch waits a tenth of a second for the
/// lock and is then sent in halves. The rest allows for a slow machine.
const HELD_UP_MAX: Duration = Duration::from_secs(5);

/// The risk of batches: a write must not wait for a locked record that was sent in the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_transaction_that_has_joined_holds_up_nobody_else() {
    let Some(shop) = Shop::open().await else {
        return;
    };
    for way in WAYS {
        let joined = shop.lapsed(&format!("{way:?} joined")).await;
        let kept = won(shop.store.put_if(claim(&format!("{way:?} kept"))).await);
        let session = shop.ordering(&joined).await;
        assert_eq!(shop.end(&session, way, &joined).await, Ok(()));

        let taking_over = tokio::spawn({
            let (store, joined) = (shop.store.clone(), joined.clone());
            let again = super::claim(
                &joined.key,
                hapax_core::Condition::Lapsed {
                    fence: joined.head.fence,
                },
                HOUR,
                None,
            );
            async move {
                (
                    store.put_if(again).await,
                    store.put_if(joined.finish()).await,
                )
            }
        });
        let clients = (0..CLIENTS).map(|client| {
            let (store, way) = (shop.store.clone(), format!("{way:?}"));
            tokio::spawn(async move {
                let mut longest = Duration::ZERO;
                for round in 0..ROUNDS {
                    let begun = Instant::now();
                    let head = won(store
                        .put_if(claim(&format!("{way} {client} {round}")))
                        .await);
                    won(store.put_if(finish(&head, "paid")).await);
                    longest = longest.max(begun.elapsed());
                }
                longest
            })
        });
        let clients: Vec<_> = clients.collect();

        // Renewals, sweeps and turns continue. The renewal of the attempt that has joined is not
        // reported as lost.
        let renewals = [&joined.head, &kept].map(|head| Renewal {
            id: head.id,
            fence: head.fence,
            lease: HOUR,
        });
        for _ in 0..ROUNDS {
            assert_eq!(
                shop.store.renew(renewals.to_vec()).await.expect("renewed"),
                [true, true],
                "{way:?}"
            );
            shop.store.sweep(1000).await.expect("sweep and turn");
        }
        let mut longest = Duration::ZERO;
        for client in clients {
            longest = longest.max(client.await.expect("served"));
        }
        let (again, end) = taking_over.await.expect("answered");
        for error in [again.expect_err("it is held"), end.expect_err("it is held")] {
            assert_eq!(error.kind(), StoreErrorKind::Locked, "{error}");
        }
        hapax_testkit::report!(
            "{way:?}: beside a joined transaction {CLIENTS} clients made {ROUNDS} claims and ends each, the longest pair took {longest:?}; {:?}",
            shop.store.stats()
        );
        assert!(
            longest < HELD_UP_MAX,
            "somebody was held up for {longest:?}"
        );
        assert!(
            shop.store.stats().alone > 0,
            "void: nobody met the record that is held"
        );

        session.batch_execute("COMMIT").await.expect("a commit");
        assert_eq!(
            (shop.orders(&joined).await, shop.state(&joined).await),
            (1, State::Completed)
        );
        // The holder of the lease now learns that it is over.
        assert_eq!(
            shop.store.renew(renewals.to_vec()).await.expect("renewed"),
            [false, true]
        );
        assert!(matches!(
            shop.store.put_if(joined.finish()).await,
            Ok(Written::Lost(_))
        ));
    }
}
