#![doc = include_str!("../README.md")]

mod background;
mod backoff;
mod budget;
pub mod clock;
#[cfg(feature = "axum")]
mod extract;
mod hash;
pub mod join;
pub mod middleware;
pub mod natural;
pub mod observe;
pub mod once;
mod outage;
pub mod store;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use budget::{BodyBudget, BodyUsage};
pub use hapax_core as core;
pub use hapax_core::fingerprint::FingerprintPolicy;
pub use hapax_core::request_id::RequestId;
pub use hapax_core::{
    Answer, Class, Key, KeyRule, KeySource, Mode, OperationId, Part, Policy, Principal, RecordId,
    Rejection, Scope, Store, Velocity,
};

pub use join::{FinishError, Kept};
pub use middleware::{
    Body, Idempotency, IdempotencyLayer, NeverDispatched, Peer, Probe, Probed, TimedOut, Unverified,
};
pub use observe::{Event, Observer, Would};
pub use once::{
    Audit, Drained, Failure, Limits, Once, Operation, OperatorError, Quotas, Ran, RunError,
    Settlement, Sweep, Usage,
};
#[cfg(feature = "sqlite")]
pub use store::guest::Guest;
#[cfg(feature = "postgres")]
pub use store::postgres::Postgres;
#[cfg(feature = "sqlite")]
pub use store::sqlite::Sqlite;

use hapax_core::audit::{LogEntry, LogQuery};
use hapax_core::record::{Fence, Head, Record, State};
use hapax_core::store::{Lifetime, ListQuery, StoreError, Swept};
use hapax_core::time::Timestamp;

use self::middleware::LayerBuilder;
use self::once::Engine;

/// What the namespaces begin with in which [shadows](Policy::shadow) keep their records; the
/// layer's own namespace follows.
pub const SHADOW: &str = "shadow:";

/// A store and everything that runs on it. Cheap to clone; the clones share attempts, memory and
/// limits.
#[derive(Clone)]
pub struct Hapax {
    engine: Arc<Engine>,
    bodies: Arc<BodyBudget>,
    namespace: Arc<str>,
}

/// Settings of a [`Hapax`] that are not a route's.
pub struct Builder {
    store: Arc<dyn Store>,
    observer: Arc<dyn Observer>,
    limits: Limits,
    sweep: Option<Sweep>,
    spill_directory: Option<PathBuf>,
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

    /// Sets where large request bodies are written while they are buffered; by default the system's
    /// directory for temporary files. Keep it on another file system than the store: a store that
    /// finds its disk full takes no new keys.
    #[must_use]
    pub fn spill_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.spill_directory = Some(directory.into());
        self
    }

    /// Ready.
    pub fn build(self) -> Hapax {
        Hapax {
            bodies: BodyBudget::new(self.limits, self.spill_directory),
            engine: Engine::new(self.store, self.observer, self.limits, self.sweep),
            namespace: "default".into(),
        }
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
        Builder {
            store,
            observer: Arc::new(()),
            limits: Limits::default(),
            sweep: Some(Sweep::default()),
            spill_directory: None,
        }
    }

    /// Sets apart the keys of this service from those of others on the same store.
    ///
    /// # Panics
    ///
    /// If it begins with [`SHADOW`]: there is what [shadows](Policy::shadow) remember.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        assert!(
            !namespace.starts_with(SHADOW),
            "{namespace:?} is a namespace of shadows: it may not begin with {SHADOW:?}"
        );
        self.namespace = namespace.into();
        self
    }

    /// The tower layer. It is one only once it knows who is asking: see [`LayerBuilder`].
    pub fn layer(&self) -> LayerBuilder {
        LayerBuilder::new(self.clone())
    }

    /// Runs work once per key without HTTP. `name` says what the work is; keys of two names are
    /// apart.
    pub fn once(&self, name: &str) -> Once {
        Once::new(self.engine.clone(), self.namespace.clone(), name)
    }

    /// A key that only this server can make, for routes with [`KeyRule::Issued`]: good for this
    /// principal, for so long.
    pub async fn issue(&self, principal: &Principal, life: Duration) -> Result<Key, Rejection> {
        let secret = self.engine.secret(Policy::default().store_timeout).await?;
        let until = Timestamp::from_system_time(std::time::SystemTime::now()).after(life);
        Ok(hapax_core::token::issue(
            &secret,
            &self.namespace,
            principal,
            uuid::Uuid::new_v4().into_bytes(),
            until,
        ))
    }

    /// Stops beginning attempts, lets those under way end, and marks as unknown those that do not
    /// within `patience`.
    ///
    /// Their callers are told. Work under way that begins an operation of its own is refused it, as
    /// anybody is.
    pub async fn drain(&self, patience: Duration) -> Drained {
        self.engine.drain(patience).await
    }

    /// Writes down one bounded batch of what time has brought. Runs by itself unless
    /// [`Builder::sweep`] said otherwise.
    pub async fn sweep_once(&self) -> Result<Swept, StoreError> {
        once::sweep_once(&self.engine).await
    }

    /// The record of a key, and its state by the store's clock.
    pub async fn look(&self, id: RecordId) -> Result<(Record, State), OperatorError> {
        self.engine.look(id).await
    }

    /// A page of what is remembered.
    pub async fn list(&self, query: ListQuery) -> Result<Vec<Head>, StoreError> {
        self.engine.list(query).await
    }

    /// States what became of an operation whose outcome is unknown. The lost attempt can no longer
    /// complete after this. What is settled is remembered for as long as the route said when the
    /// attempt was lost.
    ///
    /// ```no_run
    /// # async fn example(hapax: hapax::Hapax, id: hapax::RecordId) -> Result<(), hapax::OperatorError> {
    /// use hapax::{Answer, Audit, Settlement};
    ///
    /// let audit = Audit { by: "ada", reason: "charge ch_17 is in the bank's ledger" };
    /// hapax.settle(id, Settlement::Done(Answer::new(201, r#"{"id":"ch_17"}"#)), audit).await?;
    /// # Ok(()) }
    /// ```
    pub async fn settle(
        &self,
        id: RecordId,
        settlement: Settlement,
        audit: Audit<'_>,
    ) -> Result<Head, OperatorError> {
        let (record, _) = self.look(id).await?;
        self.settle_for(id, settlement, audit, Lifetime::of(&record.head))
            .await
    }

    /// The same, to be remembered for as long as the route says: `Lifetime::from(&policy)`.
    pub async fn settle_for(
        &self,
        id: RecordId,
        settlement: Settlement,
        audit: Audit<'_>,
        lifetime: Lifetime,
    ) -> Result<Head, OperatorError> {
        self.engine
            .settle(id, settlement, audit, lifetime, None)
            .await
    }

    /// The same, only of the attempt with this fence: what was found out about one attempt says
    /// nothing of the next. [`OperatorError::Changed`] if another was lost since.
    pub async fn settle_attempt(
        &self,
        id: RecordId,
        fence: Fence,
        settlement: Settlement,
        audit: Audit<'_>,
        lifetime: Lifetime,
    ) -> Result<Head, OperatorError> {
        self.engine
            .settle(id, settlement, audit, lifetime, Some(fence))
            .await
    }

    /// Erases an answer and leaves a tombstone, for as long as the record would have been
    /// remembered. Returns when no node can serve the answer any more and the store has erased it:
    /// about a second later. [`OperatorError::Unerased`] says that its bytes may still be on the
    /// disk. What is running or unknown cannot be forgotten: its outcome could never be stated
    /// afterwards.
    pub async fn forget(&self, id: RecordId, audit: Audit<'_>) -> Result<(), OperatorError> {
        // The tombstone stands for as long as it would have without the forgetting.
        self.forget_for(
            id,
            audit,
            Lifetime {
                retention: Duration::ZERO,
                tombstone: Duration::ZERO,
            },
        )
        .await
    }

    /// The same with a tombstone that stands for at least as long as the route says:
    /// `Lifetime::from(&policy)`.
    pub async fn forget_for(
        &self,
        id: RecordId,
        audit: Audit<'_>,
        lifetime: Lifetime,
    ) -> Result<(), OperatorError> {
        self.engine.forget(id, audit, lifetime, None).await
    }

    /// The same, only of the record as it was looked at: what has changed since is
    /// [`OperatorError::Changed`], and nobody has decided about it yet.
    pub async fn forget_version(
        &self,
        id: RecordId,
        version: u64,
        audit: Audit<'_>,
        lifetime: Lifetime,
    ) -> Result<(), OperatorError> {
        self.engine.forget(id, audit, lifetime, Some(version)).await
    }

    /// A page of the audit log: what was done by hand, by whom and why. The store keeps it for [400
    /// days](hapax_core::audit::KEPT_FOR), whatever becomes of the records.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use hapax::core::audit::LogQuery;
    /// # let hapax = hapax::Hapax::new(hapax::store::memory());
    ///
    /// // The latest ten, newest first; then whatever comes after them.
    /// let latest = hapax.log(LogQuery::latest(10)).await?;
    /// let last = latest.first().map_or(0, |entry| entry.sequence);
    /// for entry in hapax.log(LogQuery::after(last, 100)).await? {
    ///     println!("{} by {}: {}", entry.action, entry.signed.by(), entry.signed.reason());
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        self.engine.log(query).await
    }

    /// Writes into the audit log what was done by hand and changes no record, such as a
    /// configuration that was loaded anew.
    pub async fn note(&self, action: &str, audit: Audit<'_>) -> Result<LogEntry, OperatorError> {
        self.engine.note(action, audit).await
    }

    /// Changes how many records there may be, from now on. No record is removed: whoever is over
    /// the new quota begins nothing more.
    pub fn set_quotas(&self, quotas: Quotas) {
        self.engine.store.set_quotas(quotas);
        self.engine.capacity.set_quotas(quotas);
    }

    /// What a principal has in this namespace, as far as this process knows; `None` while no quota
    /// is set.
    pub fn usage(&self, principal: &Principal) -> Option<Usage> {
        self.engine.store.usage(&self.namespace, principal)
    }

    /// The budget for buffered request bodies: see [`Limits::buffered_memory_bytes_max`]. It does
    /// not keep the store open.
    pub fn body_budget(&self) -> &Arc<BodyBudget> {
        &self.bodies
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn observe(&self, event: &Event<'_>) {
        self.engine.observe(event);
    }
}
