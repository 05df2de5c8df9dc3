//! The relay: reads messages from an outbox and publishes them to one destination.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::postgres::ConnectOptions;
//! use hapax_flow::outbox::PostgresOutbox;
//! use hapax_flow::publish::Stdout;
//! use hapax_flow::relay::{Options, Relay};
//!
//! let database = ConnectOptions::parse("postgres://app@db.internal/shop")?;
//! let options = Options::new("to-stdout");
//! let relay = Relay::new(PostgresOutbox::new(database), Stdout::new(), options);
//! relay.run(tokio_util::sync::CancellationToken::new()).await;
//! # Ok(()) }
//! ```
//!
//! Of all relays with the same reader's name one is active, and the others stand by. It reads pages
//! of messages, publishes them, and writes down how far it has got: so a message is published at
//! least once, and after a crash again at most what was published since the last mark.
//!
//! A message that fails is set aside together with the later ones of its key, and tried again after
//! a pause, while other keys go on. If the destination takes nothing at all, the relay waits and
//! repeats the page.
//!
//! `session` has what happens while the reader is held; `progress` what the relay tells about
//! itself.

mod progress;
mod session;

use std::sync::Arc;
use std::time::Duration;

use hapax_core::flow::RetryPolicy;
use tokio_util::sync::CancellationToken;

pub use progress::{Counts, Progress};

use self::session::Session;
use crate::outbox::{News, Outbox, OutboxError, PageLimit, Take};
use crate::publish::Publisher;

/// How a relay works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the reader. Relays with the same name share its work: one is active.
    pub reader: String,
    /// How long a relay that died keeps others from taking over.
    pub lease: Duration,
    /// How often an empty outbox is looked at.
    pub poll: Duration,
    /// How much is read and published at once.
    pub page: PageLimit,
    /// When a message that failed is tried again, and when it is given up.
    pub retry: RetryPolicy,
}

impl Options {
    /// The defaults, for the reader of this name.
    pub fn new(reader: impl Into<String>) -> Options {
        Options {
            reader: reader.into(),
            lease: Duration::from_secs(5),
            poll: Duration::from_millis(20),
            page: PageLimit {
                messages_max: 1000,
                bytes_max: 4 << 20,
            },
            retry: RetryPolicy::default(),
        }
    }
}

/// The pause before a relay that stands by, or that failed, tries again: from this much, doubled
/// with each failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Publishes the messages of an outbox to one destination.
pub struct Relay<O: Outbox> {
    outbox: Arc<O>,
    publisher: Arc<dyn Publisher>,
    options: Options,
    /// Identifies this relay among those with the same reader.
    owner: String,
    progress: Arc<Progress>,
}

/// What a relay does next, after it could not go on.
enum After {
    /// It was told to stop.
    End,
    /// It tries again after a pause.
    Pause,
}

impl<O: Outbox> Relay<O> {
    /// A relay from this outbox to this destination.
    pub fn new(outbox: O, publisher: impl Publisher, options: Options) -> Relay<O> {
        Relay::to(outbox, Arc::new(publisher), options)
    }

    /// The same, for a destination that is chosen at run time.
    pub fn to(outbox: O, publisher: Arc<dyn Publisher>, options: Options) -> Relay<O> {
        let host = std::env::var("HOSTNAME").unwrap_or_else(|_| "relay".into());
        let owner = format!("{host}/{}/{}", std::process::id(), uuid::Uuid::new_v4());
        Relay {
            outbox: Arc::new(outbox),
            publisher,
            options,
            owner,
            progress: Arc::default(),
        }
    }

    /// What the relay has done so far.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Publishes until `stop` is cancelled. Then the batch under way ends, and the reader is given
    /// up, so that another relay goes on at once.
    pub async fn run(&self, stop: CancellationToken) {
        let mut failures = 0;
        loop {
            let before = self.progress.counts().published;
            if let After::End = self.hold(&stop).await {
                return;
            }
            let has_moved = self.progress.counts().published > before;
            failures = if has_moved { 0 } else { failures + 1 };
            let pause = PAUSE_MIN
                .saturating_mul(1 << failures.min(10))
                .min(PAUSE_MAX);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Publishes what there is now, and returns. Messages that are set aside are tried once if they
    /// are due.
    ///
    /// # Errors
    ///
    /// When the outbox fails. [`OutboxError::Unusable`] also if an operator has to start the reader.
    pub async fn run_once(&self) -> Result<Counts, OutboxError> {
        self.run_once_until(&CancellationToken::new()).await
    }

    /// The same, and returns earlier when `stop` is cancelled.
    ///
    /// # Errors
    ///
    /// As [`run_once`](Relay::run_once).
    pub async fn run_once_until(&self, stop: &CancellationToken) -> Result<Counts, OutboxError> {
        let before = self.progress.counts();
        match self.take().await? {
            Take::Busy => Err(OutboxError::Lost),
            Take::Stopped(reason) => Err(OutboxError::Unusable(format!(
                "the reader {} is stopped: {reason}",
                self.options.reader
            ))),
            Take::Taken {
                held,
                position,
                news,
            } => {
                self.tell(news);
                let mut session = Session::begin(self, held, position).await?;
                session.drain(stop).await?;
                session.end().await?;
                Ok(self.progress.counts().since(&before))
            }
        }
    }

    async fn take(&self) -> Result<Take<O::Position>, OutboxError> {
        let Options { reader, lease, .. } = &self.options;
        self.outbox.take(reader, &self.owner, *lease).await
    }

    /// Takes the reader if it is free, and publishes for as long as it is held.
    async fn hold(&self, stop: &CancellationToken) -> After {
        let reader = &self.options.reader;
        let taken = tokio::select! {
            taken = self.take() => taken,
            () = stop.cancelled() => return After::End,
        };
        let failed = match taken {
            Ok(Take::Taken {
                held,
                position,
                news,
            }) => {
                self.tell(news);
                let fence = held.fence;
                tracing::info!(reader, fence, "the relay is active");
                self.progress.set_active(true);
                let result = self.publish_until(held, position, stop).await;
                self.progress.set_active(false);
                match result {
                    Ok(()) => return After::End,
                    Err(error) => error,
                }
            }
            Ok(Take::Busy) => return After::Pause,
            Ok(Take::Stopped(reason)) => {
                self.progress.set_stopped(Some(&reason));
                tracing::error!(
                    reader,
                    reason,
                    "ALARM: the reader is stopped until `hapax outbox readers start`"
                );
                return After::Pause;
            }
            Err(error) => error,
        };
        match failed {
            OutboxError::Lost => tracing::warn!(reader, "another relay has taken the reader"),
            error => tracing::warn!(reader, %error, "the relay begins anew"),
        }
        After::Pause
    }

    async fn publish_until(
        &self,
        held: crate::outbox::Held,
        position: O::Position,
        stop: &CancellationToken,
    ) -> Result<(), OutboxError> {
        self.progress.set_stopped(None);
        let mut session = Session::begin(self, held, position).await?;
        session.run(stop).await?;
        session.end().await
    }

    fn tell(&self, news: Option<News>) {
        let reader = &self.options.reader;
        match news {
            Some(News::FailedOver) => {
                self.progress.count_failover();
                tracing::error!(
                    reader,
                    "ALARM: another database server took over. Messages may have left whose transactions it does not have"
                );
            }
            Some(News::Restored) => {
                self.progress.count_failover();
                tracing::error!(
                    reader,
                    "ALARM: the database was restored into another server. What was not surely published is published again"
                );
            }
            None => {}
        }
    }
}

impl<O: Outbox> std::fmt::Debug for Relay<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay")
            .field("options", &self.options)
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}
