//! Writes as the engine would send them, for tests that call a store directly.

use std::sync::Arc;
use std::time::Duration;

use hapax::{Answer, Key, Principal, RecordId, Scope};
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy};
use hapax_core::record::{AttemptToken, Fence, State};
use hapax_core::store::{Change, Claim, Condition, Finish, Lifetime, Put};

/// Longer than every test.
pub(crate) const LONG: Duration = Duration::from_secs(60 * 60);

/// One record, and the attempt token of its claim.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) id: RecordId,
    pub(crate) key: Key,
    pub(crate) token: AttemptToken,
    scope: Arc<Scope>,
}

impl Subject {
    /// The record of a key, with a new attempt token.
    pub(crate) fn new(key: &str) -> Subject {
        let scope = Scope {
            namespace: "faults".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/v1/charges".into(),
        };
        let key = Key::new(key).expect("a key");
        let token = AttemptToken::from_bytes(uuid::Uuid::new_v4().into_bytes());
        Subject {
            id: RecordId::of(&scope, &key),
            key,
            token,
            scope: Arc::new(scope),
        }
    }

    /// `count` subjects, in the order of their keys.
    pub(crate) fn many(name: &str, count: usize) -> Vec<Subject> {
        (0..count)
            .map(|number| Subject::new(&format!("{name}-{number}")))
            .collect()
    }

    /// The first claim of the record.
    pub(crate) fn claim(&self, lease: Duration) -> Put {
        let fingerprint = Fingerprint {
            policy: Arc::new(FingerprintPolicy::default()),
            digest: [7; 32],
        };
        let claim = Claim {
            scope: self.scope.clone(),
            key: self.key.clone(),
            fingerprint,
            token: self.token,
            lease,
            terms: None,
            request_id: None,
        };
        Put {
            id: self.id,
            condition: Condition::Absent,
            change: Change::Claim(claim),
        }
    }

    /// The end of an attempt, with an answer for `lifetime`.
    pub(crate) fn complete(&self, fence: Fence, answer: &Arc<Answer>, lifetime: Lifetime) -> Put {
        let finish = Finish {
            state: State::Completed,
            status: Some(201),
            answer: Some(answer.clone()),
            lifetime,
        };
        Put {
            id: self.id,
            condition: Condition::Held { fence },
            change: Change::Finish(finish),
        }
    }

    /// The first claim as SQL, for a session that keeps its transaction open.
    pub(crate) fn claim_sql(&self) -> String {
        let (id, token, digest) = (self.id, uuid::Uuid::new_v4(), "07".repeat(32));
        format!(
            "SELECT * FROM hapax.claim(ARRAY['\\x{id}']::bytea[], ARRAY[NULL]::int8[], ARRAY['{token}']::uuid[], ARRAY[3600000000]::int8[],
             ARRAY(SELECT id FROM hapax.policies LIMIT 1), ARRAY['\\x{digest}']::bytea[], ARRAY['n']::bytea[], ARRAY[NULL]::bytea[], ARRAY['m']::bytea[], ARRAY['p']::bytea[],
             ARRAY['k']::bytea[], ARRAY[NULL]::int8[])"
        )
    }

    /// The SQL condition that selects its row.
    pub(crate) fn row(&self) -> String {
        format!("id = '\\x{}'", self.id)
    }
}

/// An hour of retention and an hour as a tombstone.
pub(crate) fn kept() -> Lifetime {
    Lifetime {
        retention: LONG,
        tombstone: LONG,
    }
}

pub(crate) fn answer(body: &str) -> Arc<Answer> {
    Arc::new(Answer::new(201, body.to_owned()))
}
