//! Following attempts of other nodes: one poll of the store for all of them together, and at once for
//! a record that the store [tells of](hapax_core::store::Wakes).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::record::{Fence, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Reading, Seen, Store};
use parking_lot::Mutex;
use tokio::time::Instant;

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
    if let Some(wakes) = engine.store.wakes() {
        wakes.watch(lead.id());
    }
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
    let mut next = Instant::now() + INTERVAL;
    while let Some(engine) = engine.upgrade() {
        let ids = match changed(&engine, next).await {
            Some(id) => vec![id],
            None => {
                next = Instant::now() + INTERVAL;
                let ids = still_followed(&engine);
                if ids.is_empty() {
                    return;
                }
                ids
            }
        };
        match tokio::time::timeout(engine.limits.poll_timeout, engine.store.get(ids.clone())).await
        {
            Ok(Ok(reading)) => end_flights(&engine, &ids, reading),
            Ok(Err(error)) => engine.store_failed(&error),
            // The waiters have their own time limits.
            Err(_) => {}
        }
    }
}

/// A record that the store tells of before `next`, when all are polled.
async fn changed(engine: &Engine, next: Instant) -> Option<RecordId> {
    // However much the store tells of: what it could not tell of is found by the poll.
    if Instant::now() >= next {
        return None;
    }
    match engine.store.wakes() {
        Some(wakes) => tokio::time::timeout_at(next, wakes.changed()).await.ok(),
        None => {
            tokio::time::sleep_until(next).await;
            None
        }
    }
}

/// The ids that requests still wait for. Polling ends when there are none.
fn still_followed(engine: &Engine) -> Vec<RecordId> {
    let mut followed = engine.remote.followed.lock();
    let left: Vec<_> = followed
        .leads
        .extract_if(|_, (lead, _)| !lead.has_waiters())
        .collect();
    followed.polling = !followed.leads.is_empty();
    let ids = followed.leads.keys().copied().collect();
    drop(followed);
    for (id, _) in &left {
        unwatch(engine, id);
    }
    ids
}

fn unwatch(engine: &Engine, id: &RecordId) {
    if let Some(wakes) = engine.store.wakes() {
        wakes.unwatch(*id);
    }
}

fn end_flights(engine: &Engine, ids: &[RecordId], reading: Reading) {
    for (id, record) in ids.iter().zip(reading.records) {
        let mut followed = engine.remote.followed.lock();
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
            unwatch(engine, id);
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
