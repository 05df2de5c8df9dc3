//! The engine's part of a shadow: what a guarding layer would do, and the attempt that the shadow
//! watches.

use hapax_core::store::Store;
use std::sync::Arc;

use hapax_core::outcome::Outcome;
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;

use super::call::Call;
use super::engine::Engine;
use super::lead::{Claimed, Lead, Leader};
use super::renew::{self, Renewed};
use crate::observe::Would;

/// What a guarding layer would do with a call, and the attempt if it would run.
pub(crate) struct Prediction {
    pub(crate) would: Would,
    pub(crate) attempt: Option<Watched>,
}

/// An attempt that the shadow's caller runs. If it is dropped before its end, its lease lapses and
/// the record becomes unknown.
pub(crate) struct Watched {
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    claimed: Box<Claimed>,
    renewed: Option<Renewed>,
}

impl Engine {
    /// Finds out what a guarding layer would do with a call, within the store's timeout. Does not
    /// wait for a running attempt.
    pub(crate) async fn predict(self: &Arc<Self>, call: &Call) -> Prediction {
        self.start_background();
        let leader = Leader::new(self, call);
        // Each step has a little less than the whole time, so that a claim without a reply can
        // still be followed up.
        let whole = call.policy.store_timeout * 4 / 3;
        let lead = tokio::time::timeout(whole, leader.lead(None)).await;
        let would = match lead.unwrap_or_else(|_| Rejection::StoreUnavailable.into()) {
            Lead::Run(claimed) => {
                let renewed = renew::keep(self, call.id, &claimed.operation, &call.policy);
                let attempt = Watched {
                    engine: self.clone(),
                    policy: call.policy.clone(),
                    claimed,
                    renewed: Some(renewed),
                };
                return Prediction {
                    would: Would::Run,
                    attempt: Some(attempt),
                };
            }
            Lead::Replay(_) => Would::Replay,
            Lead::Wait(seen) => Would::Reject(Rejection::in_flight(seen.running_for())),
            // A shadow keeps no answers, but a guarding layer would have kept this one.
            Lead::Reject {
                rejection: Rejection::AnswerNotKept { .. },
                ..
            } if call.policy.keep_answers => Would::Replay,
            Lead::Reject { rejection, .. } => Would::Reject(rejection),
        };
        Prediction {
            would,
            attempt: None,
        }
    }
}

impl Watched {
    /// Waits for the work, and renews its lease for as long as an attempt may run.
    pub(crate) async fn run<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            output = &mut work => return output,
            () = tokio::time::sleep(self.policy.longest_attempt) => self.renewed = None,
        }
        work.await
    }

    /// Writes the outcome of the work, if the store accepts it in time; otherwise the lease lapses.
    pub(crate) async fn end(self, outcome: Outcome) {
        let running = &self.claimed.running;
        let put = running.put(running.finish(&outcome, &self.policy));
        let _ = self
            .engine
            .ask_in(self.policy.store_timeout, self.engine.store.put_if(put))
            .await;
    }
}
