//! `Held`: an attempt ends, by the fence it owns.

use hapax_core::record::Last;
use hapax_core::store::{Change, Finish};
use hapax_core::{Answer, Condition, Fence, Head, State};

use super::Bench;
use super::subject::{
    FADING, FLEETING, KEPT, LONG, SHORT, Subject, answer, completed, completion, released, unknown,
    without_answer,
};

pub(super) async fn an_attempt_ends_in_nothing_but_an_end(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    for state in [
        State::Running,
        State::Expired(Last::Completed),
        State::Expired(Last::Unknown),
    ] {
        subject
            .loses(
                Condition::Held {
                    fence: running.fence,
                },
                Change::Finish(without_answer(state, KEPT)),
            )
            .await;
    }
}

pub(super) async fn an_attempt_completes_its_record(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    let won = subject
        .wins(
            Condition::Held {
                fence: running.fence,
            },
            Change::Finish(completion("paid", FADING)),
        )
        .await;

    let expected = Head {
        state: State::Completed,
        version: running.version + 1,
        finished_at: won.now,
        expires_at: won.now.after(FADING.retention),
        tombstone_until: won.now.after(FADING.retention + FADING.tombstone),
        status: Some(201),
        kept: true,
        ..running
    };
    assert_eq!(won.head, expected);
}

pub(super) async fn a_definitive_refusal_is_kept_as_failed(bench: &Bench) {
    let subject = bench.subject();
    let refusal = Answer::new(404, "no such account");
    let finish = Finish {
        state: State::Failed,
        status: Some(404),
        answer: Some(refusal.into()),
        lifetime: KEPT,
    };
    let head = subject.ended(Change::Finish(finish)).await;
    assert_eq!(
        (head.state, head.status, head.kept),
        (State::Failed, Some(404), true)
    );
}

pub(super) async fn an_answer_that_is_not_kept_leaves_its_status(bench: &Bench) {
    let subject = bench.subject();
    let finish = Finish {
        status: Some(204),
        ..without_answer(State::Completed, KEPT)
    };
    let head = subject.ended(Change::Finish(finish)).await;
    assert_eq!(
        (head.state, head.status, head.kept),
        (State::Completed, Some(204), false)
    );
}

pub(super) async fn an_attempt_releases_its_record(bench: &Bench) {
    let subject = bench.subject();
    let finish = Finish {
        status: Some(503),
        ..without_answer(State::Retryable, KEPT)
    };
    let head = subject.ended(Change::Finish(finish)).await;
    assert_eq!((head.state, head.status), (State::Retryable, Some(503)));
}

pub(super) async fn an_attempt_may_say_that_it_does_not_know(bench: &Bench) {
    let subject = bench.subject();
    let head = subject.ended(unknown(KEPT)).await;
    assert_eq!((head.state, head.status), (State::Unknown, None));
}

pub(super) async fn a_finish_with_a_wrong_fence_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let own = subject.running(LONG).await.fence.as_u64();
    for wrong in [0, own - 1, own + 1, (1 << 53) - 1] {
        let condition = Condition::Held {
            fence: Fence::from_u64(wrong),
        };
        for change in [completed("paid"), released(KEPT), unknown(KEPT)] {
            subject.loses(condition, change).await;
        }
    }
}

pub(super) async fn a_finish_of_an_absent_record_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let fence = bench.subject().running(LONG).await.fence;
    for fence in [Fence::ZERO, fence] {
        let seen = subject
            .loses(Condition::Held { fence }, completed("paid"))
            .await;
        assert_eq!(seen.record, None);
    }
}

pub(super) async fn a_finish_after_a_takeover_is_refused(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    let fenced_out = Condition::Held { fence };
    bench.pass(SHORT).await;
    let second = subject.taken_over(fence, LONG).await;

    refuses_every_end(&subject, fenced_out).await;
    subject
        .wins(
            Condition::Held {
                fence: second.fence,
            },
            completed("paid by the second"),
        )
        .await;
    refuses_every_end(&subject, fenced_out).await;
}

pub(super) async fn a_lapsed_attempt_may_still_complete(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(SHORT).await;
    bench.pass(SHORT * 2).await;
    let head = subject
        .wins(
            Condition::Held {
                fence: running.fence,
            },
            completed("late"),
        )
        .await
        .head;
    assert_eq!((head.state, head.fence), (State::Completed, running.fence));
}

pub(super) async fn a_lost_attempt_may_still_complete(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.running(SHORT).await.fence;
    bench.pass(SHORT).await;
    subject
        .wins(Condition::Lapsed { fence }, Change::Lose(KEPT))
        .await;
    let head = subject
        .wins(Condition::Held { fence }, completed("late"))
        .await
        .head;
    assert_eq!(
        (head.state, head.fence, head.attempts),
        (State::Completed, fence, 1)
    );
}

pub(super) async fn a_lost_attempt_may_still_complete_after_retention(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.ended(unknown(FLEETING)).await.fence;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    let won = subject
        .wins(Condition::Held { fence }, completed("very late"))
        .await;
    assert_eq!(
        won.head.state_at(won.now),
        State::Completed,
        "its retention counts from this write"
    );
}

pub(super) async fn a_lost_attempt_may_still_release(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.ended(unknown(KEPT)).await.fence;
    let head = subject
        .wins(Condition::Held { fence }, released(KEPT))
        .await
        .head;
    assert_eq!(head.state, State::Retryable);
}

/// The attempt gave up its right to run, so another attempt may already be running.
pub(super) async fn a_released_attempt_cannot_complete(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.ended(released(KEPT)).await.fence;
    refuses_every_end(&subject, Condition::Held { fence }).await;
}

/// A caller whose reply was lost sends again. The record it gets back shows that the end is its
/// own.
pub(super) async fn a_completion_sent_twice_is_refused_and_finds_its_own(bench: &Bench) {
    let subject = bench.subject();
    let running = subject.running(LONG).await;
    let condition = Condition::Held {
        fence: running.fence,
    };
    subject.wins(condition, completed("paid")).await;
    let record = subject
        .loses(condition, completed("paid"))
        .await
        .record
        .expect("there is a record");
    assert_eq!(
        (record.head.token, record.head.fence),
        (running.token, running.fence)
    );
    assert_eq!(
        (record.head.state, record.answer),
        (State::Completed, Some(answer("paid")))
    );
}

pub(super) async fn a_completed_answer_is_never_replaced(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.ended(completed("paid")).await.fence;
    refuses_every_end(&subject, Condition::Held { fence }).await;
    assert_eq!(subject.record().await.answer, Some(answer("paid")));
}

async fn refuses_every_end(subject: &Subject, condition: Condition) {
    for change in [completed("another answer"), released(KEPT), unknown(KEPT)] {
        subject.loses(condition, change).await;
    }
}
