//! Watching: what happens, told to whoever wants to count or log it.
//!
//! The library forces no recorder on anybody. Implement [`Observer`] and hand it to
//! [`Builder::observer`](crate::Builder::observer); spans for `tracing` are made in any case and
//! cost nothing without a subscriber.

use std::time::Duration;

use hapax_core::key::Pattern;
use hapax_core::record::{Fence, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::{StoreError, Swept};

/// Is told what happens, on the task where it happens: be quick, and do not panic.
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on(&self, event: &Event<'_>);
}

/// Watches nothing.
impl Observer for () {
    fn on(&self, _: &Event<'_>) {}
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

/// Which operation an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Whose, and which.
    pub scope: &'a Scope,
    /// Its record.
    pub id: RecordId,
}

/// Where a replay came from. Also in the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This process's memory.
    Cache,
    /// The store.
    Store,
    /// An attempt this request waited for.
    Wait,
}

/// What would have become of a request that a [shadow](hapax_core::Policy::shadow) let through.
/// Also in the extensions of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Would {
    /// It would have run: nothing is remembered of its key, or nothing that counts.
    Run,
    /// The stored answer would have been sent again.
    Replay,
    /// It would have been answered with this. `InFlight` is a conflict with one that is running,
    /// which a caller ready to wait would have waited for.
    Reject(Rejection),
}

/// What happens. An attempt's events come in the order listed here.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim is about to be sent to the store.
    Claiming(Subject<'a>),
    /// The claim is durable.
    Claimed {
        /// Which operation.
        subject: Subject<'a>,
        /// The attempt.
        fence: Fence,
        /// How many attempts the key has begun.
        attempt: u32,
    },
    /// The work is about to begin.
    Dispatching(Subject<'a>),
    /// The work has ended and its outcome is about to be written.
    Finishing {
        /// Which operation.
        subject: Subject<'a>,
        /// What it ended in.
        state: State,
    },
    /// The outcome is durable.
    Finished {
        /// Which operation.
        subject: Subject<'a>,
        /// What it ended in.
        state: State,
        /// From dispatch to durable.
        elapsed: Duration,
        /// The attempt had been given up for lost.
        late: bool,
    },
    /// The record was completed in the transaction of the effect. Instead of `Finishing` and before
    /// `Finished`, or after a `Finishing` whose state came to nothing.
    Joined {
        /// Which operation.
        subject: Subject<'a>,
        /// The work returned something else than it has stored. What is stored was sent.
        differs: bool,
    },
    /// On a transaction route the work said that it is done, and its record was not completed in a
    /// transaction. An alarm.
    NotJoined(Subject<'a>),
    /// The upstream was asked what became of a lost attempt.
    Probed {
        /// Which operation.
        subject: Subject<'a>,
        /// What it said: `done`, `barred` or `unknown`.
        found: &'static str,
    },
    /// The first caller's answer is about to leave.
    Answering(Subject<'a>),
    /// The work ended, but the attempt no longer owned its fence: the outcome was discarded. After
    /// a settlement this is an alarm.
    FencedOut(Subject<'a>),
    /// A stored answer is sent again.
    Replayed {
        /// Which operation.
        subject: Subject<'a>,
        /// Where from.
        source: Source,
    },
    /// A request waits for a running attempt.
    Waiting(Subject<'a>),
    /// A request was answered by Hapax itself.
    Rejected {
        /// Whose and which, as far as it was known.
        subject: Option<Subject<'a>>,
        /// With what.
        rejection: &'a Rejection,
    },
    /// A request was let through by a shadow, whatever would have become of it. Comes before it
    /// runs.
    Shadowed {
        /// Whose and which, as far as it was known.
        subject: Option<Subject<'a>>,
        /// What would have been.
        would: &'a Would,
    },
    /// A new key looks as if it could be guessed. It was taken all the same.
    GuessableKey {
        /// Which operation.
        subject: Subject<'a>,
        /// Like what.
        kind: Pattern,
    },
    /// Leases were renewed, in one batch.
    Renewed {
        /// So many.
        renewed: usize,
        /// So many were no longer owned.
        lost: usize,
    },
    /// The store could not do something.
    StoreFailed(&'a StoreError),
    /// A request was let through unguarded because the store was unreachable.
    FailedOpen(Subject<'a>),
    /// An operator settled or forgot a record.
    ChangedByHand {
        /// Which operation.
        subject: Subject<'a>,
        /// What it is now.
        state: State,
        /// Who.
        by: &'a str,
        /// Why.
        reason: &'a str,
    },
    /// A sweep came by.
    Swept(Swept),
}
