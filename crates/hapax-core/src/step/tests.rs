//! Every step against every event, as one table; then the cases that the table cannot show.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::*;
use crate::fingerprint::{Fingerprint, FingerprintPolicy};
use crate::key::Key;
use crate::scope::{Principal, RecordId, Scope};

const NOW: Timestamp = Timestamp::from_micros(1_000_000);
const MINE: AttemptToken = AttemptToken::from_bytes([1; 16]);
const THEIRS: AttemptToken = AttemptToken::from_bytes([2; 16]);

fn fingerprint() -> Fingerprint {
    Fingerprint {
        digest: [1; 32],
        policy: Arc::new(FingerprintPolicy::default()),
    }
}

/// A record in this state, last claimed with this token. Its lease is still valid.
fn head(state: State, token: AttemptToken) -> Head {
    let scope = Scope {
        namespace: "n".into(),
        principal: Principal::Anonymous,
        method: "POST".into(),
        path: "/".into(),
    };
    let key = Key::new("k").unwrap();
    let far = NOW.after(Duration::from_secs(60));
    Head {
        id: RecordId::of(&scope, &key),
        scope: Arc::new(scope),
        key,
        state,
        fence: Fence::from_u64(7),
        token,
        version: 1,
        attempts: 1,
        lease_until: far,
        fingerprint: Some(fingerprint()),
        created_at: NOW,
        claimed_at: NOW,
        finished_at: NOW,
        expires_at: far,
        tombstone_until: far,
        status: (state == State::Completed).then_some(200),
        kept: state == State::Completed,
        request_id: None,
    }
}

fn lapsed(token: AttemptToken) -> Head {
    Head {
        lease_until: NOW,
        ..head(State::Running, token)
    }
}

fn seen(head: Option<Head>) -> Event {
    let record = head.map(|head| Record { head, answer: None });
    Event::Seen(Seen { record, now: NOW })
}

fn won(head: Head) -> Event {
    Event::Won(Won { head, now: NOW })
}

fn failed(rejection: Rejection, is_time_left: bool) -> Event {
    Event::Failed {
        rejection,
        is_time_left,
    }
}

fn running() -> Running {
    Running {
        head: head(State::Running, MINE),
        follows: None,
        is_given_up: false,
    }
}

fn claim(condition: Condition) -> Step {
    Step::Claim {
        claiming: Claiming::new(condition, None),
        seen: None,
    }
}

fn orphan() -> Claiming {
    Claiming {
        may_be_written: true,
        is_orphan: true,
        ..Claiming::new(Condition::Absent, None)
    }
}

fn write_end(outcome: Outcome, mode: Mode) -> Step {
    let policy = Policy {
        mode,
        ..Policy::default()
    };
    Step::WriteEnd(Box::new(running().end(outcome, false, &policy)))
}

fn done() -> Outcome {
    Outcome::Kept {
        status: 200,
        answer: None,
    }
}

fn ended(outcome: Outcome, is_joined: bool, has_acted_outside: bool) -> Event {
    Event::Ended {
        outcome,
        is_joined,
        has_acted_outside,
    }
}

/// The name of the step in the table, with the details that distinguish steps of its kind.
fn word(step: &Step) -> &'static str {
    match step {
        Step::Read { .. } => "read",
        Step::Claim { claiming, .. } if claiming.is_orphan => "claim-orphan",
        Step::Claim { claiming, .. } if claiming.may_be_written => "claim-again",
        Step::Claim { claiming, .. } if claiming.follows.is_some() => "claim-after-lost",
        Step::Claim { .. } => "claim",
        Step::Release { .. } => "release",
        Step::WriteLost(_) => "write-lost",
        Step::Replay(_) => "replay",
        Step::Wait(_) => "wait",
        Step::Reject { .. } => "reject",
        Step::Abandon { .. } => "abandon",
        Step::Over => "over",
        Step::Run(running) if running.is_given_up => "run-given-up",
        Step::Run(_) => "run",
        Step::LetGo(_) => "let-go",
        Step::GiveUp(_) => "give-up",
        Step::WriteEnd(end) if end.is_not_joined => "write-not-joined",
        Step::WriteEnd(_) => "write-end",
        Step::Conclude(Conclusion::Written(_)) => "written",
        Step::Conclude(Conclusion::InTransaction(_)) => "in-transaction",
        Step::Conclude(Conclusion::NotJoined(_)) => "not-joined",
        Step::Conclude(Conclusion::NotCommitted(_)) => "not-committed",
        Step::Conclude(Conclusion::FencedOut(_)) => "fenced-out",
        Step::Conclude(Conclusion::Unreadable) => "unreadable",
    }
}

fn next(step: Step, event: Event, mode: Mode) -> &'static str {
    let policy = Policy {
        mode,
        ..Policy::default()
    };
    let fingerprint = fingerprint();
    let caller = Caller {
        ask: Ask {
            fingerprint: &fingerprint,
            deadline: None,
            token_until: None,
        },
        policy: &policy,
        token: MINE,
    };
    word(&step.next(event, &caller))
}

/// Columns: nothing there; running elsewhere; completed elsewhere; lapsed elsewhere; running and
/// ours; lapsed and ours; won; failed with time left; failed without; locked; corrupt; not
/// admitted; ended; lease lost; ran too long; let go. A dash marks an impossible pair.
#[test]
fn every_step_against_every_event_in_hold() {
    let in_flight = || Rejection::in_flight(Duration::ZERO);
    let events = || {
        vec![
            seen(None),
            seen(Some(head(State::Running, THEIRS))),
            seen(Some(head(State::Completed, THEIRS))),
            seen(Some(lapsed(THEIRS))),
            seen(Some(head(State::Running, MINE))),
            seen(Some(lapsed(MINE))),
            won(head(State::Running, MINE)),
            failed(Rejection::StoreUnavailable, true),
            failed(Rejection::StoreUnavailable, false),
            failed(in_flight(), true),
            failed(Rejection::AnswerCorrupt, true),
            Event::NotAdmitted(Rejection::TooManyKeys),
            ended(done(), false, false),
            Event::LeaseLost,
            Event::RanTooLong,
            Event::LetGo,
        ]
    };
    let lapsed = Condition::Lapsed {
        fence: Fence::from_u64(6),
    };
    let release = |claiming| Step::Release {
        claiming,
        fence: Fence::from_u64(7),
    };
    let looked = |step| match step {
        Step::Claim { claiming, .. } => Step::Claim {
            claiming,
            seen: Some(Seen {
                record: None,
                now: NOW,
            }),
        },
        other => other,
    };
    let fresh = Claiming::new(Condition::Absent, None);
    let table = [
        (
            Step::Read { otherwise: None },
            "claim wait replay write-lost wait write-lost - reject reject reject reject - - - - -",
        ),
        (
            claim(Condition::Absent),
            "claim wait replay write-lost run release run claim-again abandon reject abandon read - - - -",
        ),
        (
            looked(claim(lapsed)),
            "claim wait replay write-lost run release run claim-again abandon reject abandon reject - - - -",
        ),
        (
            Step::Claim {
                claiming: orphan(),
                seen: None,
            },
            "over over over over release release release claim-orphan claim-orphan claim-orphan claim-orphan read - - - -",
        ),
        (
            release(fresh),
            "claim wait replay write-lost wait write-lost wait abandon abandon abandon abandon - - - - -",
        ),
        (
            release(orphan()),
            "over over over over over over over claim-orphan claim-orphan claim-orphan claim-orphan - - - - -",
        ),
        (
            Step::WriteLost(lapsed),
            "claim wait replay write-lost wait write-lost wait reject reject reject reject - - - - -",
        ),
        (
            Step::Run(Box::new(running())),
            "- - - - - - - - - - - - write-end let-go give-up -",
        ),
        (
            Step::LetGo(Box::new(running())),
            "- - - - - - - - - - - - - - - run",
        ),
        (
            Step::GiveUp(Box::new(running())),
            "run-given-up run-given-up run-given-up run-given-up run-given-up run-given-up run-given-up \
             run-given-up run-given-up run-given-up run-given-up - - - - -",
        ),
        (
            write_end(done(), Mode::Hold),
            "fenced-out fenced-out fenced-out fenced-out fenced-out fenced-out written \
             write-end write-end write-end unreadable - - - - -",
        ),
        (Step::Over, "- - - - - - - - - - - - - - - -"),
    ];
    for (step, expected) in table {
        let got: Vec<_> = events()
            .into_iter()
            .map(|event| {
                let step = AssertUnwindSafe(step.clone());
                catch_unwind(|| next({ step }.0, event, Mode::Hold)).unwrap_or("-")
            })
            .collect();
        let expected: Vec<_> = expected.split_whitespace().collect();
        assert_eq!(got, expected, "after {}", word(&step));
    }
}

#[test]
fn who_is_refused_and_cannot_be_told_more_is_told_that() {
    let (policy, fingerprint) = (Policy::default(), fingerprint());
    let caller = Caller {
        ask: Ask {
            fingerprint: &fingerprint,
            deadline: None,
            token_until: None,
        },
        policy: &policy,
        token: MINE,
    };
    let refused = Event::NotAdmitted(Rejection::Draining);
    let read = claim(Condition::Absent).next(refused, &caller);
    let rejected = read.next(failed(Rejection::StoreUnavailable, false), &caller);
    assert!(matches!(
        rejected,
        Step::Reject {
            rejection: Rejection::Draining,
            ..
        }
    ));
}

#[test]
fn a_first_step_assumes_absence_or_looks() {
    assert_eq!(word(&Step::first(false)), "claim");
    assert_eq!(word(&Step::first(true)), "read");
}

#[test]
fn a_claim_after_a_lost_attempt_is_released_as_unknown() {
    let claimed = Put {
        id: head(State::Running, MINE).id,
        condition: Condition::Absent,
        change: Change::Lose(Lifetime::default()),
    };
    let released = |follows| {
        let claiming = Claiming::new(Condition::Absent, follows);
        let put = claiming.release(&claimed, Fence::from_u64(7), Lifetime::default());
        let Change::Finish(finish) = put.change else {
            panic!("a release ends the attempt")
        };
        (put.condition, finish.state, finish.status)
    };
    let held = Condition::Held {
        fence: Fence::from_u64(7),
    };
    assert_eq!(released(None), (held, State::Retryable, None));
    let code = Loss::TimedOut.code();
    assert_eq!(released(Some(Loss::TimedOut)), (held, State::Unknown, code));
    // The claim records the loss it follows.
    assert_eq!(
        next(
            Step::Read { otherwise: None },
            seen(Some(lapsed(THEIRS))),
            Mode::Rerun
        ),
        "claim-after-lost"
    );
}

#[test]
fn the_end_of_an_attempt_in_each_mode() {
    let run = || Step::Run(Box::new(running()));
    let end =
        |outcome, is_joined, outside, mode| next(run(), ended(outcome, is_joined, outside), mode);
    let released = || Outcome::Released { status: None };
    let transaction = Mode::Transaction;
    assert_eq!(end(done(), false, false, Mode::Hold), "write-end");
    assert_eq!(end(done(), true, false, transaction), "in-transaction");
    assert_eq!(end(done(), false, false, transaction), "write-not-joined");
    assert_eq!(end(released(), false, false, transaction), "write-end");
    // An error does not roll back work done outside a transaction.
    assert_eq!(
        end(released(), false, true, transaction),
        "write-not-joined"
    );

    let end_of = |outcome, mode, state| {
        next(
            write_end(outcome, mode),
            seen(Some(head(state, MINE))),
            mode,
        )
    };
    // An earlier try was written; its reply was lost.
    assert_eq!(end_of(done(), Mode::Hold, State::Completed), "written");
    assert_eq!(end_of(released(), Mode::Hold, State::Retryable), "written");
    assert_eq!(end_of(done(), Mode::Hold, State::Unknown), "fenced-out");
    assert_eq!(end_of(done(), Mode::Hold, State::Retryable), "fenced-out");
    // In transaction mode, the work wrote the record itself.
    assert_eq!(
        end_of(released(), transaction, State::Completed),
        "in-transaction"
    );
    assert_eq!(end_of(done(), transaction, State::Failed), "in-transaction");
    assert_eq!(
        end_of(done(), transaction, State::Retryable),
        "not-committed"
    );
    assert_eq!(end_of(released(), transaction, State::Retryable), "written");
    // The transaction did not commit, and another node found that out and released the record.
    let lost = || Outcome::Lost(Loss::TimedOut);
    assert_eq!(end_of(lost(), transaction, State::Retryable), "written");
    assert_eq!(end_of(done(), transaction, State::Unknown), "not-joined");
    // The same state of another attempt does not say anything about this one.
    assert_eq!(
        next(
            write_end(done(), Mode::Hold),
            seen(Some(head(State::Completed, THEIRS))),
            Mode::Hold
        ),
        "fenced-out"
    );
    let other_fence = Head {
        fence: Fence::from_u64(8),
        ..head(State::Completed, MINE)
    };
    assert_eq!(
        next(
            write_end(done(), Mode::Hold),
            seen(Some(other_fence)),
            Mode::Hold
        ),
        "fenced-out"
    );
}

#[test]
fn a_claim_that_was_sent_before_is_not_given_up_because_its_record_is_locked() {
    let locked = || failed(Rejection::in_flight(Duration::ZERO), true);
    let again = Step::Claim {
        claiming: Claiming {
            may_be_written: true,
            ..Claiming::new(Condition::Absent, None)
        },
        seen: None,
    };
    assert_eq!(next(again.clone(), locked(), Mode::Hold), "abandon");
    let policy = Policy::default();
    let fingerprint = fingerprint();
    let caller = Caller {
        ask: Ask {
            fingerprint: &fingerprint,
            deadline: None,
            token_until: None,
        },
        policy: &policy,
        token: MINE,
    };
    let Step::Abandon { claiming, .. } = again.next(locked(), &caller) else {
        panic!("it is abandoned")
    };
    assert_eq!(claiming, orphan(), "it goes on without its caller");
    // A new key has no record that could be locked.
    let rejection = |condition| match claim(condition).next(locked(), &caller) {
        Step::Reject { rejection, .. } => rejection,
        other => panic!("{other:?}"),
    };
    assert_eq!(rejection(Condition::Absent), Rejection::StoreUnavailable);
    let lapsed = Condition::Lapsed {
        fence: Fence::from_u64(6),
    };
    assert_eq!(rejection(lapsed), Rejection::in_flight(Duration::ZERO));
}

/// A node that stops at any other step would leave a claim that no one resolves: a won claim that
/// never runs ends as a false unknown.
#[test]
fn a_call_may_be_left_only_where_nothing_of_it_can_be_in_the_store() {
    let again = Step::Claim {
        claiming: Claiming {
            may_be_written: true,
            ..Claiming::new(Condition::Absent, None)
        },
        seen: None,
    };
    let lapsed = Condition::Lapsed {
        fence: Fence::from_u64(6),
    };
    let release = Step::Release {
        claiming: Claiming::new(Condition::Absent, None),
        fence: Fence::from_u64(7),
    };
    for step in [
        Step::Read { otherwise: None },
        claim(Condition::Absent),
        Step::WriteLost(lapsed),
    ] {
        assert!(step.may_be_left(), "{step:?}");
    }
    for step in [
        again,
        release,
        Step::Run(Box::new(running())),
        Step::Abandon {
            claiming: orphan(),
            rejection: Rejection::StoreUnavailable,
        },
    ] {
        assert!(!step.may_be_left(), "{step:?}");
    }
}

#[test]
fn a_request_is_compared_with_what_is_there_and_not_with_its_own_claim() {
    let judged = |step: Step, event: Event| step.judged(&event, MINE).is_some();
    let read = || Step::Read { otherwise: None };
    let claim = || claim(Condition::Absent);
    assert!(judged(read(), seen(Some(head(State::Running, THEIRS)))));
    assert!(judged(claim(), seen(Some(head(State::Completed, THEIRS)))));
    assert!(!judged(claim(), seen(Some(head(State::Running, MINE)))));
    assert!(!judged(claim(), won(head(State::Running, MINE))));
    assert!(!judged(read(), seen(None)));
    let release = Step::Release {
        claiming: Claiming::new(Condition::Absent, None),
        fence: Fence::from_u64(7),
    };
    assert!(judged(release, won(head(State::Retryable, MINE))));
}
