//! `Version`: changes by operators, which settle or forget a record.

use std::time::Duration;

use hapax_core::record::Last;
use hapax_core::store::{Change, Finish, Lifetime};
use hapax_core::{Condition, Fence, Head, State};

use super::Bench;
use super::subject::{
    FADING, FLEETING, KEPT, LONG, SHORT, Subject, answer, completed, completion, forgetting,
    released, settlement, unknown, without_answer,
};

pub(super) async fn an_unknown_is_settled_as_completed(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    let won = subject
        .wins(at(&lost), settled(State::Completed, "found in the books"))
        .await;

    assert!(won.head.fence > lost.fence);
    let expected = Head {
        state: State::Completed,
        fence: won.head.fence,
        version: lost.version + 1,
        finished_at: won.now,
        expires_at: won.now.after(KEPT.retention),
        tombstone_until: won.now.after(KEPT.retention + KEPT.tombstone),
        status: Some(201),
        kept: true,
        ..lost
    };
    assert_eq!(won.head, expected);
}

pub(super) async fn an_unknown_settled_as_retryable_may_be_tried_again(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    let retryable = subject
        .wins(
            at(&lost),
            settlement(without_answer(State::Retryable, KEPT)),
        )
        .await
        .head;
    subject
        .loses(
            Condition::Lapsed { fence: lost.fence },
            Change::Claim(subject.claim(LONG)),
        )
        .await;
    let second = subject.taken_over(retryable.fence, LONG).await;
    assert!(lost.fence < retryable.fence && retryable.fence < second.fence);
    subject
        .wins(
            Condition::Held {
                fence: second.fence,
            },
            completed("paid"),
        )
        .await;
}

pub(super) async fn a_lapsed_attempt_nobody_wrote_down_can_be_settled(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    subject
        .wins(
            at(&running),
            settled(State::Completed, "found in the books"),
        )
        .await;
    subject
        .loses(
            Condition::Held {
                fence: running.fence,
            },
            completed("too late"),
        )
        .await;
}

pub(super) async fn an_unknown_past_retention_can_be_settled(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(FLEETING)).await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    let won = subject
        .wins(at(&lost), settled(State::Failed, "never arrived"))
        .await;
    assert_eq!(
        won.head.state_at(won.now),
        State::Failed,
        "its retention counts from the settlement"
    );
}

/// Holds for every outcome of the settlement: callers may have acted on it.
pub(super) async fn a_settlement_bars_the_lost_attempt(bench: &Bench) {
    for state in [State::Completed, State::Failed, State::Retryable] {
        let subject = bench.subject();
        let lost = subject.ended(unknown(KEPT)).await;
        subject.wins(at(&lost), settled(state, "settled")).await;
        for change in [completed("late"), released(KEPT), unknown(KEPT)] {
            subject
                .loses(Condition::Held { fence: lost.fence }, change)
                .await;
        }
        assert_eq!(subject.record().await.answer, Some(answer("settled")));
    }
}

pub(super) async fn what_is_not_unknown_cannot_be_settled(bench: &Bench) {
    let running = bench.subject();
    refuses_to_settle(&running, running.running(LONG).await.version).await;
    for change in [
        completed("paid"),
        Change::Finish(Finish {
            state: State::Failed,
            ..completion("no", KEPT)
        }),
        released(KEPT),
    ] {
        let ended = bench.subject();
        refuses_to_settle(&ended, ended.ended(change).await.version).await;
    }
    refuses_to_settle(&bench.subject(), 0).await;

    let expired = bench.subject();
    let head = expired
        .ended(Change::Finish(completion("paid", FADING)))
        .await;
    bench.pass(FADING.retention).await;
    refuses_to_settle(&expired, head.version).await;
}

pub(super) async fn a_settlement_of_a_stale_version_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let version = subject.ended(unknown(KEPT)).await.version;
    for wrong in [0, version - 1, version + 1] {
        refuses_to_settle(&subject, wrong).await;
    }
}

pub(super) async fn a_forgotten_record_keeps_only_its_tombstone(bench: &Bench) {
    let subject = bench.subject();
    let paid = subject.ended(completed("paid")).await;
    let won = subject.wins(at(&paid), forgetting(KEPT)).await;

    assert!(won.head.fence > paid.fence);
    let expected = Head {
        state: State::Expired(Last::Completed),
        fence: won.head.fence,
        fingerprint: None,
        request_id: None,
        version: paid.version + 1,
        finished_at: won.now,
        expires_at: won.now,
        // Never earlier than without `forget`.
        tombstone_until: paid.tombstone_until,
        status: None,
        kept: false,
        ..paid
    };
    assert_eq!(won.head, expected);
    assert_eq!(subject.record().await.answer, None);
}

pub(super) async fn forgetting_raises_the_epoch(bench: &Bench) {
    for change in [completed("paid"), released(KEPT), unknown(KEPT)] {
        let subject = bench.subject();
        let head = subject.ended(change).await;
        let before = bench.info().await.epoch;
        subject.wins(at(&head), forgetting(KEPT)).await;
        assert!(
            bench.info().await.epoch > before,
            "copies made before the forgetting still count"
        );
    }
}

/// Otherwise nodes would have to read all answers in memory again.
pub(super) async fn nothing_but_forgetting_raises_the_epoch(bench: &Bench) {
    if bench.is_shared {
        return bench.skip("somebody else may be forgetting at the same time");
    }
    let subject = bench.subject();
    let before = bench.info().await.epoch;
    let lost = subject.ended(unknown(KEPT)).await;
    let second = subject.taken_over(lost.fence, SHORT).await;
    subject.renew(second.fence, SHORT).await;
    subject.loses(at(&lost), forgetting(KEPT)).await;
    bench.pass(SHORT).await;
    let lost = subject
        .wins(
            Condition::Lapsed {
                fence: second.fence,
            },
            Change::Lose(KEPT),
        )
        .await
        .head;
    subject
        .wins(at(&lost), settled(State::Completed, "settled"))
        .await;
    assert_eq!(bench.info().await.epoch, before);
}

pub(super) async fn a_running_record_cannot_be_forgotten(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    subject.loses(at(&running), forgetting(KEPT)).await;
}

pub(super) async fn a_lapsed_record_can_be_forgotten_but_stays_unknown(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    let head = subject.wins(at(&running), forgetting(KEPT)).await.head;
    assert_eq!(
        (head.state, head.fingerprint),
        (State::Expired(Last::Unknown), None)
    );
    subject
        .loses(
            Condition::Held {
                fence: running.fence,
            },
            completed("too late"),
        )
        .await;
}

pub(super) async fn a_forgetting_of_a_stale_version_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let version = subject.ended(completed("paid")).await.version;
    for version in [0, version - 1, version + 1] {
        subject
            .loses(Condition::Version { version }, forgetting(KEPT))
            .await;
    }
    bench
        .subject()
        .loses(Condition::Version { version: 0 }, forgetting(KEPT))
        .await;
}

pub(super) async fn a_forgotten_record_bars_new_claims_while_its_tombstone_stands(bench: &Bench) {
    let (standing, longer, fleeting) = (bench.subject(), bench.subject(), bench.subject());
    // The retention of a `forget` has no effect: a forgotten record does not replay. Its tombstone
    // lasts at least as long as it would have without the `forget`.
    let short = Lifetime {
        retention: LONG,
        tombstone: SHORT,
    };
    for (subject, lifetime, forgotten_for) in [
        (&standing, KEPT, short),
        (&longer, FLEETING, KEPT),
        (&fleeting, FLEETING, short),
    ] {
        let paid = subject
            .ended(Change::Finish(completion("paid", lifetime)))
            .await;
        let forgotten = subject
            .wins(at(&paid), forgetting(forgotten_for))
            .await
            .head;
        subject
            .loses(
                Condition::Lapsed {
                    fence: forgotten.fence,
                },
                Change::Claim(subject.claim(LONG)),
            )
            .await;
    }
    bench.pass(SHORT * 2).await;
    longer
        .loses(Condition::Absent, Change::Claim(longer.claim(LONG)))
        .await;
    standing
        .loses(Condition::Absent, Change::Claim(standing.claim(LONG)))
        .await;
    fleeting.running(LONG).await;
}

/// No fingerprint is left to compare a repeat with, so the record must not get an answer.
pub(super) async fn a_forgotten_unknown_can_neither_be_settled_nor_completed(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    let forgotten = subject.wins(at(&lost), forgetting(KEPT)).await.head;
    assert_eq!(forgotten.state, State::Expired(Last::Unknown));
    refuses_to_settle(&subject, forgotten.version).await;
    subject
        .loses(Condition::Held { fence: lost.fence }, completed("late"))
        .await;
    subject
        .loses(
            Condition::Held {
                fence: forgotten.fence,
            },
            completed("by nobody's fence"),
        )
        .await;
}

pub(super) async fn a_settlement_must_state_an_outcome(bench: &Bench) {
    let subject = bench.subject();
    let lost = subject.ended(unknown(KEPT)).await;
    for state in [
        State::Unknown,
        State::Running,
        State::Expired(Last::Completed),
    ] {
        subject
            .loses(at(&lost), settlement(without_answer(state, KEPT)))
            .await;
    }
}

pub(super) async fn no_other_pair_of_condition_and_change_is_a_transition(bench: &Bench) {
    let absent = bench.subject();
    refuses_odd_pairs(&absent, Fence::ZERO, 0).await;

    let running = bench.subject();
    let head = running.running(SHORT).await;
    bench.pass(SHORT).await;
    refuses_odd_pairs(&running, head.fence, head.version).await;

    for change in [
        completed("paid"),
        released(KEPT),
        unknown(KEPT),
        unknown(Lifetime {
            retention: Duration::ZERO,
            ..KEPT
        }),
    ] {
        let ended = bench.subject();
        let head = ended.ended(change).await;
        refuses_odd_pairs(&ended, head.fence, head.version).await;
    }
}

/// Checks every pair of condition and change that the contract does not list, with the current
/// fence and version.
async fn refuses_odd_pairs(subject: &Subject, fence: Fence, version: u64) {
    let (absent, held) = (Condition::Absent, Condition::Held { fence });
    let (lapsed, version) = (Condition::Lapsed { fence }, Condition::Version { version });
    let odd = [
        (vec![held, version], Change::Claim(subject.claim(LONG))),
        (vec![absent, lapsed, version], completed("odd")),
        (vec![absent, held, version], Change::Lose(KEPT)),
        (vec![absent, held, lapsed], settled(State::Completed, "odd")),
        (vec![absent, held, lapsed], forgetting(KEPT)),
    ];
    for (conditions, change) in odd {
        for condition in conditions {
            subject.loses(condition, change.clone()).await;
        }
    }
}

async fn refuses_to_settle(subject: &Subject, version: u64) {
    for state in [State::Completed, State::Failed, State::Retryable] {
        subject
            .loses(Condition::Version { version }, settled(state, "settled"))
            .await;
    }
}

fn at(head: &Head) -> Condition {
    Condition::Version {
        version: head.version,
    }
}

fn settled(state: State, body: &str) -> Change {
    settlement(Finish {
        state,
        ..completion(body, KEPT)
    })
}
