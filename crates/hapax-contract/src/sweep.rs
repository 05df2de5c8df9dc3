//! `sweep`: writes the changes that are due by time, a bounded number at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use hapax_core::audit::{self, LogQuery};
use hapax_core::record::Last;
use hapax_core::store::{Change, Lifetime, Swept};
use hapax_core::{Condition, Head, State, StateFilter};

use super::Bench;
use super::audit::{log_of, note};
use super::fence::{assert_growing, attempts};
use super::reading::listed;
use super::subject::{
    FADING, FLEETING, KEPT, LONG, SHORT, Subject, completed, completion, forgetting, released,
    settlement, unknown,
};

pub(super) async fn a_sweep_writes_down_lapsed_attempts(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    bench
        .sweep_expecting(Swept {
            lost: 1,
            ..Swept::default()
        })
        .await;

    let head = subject.record().await.head;
    assert_eq!(
        (head.state, head.fence, head.version),
        (State::Unknown, running.fence, running.version + 1)
    );
    assert!(head.finished_at >= running.lease_until);
    assert!(
        head.expires_at > head.finished_at && head.tombstone_until >= head.expires_at,
        "{head:?}"
    );
}

/// The sweep drops the answer and leaves the head unchanged, whose times already make it a
/// tombstone.
pub(super) async fn a_sweep_buries_what_is_past_its_retention(bench: &Bench) {
    let (paid, retryable) = (bench.subject(), bench.subject());
    let before = [
        paid.ended(Change::Finish(completion("paid", FADING))).await,
        retryable.ended(released(FADING)).await,
    ];
    bench.pass(FADING.retention).await;
    let expected = before.map(|head| Head {
        state: State::Expired(head.state.last()),
        kept: false,
        ..head
    });
    for is_swept in [false, true] {
        if is_swept {
            bench
                .sweep_expecting(Swept {
                    buried: 1,
                    ..Swept::default()
                })
                .await;
        }
        for (subject, expected) in [&paid, &retryable].into_iter().zip(&expected) {
            let record = subject.record().await;
            assert_eq!(
                (&record.head, record.answer),
                (expected, None),
                "swept: {is_swept}"
            );
            let known = BTreeMap::from([(expected.id, expected.clone())]);
            assert_eq!(
                listed(bench, Some(StateFilter::Expired), &known).await,
                known,
                "swept: {is_swept}"
            );
        }
    }
}

/// Holds whether or not the answer was dropped before.
pub(super) async fn a_sweep_removes_what_is_past_its_tombstone(bench: &Bench) {
    let (buried, not_buried) = (bench.subject(), bench.subject());
    buried
        .ended(Change::Finish(completion("paid", FLEETING)))
        .await;
    bench.pass(FLEETING.retention).await;
    bench.sweep().await;
    not_buried.ended(released(FLEETING)).await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    bench.sweep().await;

    for subject in [buried, not_buried] {
        assert_eq!(subject.read().await, None);
        assert_eq!(subject.running(LONG).await.attempts, 1);
    }
}

pub(super) async fn a_sweep_leaves_what_is_not_due(bench: &Bench) {
    let subjects: [Subject; 6] = std::array::from_fn(|_| bench.subject());
    let [tombstone, forgotten, running, renewed, paid, lost] = &subjects;
    tombstone
        .ended(Change::Finish(completion("paid", FADING)))
        .await;
    bench.pass(FADING.retention).await;
    bench.sweep().await;
    let version = forgotten.ended(completed("paid")).await.version;
    forgotten
        .wins(Condition::Version { version }, forgetting(KEPT))
        .await;
    running.running(LONG).await;
    assert!(
        renewed
            .renew(renewed.running(SHORT).await.fence, LONG)
            .await
    );
    paid.ended(completed("paid")).await;
    lost.ended(unknown(KEPT)).await;

    let mut before = Vec::new();
    for subject in &subjects {
        before.push(subject.record().await);
    }
    bench.pass(SHORT).await;
    bench.sweep().await;
    for (subject, before) in subjects.iter().zip(before) {
        assert_eq!(subject.record().await, before);
    }
}

/// Removing it would turn "unknown" into "never happened".
pub(super) async fn a_sweep_never_removes_what_was_never_resolved(bench: &Bench) {
    let (lost, forgotten) = (bench.subject(), bench.subject());
    lost.ended(unknown(FLEETING)).await;
    let version = forgotten.ended(unknown(KEPT)).await.version;
    forgotten
        .wins(Condition::Version { version }, forgetting(FLEETING))
        .await;
    for _ in 0..3 {
        bench.pass(FLEETING.retention + FLEETING.tombstone).await;
        bench.sweep().await;
    }
    for subject in [lost, forgotten] {
        assert_eq!(
            subject.record().await.head.state,
            State::Expired(Last::Unknown)
        );
        subject
            .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
            .await;
    }
}

pub(super) async fn a_sweep_touches_no_more_than_its_limit(bench: &Bench) {
    if bench.is_live {
        return bench.skip("others sweep at the same time");
    }
    bench.sweep().await;
    let subjects: [Subject; 5] = std::array::from_fn(|_| bench.subject());
    for (number, subject) in subjects.iter().enumerate() {
        match number {
            0 => drop(subject.running(SHORT).await),
            1 | 2 => drop(
                subject
                    .ended(Change::Finish(completion("paid", FADING)))
                    .await,
            ),
            _ => drop(subject.ended(released(FLEETING)).await),
        }
    }
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;

    assert_eq!(bench.store.sweep(0).await.expect("sweep"), Swept::default());
    assert_eq!(touched(&subjects).await, 0);
    let swept = bench.store.sweep(2).await.expect("sweep");
    assert_eq!(swept.total(), 2, "there was enough to do");
    assert!(touched(&subjects).await <= 2);
    let rest = bench.sweep().await;
    // One attempt, two answers and two tombstones are due, and two of these have been swept.
    let due = bench.counted(Swept {
        lost: 1,
        buried: 2,
        removed: 2,
        unlogged: 0,
    });
    assert!(
        bench.is_shared || rest.total() == due.total() - 2,
        "{rest:?}"
    );
    assert_eq!(
        touched(&subjects).await,
        3,
        "two answers went, which does not show"
    );
}

pub(super) async fn a_second_sweep_finds_nothing(bench: &Bench) {
    let (running, paid, lost) = (bench.subject(), bench.subject(), bench.subject());
    running.running(SHORT).await;
    paid.ended(Change::Finish(completion("paid", FADING))).await;
    lost.ended(unknown(FLEETING)).await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    bench
        .sweep_expecting(Swept {
            lost: 1,
            buried: 1,
            ..Swept::default()
        })
        .await;
    if !bench.is_shared {
        assert_eq!(
            bench.store.sweep(100).await.expect("sweep"),
            Swept::default()
        );
    }
}

pub(super) async fn a_swept_attempt_may_still_complete(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    bench.pass(SHORT).await;
    bench.sweep().await;
    assert_eq!(subject.record().await.head.state, State::Unknown);
    subject
        .wins(Condition::Held { fence }, completed("late"))
        .await;
}

pub(super) async fn a_buried_unknown_can_still_be_completed(bench: &Bench) {
    let (subject, head) = buried_unknown(bench).await;
    let won = subject
        .wins(
            Condition::Held { fence: head.fence },
            completed("very late"),
        )
        .await;
    assert_eq!(won.head.state_at(won.now), State::Completed);
}

pub(super) async fn a_buried_unknown_can_still_be_settled(bench: &Bench) {
    let (subject, head) = buried_unknown(bench).await;
    let settlement = settlement(completion("found in the books", KEPT));
    subject
        .wins(
            Condition::Version {
                version: head.version,
            },
            settlement,
        )
        .await;
    subject
        .loses(Condition::Held { fence: head.fence }, completed("too late"))
        .await;
}

pub(super) async fn a_forgotten_record_goes_when_its_tombstone_is_over(bench: &Bench) {
    let subject = bench.subject();
    let version = subject
        .ended(Change::Finish(completion("paid", FLEETING)))
        .await
        .version;
    subject
        .wins(Condition::Version { version }, forgetting(FLEETING))
        .await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    bench
        .sweep_expecting(Swept {
            removed: 1,
            ..Swept::default()
        })
        .await;
    assert_eq!(subject.read().await, None);
}

pub(super) async fn entries_outlive_their_records(bench: &Bench) {
    let subject = bench.subject();
    let version = subject
        .ended(Change::Finish(completion("paid", FLEETING)))
        .await
        .version;
    subject
        .wins(Condition::Version { version }, forgetting(FLEETING))
        .await;
    let log = log_of(bench, &subject).await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    bench.sweep().await;
    assert_eq!((subject.read().await, log.len()), (None, 1));
    assert_eq!(log_of(bench, &subject).await, log);
}

/// Needs a manual clock: entries stay for more than a year.
pub(super) async fn a_sweep_removes_entries_that_are_too_old_and_no_others(bench: &Bench) {
    let Some(clock) = &bench.clock else {
        return bench.skip("nobody waits for a year");
    };
    let mut old = 0;
    for _ in 0..5 {
        old = note(bench, "old").await.sequence;
    }
    clock.advance(LONG);
    let young = note(bench, "young").await;
    clock.advance(audit::KEPT_FOR - LONG - Duration::from_micros(1));
    bench.sweep_expecting(Swept::default()).await;
    clock.advance(LONG);
    assert_eq!(
        bench.store.sweep(2).await.expect("sweep"),
        Swept {
            unlogged: 2,
            ..Swept::default()
        },
        "no more than its limit"
    );
    bench
        .sweep_expecting(Swept {
            unlogged: 3,
            ..Swept::default()
        })
        .await;
    let left = bench.store.log(LogQuery::after(0, 100)).await.expect("log");
    assert_eq!(left, [young]);
    clock.advance(LONG);
    bench
        .sweep_expecting(Swept {
            unlogged: 1,
            ..Swept::default()
        })
        .await;
    assert_eq!(
        note(bench, "new").await.sequence,
        old + 2,
        "a number is given once"
    );
}

pub(super) async fn fences_grow_across_removal(bench: &Bench) {
    let subject = bench.subject();
    let mut heads = Vec::new();
    for _ in 0..3 {
        heads.push(subject.running(LONG).await);
        subject
            .wins(
                Condition::Held {
                    fence: heads[heads.len() - 1].fence,
                },
                released(FLEETING),
            )
            .await;
        bench.pass(FLEETING.retention + FLEETING.tombstone).await;
        bench.sweep().await;
        assert_eq!(subject.read().await, None);
    }
    assert_growing(&heads);
}

/// The record is removed, and the clock is behind its fences: the store must remember the highest
/// removed fence.
pub(super) async fn fences_grow_across_removal_though_the_clock_stands(bench: &Bench) {
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
    bench.sweep().await;
    assert_eq!(subject.read().await, None);
    heads.push(subject.running(LONG).await);
    assert_growing(&heads);
}

async fn buried_unknown(bench: &Bench) -> (Subject, Head) {
    let subject = bench.subject();
    subject.ended(unknown(FADING)).await;
    bench.pass(FADING.retention).await;
    bench.sweep().await;
    let head = subject.record().await.head;
    assert_eq!(head.state, State::Expired(Last::Unknown));
    (subject, head)
}

/// How many of these are removed or written as lost, which only a sweep does.
async fn touched(subjects: &[Subject; 5]) -> usize {
    let mut touched = 0;
    for subject in subjects {
        let state = subject.read().await.map(|record| record.head.state);
        touched += usize::from(matches!(state, None | Some(State::Unknown)));
    }
    touched
}
