//! What a user says of a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax::inbox::Window;
use hapax::join::Database;
use hapax::{BoxError, Once, Operation};
use hapax_core::flow::RetryPolicy;
use tokio_util::sync::CancellationToken;

use super::attempt::Handler;
use super::outside::Outside;
use super::progress::Progress;
use super::received::Received;
use super::rules::{Guarantee, Rules, Versions, WindowError};
use super::run::Run;
use super::{Incoming, Retention, Source};

/// A consumer of messages. Its [module](super) has examples.
#[derive(Clone, Debug)]
#[must_use = "a consumer does nothing until it runs"]
pub struct Consumer {
    rules: Rules,
}

impl Consumer {
    /// A consumer of this name. A message is applied once for each name: members that share work
    /// have one name, and another name applies the same messages again.
    pub fn new(name: impl AsRef<str>) -> Consumer {
        Consumer {
            rules: Rules::new(name.as_ref()),
        }
    }

    /// What it promises. The default is [`Guarantee::Once`].
    pub fn guarantee(mut self, guarantee: Guarantee) -> Consumer {
        self.rules.guarantee = guarantee;
        self
    }

    /// For how long receipts are kept. The default is 14 days. It must be longer than the broker
    /// keeps messages, and how long the producer's relay may be out.
    pub fn window(mut self, window: Window) -> Consumer {
        self.rules.window = window;
        self
    }

    /// What versions are good for. The default is nothing.
    pub fn versions(mut self, versions: Versions) -> Consumer {
        self.rules.versions = versions;
        self
    }

    /// Where the id of a message is, if the producer does not send it as an attribute of
    /// CloudEvents: such as a field of the payload. It must be the same in every delivery, and not
    /// be a number of the broker.
    pub fn id(mut self, id: fn(&Incoming) -> Option<String>) -> Consumer {
        self.rules.id = id;
        self
    }

    /// The most messages in one transaction. The default is 100.
    pub fn batch_max(mut self, batch_max: usize) -> Consumer {
        self.rules.batch_max = batch_max.max(1);
        self
    }

    /// The longest that handling a batch may take; then it has failed. The default is five minutes.
    pub fn batch_time_max(mut self, batch_time_max: Duration) -> Consumer {
        self.rules.batch_time_max = batch_time_max;
        self
    }

    /// How often a failing message is tried, and after which pauses, before it is parked. The
    /// default is five times.
    pub fn retry(mut self, retry: RetryPolicy) -> Consumer {
        self.rules.retry = retry;
        self
    }

    /// Says how old a message is at most when it is delivered for the first time. For brokers that
    /// do not tell how long they keep messages, or keep them longer than they could be new.
    pub fn first_deliveries_within(mut self, age: Duration) -> Consumer {
        self.rules.retention = Some(Retention::Limited(age));
        self.rules.relay_outage = Duration::ZERO;
        self
    }

    /// How long the producer's relay may be out: a message waits in the outbox for so long before
    /// the broker has it. The default is a day.
    pub fn relay_outage(mut self, relay_outage: Duration) -> Consumer {
        self.rules.relay_outage = relay_outage;
        self
    }

    /// Where messages come from.
    pub fn source<S: Source>(self, source: S) -> Sourced<S> {
        Sourced {
            rules: self.rules,
            source,
        }
    }
}

/// A consumer that knows where messages come from.
#[must_use = "a consumer does nothing until it runs"]
pub struct Sourced<S> {
    rules: Rules,
    source: S,
}

impl<S: Source> Sourced<S> {
    /// The database of the effects. Receipts are kept there too: it needs the tables of Hapax.
    pub fn database<D: Database>(self, database: D) -> InDatabase<S, D> {
        let Sourced { rules, source } = self;
        InDatabase {
            rules,
            source,
            database,
        }
    }

    /// For effects outside a database, such as a mail or a charge: each message is an operation
    /// whose key is its id, under the rules of this `once`. If the id cannot be a key, because it is
    /// longer than 255 bytes or has other characters than printable ASCII, the key is a digest of it.
    ///
    /// Guarantee, window and versions of the consumer do not matter then, and nothing is parked. A
    /// message without an id is known by its content.
    pub fn once(self, once: Once) -> ByOnce<S> {
        let Sourced { rules, source } = self;
        ByOnce {
            rules,
            source,
            once,
        }
    }
}

/// A consumer whose effects are in a database.
#[must_use = "a consumer does nothing until it runs"]
pub struct InDatabase<S, D> {
    rules: Rules,
    source: S,
    database: D,
}

impl<S: Source, D: Database> InDatabase<S, D> {
    /// What applies messages, in the transaction it is given. If it fails, nothing of the
    /// transaction remains, and the batch is tried in halves.
    pub fn handle<H>(self, handler: H) -> Handled<S, D, H>
    where
        H: AsyncFn(&[Received], &mut D::Transaction) -> Result<(), BoxError>,
    {
        Handled {
            consumer: self,
            handler,
            progress: Arc::default(),
        }
    }
}

/// A consumer that is ready to run.
#[must_use = "a consumer does nothing until it runs"]
pub struct Handled<S, D, H> {
    consumer: InDatabase<S, D>,
    handler: H,
    progress: Arc<Progress>,
}

impl<S, D, H> Handled<S, D, H>
where
    S: Source,
    D: Database,
    H: AsyncFn(&[Received], &mut D::Transaction) -> Result<(), BoxError>,
{
    /// What it has done so far.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Consumes messages until `stop` is cancelled. The batch under way is ended first.
    ///
    /// A broker or a database that cannot be reached is waited for.
    ///
    /// # Errors
    ///
    /// When it cannot begin: see [`StartError`].
    pub async fn run(self, stop: CancellationToken) -> Result<(), StartError> {
        let InDatabase {
            rules,
            source,
            database,
        } = self.consumer;
        let handler = self.handler;
        fn is_handler<D: Database, H: Handler<D>>(_: &H) {}
        is_handler::<D, H>(&handler);
        Run::new(rules, source, database, handler, self.progress)
            .run(&stop)
            .await
    }
}

/// A consumer whose effects are outside a database.
#[must_use = "a consumer does nothing until it runs"]
pub struct ByOnce<S> {
    rules: Rules,
    source: S,
    once: Once,
}

impl<S: Source> ByOnce<S> {
    /// What a message does. It is an operation: see [`Once::run`].
    pub fn handle<H, F, E>(self, handler: H) -> HandledOnce<S, H>
    where
        H: Fn(Received, Operation) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        HandledOnce {
            consumer: self,
            handler: Arc::new(handler),
            progress: Arc::default(),
        }
    }
}

/// A consumer that is ready to run.
#[must_use = "a consumer does nothing until it runs"]
pub struct HandledOnce<S, H> {
    consumer: ByOnce<S>,
    handler: Arc<H>,
    progress: Arc<Progress>,
}

impl<S, H, F, E> HandledOnce<S, H>
where
    S: Source,
    H: Fn(Received, Operation) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    /// What it has done so far.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Consumes messages until `stop` is cancelled. The operations under way are ended first.
    ///
    /// A message whose operation fails is tried again; one whose outcome is unknown, for which a
    /// person must decide, waits until the operation is settled, and later ones of its key behind
    /// it. Up to 1,000 messages wait so; then no more are taken.
    pub async fn run(self, stop: CancellationToken) {
        let ByOnce {
            rules,
            source,
            once,
        } = self.consumer;
        let outside = Outside::new(rules, source, once, self.handler, self.progress);
        outside.run(&stop).await;
    }
}

/// Why a consumer does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Receipts would be removed while messages may still come for the first time.
    #[error(transparent)]
    Window(WindowError),
    /// The database has no inbox, or this role may not use it.
    #[error("{0}")]
    NoInbox(String),
}

macro_rules! opaque {
    ($($name:ident<$($of:ident),*>)*) => {
        $(
            impl<$($of),*> fmt::Debug for $name<$($of),*> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.debug_struct(stringify!($name)).finish_non_exhaustive()
                }
            }
        )*
    };
}

opaque! { Sourced<S> InDatabase<S, D> Handled<S, D, H> ByOnce<S> HandledOnce<S, H> }
