//! The basis of limits on new records: the number of records, and which principals have some.

use std::time::Duration;

use hapax_core::outcome::REFUSED_FOR;
use hapax_core::scope::PrincipalId;
use hapax_core::store::{Change, Counts, Finish, KnownPrincipal, Lifetime};
use hapax_core::{Condition, State, Timestamp};

use super::Bench;
use super::subject::{FADING, LONG, SHORT, Subject, completed, released, unknown};

/// A store need count only once in this time.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

pub(super) async fn records_of_every_state_are_counted(bench: &Bench) {
    let Some(before) = counted(bench).await else {
        return;
    };
    let [paid, failed, lost, tombstone, running] = std::array::from_fn(|_| bench.subject());
    paid.ended(completed("paid")).await;
    failed
        .ended(released(Lifetime {
            retention: LONG,
            tombstone: LONG,
        }))
        .await;
    lost.ended(unknown(FADING)).await;
    tombstone.ended(released(FADING)).await;
    running.running(LONG).await;
    let after = counted(bench).await.expect("it counted before");
    assert_eq!(
        after,
        Counts {
            records: before.records + 5,
            ..before
        }
    );
}

pub(super) async fn what_is_over_is_not_counted(bench: &Bench) {
    let Some(before) = counted(bench).await else {
        return;
    };
    bench.subject().ended(refusal(401, SHORT)).await;
    bench
        .subject()
        .ended(released(Lifetime {
            retention: SHORT,
            tombstone: SHORT,
        }))
        .await;
    bench.pass(SHORT * 2).await;
    assert_eq!(counted(bench).await, Some(before));
}

pub(super) async fn refused_records_are_counted_until_they_are_tried_again(bench: &Bench) {
    let Some(before) = counted(bench).await else {
        return;
    };
    let subjects: [Subject; 3] = std::array::from_fn(|_| bench.subject());
    let [unauthorised, forbidden, busy] = &subjects;
    let refused = unauthorised.ended(refusal(401, REFUSED_FOR)).await;
    forbidden.ended(refusal(403, REFUSED_FOR)).await;
    busy.ended(refusal(429, REFUSED_FOR)).await;
    let expected = |refused| {
        Some(Counts {
            records: before.records + 3,
            refused: before.refused + refused,
        })
    };
    assert_eq!(counted(bench).await, expected(2));

    let claim = Change::Claim(unauthorised.claim(LONG));
    let head = unauthorised
        .wins(
            Condition::Lapsed {
                fence: refused.fence,
            },
            claim,
        )
        .await
        .head;
    assert_eq!(
        counted(bench).await,
        expected(1),
        "a record that is running is not refused"
    );
    let end = unauthorised
        .wins(
            Condition::Held { fence: head.fence },
            refusal(401, REFUSED_FOR),
        )
        .await
        .head;
    assert_eq!((end.attempts, end.is_refused()), (2, true));
    assert_eq!(counted(bench).await, expected(2));
}

pub(super) async fn principals_are_known_until_their_time(bench: &Bench) {
    if bench.info().await.counts.is_none() {
        return bench.skip("this store does not count");
    }
    let ids: [PrincipalId; 3] =
        std::array::from_fn(|_| PrincipalId::of(&bench.subject().scope).expect("a name"));
    let [ann, bob, nobody] = ids;
    let now = bench.info().await.now;
    let (soon, late) = (now.after(Duration::from_secs(1)), now.after(LONG));
    remember(bench, &[(ann, soon), (bob, late), (ann, late)]).await;
    remember(bench, &[(bob, soon)]).await;
    for _ in 0..2 {
        assert_eq!(
            [knows(bench, ann).await, knows(bench, bob).await],
            [true; 2],
            "of two times the later counts"
        );
        assert!(!knows(bench, nobody).await);
        bench.pass(Duration::from_secs(1)).await;
        bench.sweep().await;
    }
    remember(bench, &[(nobody, bench.info().await.now.after(SHORT))]).await;
    bench.pass(SHORT).await;
    assert!(!knows(bench, nobody).await, "its time is over");
    bench.sweep().await;
    assert!(!knows(bench, nobody).await);
}

async fn remember(bench: &Bench, principals: &[(PrincipalId, Timestamp)]) {
    let principals = principals
        .iter()
        .map(|&(id, until)| KnownPrincipal { id, until })
        .collect();
    bench.store.remember(principals).await.expect("remember");
}

async fn knows(bench: &Bench, id: PrincipalId) -> bool {
    bench.store.knows(id).await.expect("knows")
}

/// The store's counts after a sweep; `None` where they cannot be checked.
async fn counted(bench: &Bench) -> Option<Counts> {
    if bench.is_live {
        bench.skip("others write at the same time");
        return None;
    }
    bench.pass(COUNTED_EVERY).await;
    bench.sweep().await;
    let counts = bench.info().await.counts;
    if counts.is_none() {
        bench.skip("this store does not count");
    }
    counts
}

fn refusal(status: u16, retention: Duration) -> Change {
    let lifetime = Lifetime {
        retention,
        tombstone: Duration::ZERO,
    };
    Change::Finish(Finish {
        state: State::Retryable,
        status: Some(status),
        answer: None,
        lifetime,
    })
}
