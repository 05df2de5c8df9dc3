//! Flights: what this node is working on, so that repeats join instead of asking the store.
//!
//! The first request of a key to arrive takes the seat and leads; others join its flight and are
//! woken by push when it lands. A flight may also follow an attempt of another node: then one poll
//! of the store, for all such keys together, lands it.

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

/// How far it has come.
#[derive(Clone)]
pub(crate) enum FlightState {
    /// Asking the store.
    Claiming,
    /// An attempt is running, here or elsewhere.
    Running(Arc<Running>),
    /// It is over.
    Ended(FlightEnd),
}

/// What a joiner needs to know of a running attempt.
pub(crate) struct Running {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) since: Instant,
}

/// How a flight ended.
#[derive(Clone)]
pub(crate) enum FlightEnd {
    /// With this record; `ran` if an attempt ended, rather than one being refused.
    Seen { seen: Arc<Seen>, ran: bool },
    /// With nothing to show: joiners are told the same.
    Failed(Rejection),
    /// Without finding out anything: joiners look for themselves.
    Again,
}

/// What a request finds when it arrives.
pub(crate) enum Entry {
    /// Nobody is at it: lead.
    Lead(FlightLead),
    /// Somebody is: join.
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
}

/// The leader's place. Leaving it lands the flight, however the leader ends.
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

    /// An attempt is running.
    pub(crate) fn running(&self, fingerprint: Fingerprint, since: Instant) {
        self.flight.enter(FlightState::Running(Arc::new(Running {
            fingerprint,
            since,
        })));
    }

    /// Leaves, with this to tell.
    pub(crate) fn end(mut self, end: FlightEnd) {
        self.end = end;
    }

    /// Leaves with a record.
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
        // First off the board, then the news: who is woken and looks again must not find this
        // flight.
        self.flights.flights.lock().remove(&self.id);
        let end = std::mem::replace(&mut self.end, FlightEnd::Again);
        self.flight.enter(FlightState::Ended(end));
    }
}

impl Flight {
    /// Goes on to this state, and wakes whoever waits for it.
    fn enter(&self, state: FlightState) {
        // Most flights have nobody to wake. Who subscribes after this count reads the state after
        // it was written: both take the lock.
        self.state.send_if_modified(|current| {
            *current = state;
            self.state.receiver_count() > 0
        });
    }

    /// The state after the claim is decided.
    pub(crate) async fn decided(&self) -> FlightState {
        let mut state = self.state.subscribe();
        let decided = state
            .wait_for(|state| !matches!(state, FlightState::Claiming))
            .await;
        decided.map_or(FlightState::Ended(FlightEnd::Again), |state| state.clone())
    }

    /// The end, by push.
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

    /// A place among the waiters, unless too many wait for this key or on this node.
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

/// A request that waits, counted.
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
