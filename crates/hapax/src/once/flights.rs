//! Flights: the keys this node is working on, so that repeats join instead of asking the store.
//!
//! The first request of a key leads the flight. Others join it and are woken when it ends. A flight
//! may also follow an attempt of another node: then a poll of the store, for all such keys
//! together, ends it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax_core::fingerprint::Fingerprint;
use hapax_core::rejection::Rejection;
use hapax_core::scope::RecordId;
use hapax_core::store::Seen;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::hash::Ids;

#[derive(Default)]
pub(crate) struct Flights {
    flights: Mutex<HashMap<RecordId, Arc<Flight>, Ids>>,
    waiters: AtomicUsize,
}

/// One key that this node is working on.
pub(crate) struct Flight {
    state: watch::Sender<FlightState>,
    waiters: AtomicUsize,
}

/// The progress of a flight.
#[derive(Clone)]
pub(crate) enum FlightState {
    /// The leader is asking the store.
    Claiming,
    /// An attempt is running, on this node or another.
    Running(Arc<Running>),
    /// The flight is over.
    Ended(FlightEnd),
}

/// The facts about a running attempt that a joiner needs.
pub(crate) struct Running {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) since: Instant,
}

/// How a flight ended.
#[derive(Clone)]
pub(crate) enum FlightEnd {
    /// A record was found or written. `ran` says that an attempt ended, rather than that the call
    /// was refused.
    Seen { seen: Arc<Seen>, ran: bool },
    /// The leader failed: joiners get the same rejection.
    Failed(Rejection),
    /// The leader learned nothing: joiners look for themselves.
    Again,
}

/// The role of an arriving request.
pub(crate) enum Entry {
    /// No request is working on the key: lead.
    Lead(FlightLead),
    /// Another request is working on the key: join it.
    Join(Arc<Flight>),
}

impl Flights {
    pub(crate) fn enter(self: &Arc<Self>, id: RecordId) -> Entry {
        use std::collections::hash_map::Entry as Slot;
        match self.flights.lock().entry(id) {
            Slot::Occupied(flight) => Entry::Join(flight.get().clone()),
            Slot::Vacant(slot) => {
                let flight = Arc::new(Flight {
                    state: watch::Sender::new(FlightState::Claiming),
                    waiters: AtomicUsize::new(0),
                });
                slot.insert(flight.clone());
                Entry::Lead(FlightLead {
                    flights: self.clone(),
                    id,
                    flight,
                    end: FlightEnd::Again,
                })
            }
        }
    }

    /// The flight of this key, if there is one.
    #[cfg(feature = "testing")]
    pub(crate) fn find(&self, id: RecordId) -> Option<Arc<Flight>> {
        self.flights.lock().get(&id).cloned()
    }
}

/// The leader's handle. Dropping it ends the flight, however the leader ends.
pub(crate) struct FlightLead {
    flights: Arc<Flights>,
    id: RecordId,
    flight: Arc<Flight>,
    end: FlightEnd,
}

impl FlightLead {
    pub(crate) fn id(&self) -> RecordId {
        self.id
    }

    /// Reports that an attempt is running.
    pub(crate) fn running(&self, fingerprint: Fingerprint, since: Instant) {
        self.flight.enter(FlightState::Running(Arc::new(Running {
            fingerprint,
            since,
        })));
    }

    /// Ends the flight with this result.
    pub(crate) fn end(mut self, end: FlightEnd) {
        self.end = end;
    }

    /// Ends the flight with a record.
    pub(crate) fn end_with(self, seen: Seen, ran: bool) {
        self.end(FlightEnd::Seen {
            seen: Arc::new(seen),
            ran,
        });
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.flight.waiters.load(Ordering::SeqCst) > 0
    }
}

impl Drop for FlightLead {
    fn drop(&mut self) {
        // Remove the flight before waking the waiters: a waiter that looks again must not find this
        // flight.
        self.flights.flights.lock().remove(&self.id);
        let end = std::mem::replace(&mut self.end, FlightEnd::Again);
        self.flight.enter(FlightState::Ended(end));
    }
}

impl Flight {
    /// Enters a state, and wakes the waiters.
    fn enter(&self, state: FlightState) {
        // Most flights have no waiters. A request that subscribes after this count reads the new
        // state, because both take the lock.
        self.state.send_if_modified(|current| {
            *current = state;
            self.state.receiver_count() > 0
        });
    }

    /// Waits until the claim is decided, and returns the state.
    pub(crate) async fn decided(&self) -> FlightState {
        let mut state = self.state.subscribe();
        let decided = state
            .wait_for(|state| !matches!(state, FlightState::Claiming))
            .await;
        decided.map_or(FlightState::Ended(FlightEnd::Again), |state| state.clone())
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> FlightEnd {
        let mut state = self.state.subscribe();
        match state
            .wait_for(|state| matches!(state, FlightState::Ended(_)))
            .await
            .as_deref()
        {
            Ok(FlightState::Ended(end)) => end.clone(),
            _ => FlightEnd::Again,
        }
    }

    /// Registers a waiter, unless too many wait for this key or on this node.
    pub(crate) fn wait(
        self: Arc<Self>,
        flights: &Arc<Flights>,
        per_key_max: usize,
        max: usize,
    ) -> Option<Waiter> {
        let waiter = Waiter {
            flights: flights.clone(),
            flight: self,
        };
        let of_key = waiter.flight.waiters.fetch_add(1, Ordering::SeqCst);
        let of_node = flights.waiters.fetch_add(1, Ordering::SeqCst);
        (of_key < per_key_max && of_node < max).then_some(waiter)
    }
}

/// A waiting request, counted while this value lives.
pub(crate) struct Waiter {
    flights: Arc<Flights>,
    pub(crate) flight: Arc<Flight>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.flight.waiters.fetch_sub(1, Ordering::SeqCst);
        self.flights.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
