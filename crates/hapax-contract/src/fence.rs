//! Fences: they only grow, stay near the store's clock, and never exceed 2^53.

use std::time::Duration;

use hapax_core::store::{Change, Lifetime};
use hapax_core::{Condition, Head, State};

use super::Bench;
use super::subject::{
    KEPT, LONG, SHORT, Subject, completed, forgetting, released, settlement, unknown,
    without_answer,
};

pub(super) async fn a_fence_is_near_the_stores_clock_and_fits_any_language(bench: &Bench) {
    let subject = bench.subject();
    let won = subject
        .wins(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await;
    let fence = won.head.fence.as_u64();
    assert!(
        fence >= won.now.as_micros(),
        "{fence} is behind the clock: a store that lost everything would mint it again"
    );
    assert!(fence < 1 << 53, "{fence} does not fit a double");
}

pub(super) async fn fences_grow_with_every_takeover_settlement_and_forgetting(bench: &Bench) {
    let subject = bench.subject();
    let mut heads = vec![subject.running(SHORT).await];
    bench.pass(SHORT).await;
    heads.push(subject.taken_over(heads[0].fence, LONG).await);
    let lost = subject
        .wins(
            Condition::Held {
                fence: heads[1].fence,
            },
            unknown(KEPT),
        )
        .await
        .head;
    let version = Condition::Version {
        version: lost.version,
    };
    heads.push(
        subject
            .wins(version, settlement(without_answer(State::Retryable, KEPT)))
            .await
            .head,
    );
    heads.push(subject.taken_over(heads[2].fence, LONG).await);
    let paid = subject
        .wins(
            Condition::Held {
                fence: heads[3].fence,
            },
            completed("paid"),
        )
        .await
        .head;
    let version = Condition::Version {
        version: paid.version,
    };
    heads.push(subject.wins(version, forgetting(KEPT)).await.head);
    assert_growing(&heads);
}

/// Makes many attempts within one tick of the clock.
pub(super) async fn fences_grow_faster_than_the_clock_if_they_must(bench: &Bench) {
    let heads = attempts(&bench.subject(), 20).await;
    assert_growing(&heads);
    assert_eq!(heads[19].attempts, 20);
}

pub(super) async fn fences_grow_when_an_expired_record_is_claimed_anew(bench: &Bench) {
    let subject = bench.subject();
    let mut heads = attempts(&subject, 20).await;
    let gone = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    subject
        .wins(
            Condition::Held {
                fence: heads[19].fence,
            },
            released(gone),
        )
        .await;
    // The record is claimed anew in the same tick of the clock, which its fence is already ahead
    // of.
    heads.push(subject.running(LONG).await);
    assert_growing(&heads);
    assert_eq!(heads[20].attempts, 1);
}

/// Otherwise an operator who read the old record could change the new one.
pub(super) async fn versions_grow_when_an_expired_record_is_claimed_anew(bench: &Bench) {
    let subject = bench.subject();
    let gone = Lifetime {
        retention: Duration::ZERO,
        tombstone: Duration::ZERO,
    };
    let old = subject.ended(released(gone)).await;
    assert!(subject.running(LONG).await.version > old.version);
}

pub(super) async fn an_attempt_keeps_its_fence_to_its_end(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    assert!(subject.renew(running.fence, Duration::ZERO).await);
    let lost = subject
        .wins(
            Condition::Lapsed {
                fence: running.fence,
            },
            Change::Lose(KEPT),
        )
        .await
        .head;
    let ended = subject
        .wins(
            Condition::Held {
                fence: running.fence,
            },
            completed("late"),
        )
        .await
        .head;
    assert_eq!([lost.fence, ended.fence], [running.fence; 2]);
    assert_eq!([lost.token, ended.token], [running.token; 2]);
}

/// Makes `count` attempts in sequence; the last one is running.
pub(super) async fn attempts(subject: &Subject, count: usize) -> Vec<Head> {
    let mut heads = vec![subject.running(LONG).await];
    while heads.len() < count {
        let fence = heads[heads.len() - 1].fence;
        subject
            .wins(Condition::Held { fence }, released(KEPT))
            .await;
        heads.push(subject.taken_over(fence, LONG).await);
    }
    heads
}

pub(super) fn assert_growing(heads: &[Head]) {
    let fences: Vec<_> = heads.iter().map(|head| head.fence).collect();
    assert!(
        fences.is_sorted_by(|earlier, later| earlier < later),
        "{fences:?}"
    );
}
