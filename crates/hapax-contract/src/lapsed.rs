//! `Lapsed`: what may be done about an attempt that is over, and when it is over.

use hapax_core::store::{Change, Claim, Finish, Written};
use hapax_core::{Condition, Fence, Head, State};

use super::Bench;
use super::subject::{
    FADING, KEPT, LONG, SHORT, Subject, answer, completed, completion, fingerprint, released,
    settlement, unknown, without_answer,
};

pub(super) async fn a_live_lease_cannot_be_taken_over(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    let seen = subject
        .loses(
            Condition::Lapsed {
                fence: running.fence,
            },
            Change::Claim(subject.claim(LONG)),
        )
        .await;
    assert_eq!(seen.record.map(|record| record.head), Some(running));
}

/// The fingerprint of the first request stays: every repeat is compared with it.
pub(super) async fn a_lapsed_lease_can_be_taken_over(bench: &Bench) {
    let subject = bench.subject();
    let first = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    let claim = Claim {
        fingerprint: fingerprint(2),
        ..subject.claim(LONG)
    };
    let won = subject
        .wins(
            Condition::Lapsed { fence: first.fence },
            Change::Claim(claim.clone()),
        )
        .await;

    assert!(won.head.fence > first.fence);
    let expected = Head {
        fence: won.head.fence,
        token: claim.token,
        request_id: claim.request_id,
        version: first.version + 1,
        attempts: 2,
        lease_until: won.now.after(LONG),
        claimed_at: won.now,
        ..first
    };
    assert_eq!(won.head, expected);
}

pub(super) async fn a_released_record_can_be_taken_over(bench: &Bench) {
    let subject = bench.subject();
    let finish = Finish {
        status: Some(503),
        ..without_answer(State::Retryable, KEPT)
    };
    let first = subject.ended(Change::Finish(finish)).await;
    let second = subject.taken_over(first.fence, LONG).await;
    assert!(second.fence > first.fence);
    assert_eq!(
        (second.state, second.attempts, second.status),
        (State::Running, 2, None)
    );
}

pub(super) async fn an_unknown_record_can_be_taken_over(bench: &Bench) {
    let subject = bench.subject();
    let first = subject.ended(unknown(KEPT)).await;
    let second = subject.taken_over(first.fence, LONG).await;
    assert!(second.fence > first.fence);
    assert_eq!((second.state, second.attempts), (State::Running, 2));
}

pub(super) async fn nothing_is_taken_over_after_retention(bench: &Bench) {
    let (retryable, lost) = (bench.subject(), bench.subject());
    let fences = [
        retryable.ended(released(FADING)).await.fence,
        lost.ended(unknown(FADING)).await.fence,
    ];
    bench.pass(FADING.retention).await;
    for (subject, fence) in [retryable, lost].into_iter().zip(fences) {
        subject
            .loses(
                Condition::Lapsed { fence },
                Change::Claim(subject.claim(LONG)),
            )
            .await;
    }
}

/// The late attempt may complete between a reading and a takeover, and its fence stays the same.
pub(super) async fn a_completed_record_is_never_lapsed(bench: &Bench) {
    let failed = Finish {
        state: State::Failed,
        ..completion("refused", KEPT)
    };
    for change in [completed("paid"), Change::Finish(failed)] {
        let subject = bench.subject();
        let fence = subject.running(SHORT).await.fence;
        bench.pass(SHORT).await;
        let head = subject.wins(Condition::Held { fence }, change).await.head;
        assert_eq!(head.fence, fence);
        refuses(&subject, fence).await;
    }
}

pub(super) async fn a_takeover_with_a_wrong_fence_is_refused(bench: &Bench) {
    let (lapsed, retryable) = (bench.subject(), bench.subject());
    let fences = [
        lapsed.running(SHORT).await.fence,
        retryable.ended(released(KEPT)).await.fence,
    ];
    bench.pass(SHORT).await;
    for (subject, fence) in [lapsed, retryable].into_iter().zip(fences) {
        for wrong in [0, fence.as_u64() - 1, fence.as_u64() + 1] {
            refuses(&subject, Fence::from_u64(wrong)).await;
        }
    }
}

pub(super) async fn a_takeover_of_an_absent_record_is_refused(bench: &Bench) {
    refuses(&bench.subject(), Fence::ZERO).await;
}

/// Holds even if the end of the last attempt had an answer.
pub(super) async fn a_takeover_leaves_nothing_of_what_was_kept(bench: &Bench) {
    let subject = bench.subject();
    let finish = Finish {
        state: State::Retryable,
        ..completion("try again", KEPT)
    };
    let first = subject.ended(Change::Finish(finish)).await;
    assert_eq!(subject.record().await.answer, Some(answer("try again")));
    let second = subject.taken_over(first.fence, LONG).await;
    assert_eq!((second.kept, second.status), (false, None));
    assert_eq!(subject.record().await.answer, None);
}

/// Whether a takeover wins or loses, the returned `now` explains it: the store judged by that time.
pub(super) async fn a_lease_is_over_by_the_stores_own_now(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    for _ in 0..5 {
        match subject
            .put(
                Condition::Lapsed {
                    fence: running.fence,
                },
                Change::Claim(subject.claim(LONG)),
            )
            .await
        {
            Written::Lost(seen) => assert!(
                seen.now < running.lease_until,
                "refused at {:?}: {running:?}",
                seen.now
            ),
            Written::Won(won) => {
                return assert!(
                    won.now >= running.lease_until,
                    "taken over at {:?}: {running:?}",
                    won.now
                );
            }
        }
        bench.pass(SHORT / 4).await;
    }
    panic!("a lease of {SHORT:?} is not over after {:?}", SHORT * 5 / 4);
}

pub(super) async fn a_lapsed_attempt_is_written_down_as_lost(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT).await;
    let won = subject
        .wins(
            Condition::Lapsed {
                fence: running.fence,
            },
            Change::Lose(FADING),
        )
        .await;

    let expected = Head {
        state: State::Unknown,
        version: running.version + 1,
        finished_at: won.now,
        expires_at: won.now.after(FADING.retention),
        tombstone_until: won.now.after(FADING.retention + FADING.tombstone),
        ..running
    };
    assert_eq!(won.head, expected);
}

pub(super) async fn a_live_attempt_is_not_written_down_as_lost(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(LONG).await.fence;
    subject
        .loses(Condition::Lapsed { fence }, Change::Lose(KEPT))
        .await;
}

pub(super) async fn only_a_running_record_is_written_down_as_lost(bench: &Bench) {
    for change in [completed("paid"), released(KEPT), unknown(KEPT)] {
        let subject = bench.subject();
        let fence = subject.running(SHORT).await.fence;
        bench.pass(SHORT).await;
        subject.wins(Condition::Held { fence }, change).await;
        subject
            .loses(Condition::Lapsed { fence }, Change::Lose(KEPT))
            .await;
    }
}

async fn refuses(subject: &Subject, fence: Fence) {
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

/// An operator can find the request that made an attempt, no matter how the attempt ended or who
/// wrote its end.
pub(super) async fn a_request_id_stays_until_the_next_attempt(bench: &Bench) {
    let subject = bench.subject();
    let first = subject.running(SHORT).await;
    let made_by = first.request_id.clone();
    assert!(made_by.is_some() && subject.renew(first.fence, SHORT).await);
    assert_eq!(
        subject.record().await.head.request_id,
        made_by,
        "a renewal changed it"
    );
    let seen = subject
        .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await;
    assert_eq!(
        seen.record.expect("a record").head.request_id,
        made_by,
        "a claim that lost changed it"
    );
    bench.pass(SHORT).await;
    let lost = subject
        .wins(Condition::Lapsed { fence: first.fence }, Change::Lose(KEPT))
        .await
        .head;
    assert_eq!(lost.request_id, made_by, "a lapse changed it");

    let second = subject.taken_over(first.fence, LONG).await;
    assert!(
        second.request_id.is_some() && second.request_id != made_by,
        "the next attempt has its own"
    );
    let lost = subject
        .wins(
            Condition::Held {
                fence: second.fence,
            },
            unknown(KEPT),
        )
        .await
        .head;
    assert_eq!(lost.request_id, second.request_id, "an end changed it");
    let version = Condition::Version {
        version: lost.version,
    };
    let settled = subject
        .wins(version, settlement(without_answer(State::Retryable, KEPT)))
        .await
        .head;
    assert_eq!(
        settled.request_id, second.request_id,
        "a settlement changed it"
    );

    let without = Claim {
        request_id: None,
        ..subject.claim(LONG)
    };
    let third = subject
        .wins(
            Condition::Lapsed {
                fence: settled.fence,
            },
            Change::Claim(without),
        )
        .await
        .head;
    assert_eq!(
        third.request_id, None,
        "an attempt without an id shows that of another request"
    );

    let fading = bench.subject();
    let head = fading
        .ended(Change::Finish(completion("paid", FADING)))
        .await;
    bench.pass(FADING.retention).await;
    assert_eq!(
        fading.record().await.head.request_id,
        head.request_id,
        "a tombstone has lost it"
    );
}
