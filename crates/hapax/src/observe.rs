//! Observing: events for counting and logging.
//!
//! The library does not choose a metrics recorder. Implement [`Observer`] and hand it to
//! [`Builder::observer`](crate::Builder::observer). Spans for `tracing` are made in any case, and
//! cost nothing without a subscriber.
//!
//! A closure is an observer:
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! use hapax::{Event, Hapax};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let replays = Arc::new(AtomicU64::new(0));
//! let counter = replays.clone();
//! let hapax = Hapax::builder(hapax::store::memory())
//!     .observer(move |event: &Event<'_>| {
//!         if let Event::Replayed { .. } = event {
//!             counter.fetch_add(1, Ordering::Relaxed);
//!         }
//!     })
//!     .build();
//! # drop(hapax); }
//! ```

use std::time::Duration;

use hapax_core::key::Pattern;
use hapax_core::record::{Fence, State};
use hapax_core::rejection::Rejection;
use hapax_core::scope::{RecordId, Scope};
use hapax_core::store::{StoreError, Swept};

/// Receives the events, on the task where they happen: be quick, and do not panic.
pub trait Observer: Send + Sync + 'static {
    /// Called for every event.
    fn on(&self, event: &Event<'_>);
}

/// Ignores all events.
impl Observer for () {
    fn on(&self, _: &Event<'_>) {}
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

/// The operation that an event is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Its namespace, principal and operation.
    pub scope: &'a Scope,
    /// The id of its record.
    pub id: RecordId,
}

/// Where a replay came from. Also in the extensions of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The memory of this process.
    Cache,
    /// The store.
    Store,
    /// An attempt that this request waited for.
    Wait,
}

/// What a guarding layer would have done with a request that a [shadow](hapax_core::Policy::shadow)
/// let through. Also in the extensions of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Would {
    /// It would have run the request: there is no record of the key, or none that prevents an
    /// attempt.
    Run,
    /// It would have replayed the stored answer.
    Replay,
    /// It would have rejected the request. `InFlight` means that another attempt was running, for
    /// which a caller willing to wait would have waited.
    Reject(Rejection),
}

/// An event. The events of an attempt come in the order listed here.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A claim is about to be sent to the store.
    Claiming(Subject<'a>),
    /// The claim is durable.
    Claimed {
        /// The operation.
        subject: Subject<'a>,
        /// The fence of the attempt.
        fence: Fence,
        /// The number of attempts that the key has begun.
        attempt: u32,
    },
    /// The work is about to begin.
    Dispatching(Subject<'a>),
    /// The work has ended and its outcome is about to be written.
    Finishing {
        /// The operation.
        subject: Subject<'a>,
        /// The state it ended in.
        state: State,
    },
    /// The outcome is durable.
    Finished {
        /// The operation.
        subject: Subject<'a>,
        /// The state it ended in.
        state: State,
        /// The time from dispatch to the durable write.
        elapsed: Duration,
        /// Whether the attempt had been given up for lost.
        late: bool,
    },
    /// The record was completed in the transaction of the effect. Comes instead of `Finishing` and
    /// before `Finished`, or after a `Finishing` whose write was refused.
    Joined {
        /// The operation.
        subject: Subject<'a>,
        /// Whether the work returned something other than it stored. The stored answer was sent.
        differs: bool,
    },
    /// On a transaction route the work reported success, but its record was not completed in a
    /// transaction. This is an alarm.
    NotJoined(Subject<'a>),
    /// The upstream was asked what became of a lost attempt.
    Probed {
        /// The operation.
        subject: Subject<'a>,
        /// The upstream's answer: `done`, `barred` or `unknown`.
        found: &'static str,
    },
    /// The first caller's response is about to be sent.
    Answering(Subject<'a>),
    /// The work ended, but the attempt no longer owned its record: the outcome was discarded. After
    /// a settlement this is an alarm.
    FencedOut(Subject<'a>),
    /// A stored answer is replayed.
    Replayed {
        /// The operation.
        subject: Subject<'a>,
        /// Where the answer came from.
        source: Source,
    },
    /// A request waits for a running attempt.
    Waiting(Subject<'a>),
    /// Hapax itself answered a request.
    Rejected {
        /// The operation, as far as it was known.
        subject: Option<Subject<'a>>,
        /// The rejection.
        rejection: &'a Rejection,
    },
    /// A shadow let a request through. Comes before the request runs.
    Shadowed {
        /// The operation, as far as it was known.
        subject: Option<Subject<'a>>,
        /// What a guarding layer would have done.
        would: &'a Would,
    },
    /// A new key looks guessable. It was accepted anyway.
    GuessableKey {
        /// The operation.
        subject: Subject<'a>,
        /// The pattern that it matches.
        kind: Pattern,
    },
    /// Leases were renewed, in one batch.
    Renewed {
        /// The number of leases that were renewed.
        renewed: usize,
        /// The number of leases that the attempts no longer owned.
        lost: usize,
    },
    /// A store call failed.
    StoreFailed(&'a StoreError),
    /// A request was let through unguarded because the store was unreachable.
    FailedOpen(Subject<'a>),
    /// An operator settled or forgot a record.
    ChangedByHand {
        /// The operation.
        subject: Subject<'a>,
        /// The new state of its record.
        state: State,
        /// The operator.
        by: &'a str,
        /// The operator's reason.
        reason: &'a str,
    },
    /// A sweep has run.
    Swept(Swept),
}
