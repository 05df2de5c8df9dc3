//! What operators do: look, settle what is unknown, forget. And the end of a node's life.

use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::policy::Policy;
use hapax_core::record::{Head, Last, Record, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{Change, Condition, Finish, Lifetime, ListQuery, Put, StoreError, StoreErrorKind, Won, Written};

use super::cache::EPOCH_GOOD_FOR;
use super::engine::{Engine, lifetime};
use crate::observe::{Event, Subject};

/// What became of an operation whose outcome was unknown, stated by somebody who found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It happened; this is the answer to replay.
    Done(Answer),
    /// It happened; there is no answer to replay.
    DoneWithoutAnswer,
    /// It did not happen, and will not any more: a repeat may run it.
    NotDone,
}

/// Who changes a record by hand, and why. Both must be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit<'a> {
    /// Who, as your own authentication knows them.
    pub by: &'a str,
    /// What they found out.
    pub reason: &'a str,
}

/// Why an operator's change did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// Who and why were not both said.
    #[error("say who changes this record and why")]
    Unsigned,
    /// There is no such record.
    #[error("there is no record {0}")]
    NotFound(RecordId),
    /// The record is not in a state in which this can be done.
    #[error("record {id} is {}: only an unknown outcome can be settled, and nothing running can be forgotten", .state.word())]
    NotNow {
        /// The record.
        id: RecordId,
        /// Its state.
        state: State,
    },
    /// Somebody changed the record meanwhile.
    #[error("record {0} has changed meanwhile: look again")]
    Changed(RecordId),
    /// The store failed; whether the change happened is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The id before this one; none before the first.
fn before(id: RecordId) -> Option<RecordId> {
    let mut bytes = *id.as_bytes();
    for byte in bytes.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            return Some(RecordId::from_bytes(bytes));
        }
    }
    None
}

impl Engine {
    pub(crate) async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError> {
        match self.store.get(vec![id]).await {
            Ok(mut reading) => {
                let record = reading.records.pop().flatten().ok_or(OperatorError::NotFound(id))?;
                let state = record.head.state_at(reading.now);
                Ok((record, state))
            }
            Err(error) if error.kind() == StoreErrorKind::Corrupt => self.look_at_head(id, error).await,
            Err(error) => Err(error.into()),
        }
    }

    /// An answer that cannot be read keeps nobody from looking at its head, or from having it forgotten. A list has heads alone.
    async fn look_at_head(&self, id: RecordId, error: StoreError) -> Result<(Record, State), OperatorError> {
        let query = ListQuery { state: None, after: before(id), limit: 1 };
        let head = self.store.list(query).await?.pop().filter(|head| head.id == id).ok_or(error)?;
        let state = head.state_at(self.store.pulse().await?.now);
        Ok((Record { head, answer: None }, state))
    }

    pub(crate) async fn list(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        self.store.list(query).await
    }

    pub(crate) async fn settle(&self, id: RecordId, settlement: Settlement, audit: Audit<'_>) -> Result<Head, OperatorError> {
        let (record, state) = self.look(id).await?;
        if !matches!(state, State::Unknown | State::Expired(Last::Unknown)) {
            return Err(OperatorError::NotNow { id, state });
        }
        let finish = |state, answer: Option<Answer>| Finish {
            state,
            status: answer.as_ref().map(|answer| answer.status),
            answer: answer.map(Arc::new),
            lifetime: lifetime(&Policy::default()),
        };
        let change = Change::Settle(match settlement {
            Settlement::Done(answer) => finish(State::Completed, Some(answer)),
            Settlement::DoneWithoutAnswer => finish(State::Completed, None),
            Settlement::NotDone => finish(State::Retryable, None),
        });
        Ok(self.change(&record.head, change, audit).await?.head)
    }

    /// Returns when no node can serve the answer any more.
    pub(crate) async fn forget(&self, id: RecordId, audit: Audit<'_>) -> Result<(), OperatorError> {
        let (record, state) = self.look(id).await?;
        if state == State::Running {
            return Err(OperatorError::NotNow { id, state });
        }
        self.change(&record.head, Change::Forget(Lifetime::default()), audit).await?;
        self.cache.forget(&id);
        // Another node may have read the epoch just before it rose.
        tokio::time::sleep(EPOCH_GOOD_FOR).await;
        Ok(())
    }

    async fn change(&self, head: &Head, change: Change, audit: Audit<'_>) -> Result<Won, OperatorError> {
        let Audit { by, reason } = audit;
        if by.trim().is_empty() || reason.trim().is_empty() {
            return Err(OperatorError::Unsigned);
        }
        let put = Put { id: head.id, condition: Condition::Version { version: head.version }, change };
        match self.store.put_if(put).await? {
            Written::Won(won) => {
                tracing::info!(record = %head.id, state = won.head.state.word(), by, reason, "a record was changed by hand");
                self.observe(&Event::ChangedByHand {
                    subject: Subject { scope: &head.scope, id: head.id },
                    state: won.head.state,
                    by,
                    reason,
                });
                Ok(won)
            }
            Written::Lost(_) => Err(OperatorError::Changed(head.id)),
        }
    }

    /// Marks every attempt that is still running as unknown, all at once.
    pub(crate) async fn give_up_all(self: &Arc<Self>) {
        let running = self.renewals.running();
        let mut marks = tokio::task::JoinSet::new();
        for (id, fence, policy) in &running {
            self.renewals.stop(*id, *fence);
            let finish = Finish { state: State::Unknown, status: None, answer: None, lifetime: lifetime(policy) };
            let put = Put { id: *id, condition: Condition::Held { fence: *fence }, change: Change::Finish(finish) };
            let (engine, timeout) = (self.clone(), policy.store_timeout);
            // Without the store's help the leases lapse by themselves.
            marks.spawn(async move { drop(engine.ask_in(timeout, engine.store.put_if(put)).await) });
        }
        marks.join_all().await;
    }
}
