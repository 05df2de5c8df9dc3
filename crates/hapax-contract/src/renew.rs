//! `renew`: a live attempt keeps its lease.

use std::time::Duration;

use hapax_core::store::{Change, Renewal};
use hapax_core::{Condition, Fence, Head, State};

use super::Bench;
use super::subject::{KEPT, LONG, SHORT, Subject, completed, forgetting, released, unknown};

pub(super) async fn a_renewal_extends_the_lease_and_nothing_else(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    bench.pass(SHORT).await;
    let (before, renewed, after) = (
        bench.info().await.now,
        subject.renew(running.fence, LONG).await,
        bench.info().await.now,
    );

    assert!(renewed);
    let head = subject.record().await.head;
    assert!(
        before.after(LONG) <= head.lease_until && head.lease_until <= after.after(LONG),
        "{before:?} {head:?} {after:?}"
    );
    assert_eq!(
        head,
        Head {
            lease_until: head.lease_until,
            version: running.version + 1,
            ..running
        }
    );
}

pub(super) async fn a_renewed_lease_cannot_be_taken_over(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    assert!(subject.renew(fence, LONG).await);
    bench.pass(SHORT).await;
    subject
        .loses(
            Condition::Lapsed { fence },
            Change::Claim(subject.claim(LONG)),
        )
        .await;
    subject
        .loses(Condition::Lapsed { fence }, Change::Lose(KEPT))
        .await;
}

/// It completes with the fence of its claim: a renewal that made a new fence would shut the attempt
/// out of its own record.
pub(super) async fn a_renewed_attempt_completes(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    for _ in 0..3 {
        assert!(subject.renew(running.fence, LONG).await);
    }
    let head = subject
        .wins(
            Condition::Held {
                fence: running.fence,
            },
            completed("paid"),
        )
        .await
        .head;
    assert_eq!(
        (head.state, head.version),
        (State::Completed, running.version + 4)
    );
}

pub(super) async fn a_lapsed_lease_nobody_acted_on_can_be_renewed(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    bench.pass(SHORT).await;
    assert!(subject.renew(fence, LONG).await);
    subject
        .loses(
            Condition::Lapsed { fence },
            Change::Claim(subject.claim(LONG)),
        )
        .await;
}

pub(super) async fn a_renewal_after_a_takeover_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    bench.pass(SHORT).await;
    let second = subject.taken_over(fence, LONG).await;
    refuses(&subject, fence).await;
    assert!(subject.renew(second.fence, LONG).await);
}

pub(super) async fn a_renewal_after_the_end_is_refused(bench: &Bench) {
    for change in [completed("paid"), released(KEPT), unknown(KEPT)] {
        let subject = bench.subject();
        let ended = subject.ended(change).await;
        refuses(&subject, ended.fence).await;
        let forgotten = subject
            .wins(
                Condition::Version {
                    version: ended.version,
                },
                forgetting(KEPT),
            )
            .await
            .head;
        refuses(&subject, forgotten.fence).await;
    }
}

pub(super) async fn a_renewal_of_an_absent_record_is_refused(bench: &Bench) {
    refuses(&bench.subject(), Fence::ZERO).await;
}

pub(super) async fn renewals_of_a_batch_are_answered_one_by_one(bench: &Bench) {
    let (running, ended, absent, wrong, last) = (
        bench.subject(),
        bench.subject(),
        bench.subject(),
        bench.subject(),
        bench.subject(),
    );
    let untouched = wrong.running(LONG).await;
    let other = Fence::from_u64(untouched.fence.as_u64() + 1);
    let of = |subject: &Subject, fence| Renewal {
        id: subject.id,
        fence,
        lease: LONG,
    };
    let batch = vec![
        of(&absent, Fence::ZERO),
        of(&running, running.running(Duration::ZERO).await.fence),
        of(&ended, ended.ended(completed("paid")).await.fence),
        of(&wrong, other),
        of(&last, last.running(LONG).await.fence),
    ];
    assert_eq!(
        bench.store.renew(batch).await.expect("renew"),
        [false, true, false, false, true]
    );
    assert_eq!(wrong.record().await.head, untouched);
    for subject in [running, last] {
        let fence = subject.record().await.head.fence;
        subject
            .loses(
                Condition::Lapsed { fence },
                Change::Claim(subject.claim(LONG)),
            )
            .await;
    }
    assert_eq!(
        bench.store.renew(Vec::new()).await.expect("renew"),
        [false; 0]
    );
}

async fn refuses(subject: &Subject, fence: Fence) {
    let before = subject.read().await;
    assert!(!subject.renew(fence, LONG).await);
    assert_eq!(
        subject.read().await,
        before,
        "a refused renewal changed something"
    );
}
