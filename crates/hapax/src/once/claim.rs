//! Claims whose reply was lost: adopted where there is still a caller, released where there is
//! none.
//!
//! The attempt token tells ours from theirs. Sending the same claim again settles the matter either
//! way: it wins, or it finds itself there already, or it finds somebody else. After it the lost
//! original can no longer land, for its condition is gone; but for one case, in rerun: the attempt
//! it would have followed renewed its lease and lapsed again. Then the original wins a fence that
//! nobody runs under, which costs a lease of waiting and no effect.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::outcome::Loss;
use hapax_core::planted::{self, Bug};
use hapax_core::policy::Policy;
use hapax_core::record::{AttemptToken, Head, Record, State};
use hapax_core::rejection::Rejection;
use hapax_core::store::{Change, Condition, Finish, Lifetime, Put, Seen, Won, Written};
use tokio::time::Instant;
use tracing::Instrument;

use super::engine::{Engine, Room};

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After so many tries the claim is left to lapse, and the key to be held as unknown.
const RELEASE_TRIES_MAX: usize = 1_000;

impl Engine {
    /// Sends a claim until it is answered or time is up.
    pub(super) async fn claim(
        self: &Arc<Self>,
        put: Put,
        token: AttemptToken,
        policy: &Policy,
        unused: Unused,
        room: Room,
    ) -> Result<(Written, Room), Rejection> {
        let deadline = Instant::now() + policy.store_timeout;
        // Whether an earlier try may have been written all the same.
        let (mut pause, mut is_open) = (PAUSE_MIN, false);
        let rejection = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let asked = self.ask_in(left, self.store.put_if(put.clone())).await;
            match asked {
                Ok(written) => match self.adopt(written, token, policy, unused).await {
                    Ok(written) => return Ok((written, room)),
                    Err(rejection) => break rejection,
                },
                // Nothing was written, and whoever has the record may keep it for long. Of a new
                // key there is none that anybody could have.
                Err(Rejection::InFlight { .. })
                    if !is_open && put.condition == Condition::Absent =>
                {
                    return Err(Rejection::StoreUnavailable);
                }
                Err(rejection @ Rejection::InFlight { .. }) if !is_open => return Err(rejection),
                Err(Rejection::StoreUnavailable) if Instant::now() + pause < deadline => {
                    tokio::time::sleep(pause).await;
                }
                Err(rejection) => break rejection,
            }
            (pause, is_open) = ((pause * 2).min(PAUSE_MAX), true);
        };
        self.release_later(put, token, policy, unused);
        Err(rejection)
    }

    /// "Exists with my token" means mine: an earlier try had won after all.
    async fn adopt(
        &self,
        written: Written,
        token: AttemptToken,
        policy: &Policy,
        unused: Unused,
    ) -> Result<Written, Rejection> {
        let Written::Lost(seen) = written else {
            return Ok(written);
        };
        let Some(head) = mine(&seen, token) else {
            return Ok(Written::Lost(seen));
        };
        if head.state_at(seen.now) == State::Running {
            return Ok(Written::Won(Won {
                head: head.clone(),
                now: seen.now,
            }));
        }
        // Ours, but its lease is over already. It was never dispatched, so that nothing of it need
        // be held as unknown.
        let put = unused.release(head, policy.into());
        match self
            .ask_in(policy.store_timeout, self.store.put_if(put))
            .await?
        {
            Written::Won(won) => Ok(Written::Lost(Seen {
                record: Some(Record {
                    head: won.head,
                    answer: None,
                }),
                now: won.now,
            })),
            lost @ Written::Lost(_) => Ok(lost),
        }
    }

    /// Nobody is waiting for this claim any more: makes sure, in the background, that it does not
    /// hold the key.
    fn release_later(
        self: &Arc<Self>,
        put: Put,
        token: AttemptToken,
        policy: &Policy,
        unused: Unused,
    ) {
        if planted::is(Bug::LateClaimForgotten) {
            return;
        }
        let Ok(limbo) = self.limbo.clone().try_acquire_owned() else {
            return tracing::warn!(record = %put.id, "too many lost claims: this one is left to lapse");
        };
        let (engine, lifetime, timeout, counted) = (
            self.clone(),
            policy.into(),
            policy.store_timeout,
            self.attempts.token(),
        );
        let releasing = async move {
            if !engine.release(&put, token, unused, lifetime, timeout).await {
                tracing::warn!(record = %put.id, "a claim whose reply was lost could not be released");
            }
            drop((limbo, counted));
        };
        tokio::spawn(releasing.in_current_span());
    }

    /// Tries until it is certain that the claim does not hold the key; says whether it came to
    /// that.
    async fn release(
        &self,
        put: &Put,
        token: AttemptToken,
        unused: Unused,
        lifetime: Lifetime,
        timeout: Duration,
    ) -> bool {
        let mut pause = PAUSE_MIN;
        for _ in 0..RELEASE_TRIES_MAX {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            let head = match self.ask_in(timeout, self.store.put_if(put.clone())).await {
                Err(_) => continue,
                Ok(Written::Won(won)) => won.head,
                Ok(Written::Lost(seen)) => match mine(&seen, token) {
                    Some(head) => head.clone(),
                    None => return true,
                },
            };
            if self
                .ask_in(timeout, self.store.put_if(unused.release(&head, lifetime)))
                .await
                .is_ok()
            {
                return true;
            }
        }
        false
    }
}

/// The head of a claim that is ours and has not ended.
fn mine(seen: &Seen, token: AttemptToken) -> Option<&Head> {
    let head = seen.record.as_ref().map(|record| &record.head)?;
    (head.token == token && matches!(head.state, State::Running | State::Unknown)).then_some(head)
}

/// What a claim is ended as that nobody used: the record is again what it was before.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unused {
    /// There was nothing, or an attempt that did not count.
    Retryable,
    /// An attempt had been lost for this reason, and nothing more is known of it now: whoever comes
    /// next must be told so, and ask about it.
    Unknown(Loss),
}

impl Unused {
    fn release(self, head: &Head, lifetime: Lifetime) -> Put {
        let (state, status) = match self {
            Unused::Retryable => (State::Retryable, None),
            Unused::Unknown(loss) => (State::Unknown, loss.code()),
        };
        let finish = Finish {
            state,
            status,
            answer: None,
            lifetime,
        };
        Put {
            id: head.id,
            condition: Condition::Held { fence: head.fence },
            change: Change::Finish(finish),
        }
    }
}
