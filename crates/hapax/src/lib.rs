// The README's program needs these features; without them it would be no test that passes.
#![cfg_attr(
    all(feature = "axum", feature = "sqlite"),
    doc = include_str!("../README.md")
)]
#![cfg_attr(
    not(all(feature = "axum", feature = "sqlite")),
    doc = "Makes HTTP retries safe: see the README, which is shown here with the features `axum` and `sqlite`."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
mod backoff;
mod budget;
mod builder;
pub mod clock;
#[cfg(feature = "axum")]
mod extract;
mod hash;
pub mod inbox;
pub mod join;
pub mod middleware;
pub mod natural;
pub mod observe;
pub mod once;
mod outage;
pub mod outbox;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use budget::{BodyBudget, BodyUsage};
pub use builder::Builder;
#[cfg(feature = "postgres")]
pub use builder::PostgresDatabase;
#[cfg(feature = "redis")]
pub use builder::RedisAddress;
#[cfg(feature = "sqlite")]
pub use builder::SqliteFile;
pub use hapax_core as core;
pub use hapax_core::fingerprint::FingerprintPolicy;
pub use hapax_core::record::StateFilter;
pub use hapax_core::request_id::RequestId;
pub use hapax_core::store::ListQuery;
pub use hapax_core::{
    Answer, Class, Key, KeyRule, KeySource, Mode, OperationId, Part, Policy, Principal, RecordId,
    Rejection, Scope, Store, Velocity,
};

#[doc(inline)]
pub use join::{FinishError, Kept};
#[doc(inline)]
pub use middleware::{
    Body, Guard, GuardBuilder, GuardError, Idempotency, NeverDispatched, Peer, Probe, Probed,
    StandardWebhooks, TimedOut, Unverified, WebhookSecretError,
};
#[doc(inline)]
pub use observe::{Event, Observer, Would};
#[cfg(feature = "json")]
#[doc(inline)]
pub use once::JsonOnce;
#[doc(inline)]
pub use once::{
    Audit, BoxError, Done, Drained, Limits, NotDone, NotDoneExt, Once, Operation, OperatorError,
    Quotas, RunError, Settlement, Sweep, Usage,
};
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use store::guest::Guest;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use store::postgres::Postgres;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use store::redis::Redis;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use store::sqlite::Sqlite;

use hapax_core::audit::{LogEntry, LogQuery};
use hapax_core::record::{Fence, Head, Record, State};
use hapax_core::store::{Lifetime, StoreError, Swept};

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

impl fmt::Debug for Hapax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hapax")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Hapax {
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

    /// Builds a [`Guard`]: the tower layer that gives requests with the same key one effect.
    ///
    /// ```
    /// # use hapax::Hapax;
    /// # #[derive(Clone)] struct User { id: String }
    /// # fn example(hapax: Hapax) -> Result<(), hapax::GuardError> {
    /// let guard = hapax.guard().required().principal_from(|user: &User| user.id.clone()).build()?;
    /// # drop(guard); Ok(()) }
    /// ```
    pub fn guard(&self) -> GuardBuilder {
        GuardBuilder::new(self.clone())
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
        let until = self.engine.clock.wall().after(life);
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
    /// # async fn example(hapax: hapax::Hapax) -> Result<(), Box<dyn std::error::Error>> {
    /// use hapax::{Answer, Audit, ListQuery, Settlement, StateFilter};
    ///
    /// let unknown = ListQuery { state: Some(StateFilter::Unknown), ..ListQuery::default() };
    /// for head in hapax.list(unknown).await? {
    ///     println!("{} {}: {}", head.scope.method, head.scope.path, head.key);
    ///     let audit = Audit { by: "ada", reason: "charge ch_17 is in the bank's ledger" };
    ///     let answer = Answer::new(201, r#"{"id":"ch_17"}"#);
    ///     hapax.settle(head.id, Settlement::Done(answer), audit).await?;
    /// }
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
    /// # let hapax = hapax::Hapax::memory();
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
