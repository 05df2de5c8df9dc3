//! Following attempts of other nodes: one poll of the store for all of them together, however many
//! wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hapax_core::record::{Fence, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Reading, Seen};

use super::engine::Engine;
use super::flights::Seat;
use crate::hash::Ids;

/// How often the store is asked while somebody waits for another node.
const INTERVAL: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(crate) struct Remote {
    followed: Mutex<Followed>,
}

#[derive(Default)]
struct Followed {
    seats: HashMap<RecordId, (Seat, Fence), Ids>,
    polling: bool,
}

/// Lands this flight when the attempt with this fence is over, or when nobody waits any more.
pub(crate) fn follow(engine: &Arc<Engine>, seat: Seat, fence: Fence) {
    let mut followed = engine.remote.lock();
    followed.seats.insert(seat.id(), (seat, fence));
    if !std::mem::replace(&mut followed.polling, true) {
        tokio::spawn(poll(Task {
            engine: Arc::downgrade(engine),
            is_done: false,
        }));
    }
}

async fn poll(mut task: Task) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        let Some(engine) = task.engine.upgrade() else {
            return;
        };
        let ids = engine.remote.still_followed();
        if ids.is_empty() {
            task.is_done = true;
            return;
        }
        match tokio::time::timeout(engine.limits.poll_timeout, engine.store.get(ids.clone())).await
        {
            Ok(Ok(reading)) => engine.remote.land(&ids, reading),
            Ok(Err(error)) => engine.store_failed(&error),
            // Those who wait run out of patience by themselves.
            Err(_) => {}
        }
    }
}

/// The polling task's own mark. Should the task end before its time, with its runtime, its flights
/// land and the next begins anew.
struct Task {
    engine: Weak<Engine>,
    is_done: bool,
}

impl Drop for Task {
    fn drop(&mut self) {
        // A task that is done has said so with its last count, and another may have begun since.
        if let Some(engine) = self.engine.upgrade().filter(|_| !self.is_done) {
            // Out of the lock first: a seat that is dropped takes one of its own.
            let abandoned = std::mem::take(&mut *engine.remote.lock());
            drop(abandoned);
        }
    }
}

impl Remote {
    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ids somebody still waits for. Without any, polling ends.
    fn still_followed(&self) -> Vec<RecordId> {
        let mut followed = self.lock();
        followed.seats.retain(|_, (seat, _)| seat.has_waiters());
        followed.polling = !followed.seats.is_empty();
        followed.seats.keys().copied().collect()
    }

    fn land(&self, ids: &[RecordId], reading: Reading) {
        for (id, record) in ids.iter().zip(reading.records) {
            let mut followed = self.lock();
            let fence = followed.seats.get(id).map(|(_, fence)| *fence);
            let is_running = |head: &hapax_core::Head| {
                head.state_at(reading.now) == State::Running && Some(head.fence) == fence
            };
            if !record
                .as_ref()
                .is_some_and(|record| is_running(&record.head))
                && let Some((seat, _)) = followed.seats.remove(id)
            {
                drop(followed);
                seat.land_seen(
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
