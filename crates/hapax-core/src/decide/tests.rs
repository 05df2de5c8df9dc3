//! Every state against every kind of request, as one table.

use std::sync::Arc;

use super::*;
use crate::fingerprint::FingerprintPolicy;
use crate::key::Key;
use crate::record::{AttemptToken, Fence};
use crate::scope::{Principal, RecordId, Scope};

const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
const PAST: Timestamp = Timestamp::from_micros(900_000_000);
const FUTURE: Timestamp = Timestamp::from_micros(1_100_000_000);

fn fingerprint(byte: u8) -> Fingerprint {
    Fingerprint {
        digest: [byte; 32],
        policy: Arc::new(FingerprintPolicy::default()),
    }
}

fn head(state: State) -> Head {
    Head {
        id: RecordId::from_bytes([0; 32]),
        scope: Arc::new(Scope {
            namespace: "n".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        }),
        key: Key::new("k").unwrap(),
        state,
        fence: Fence::from_u64(7),
        token: AttemptToken::default(),
        version: 3,
        attempts: 1,
        lease_until: FUTURE,
        fingerprint: Some(fingerprint(1)),
        created_at: PAST,
        claimed_at: PAST,
        finished_at: PAST,
        expires_at: FUTURE,
        tombstone_until: FUTURE,
        status: Some(201),
        kept: matches!(state, State::Completed | State::Failed),
        request_id: None,
    }
}

/// The records a request can meet: every state, and every state that time turns into another before
/// a sweep writes it down.
fn records() -> Vec<(&'static str, Option<Head>)> {
    let expired = |state| Head {
        expires_at: PAST,
        ..head(state)
    };
    let gone = |state| Head {
        tombstone_until: PAST,
        ..expired(state)
    };
    vec![
        ("absent", None),
        ("running", Some(head(State::Running))),
        (
            "running, lease over",
            Some(Head {
                lease_until: NOW,
                ..head(State::Running)
            }),
        ),
        ("completed", Some(head(State::Completed))),
        (
            "completed, not kept",
            Some(Head {
                kept: false,
                ..head(State::Completed)
            }),
        ),
        ("failed", Some(head(State::Failed))),
        ("retryable", Some(head(State::Retryable))),
        (
            "retryable, last attempt",
            Some(Head {
                attempts: 100,
                ..head(State::Retryable)
            }),
        ),
        ("unknown", Some(head(State::Unknown))),
        (
            "unknown, last attempt",
            Some(Head {
                attempts: 100,
                ..head(State::Unknown)
            }),
        ),
        ("completed, retention over", Some(expired(State::Completed))),
        ("unknown, retention over", Some(expired(State::Unknown))),
        (
            "expired completed",
            Some(expired(State::Expired(Last::Completed))),
        ),
        (
            "expired failed",
            Some(expired(State::Expired(Last::Failed))),
        ),
        (
            "expired retryable",
            Some(expired(State::Expired(Last::Retryable))),
        ),
        (
            "expired unknown",
            Some(expired(State::Expired(Last::Unknown))),
        ),
        (
            "forgotten",
            Some(Head {
                fingerprint: None,
                ..expired(State::Expired(Last::Completed))
            }),
        ),
        ("completed, tombstone over", Some(gone(State::Completed))),
        (
            "expired, tombstone over",
            Some(gone(State::Expired(Last::Completed))),
        ),
        (
            "expired unknown, tombstone over",
            Some(gone(State::Expired(Last::Unknown))),
        ),
    ]
}

/// The decision for each record: for the same request in hold and in rerun, for another request,
/// for one whose deadline has passed, and for one whose token is past its life (both in rerun,
/// which begins more attempts).
const TABLE: &str = "
record                            | same, hold          | same, rerun         | other       | deadline passed     | token over
absent                            | attempt absent      | attempt absent      | attempt absent | deadline-passed  | key-expired
running                           | wait                | wait                | key-reused  | wait                | wait
running, lease over               | hold                | attempt lapsed      | key-reused  | hold                | hold
completed                         | replay              | replay              | key-reused  | replay              | replay
completed, not kept               | answer-not-kept 201 | answer-not-kept 201 | key-reused  | answer-not-kept 201 | answer-not-kept 201
failed                            | replay              | replay              | key-reused  | replay              | replay
retryable                         | attempt lapsed      | attempt lapsed      | key-reused  | deadline-passed     | key-expired
retryable, last attempt           | attempts-exhausted  | attempts-exhausted  | key-reused  | attempts-exhausted  | attempts-exhausted
unknown                           | outcome-unknown     | attempt lapsed      | key-reused  | outcome-unknown     | outcome-unknown
unknown, last attempt             | outcome-unknown     | outcome-unknown     | key-reused  | outcome-unknown     | outcome-unknown
completed, retention over         | key-expired completed | key-expired completed | key-reused | key-expired completed | key-expired completed
unknown, retention over           | outcome-unknown     | outcome-unknown     | key-reused  | outcome-unknown     | outcome-unknown
expired completed                 | key-expired completed | key-expired completed | key-reused | key-expired completed | key-expired completed
expired failed                    | key-expired failed  | key-expired failed  | key-reused  | key-expired failed  | key-expired failed
expired retryable                 | key-expired retryable | key-expired retryable | key-reused | key-expired retryable | key-expired retryable
expired unknown                   | outcome-unknown     | outcome-unknown     | key-reused  | outcome-unknown     | outcome-unknown
forgotten                         | key-expired completed | key-expired completed | key-expired completed | key-expired completed | key-expired completed
completed, tombstone over         | attempt absent      | attempt absent      | attempt absent | deadline-passed  | key-expired
expired, tombstone over           | attempt absent      | attempt absent      | attempt absent | deadline-passed  | key-expired
expired unknown, tombstone over   | outcome-unknown     | outcome-unknown     | key-reused  | outcome-unknown     | outcome-unknown
";

fn word(decision: &Decision) -> String {
    match decision {
        Decision::Attempt(Condition::Absent) => "attempt absent".into(),
        Decision::Attempt(Condition::Lapsed { fence }) if fence.as_u64() == 7 => {
            "attempt lapsed".into()
        }
        Decision::WriteLost(Condition::Lapsed { fence }) if fence.as_u64() == 7 => "hold".into(),
        Decision::Replay => "replay".into(),
        Decision::Wait => "wait".into(),
        Decision::Reject(Rejection::AnswerNotKept {
            status: Some(status),
            at: PAST,
        }) => format!("answer-not-kept {status}"),
        Decision::Reject(Rejection::KeyExpired {
            last: Some(last), ..
        }) => format!("key-expired {}", last.word()),
        Decision::Reject(rejection) => rejection.row().slug.into(),
        other => panic!("not a decision this table knows: {other:?}"),
    }
}

#[test]
fn every_state_against_every_event() {
    let (same, other) = (fingerprint(1), fingerprint(2));
    let ask = |fingerprint| Ask {
        fingerprint,
        deadline: None,
        token_until: None,
    };
    let (hold, rerun) = (
        Policy::default(),
        Policy {
            mode: Mode::Rerun,
            ..Policy::default()
        },
    );
    let events = [
        (ask(&same), &hold),
        (ask(&same), &rerun),
        (ask(&other), &rerun),
        (
            Ask {
                deadline: Some(PAST),
                ..ask(&same)
            },
            &rerun,
        ),
        (
            Ask {
                token_until: Some(PAST),
                ..ask(&same)
            },
            &rerun,
        ),
    ];

    let rows: Vec<Vec<&str>> = TABLE
        .trim()
        .lines()
        .skip(1)
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    let records = records();
    assert_eq!(rows.len(), records.len(), "each record has its row");
    for (row, (name, record)) in rows.iter().zip(&records) {
        assert_eq!(row[0], *name);
        for (expected, (ask, policy)) in row[1..].iter().zip(&events) {
            let decision = decide(record.as_ref(), ask, NOW, policy);
            assert_eq!(
                word(&decision),
                *expected,
                "{name} against {ask:?} in {:?}",
                policy.mode
            );
        }
        assert_eq!(row.len(), events.len() + 1);
    }
}

#[test]
fn modes_differ_only_in_what_follows_a_lost_attempt() {
    let fingerprint = fingerprint(1);
    let ask = Ask {
        fingerprint: &fingerprint,
        deadline: None,
        token_until: None,
    };
    let decided = |record: Option<&Head>, mode| {
        word(&decide(
            record,
            &ask,
            NOW,
            &Policy {
                mode,
                ..Policy::default()
            },
        ))
    };
    for (name, record) in records() {
        // A lost attempt has no status.
        let record = record.map(|head| Head {
            status: head.status.filter(|_| !head.state.is_open()),
            ..head
        });
        let rerun = decided(record.as_ref(), Mode::Rerun);
        for mode in [Mode::Transaction, Mode::Fenced, Mode::Probe] {
            assert_eq!(decided(record.as_ref(), mode), rerun, "{name} in {mode:?}");
        }
    }
    // An attempt that was answered as done was not rolled back. Older records have the plain status
    // of an attempt that did not join.
    let lost = |loss: Loss| Head {
        status: loss.code(),
        ..head(State::Unknown)
    };
    for loss in [
        Loss::Answered(201),
        Loss::NotJoined(Some(201)),
        Loss::NotJoined(Some(500)),
        Loss::NotJoined(None),
        Loss::Newer(4000),
    ] {
        assert_eq!(
            decided(Some(&lost(loss)), Mode::Transaction),
            "outcome-unknown",
            "{loss:?}"
        );
        assert_eq!(decided(Some(&lost(loss)), Mode::Fenced), "attempt lapsed");
    }
    for status in [201, 404, 422, 500] {
        let before = Head {
            status: Some(status),
            ..head(State::Unknown)
        };
        assert_eq!(
            decided(Some(&before), Mode::Transaction),
            "outcome-unknown",
            "{status}, from before"
        );
    }
    for loss in [
        Loss::Answered(408),
        Loss::Answered(500),
        Loss::TimedOut,
        Loss::BrokeOff,
        Loss::NoAnswer,
        Loss::Panicked,
        Loss::RanTooLong,
        Loss::Stopped,
        Loss::Lapsed,
    ] {
        assert_eq!(
            decided(Some(&lost(loss)), Mode::Transaction),
            "attempt lapsed",
            "{loss:?}"
        );
    }
}

#[test]
fn a_deadline_is_honoured_within_its_tolerance() {
    let fingerprint = fingerprint(1);
    let decide_at = |now| {
        let ask = Ask {
            fingerprint: &fingerprint,
            deadline: Some(NOW),
            token_until: None,
        };
        word(&decide(None, &ask, now, &Policy::default()))
    };
    assert_eq!(decide_at(NOW.after(DEADLINE_TOLERANCE)), "attempt absent");
    assert_eq!(
        decide_at(NOW.after(DEADLINE_TOLERANCE + Duration::from_micros(1))),
        "deadline-passed"
    );
}

#[test]
fn a_fingerprint_made_under_another_policy_is_another_fingerprint() {
    let json = Fingerprint {
        digest: [1; 32],
        policy: Arc::new(FingerprintPolicy::json()),
    };
    let ask = Ask {
        fingerprint: &json,
        deadline: None,
        token_until: None,
    };
    assert_eq!(
        word(&decide(
            Some(&head(State::Completed)),
            &ask,
            NOW,
            &Policy::default()
        )),
        "key-reused"
    );
}
