//! Renewals: one statement per node and interval, and only for attempts that outlive a third of
//! their lease.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::policy::Policy;
use hapax_core::record::Fence;
use hapax_core::scope::RecordId;
use hapax_core::store::{Renewal, Store};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::engine::Engine;
use super::operation::Operation;
use crate::background;
use crate::hash::Ids;
use crate::observe::Event;

/// The shortest time limit for a renewal.
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
/// The most renewals in one statement.
const BATCH_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Renewals {
    inside: Mutex<Inside>,
    earlier: Notify,
}

#[derive(Default)]
struct Inside {
    leases: HashMap<(RecordId, Fence), Lease, Ids>,
    /// When the task looks next; `None` while there is no task.
    next_look: Option<Instant>,
}

struct Lease {
    operation: Operation,
    policy: Arc<Policy>,
    due: Instant,
}

/// Keeps a lease renewed until dropped.
pub(crate) struct Renewed {
    renewals: Arc<Renewals>,
    lease: (RecordId, Fence),
}

impl Drop for Renewed {
    fn drop(&mut self) {
        self.renewals.inside.lock().leases.remove(&self.lease);
    }
}

/// Renews the lease of this attempt for as long as the returned value lives.
pub(crate) fn keep(
    engine: &Arc<Engine>,
    id: RecordId,
    operation: &Operation,
    policy: &Arc<Policy>,
) -> Renewed {
    let key = (id, operation.fence());
    let due = Instant::now() + policy.lease / 3;
    let mut inside = engine.renewals.inside.lock();
    inside.leases.insert(
        key,
        Lease {
            operation: operation.clone(),
            policy: policy.clone(),
            due,
        },
    );
    let next_look = inside.next_look;
    inside.next_look = next_look.or(Some(due));
    drop(inside);
    match next_look {
        None => {
            let renewals = engine.renewals.clone();
            background::spawn(run(Arc::downgrade(engine), renewals.clone()), move || {
                renewals.inside.lock().next_look = None;
            });
        }
        Some(next) if due < next => engine.renewals.earlier.notify_one(),
        Some(_) => {}
    }
    Renewed {
        renewals: engine.renewals.clone(),
        lease: key,
    }
}

/// Renews the leases that are due, until no attempt is running. Keeps the engine alive only while
/// it renews.
async fn run(engine: Weak<Engine>, renewals: Arc<Renewals>) {
    while let Some(next_look) = renewals.plan() {
        tokio::select! {
            () = tokio::time::sleep_until(next_look) => {}
            () = renewals.earlier.notified() => continue,
        }
        let Some(engine) = engine.upgrade() else {
            return;
        };
        engine.renew_due().await;
    }
}

impl Renewals {
    /// Lets the lease of this attempt lapse; the attempt counts as lost from here on.
    pub(crate) fn stop(&self, id: RecordId, fence: Fence) {
        if let Some(lease) = self.inside.lock().leases.remove(&(id, fence)) {
            lease.operation.lose_lease();
        }
    }

    /// The attempts that are running here.
    pub(crate) fn running(&self) -> Vec<(RecordId, Fence, Arc<Policy>)> {
        self.inside
            .lock()
            .leases
            .iter()
            .map(|(&(id, fence), lease)| (id, fence, lease.policy.clone()))
            .collect()
    }

    /// When to look next. `None` without any lease: then the task ends.
    fn plan(&self) -> Option<Instant> {
        let mut inside = self.inside.lock();
        inside.next_look = inside.leases.values().map(|lease| lease.due).min();
        inside.next_look
    }

    fn due(&self) -> Vec<Renewal> {
        let now = Instant::now();
        let mut inside = self.inside.lock();
        let due = inside
            .leases
            .iter_mut()
            .filter(|(_, lease)| lease.due <= now)
            .take(BATCH_MAX);
        due.map(|(&(id, fence), lease)| {
            // A third of the lease leaves time for another try if the store does not reply.
            lease.due = now + lease.policy.lease / 3;
            Renewal {
                id,
                fence,
                lease: lease.policy.lease,
            }
        })
        .collect()
    }
}

impl Engine {
    async fn renew_due(&self) {
        let due = self.renewals.due();
        if due.is_empty() {
            return;
        }
        // The time limit is a third of the shortest lease, but not below the minimum: a lease too
        // short for any store must not make the renewal of the others fail.
        let shortest = due
            .iter()
            .map(|renewal| renewal.lease / 3)
            .min()
            .unwrap_or_default();
        let timeout = shortest.max(TIMEOUT_MIN);
        match tokio::time::timeout(timeout, self.store.renew(due.clone())).await {
            Ok(Ok(renewed)) => self.note_renewals(&due, &renewed),
            Ok(Err(error)) => self.store_failed(&error),
            // No reply within a third of the lease: the next round tries again.
            Err(_) => {}
        }
    }

    fn note_renewals(&self, due: &[Renewal], renewed: &[bool]) {
        let mut inside = self.renewals.inside.lock();
        let lost = due.iter().zip(renewed).filter(|(_, renewed)| !**renewed);
        let mut count = 0;
        for (renewal, _) in lost {
            if let Some(lease) = inside.leases.remove(&(renewal.id, renewal.fence)) {
                lease.operation.lose_lease();
                count += 1;
            }
        }
        drop(inside);
        self.observe(&Event::Renewed {
            renewed: due.len() - count,
            lost: count,
        });
    }
}
