//! What only the tests of a service ask of the engine.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::fingerprint::{Fingerprinter, RequestHead};
use hapax_core::guard;
use hapax_core::key::Key;
use hapax_core::memory::Memory;
use hapax_core::operation::{OperationIds, Secret};
use hapax_core::policy::Policy;
use hapax_core::record::{AttemptToken, Fence, State};
use hapax_core::scope::{Principal, RecordId, Scope};
use hapax_core::store::{Change, Claim, Condition, Put, Renewal, Store};
use hapax_core::time::{ManualClock, Timestamp};

use super::engine::Engine;
use super::operation::{Operation, OperationContext};
use super::quota_store::{QuotaStore, Quotas};

impl Engine {
    /// Goes on after this node has stood still for so long, by a clock that the store's agrees
    /// with. An attempt whose lease is over by then is lost, and its key is nobody's when this
    /// returns; the others have their leases renewed.
    pub(crate) async fn resume_after(&self, duration: Duration) {
        self.clock.skip(duration);
        self.lose_lapsed().await;
        // So that quotas and cached answers are judged by the new time at once.
        self.learn_info(Policy::default().store_timeout).await;
    }

    async fn lose_lapsed(&self) {
        let running = self.renewals.running();
        let ids = running.iter().map(|(id, ..)| *id).collect();
        let Ok(reading) = self.store.get(ids).await else {
            return;
        };
        let mut renewals = Vec::new();
        for ((id, fence, policy), record) in running.into_iter().zip(reading.records) {
            let is_running =
                record.is_some_and(|record| record.head.state_at(reading.now) == State::Running);
            if is_running {
                let lease = policy.lease;
                renewals.push(Renewal { id, fence, lease });
                continue;
            }
            let flight = self.flights.find(id);
            self.renewals.stop(id, fence);
            // Until then a repeat would join the lost attempt instead of asking the store.
            if let Some(flight) = flight {
                flight.ended().await;
            }
        }
        // What cannot be renewed now is tried again when it is due.
        let _ = self.store.renew(renewals).await;
    }
}

impl Operation {
    /// The first attempt of an operation of which no store has a record.
    pub(crate) fn alone(key: Key) -> Operation {
        let scope = Arc::new(Scope {
            namespace: "default".into(),
            principal: Principal::Anonymous,
            method: "POST".into(),
            path: "/".into(),
        });
        let (policy, clock) = (Arc::<Policy>::default(), ManualClock::new());
        let secret = Secret::from_bytes([0; 32]);
        let request = RequestHead {
            scope: &scope,
            target: &scope.path,
            headers: Vec::new(),
        };
        let fingerprint = Fingerprinter::new(&policy.fingerprint, &request).finish();
        let claim = Put {
            id: RecordId::of(&scope, &key),
            condition: Condition::Absent,
            change: Change::Claim(Claim {
                scope,
                key,
                fingerprint,
                token: AttemptToken::from_bytes([0; 16]),
                lease: policy.lease,
                terms: None,
                request_id: None,
            }),
        };
        let head = guard::judge(None, &claim, clock.now(), Fence::ZERO)
            .expect("a key that nobody has can be claimed");
        let id = OperationIds::new(secret, Timestamp::ZERO).make(&head.id, head.created_at);
        let store: Arc<dyn Store> = Arc::new(Memory::new(Arc::new(clock), secret));
        let ties = OperationContext {
            policy,
            store: Arc::new(QuotaStore::new(store, Quotas::default())),
            follows_lost: false,
            trace: None,
        };
        Operation::new(id, &head, ties)
    }
}
