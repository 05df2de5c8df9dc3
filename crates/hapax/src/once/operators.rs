//! The actions of operators (look, settle, forget), and giving up all attempts when a node stops.

use std::sync::Arc;

use hapax_core::answer::Answer;
use hapax_core::audit::{LogEntry, LogQuery, Note, Signed, SignedError};
use hapax_core::outcome::Loss;
use hapax_core::record::{Fence, Head, Last, Record, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{
    Change, Condition, EPOCH_GOOD_FOR, Finish, Lifetime, ListQuery, Put, Store, StoreError,
    StoreErrorKind, Won, Written,
};

use super::engine::Engine;
use crate::observe::{Event, Subject};

/// What became of an operation whose outcome was unknown, stated by a person who found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// It happened; this is the answer to replay.
    Done(Answer),
    /// It happened; there is no answer to replay.
    DoneWithoutAnswer,
    /// It did not happen, and will not any more: a repeat may run it.
    NotDone,
}

/// Who changes a record by hand, and why. Both are required, and are kept in the store's audit log
/// together with the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Audit<'a> {
    /// The person, as your own authentication names them.
    pub by: &'a str,
    /// What the person found out.
    pub reason: &'a str,
}

/// Why an operator's change did not happen.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// The name or the reason is missing or too long.
    #[error(transparent)]
    Unsigned(#[from] SignedError),
    /// There is no such record.
    #[error("there is no record {0}")]
    NotFound(RecordId),
    /// The record's state does not allow the change.
    #[error("record {id} is {}", not_now(*.state))]
    NotNow {
        /// The record.
        id: RecordId,
        /// Its state.
        state: State,
    },
    /// The record was forgotten before it was settled: nothing of its request is left to compare a
    /// repeat with.
    #[error(
        "record {0} was forgotten while its outcome was unknown: it can no longer be settled, and its repeats get 410"
    )]
    Forgotten(RecordId),
    /// The record has changed meanwhile.
    #[error("record {0} has changed meanwhile: look again")]
    Changed(RecordId),
    /// The record is forgotten and its answer is no longer served, but the store could not confirm
    /// in time that its bytes are gone.
    #[error(
        "record {id} is forgotten and nobody is served its answer any more, but its bytes may still be on the disk: {source}. Forget it \
         once more to make sure"
    )]
    Unerased {
        /// The record.
        id: RecordId,
        /// Why the store could not confirm it.
        source: StoreError,
    },
    /// The store failed; whether the change happened is not known.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The state of a record that cannot be changed, and what to do. An unknown record can be settled,
/// so the refused change was a `forget`.
fn not_now(state: State) -> String {
    if is_unknown(state) {
        return "unknown: what is forgotten can never be settled, so settle it first".to_owned();
    }
    format!(
        "{}: only an unknown outcome can be settled, and nothing running can be forgotten",
        state.word()
    )
}

fn is_unknown(state: State) -> bool {
    matches!(state, State::Unknown | State::Expired(Last::Unknown))
}

/// The id before this one; `None` for the first id.
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
                let record = reading
                    .records
                    .pop()
                    .flatten()
                    .ok_or(OperatorError::NotFound(id))?;
                let state = record.head.state_at(reading.now);
                Ok((record, state))
            }
            Err(error) if error.kind() == StoreErrorKind::Corrupt => {
                self.look_at_head(id, error).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the head of a record whose answer cannot be read, so that it can still be looked at
    /// and forgotten. A listing reads only heads.
    async fn look_at_head(
        &self,
        id: RecordId,
        error: StoreError,
    ) -> Result<(Record, State), OperatorError> {
        let query = ListQuery {
            state: None,
            after: before(id),
            limit: 1,
        };
        let head = self
            .store
            .list(query)
            .await?
            .pop()
            .filter(|head| head.id == id)
            .ok_or(error)?;
        let state = head.state_at(self.store.info().await?.now);
        Ok((Record { head, answer: None }, state))
    }

    pub(crate) async fn list(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        self.store.list(query).await
    }

    pub(crate) async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        self.store.log(query).await
    }

    pub(crate) async fn note(
        &self,
        action: &str,
        audit: Audit<'_>,
    ) -> Result<LogEntry, OperatorError> {
        let note = Note::new(action, Signed::new(audit.by, audit.reason)?)?;
        tracing::info!(
            action,
            by = audit.by,
            reason = audit.reason,
            "something was done by hand"
        );
        Ok(self.store.note(note).await?)
    }

    pub(crate) async fn settle(
        &self,
        id: RecordId,
        settlement: Settlement,
        audit: Audit<'_>,
        lifetime: Lifetime,
        attempt: Option<Fence>,
    ) -> Result<Head, OperatorError> {
        let signed = Signed::new(audit.by, audit.reason)?;
        let (record, state) = self.look(id).await?;
        if !record.head.is_unresolved(state) {
            return Err(if is_unknown(state) {
                OperatorError::Forgotten(id)
            } else {
                OperatorError::NotNow { id, state }
            });
        }
        if attempt.is_some_and(|fence| fence != record.head.fence) {
            return Err(OperatorError::Changed(id));
        }
        let finish = |state, answer: Option<Answer>| Finish {
            state,
            status: answer.as_ref().map(|answer| answer.status),
            answer: answer.map(Arc::new),
            lifetime,
        };
        let finish = match settlement {
            Settlement::Done(answer) => finish(State::Completed, Some(answer)),
            Settlement::DoneWithoutAnswer => finish(State::Completed, None),
            Settlement::NotDone => finish(State::Retryable, None),
        };
        let head = self
            .change(&record.head, Change::Settle(finish, signed))
            .await?
            .head;
        self.tell(&head, audit, head.state);
        Ok(head)
    }

    /// Returns when no node can serve the answer any more, and the store has erased it.
    pub(crate) async fn forget(
        &self,
        id: RecordId,
        audit: Audit<'_>,
        lifetime: Lifetime,
        version: Option<u64>,
    ) -> Result<(), OperatorError> {
        let signed = Signed::new(audit.by, audit.reason)?;
        let (record, state) = self.look(id).await?;
        // An outcome that is still unknown could never be settled afterwards.
        if state == State::Running || record.head.is_unresolved(state) {
            return Err(OperatorError::NotNow { id, state });
        }
        if version.is_some_and(|version| version != record.head.version) {
            return Err(OperatorError::Changed(id));
        }
        let erased = match self
            .change(&record.head, Change::Forget(lifetime, signed))
            .await
        {
            Ok(_) => Ok(()),
            // The record is forgotten even so.
            Err(error @ OperatorError::Unerased { .. }) => Err(error),
            Err(error) => return Err(error),
        };
        self.tell(&record.head, audit, State::Expired(state.last()));
        self.cache.forget(&id);
        // Another node may have read the epoch just before it was raised.
        tokio::time::sleep(EPOCH_GOOD_FOR).await;
        erased
    }

    async fn change(&self, head: &Head, change: Change) -> Result<Won, OperatorError> {
        let id = head.id;
        match self
            .store
            .put_if(Put {
                id,
                condition: Condition::Version {
                    version: head.version,
                },
                change,
            })
            .await
        {
            Ok(Written::Won(won)) => Ok(won),
            Ok(Written::Lost(_)) => Err(OperatorError::Changed(id)),
            Err(source) if source.kind() == StoreErrorKind::Unerased => {
                Err(OperatorError::Unerased { id, source })
            }
            Err(source) => Err(source.into()),
        }
    }

    /// Reports a change that the store's audit log already has.
    fn tell(&self, head: &Head, Audit { by, reason }: Audit<'_>, state: State) {
        tracing::info!(record = %head.id, state = state.word(), by, reason, "a record was changed by hand");
        self.observe(&Event::ChangedByHand {
            subject: Subject {
                scope: &head.scope,
                id: head.id,
            },
            state,
            by,
            reason,
        });
    }

    /// Marks every attempt that is still running as unknown, all at once.
    pub(crate) async fn give_up_all(self: &Arc<Self>) {
        let running = self.renewals.running();
        let mut marks = tokio::task::JoinSet::new();
        for (id, fence, policy) in &running {
            self.renewals.stop(*id, *fence);
            let finish = Finish {
                state: State::Unknown,
                status: Loss::Stopped.code(),
                answer: None,
                lifetime: (&**policy).into(),
            };
            let put = Put {
                id: *id,
                condition: Condition::Held { fence: *fence },
                change: Change::Finish(finish),
            };
            let (engine, timeout) = (self.clone(), policy.store_timeout);
            // If the store cannot be reached, the leases lapse by themselves.
            marks
                .spawn(async move { drop(engine.ask_in(timeout, engine.store.put_if(put)).await) });
        }
        marks.join_all().await;
    }
}
