//! Redis as a cache of another store: values that may be lost at any moment, behind a circuit
//! breaker.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::scope::RecordId;
use hapax_core::store::{StoreError, Wakes};
use parking_lot::Mutex;
use redis::Value;
use tokio::time::Instant;

use super::partition::{self, Partition};
use super::shared::Shared;
use super::topology::{Command, Topology};
use super::wakes::Subscriptions;
use super::{AddressError, Options, reply};

/// A Redis that only keeps copies.
pub(in crate::store) struct Cache {
    topology: Arc<Topology>,
    subscriptions: Subscriptions,
    breaker: Breaker,
}

/// What was found for a record.
pub(in crate::store) enum Found {
    Value(Vec<u8>),
    Nothing,
    /// Redis failed.
    Failed,
    /// Redis was not asked, because it has failed lately.
    LeftAlone,
}

impl Cache {
    /// Connects when it is first used. Connections run on the current runtime.
    pub(in crate::store) fn new(address: &str, timeout: Duration) -> Result<Cache, AddressError> {
        let options = Options {
            call_timeout: timeout,
            is_store: false,
            ..Options::best_effort(address)?
        };
        let shared = Arc::new(Shared::new(options));
        let topology = Arc::new(Topology::new(shared));
        Ok(Cache {
            subscriptions: Subscriptions::start(&topology),
            topology,
            breaker: Breaker::default(),
        })
    }

    pub(in crate::store) async fn get(&self, id: &RecordId) -> Found {
        let command = Command::plain("GET", partition::cached(id));
        match self.call(id, command).await {
            None => Found::LeftAlone,
            Some(Err(_)) => Found::Failed,
            Some(Ok(value)) => match reply::bytes(value) {
                Ok(Some(value)) => Found::Value(value),
                Ok(None) => Found::Nothing,
                Err(_) => Found::Failed,
            },
        }
    }

    /// Keeps a value, and tells those who wait for the record. Returns whether that was done.
    pub(in crate::store) async fn put(
        &self,
        id: &RecordId,
        value: Vec<u8>,
        keep_for: Duration,
    ) -> bool {
        let milliseconds = u64::try_from(keep_for.as_millis()).unwrap_or(u64::MAX);
        let put = Command::plain("SET", partition::cached(id))
            .arg(value)
            .arg("PX")
            .number(milliseconds.clamp(1, 1 << 50));
        // Both go into one pipeline, in this order.
        let (put, _) = tokio::join!(self.call(id, put), self.publish(id));
        matches!(put, Some(Ok(_)))
    }

    /// Tells those who wait for the record that it has changed.
    pub(in crate::store) async fn publish(&self, id: &RecordId) {
        let channel = partition::head(id);
        let publish = Command::plain(self.topology.publish(), channel).arg("");
        drop(self.call(id, publish).await);
    }

    pub(in crate::store) async fn remove(&self, id: &RecordId) {
        let remove = Command::plain("DEL", partition::cached(id));
        drop(self.call(id, remove).await);
    }

    pub(in crate::store) fn wakes(&self) -> &dyn Wakes {
        &self.subscriptions
    }

    /// Whether Redis is being left alone.
    pub(in crate::store) fn is_left_alone(&self) -> bool {
        self.breaker.is_open()
    }

    /// `None` if Redis is left alone.
    async fn call(&self, id: &RecordId, command: Command) -> Option<Result<Value, StoreError>> {
        let role = self.breaker.admit()?;
        let called = self.topology.call(Partition::of(id), command).await;
        match &called {
            Ok(_) => self.breaker.succeeded(),
            Err(_) => self.breaker.failed(role),
        }
        Some(called)
    }
}

/// Leaves a Redis alone that fails. After a pause one call tries it again.
#[derive(Default)]
struct Breaker(Mutex<State>);

#[derive(Clone, Copy, Default)]
struct State {
    /// Failures since the last success.
    failures: u32,
    /// Trials since then that have failed.
    trials: u32,
    /// Until when nothing is tried.
    open_until: Option<Instant>,
}

/// What a call is to the breaker.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Ordinary,
    /// It tries a Redis that was left alone.
    Trial,
}

/// So many failures in a row open the breaker.
const FAILURES_MAX: u32 = 3;
/// The first pause. Each trial that fails doubles it.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(8);

impl Breaker {
    /// `None` if Redis is left alone.
    fn admit(&self) -> Option<Role> {
        let mut state = self.0.lock();
        match state.open_until {
            None => Some(Role::Ordinary),
            Some(until) if Instant::now() < until => None,
            Some(_) => {
                // This call tries it; the others wait for what it finds.
                state.open_until = Some(Instant::now() + pause(state.trials));
                Some(Role::Trial)
            }
        }
    }

    fn succeeded(&self) {
        *self.0.lock() = State::default();
    }

    /// Calls that began before the breaker opened fail after it: they say nothing new.
    fn failed(&self, role: Role) {
        let mut state = self.0.lock();
        match role {
            Role::Ordinary if state.open_until.is_none() => {
                state.failures += 1;
                if state.failures >= FAILURES_MAX {
                    state.open_until = Some(Instant::now() + PAUSE);
                }
            }
            Role::Ordinary => {}
            Role::Trial => {
                state.trials = state.trials.saturating_add(1);
                state.open_until = Some(Instant::now() + pause(state.trials));
            }
        }
    }

    fn is_open(&self) -> bool {
        self.0.lock().open_until.is_some()
    }
}

/// The pause after this many trials that failed.
fn pause(trials: u32) -> Duration {
    (PAUSE * 2_u32.pow(trials.min(10))).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_redis_that_fails_is_left_alone_and_tried_again_by_one_call() {
        let breaker = Breaker::default();
        let admitted = || breaker.admit().is_some();
        // Many calls at once are cut off together.
        for _ in 0..16 {
            breaker.failed(Role::Ordinary);
        }
        assert!(!admitted() && breaker.is_open());
        tokio::time::advance(PAUSE).await;
        assert!(breaker.admit() == Some(Role::Trial), "one tries");
        assert!(!admitted(), "the others do not");
        breaker.failed(Role::Trial);
        tokio::time::advance(PAUSE).await;
        assert!(!admitted(), "the pause has doubled");
        tokio::time::advance(PAUSE).await;
        assert!(breaker.admit() == Some(Role::Trial));
        breaker.succeeded();
        assert!(breaker.admit() == Some(Role::Ordinary) && !breaker.is_open());
    }

    #[test]
    fn pauses_are_bounded() {
        assert_eq!(pause(0), PAUSE);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }
}
