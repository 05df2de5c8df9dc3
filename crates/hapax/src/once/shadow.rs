//! What would have been: the question of a shadow, and the attempt it watches.

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

/// What would have become of a call, and the attempt if it would have run.
pub(crate) struct Foreseen {
    pub(crate) would: Would,
    pub(crate) attempt: Option<Watched>,
}

/// An attempt that somebody else runs. Dropped before its end it lapses, and is unknown from then
/// on.
pub(crate) struct Watched {
    engine: Arc<Engine>,
    policy: Arc<Policy>,
    claimed: Box<Claimed>,
    renewed: Option<Renewed>,
}

impl Engine {
    /// Finds out what would become of a call, within the store's timeout. Nobody waits for a
    /// running attempt, and nothing is answered.
    pub(crate) async fn foresee(self: &Arc<Self>, call: &Call) -> Foreseen {
        self.start_background();
        let leader = Leader::new(self, call);
        // Each step has a little less than the whole: a claim whose reply does not come is then
        // still seen to.
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
                return Foreseen {
                    would: Would::Run,
                    attempt: Some(attempt),
                };
            }
            Lead::Replay(_) => Would::Replay,
            Lead::Wait(seen) => Would::Reject(Rejection::in_flight(seen.running_for())),
            // A shadow keeps no answers; a layer that guards would have kept this one.
            Lead::Reject {
                rejection: Rejection::AnswerNotKept { .. },
                ..
            } if call.policy.keep_answers => Would::Replay,
            Lead::Reject { rejection, .. } => Would::Reject(rejection),
        };
        Foreseen {
            would,
            attempt: None,
        }
    }
}

impl Watched {
    /// Waits for the work, whose lease is renewed for as long as an attempt may run.
    pub(crate) async fn run<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = std::pin::pin!(work);
        tokio::select! {
            output = &mut work => return output,
            () = tokio::time::sleep(self.policy.longest_attempt) => self.renewed = None,
        }
        work.await
    }

    /// Writes down what the work ended in, if the store takes it in time; else the record lapses.
    pub(crate) async fn end(self, outcome: Outcome) {
        let running = &self.claimed.running;
        let put = running.put(running.finish(&outcome, &self.policy));
        let _ = self
            .engine
            .ask_in(self.policy.store_timeout, self.engine.store.put_if(put))
            .await;
    }
}
