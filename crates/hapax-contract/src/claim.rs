//! `Absent`: a first attempt.

use hapax_core::record::Last;
use hapax_core::store::{Change, Claim};
use hapax_core::{Condition, Principal, Scope, State, Timestamp};

use super::Bench;
use super::subject::{
    FADING, FLEETING, LONG, SHORT, Subject, answer, completed, completion, fingerprint, released,
    unique_namespace, unknown,
};

pub(super) async fn a_first_claim_wins(bench: &Bench) {
    let subject = bench.subject();
    assert_eq!(subject.read().await, None);
    let claim = subject.claim(LONG);
    let won = subject
        .wins(Condition::Absent, Change::Claim(claim.clone()))
        .await;
    let head = won.head;

    assert_eq!((head.id, head.state), (subject.id, State::Running));
    assert_eq!((head.scope, head.key), (claim.scope, claim.key));
    assert_eq!(
        (head.token, head.fingerprint),
        (claim.token, Some(claim.fingerprint))
    );
    assert_eq!(head.attempts, 1);
    assert_eq!((head.created_at, head.claimed_at), (won.now, won.now));
    assert_eq!(head.lease_until, won.now.after(LONG));
    assert_eq!((head.status, head.kept), (None, false));
    assert_eq!(head.finished_at, Timestamp::ZERO);
}

pub(super) async fn a_second_claim_loses_and_sees_the_first(bench: &Bench) {
    let subject = bench.subject();
    let first = subject.running(LONG).await;
    let seen = subject
        .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await;
    assert_eq!(seen.record.map(|record| record.head), Some(first));
}

pub(super) async fn a_claim_of_a_completed_record_loses_and_sees_its_answer(bench: &Bench) {
    let subject = bench.subject();
    let head = subject.ended(completed("paid")).await;
    let record = subject
        .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await
        .record
        .expect("there is a record");
    assert_eq!((record.head, record.answer), (head, Some(answer("paid"))));
}

pub(super) async fn a_claim_sent_twice_finds_its_own_token(bench: &Bench) {
    let subject = bench.subject();
    let claim = subject.claim(LONG);
    let first = subject
        .wins(Condition::Absent, Change::Claim(claim.clone()))
        .await
        .head;
    let again = subject
        .loses(Condition::Absent, Change::Claim(claim.clone()))
        .await
        .record
        .expect("there is a record")
        .head;
    assert_eq!(
        (again.token, again.fence, again.state),
        (claim.token, first.fence, State::Running)
    );
}

pub(super) async fn a_lapsed_or_released_record_is_not_absent(bench: &Bench) {
    let (lapsed, retryable) = (bench.subject(), bench.subject());
    lapsed.running(SHORT).await;
    retryable.ended(released(FADING)).await;
    bench.pass(SHORT).await;
    lapsed
        .loses(Condition::Absent, Change::Claim(lapsed.claim(LONG)))
        .await;
    retryable
        .loses(Condition::Absent, Change::Claim(retryable.claim(LONG)))
        .await;
}

pub(super) async fn a_standing_tombstone_is_not_absent(bench: &Bench) {
    let subject = bench.subject();
    subject
        .ended(Change::Finish(completion("paid", FADING)))
        .await;
    bench.pass(SHORT).await;
    let seen = subject
        .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await;
    let state = seen
        .record
        .expect("there is a record")
        .head
        .state_at(seen.now);
    assert_eq!(state, State::Expired(Last::Completed));
}

/// Holds with or without a sweep. The old record's data is gone, but its fence still counts.
pub(super) async fn a_record_whose_tombstone_is_over_is_as_good_as_absent(bench: &Bench) {
    let subject = bench.subject();
    let old = subject
        .ended(Change::Finish(completion("paid", FLEETING)))
        .await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    let claim = Claim {
        fingerprint: fingerprint(2),
        ..subject.claim(LONG)
    };
    let won = subject
        .wins(Condition::Absent, Change::Claim(claim.clone()))
        .await;

    assert_eq!((won.head.attempts, won.head.created_at), (1, won.now));
    assert_eq!(
        (won.head.fingerprint, won.head.token),
        (Some(claim.fingerprint), claim.token)
    );
    assert!(won.head.fence > old.fence);
}

pub(super) async fn an_unresolved_record_is_never_as_good_as_absent(bench: &Bench) {
    let subject = bench.subject();
    subject.ended(unknown(FLEETING)).await;
    bench.pass(FLEETING.retention + FLEETING.tombstone).await;
    let seen = subject
        .loses(Condition::Absent, Change::Claim(subject.claim(LONG)))
        .await;
    let state = seen
        .record
        .expect("there is a record")
        .head
        .state_at(seen.now);
    assert_eq!(state, State::Expired(Last::Unknown));
}

pub(super) async fn records_of_two_scopes_do_not_meet(bench: &Bench) {
    let namespace = unique_namespace();
    let scope = |principal, path: &str| Scope {
        namespace: namespace.clone(),
        principal,
        method: "POST".into(),
        path: path.into(),
    };
    let scopes = [
        scope(Principal::Anonymous, "/a"),
        scope(Principal::named(""), "/a"),
        scope(Principal::named("A"), "/a"),
        scope(Principal::named("a"), "/a"),
        scope(Principal::named("a"), "/A"),
    ];
    let key = bench.subject().key;
    let subjects = scopes.map(|scope| Subject::of(bench.store.clone(), scope, key.clone()));
    for (number, subject) in subjects.iter().enumerate() {
        subject.ended(completed(&format!("answer {number}"))).await;
    }
    for (number, subject) in subjects.iter().enumerate() {
        let record = subject.record().await;
        assert_eq!(
            (record.head.scope, record.answer),
            (
                subject.scope.clone(),
                Some(answer(&format!("answer {number}")))
            )
        );
    }
}
