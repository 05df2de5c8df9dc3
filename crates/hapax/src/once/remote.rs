//! Following attempts of other nodes: one poll of the store for all of them together.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::record::{Fence, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Reading, Seen, Store};
use parking_lot::Mutex;

use super::engine::Engine;
use super::flights::FlightLead;
use crate::background;
use crate::hash::Ids;

/// How often the store is polled while requests wait for another node.
const INTERVAL: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Remote {
    followed: Mutex<Followed>,
}

#[derive(Default)]
struct Followed {
    leads: HashMap<RecordId, (FlightLead, Fence), Ids>,
    polling: bool,
}

/// Ends this flight when the attempt with this fence is over, or when no request waits for it any
/// more.
pub(crate) fn follow(engine: &Arc<Engine>, lead: FlightLead, fence: Fence) {
    let mut followed = engine.remote.followed.lock();
    followed.leads.insert(lead.id(), (lead, fence));
    let is_polling = std::mem::replace(&mut followed.polling, true);
    drop(followed);
    if !is_polling {
        let engine = Arc::downgrade(engine);
        background::spawn(poll(engine.clone()), move || {
            if let Some(engine) = engine.upgrade() {
                // Take them out of the lock first: ending a flight takes another lock.
                let abandoned = std::mem::take(&mut *engine.remote.followed.lock());
                drop(abandoned);
            }
        });
    }
}

async fn poll(engine: Weak<Engine>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(engine) = engine.upgrade() else {
            return;
        };
        let ids = engine.remote.still_followed();
        if ids.is_empty() {
            return;
        }
        match tokio::time::timeout(engine.limits.poll_timeout, engine.store.get(ids.clone())).await
        {
            Ok(Ok(reading)) => engine.remote.end_flights(&ids, reading),
            Ok(Err(error)) => engine.store_failed(&error),
            // The waiters have their own time limits.
            Err(_) => {}
        }
    }
}

impl Remote {
    /// The ids that requests still wait for. Polling ends when there are none.
    fn still_followed(&self) -> Vec<RecordId> {
        let mut followed = self.followed.lock();
        followed.leads.retain(|_, (lead, _)| lead.has_waiters());
        followed.polling = !followed.leads.is_empty();
        followed.leads.keys().copied().collect()
    }

    fn end_flights(&self, ids: &[RecordId], reading: Reading) {
        for (id, record) in ids.iter().zip(reading.records) {
            let mut followed = self.followed.lock();
            let fence = followed.leads.get(id).map(|(_, fence)| *fence);
            let is_running = |head: &hapax_core::Head| {
                head.state_at(reading.now) == State::Running && Some(head.fence) == fence
            };
            if !record
                .as_ref()
                .is_some_and(|record| is_running(&record.head))
                && let Some((lead, _)) = followed.leads.remove(id)
            {
                drop(followed);
                lead.end_with(
                    Seen {
                        record,
                        now: reading.now,
                    },
                    true,
                );
            }
        }
    }
}
