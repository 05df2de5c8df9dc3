//! Tests what each fault does to the caller and to the wrapped store.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::store::{Change, Claim, Finish, Lifetime, ListQuery, StoreErrorKind, Written};
use hapax_core::{
    AttemptToken, Condition, Fingerprint, Key, Memory, Principal, Put, Record, RecordId, Scope,
    Secret, State, Store, StoreError,
};
use hapax_testkit::{Fault, Faulty, ManualClock, Verb};

/// A faulty store and the store that it wraps.
fn stores() -> (Arc<Faulty>, Arc<dyn Store>) {
    let inner: Arc<dyn Store> = Arc::new(Memory::new(
        Arc::new(ManualClock::new()),
        Secret::from_bytes([7; 32]),
    ));
    (Arc::new(Faulty::new(inner.clone())), inner)
}

fn claim(key: &str) -> Put {
    let scope = Scope {
        namespace: "faulty".into(),
        principal: Principal::Anonymous,
        method: "POST".into(),
        path: "/".into(),
    };
    let key = Key::new(key).unwrap();
    let id = RecordId::of(&scope, &key);
    let fingerprint = Fingerprint {
        digest: [1; 32],
        policy: Arc::new(FingerprintPolicy::default()),
    };
    let token = AttemptToken::from_bytes([2; 16]);
    let claim = Claim {
        scope: Arc::new(scope),
        key,
        fingerprint,
        token,
        lease: Duration::from_secs(10),
        terms: None,
        request_id: None,
    };
    Put {
        id,
        condition: Condition::Absent,
        change: Change::Claim(claim),
    }
}

async fn stored(store: &Arc<dyn Store>, put: &Put) -> Option<Record> {
    store.get(vec![put.id]).await.unwrap().records.remove(0)
}

fn is_won(written: &Result<Written, StoreError>) -> bool {
    matches!(written, Ok(Written::Won(_)))
}

fn is_unavailable<T>(reply: &Result<T, StoreError>) -> bool {
    reply
        .as_ref()
        .is_err_and(|error| error.kind() == StoreErrorKind::Unavailable)
}

#[tokio::test]
async fn without_a_script_all_is_well() {
    let (faulty, inner) = stores();
    assert!(is_won(&faulty.put_if(claim("a")).await));
    assert!(stored(&inner, &claim("a")).await.is_some());
    assert_eq!(
        (
            faulty.calls(Verb::PutIf),
            faulty.calls(Verb::Get),
            faulty.faults_landed()
        ),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn an_error_before_leaves_nothing_and_one_after_leaves_the_write() {
    let (faulty, inner) = stores();
    faulty.fail_next(Verb::PutIf, Fault::ErrorBefore, 1);
    faulty.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
    assert!(is_unavailable(&faulty.put_if(claim("a")).await));
    assert_eq!(stored(&inner, &claim("a")).await, None);
    assert!(is_unavailable(&faulty.put_if(claim("a")).await));
    assert!(stored(&inner, &claim("a")).await.is_some());
    assert!(
        is_won(&faulty.put_if(claim("b")).await),
        "the script is over"
    );
    assert_eq!((faulty.calls(Verb::PutIf), faulty.faults_landed()), (3, 2));
}

#[tokio::test]
async fn a_script_is_followed_call_by_call_and_verb_by_verb() {
    let (faulty, _) = stores();
    faulty.let_through(Verb::Info, 2);
    faulty.fail_next(Verb::Info, Fault::ErrorBefore, 0);
    faulty.fail_next(Verb::Info, Fault::ErrorBefore, 2);
    faulty.let_through(Verb::Info, 1);
    faulty.fail_next(Verb::Info, Fault::ErrorAfter, 1);
    let mut went_well = Vec::new();
    for _ in 0..7 {
        assert!(
            faulty.get(Vec::new()).await.is_ok(),
            "another verb, another script"
        );
        went_well.push(faulty.info().await.is_ok());
    }
    assert_eq!(went_well, [true, true, false, false, true, false, true]);
}

#[tokio::test]
async fn a_hanging_call_is_not_applied_and_fails_when_released() {
    let (faulty, inner) = stores();
    faulty.fail_next(Verb::PutIf, Fault::Hang, 1);
    let call = tokio::spawn({
        let faulty = faulty.clone();
        async move { faulty.put_if(claim("a")).await }
    });
    faulty.wait_for_calls(Verb::PutIf, 1).await;
    assert!(!call.is_finished());
    faulty.release();
    assert!(is_unavailable(&call.await.unwrap()));
    assert_eq!(stored(&inner, &claim("a")).await, None);
}

#[tokio::test]
async fn a_call_that_hangs_after_is_applied_and_replies_when_released() {
    let (faulty, inner) = stores();
    faulty.fail_next(Verb::PutIf, Fault::HangAfter, 1);
    let call = tokio::spawn({
        let faulty = faulty.clone();
        async move { faulty.put_if(claim("a")).await }
    });
    faulty.wait_for_applied(1).await;
    assert!(stored(&inner, &claim("a")).await.is_some());
    assert!(!call.is_finished());
    faulty.release();
    assert!(is_won(&call.await.unwrap()));
}

#[tokio::test]
async fn a_late_call_lands_though_its_caller_gave_up() {
    let (faulty, inner) = stores();
    faulty.fail_next(Verb::PutIf, Fault::Late, 1);
    let call = tokio::spawn({
        let faulty = faulty.clone();
        async move { faulty.put_if(claim("a")).await }
    });
    faulty.wait_for_calls(Verb::PutIf, 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    assert_eq!(stored(&inner, &claim("a")).await, None);
    faulty.release();
    faulty.wait_for_applied(1).await;
    assert!(stored(&inner, &claim("a")).await.is_some());
}

#[tokio::test]
async fn a_late_call_replies_to_a_caller_who_waits() {
    let (faulty, _) = stores();
    faulty.fail_next(Verb::PutIf, Fault::Late, 1);
    let call = tokio::spawn({
        let faulty = faulty.clone();
        async move { faulty.put_if(claim("a")).await }
    });
    faulty.wait_for_calls(Verb::PutIf, 1).await;
    faulty.release();
    assert!(is_won(&call.await.unwrap()));
}

#[tokio::test]
async fn a_release_frees_only_what_waits_already() {
    let (faulty, _) = stores();
    faulty.release();
    faulty.fail_next(Verb::Info, Fault::Hang, 1);
    let call = tokio::spawn({
        let faulty = faulty.clone();
        async move { faulty.info().await }
    });
    faulty.wait_for_calls(Verb::Info, 1).await;
    tokio::task::yield_now().await;
    assert!(!call.is_finished());
    faulty.release();
    assert!(call.await.unwrap().is_err());
}

#[tokio::test]
async fn faults_can_be_chosen_by_what_is_written() {
    let (faulty, inner) = stores();
    let unlucky = claim("unlucky").id;
    faulty.fail_when(move |put| (put.id == unlucky).then_some(Fault::ErrorAfter));
    faulty.fail_next(Verb::PutIf, Fault::ErrorBefore, 1);
    assert!(is_unavailable(&faulty.put_if(claim("unlucky")).await));
    assert!(stored(&inner, &claim("unlucky")).await.is_some());
    assert!(
        is_unavailable(&faulty.put_if(claim("lucky")).await),
        "where no fault is chosen, the script is followed"
    );
    faulty.heal();
    assert!(is_won(&faulty.put_if(claim("lucky")).await));
}

#[tokio::test]
async fn a_store_that_is_down_fails_every_verb_until_it_is_up() {
    let (faulty, inner) = stores();
    faulty.down(true);
    assert!(is_unavailable(&faulty.put_if(claim("a")).await));
    assert!(is_unavailable(&faulty.get(Vec::new()).await));
    assert!(is_unavailable(&faulty.renew(Vec::new()).await));
    assert!(is_unavailable(
        &faulty
            .list(ListQuery {
                state: None,
                after: None,
                limit: 1
            })
            .await
    ));
    assert!(is_unavailable(&faulty.sweep(1).await));
    assert!(is_unavailable(&faulty.info().await));
    assert_eq!(faulty.faults_landed(), 6);
    assert_eq!(stored(&inner, &claim("a")).await, None);
    faulty.down(false);
    assert!(is_won(&faulty.put_if(claim("a")).await));
}

/// Callers of an ambiguous store rely on this.
#[tokio::test]
async fn a_claim_whose_reply_was_lost_is_found_by_its_token() {
    let (faulty, _) = stores();
    faulty.fail_next(Verb::PutIf, Fault::ErrorAfter, 1);
    assert!(faulty.put_if(claim("a")).await.is_err());
    let Ok(Written::Lost(seen)) = faulty.put_if(claim("a")).await else {
        panic!("the first claim was applied")
    };
    let head = seen.record.unwrap().head;
    assert_eq!(head.token, AttemptToken::from_bytes([2; 16]));
    let finish = Finish {
        state: State::Completed,
        status: Some(200),
        answer: None,
        lifetime: Lifetime::default(),
    };
    let finish = Put {
        id: head.id,
        condition: Condition::Held { fence: head.fence },
        change: Change::Finish(finish),
    };
    assert!(is_won(&faulty.put_if(finish).await));
}
