#![doc = include_str!("../README.md")]

pub mod clock;
#[cfg(feature = "axum")]
mod extract;
mod hash;
pub mod middleware;
pub mod observe;
pub mod once;
pub mod store;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

pub use hapax_core as core;
pub use hapax_core::fingerprint::FingerprintPolicy;
pub use hapax_core::{Answer, Class, Key, KeyRule, Mode, OperationId, Policy, Principal, RecordId, Rejection, Scope, Store};

pub use middleware::{Body, Idempotency, IdempotencyLayer, NeverDispatched};
pub use observe::{Event, Observer};
pub use once::{Audit, Drained, Failure, Limits, Once, Operation, OperatorError, Ran, RunError, Settlement};
#[cfg(feature = "sqlite")]
pub use store::sqlite::Sqlite;
pub use sweep::Sweep;

use hapax_core::record::{Head, Record, State};
use hapax_core::store::{ListQuery, StoreError, Swept};
use hapax_core::time::Timestamp;

use self::middleware::LayerBuilder;
use self::once::Engine;

/// A store and everything that runs on it. Cheap to clone; the clones share attempts, memory and limits.
#[derive(Clone)]
pub struct Hapax {
    engine: Arc<Engine>,
    namespace: Arc<str>,
}

/// Settings of a [`Hapax`] that are not a route's.
pub struct Builder {
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    limits: Limits,
    sweep: Option<Sweep>,
}

impl Builder {
    /// Is told what happens.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Arc::new(observer);
        self
    }

    /// Sets the limits of this node.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets when to sweep; `None` leaves it to you to call [`Hapax::sweep_once`].
    #[must_use]
    pub fn sweep(mut self, sweep: Option<Sweep>) -> Self {
        self.sweep = sweep;
        self
    }

    /// Ready.
    pub fn build(self) -> Hapax {
        Hapax { engine: Engine::new(self.store, self.observer, self.limits, self.sweep), namespace: "default".into() }
    }
}

impl Hapax {
    /// Everything at its default, on this store.
    pub fn new(store: impl Store) -> Hapax {
        Hapax::builder(store).build()
    }

    /// Begins with the defaults.
    pub fn builder(store: impl Store) -> Builder {
        Hapax::builder_shared(Arc::new(store))
    }

    /// Begins with the defaults, on a store that others use too.
    pub fn builder_shared(store: Arc<dyn Store>) -> Builder {
        Builder { store, observer: Arc::new(()), limits: Limits::default(), sweep: Some(Sweep::default()) }
    }

    /// Sets apart the keys of this service from those of others on the same store.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The tower layer. It is one only once it knows who is asking: see [`LayerBuilder`].
    pub fn layer(&self) -> LayerBuilder {
        LayerBuilder::new(self.clone())
    }

    /// Runs work once per key without HTTP. `name` says what the work is; keys of two names are apart.
    pub fn once(&self, name: &str) -> Once {
        Once::new(self.engine.clone(), self.namespace.clone(), name)
    }

    /// A key that only this server can make, for routes with [`KeyRule::Issued`]: good for this principal, for so long.
    pub async fn issue(&self, principal: &Principal, life: Duration) -> Result<Key, Rejection> {
        let secret = self.engine.secret(Policy::default().store_timeout).await?;
        let until = Timestamp::from_system_time(std::time::SystemTime::now()).after(life);
        Ok(hapax_core::token::issue(&secret, &self.namespace, principal, uuid::Uuid::new_v4().into_bytes(), until))
    }

    /// Stops beginning attempts, lets those under way end, and marks as unknown those that do not within `patience`.
    ///
    /// Their callers are told. Work under way that begins an operation of its own is refused it, as anybody is.
    pub async fn drain(&self, patience: Duration) -> Drained {
        self.engine.drain(patience).await
    }

    /// Writes down one bounded batch of what time has brought. Runs by itself unless [`Builder::sweep`] said otherwise.
    pub async fn sweep_once(&self) -> Result<Swept, StoreError> {
        sweep::run_once(&self.engine).await
    }

    /// The record of a key, and its state by the store's clock.
    pub async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError> {
        self.engine.look(id).await
    }

    /// A page of what is remembered.
    pub async fn list(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        self.engine.list(query).await
    }

    /// States what became of an operation whose outcome is unknown. The lost attempt can no longer complete after this.
    ///
    /// ```no_run
    /// # async fn example(hapax: hapax::Hapax, id: hapax::RecordId) -> Result<(), hapax::OperatorError> {
    /// use hapax::{Answer, Audit, Settlement};
    ///
    /// let audit = Audit { by: "ada", reason: "charge ch_17 is in the bank's ledger" };
    /// hapax.settle(id, Settlement::Done(Answer::new(201, r#"{"id":"ch_17"}"#)), audit).await?;
    /// # Ok(()) }
    /// ```
    pub async fn settle(&self, id: RecordId, settlement: Settlement, audit: Audit<'_>) -> Result<Head, OperatorError> {
        self.engine.settle(id, settlement, audit).await
    }

    /// Erases an answer and leaves a tombstone. Returns when no node can serve the answer any more, about a second later.
    pub async fn forget(&self, id: RecordId, audit: Audit<'_>) -> Result<(), OperatorError> {
        self.engine.forget(id, audit).await
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn observe(&self, event: &Event<'_>) {
        self.engine.observe(event);
    }
}
