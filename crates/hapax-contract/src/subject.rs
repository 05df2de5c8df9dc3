//! The subject: one record under test, and the checks that every write to it must pass.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::Signed;
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::store::{Change, Claim, Finish, Lifetime, Reading, Renewal, Seen, Won, Written};
use hapax_core::{
    Answer, AttemptToken, Condition, Fence, Fingerprint, Head, Key, Principal, Put, Record,
    RecordId, RequestId, Scope, State, Store,
};

use super::bench::unique;

/// The prefix of every namespace of the contract, which separates its records from all others.
pub const NAMESPACE: &str = "contract:";

/// For times that must run out while a case waits.
pub(super) const SHORT: Duration = Duration::from_millis(20);
/// For times that must not run out, however slow the store is.
pub(super) const LONG: Duration = Duration::from_secs(60 * 60);

/// A lifetime that replays for as long as a case runs.
pub(super) const KEPT: Lifetime = Lifetime {
    retention: LONG,
    tombstone: LONG,
};
/// A lifetime that becomes a lasting tombstone after `SHORT`.
pub(super) const FADING: Lifetime = Lifetime {
    retention: SHORT,
    tombstone: LONG,
};
/// A lifetime that is over after twice `SHORT`: the record then counts as absent.
pub(super) const FLEETING: Lifetime = Lifetime {
    retention: SHORT,
    tombstone: SHORT,
};

/// A record with a scope and key that no other case uses. Clones are the same record.
#[derive(Clone)]
pub(super) struct Subject {
    store: Arc<dyn Store>,
    pub(super) id: RecordId,
    pub(super) scope: Arc<Scope>,
    pub(super) key: Key,
}

impl Subject {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        let scope = Scope {
            namespace: unique_namespace(),
            principal: Principal::named("somebody"),
            method: "POST".into(),
            path: "/v1/charges".into(),
        };
        Subject::of(store, scope, Key::new("order-17").expect("a key"))
    }

    pub(super) fn of(store: Arc<dyn Store>, scope: Scope, key: Key) -> Self {
        Subject {
            store,
            id: RecordId::of(&scope, &key),
            scope: Arc::new(scope),
            key,
        }
    }

    /// A claim with a new attempt token.
    pub(super) fn claim(&self, lease: Duration) -> Claim {
        Claim {
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint: fingerprint(1),
            token: new_token(),
            lease,
            terms: None,
            request_id: Some(new_request_id()),
        }
    }

    /// Sends a write, without checks.
    pub(super) async fn put(&self, condition: Condition, change: Change) -> Written {
        self.store
            .put_if(Put {
                id: self.id,
                condition,
                change,
            })
            .await
            .expect("put_if")
    }

    /// Sends a write that must win. The next reading must show its head and answer.
    pub(super) async fn wins(&self, condition: Condition, change: Change) -> Won {
        let answer = change.answer().cloned();
        match self.put(condition, change).await {
            Written::Lost(seen) => panic!("{condition:?} should hold of {seen:?}"),
            Written::Won(won) => {
                assert_eq!(
                    won.head.kept,
                    answer.is_some(),
                    "an answer is kept iff the change has one"
                );
                let Reading { records, now } = self.store.get(vec![self.id]).await.expect("get");
                // A very short lifetime may have made it a tombstone already.
                let head = won.head.clone().at(now);
                let expected = Record {
                    answer: answer.filter(|_| head.kept),
                    head,
                };
                assert_same(Some(&expected), records[0].as_ref(), "what was won is read");
                won
            }
        }
    }

    /// Sends a write that must lose. It must return the current record and change nothing.
    pub(super) async fn loses(&self, condition: Condition, change: Change) -> Seen {
        let before = self.read().await;
        match self.put(condition, change).await {
            Written::Won(won) => {
                panic!("{condition:?} should not hold; it made {before:?} into {won:?}")
            }
            Written::Lost(seen) => {
                assert_same(
                    before.as_ref(),
                    seen.record.as_ref(),
                    "the loser is shown what is there",
                );
                assert_same(
                    before.as_ref(),
                    self.read().await.as_ref(),
                    "a lost write changes nothing",
                );
                seen
            }
        }
    }

    pub(super) async fn renew(&self, fence: Fence, lease: Duration) -> bool {
        let renewed = self
            .store
            .renew(vec![Renewal {
                id: self.id,
                fence,
                lease,
            }])
            .await
            .expect("renew");
        assert_eq!(renewed.len(), 1, "one renewal, one reply");
        renewed[0]
    }

    pub(super) async fn read(&self) -> Option<Record> {
        let mut reading = self.store.get(vec![self.id]).await.expect("get");
        assert_eq!(reading.records.len(), 1, "one id, one reply");
        reading.records.pop().flatten()
    }

    /// Reads the record, which must exist.
    pub(super) async fn record(&self) -> Record {
        self.read().await.expect("there is a record")
    }

    /// Begins the first attempt, which then runs.
    pub(super) async fn running(&self, lease: Duration) -> Head {
        self.wins(Condition::Absent, Change::Claim(self.claim(lease)))
            .await
            .head
    }

    /// Makes a first attempt and ends it with `change`.
    pub(super) async fn ended(&self, change: Change) -> Head {
        let fence = self.running(LONG).await.fence;
        self.wins(Condition::Held { fence }, change).await.head
    }

    /// Takes over from the attempt with this fence.
    pub(super) async fn taken_over(&self, fence: Fence, lease: Duration) -> Head {
        self.wins(
            Condition::Lapsed { fence },
            Change::Claim(self.claim(lease)),
        )
        .await
        .head
    }
}

/// Compares records without printing answers, which may be large.
fn assert_same(expected: Option<&Record>, found: Option<&Record>, law: &str) {
    assert_eq!(
        expected.map(|record| &record.head),
        found.map(|record| &record.head),
        "{law}"
    );
    let (expected, found) = (
        expected.and_then(|record| record.answer.as_ref()),
        found.and_then(|record| record.answer.as_ref()),
    );
    let brief = |answer: &Arc<Answer>| {
        (
            answer.status,
            answer.headers.len(),
            answer.body.len(),
            answer.trailers.len(),
        )
    };
    assert!(
        expected == found,
        "{law}: answer {:?} came back as {:?}",
        expected.map(brief),
        found.map(brief)
    );
}

/// A namespace that no other case, process or run uses.
pub(super) fn unique_namespace() -> Arc<str> {
    let (random, count) = unique();
    format!("{NAMESPACE}{random:016x}-{count}").into()
}

pub(super) fn new_token() -> AttemptToken {
    let (random, count) = unique();
    AttemptToken::from_bytes((u128::from(random) << 64 | u128::from(count)).to_be_bytes())
}

pub(super) fn new_request_id() -> RequestId {
    let (random, count) = unique();
    RequestId::new(&format!("{random:016x}-{count}")).expect("plain text")
}

pub(super) fn fingerprint(number: u8) -> Fingerprint {
    Fingerprint {
        digest: [number; 32],
        policy: Arc::new(FingerprintPolicy::default()),
    }
}

pub(super) fn answer(body: &str) -> Arc<Answer> {
    Arc::new(Answer::new(201, body.to_owned()))
}

pub(super) fn completion(body: &str, lifetime: Lifetime) -> Finish {
    Finish {
        state: State::Completed,
        status: Some(201),
        answer: Some(answer(body)),
        lifetime,
    }
}

pub(super) fn without_answer(state: State, lifetime: Lifetime) -> Finish {
    Finish {
        state,
        status: None,
        answer: None,
        lifetime,
    }
}

/// The signature of changes by hand in this suite.
pub(super) fn signed() -> Signed {
    Signed::new("the contract", "to see what comes of it").expect("both are said")
}

pub(super) fn settlement(finish: Finish) -> Change {
    Change::Settle(finish, signed())
}

pub(super) fn forgetting(lifetime: Lifetime) -> Change {
    Change::Forget(lifetime, signed())
}

pub(super) fn completed(body: &str) -> Change {
    Change::Finish(completion(body, KEPT))
}

pub(super) fn released(lifetime: Lifetime) -> Change {
    Change::Finish(without_answer(State::Retryable, lifetime))
}

pub(super) fn unknown(lifetime: Lifetime) -> Change {
    Change::Finish(without_answer(State::Unknown, lifetime))
}
