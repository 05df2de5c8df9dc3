//! What would have been: the question of a shadow, and the attempt it watches.

use std::sync::Arc;

use hapax_core::outcome::Outcome;
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::store::{Change, Condition, Finish, Put};

use super::attempt::Claimed;
use super::call::Call;
use super::engine::Engine;
use super::leader::{Course, Leader};
use super::path::{in_flight, since};
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
        let mut leader = Leader {
            engine: self.clone(),
            call: call.clone(),
            epoch: None,
            known: None,
        };
        // Each step has a little less than the whole: a claim whose reply does not come is then
        // still seen to.
        let whole = call.policy.store_timeout * 4 / 3;
        let course = match tokio::time::timeout(whole, leader.decide(call.id)).await {
            Ok(course) => course.map_err(|refusal| refusal.rejection),
            Err(_) => Err(Rejection::StoreUnavailable),
        };
        let would = match course {
            Ok(Course::Run(claimed)) => {
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
            Ok(Course::Replay(_)) => Would::Replay,
            Ok(Course::Follow(seen, _)) => Would::Reject(in_flight(since(&seen))),
            // A shadow keeps no answers; a layer that guards would have kept this one.
            Err(Rejection::AnswerNotKept { .. }) if call.policy.keep_answers => Would::Replay,
            Err(rejection) => Would::Reject(rejection),
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
        let Claimed {
            head, operation, ..
        } = &*self.claimed;
        let lifetime = outcome.lifetime(head, operation.follows_lost(), &self.policy);
        let finish = Finish {
            state: outcome.state(),
            status: outcome.code(),
            answer: None,
            lifetime,
        };
        let condition = Condition::Held { fence: head.fence };
        let put = Put {
            id: head.id,
            condition,
            change: Change::Finish(finish),
        };
        let _ = self
            .engine
            .ask_in(self.policy.store_timeout, self.engine.store.put_if(put))
            .await;
    }
}
