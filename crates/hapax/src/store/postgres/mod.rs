//! The store for many nodes: a Postgres database that they share.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::Hapax;
//!
//! let url = "postgres://app@db.internal/payments";
//! let hapax = Hapax::postgres(url).migrate().await?.namespace("payments");
//! # Ok(()) }
//! ```
//!
//! Where the service's role may not create a schema, run `hapax migrate --store postgres://…` once
//! as another role, and leave `migrate()` out. With other options:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use hapax::store::postgres::{Options, Postgres};
//! use hapax::Hapax;
//!
//! let mut options = Options::new("postgres://app@db.internal/payments")?;
//! options.lock_timeout = Duration::from_millis(200);
//! let hapax = Hapax::new(Postgres::open_with(options).await?).namespace("payments");
//! # Ok(()) }
//! ```
//!
//! Every verb is one call of a function in schema `hapax`: one statement, one transaction, one
//! round trip. The functions follow the rules of [`hapax_core::guard`] and use the database's
//! clock. Nothing is prepared and no state is left in a session, so that PgBouncer can be used in
//! transaction mode. Calls that arrive while a statement is in flight share the next one: many
//! callers share a commit, and a single caller does not wait for others.
//!
//! `forget` deletes the answer in its own transaction, and from then on it cannot be read through
//! Postgres. Its bytes disappear from the table with the next vacuum. The write-ahead log, replicas
//! and backups keep them for as long as they are configured to, which this store cannot change.
//!
//! Guide to the code: `schema` has the tables and functions. `pipeline` is a connection that
//! reconnects, `batch` the queue in front of it, and `claim`, `finish` and `read` are the calls
//! that are batched. `join` ends attempts through the caller's connection, and `terms` has the
//! rules for that. `operator`, `audit` and `upkeep` have the calls that are sent one by one. `row`
//! reads rows, `retries` and `locked` handle rows that other transactions have locked,
//! `server_history` and `high_water` detect a database that has lost writes, and `transfer` and
//! `import_columns` copy everything into or from another store.

mod audit;
mod batch;
mod claim;
mod columns;
mod connect;
#[cfg(feature = "tokio-postgres-0_7")]
mod connection;
mod counts;
mod error;
mod finish;
mod high_water;
mod import_columns;
mod join;
mod locked;
mod operator;
mod options;
mod pipeline;
mod policies;
mod read;
mod retries;
mod row;
pub mod schema;
mod server_history;
mod shared;
mod stats;
mod terms;
mod tls;
mod transfer;
mod upkeep;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, Note};
use hapax_core::record::{Fence, Head, State};
use hapax_core::scope::{PrincipalId, RecordId};
use hapax_core::store::{
    Change, Claim, Condition, Joins, KnownPrincipal, ListQuery, Put, Reading, Renewal, Reply, Seen,
    Store, StoreError, StoreErrorKind, StoreInfo, Swept, Written,
};
use hapax_core::time::Clock;
use tokio::sync::Semaphore;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

pub use connect::{ConnectError, ConnectKind};
#[cfg(feature = "tokio-postgres-0_7")]
pub use connection::Connection;
pub use error::OpenError;
pub use options::{ConnectOptions, OptionsError};
pub use stats::Stats;
pub use transfer::Mover;

use self::batch::{Batches, Verb};
use self::claim::{ClaimRow, Claims};
use self::error::{Failure, Fault};
use self::finish::{FinishRow, Finishes};
use self::locked::Locked;
use self::pipeline::{Parameters, Pipeline};
use self::read::Reads;
use self::retries::{Retries, decided};
use self::shared::Shared;

/// Writes that are sent alone at the same time. Each may wait for a lock, and delays the others on
/// its pipeline.
const ALONE_MAX: usize = 4;

/// Records in a Postgres database.
pub struct Postgres {
    claims: Batches<Claims>,
    finishes: Batches<Finishes>,
    reads: Batches<Reads>,
    /// For everything that is sent one by one.
    aside: Arc<Pipeline>,
    /// All pipelines.
    pipelines: [Arc<Pipeline>; 4],
    alone: Semaphore,
    locked: Locked,
    shared: Arc<Shared>,
}

/// How to use a database.
#[derive(Clone)]
pub struct Options {
    /// The database, and how to connect to it.
    pub connection: ConnectOptions,
    /// Bytes that may wait to be sent; 64 MiB by default. Beyond it a request is refused at once,
    /// so that a slow database causes responses of 503 rather than growing memory.
    pub queue_bytes_max: usize,
    /// How long a statement may take; 1.5 seconds by default, which is less than the two seconds
    /// after which a request is given up. Then the connection counts as dead and is replaced.
    pub statement_timeout: Duration,
    /// How long a write to a record that another transaction has locked is retried; one second by
    /// default.
    pub lock_timeout: Duration,
    /// The clock with which the database's clock is compared before the store's time advances by
    /// more than an hour at once; `None` for this machine's wall clock. It is used for nothing
    /// else.
    pub clock: Option<Arc<dyn Clock>>,
    /// A file, used by this process alone, in which it keeps its last acknowledged writes; `None`
    /// by default. With it a starting process notices that the database was restored from a backup
    /// since the process stopped. See [`Stats::commits_lost`].
    pub high_water_file: Option<PathBuf>,
}

impl Options {
    /// The default options for the database named by a URL or a `key=value` text. Missing
    /// parameters come from the `PG*` variables.
    pub fn new(connection: &str) -> Result<Options, OptionsError> {
        Ok(Options {
            connection: ConnectOptions::parse(connection)?,
            queue_bytes_max: 64 << 20,
            statement_timeout: Duration::from_millis(1500),
            lock_timeout: Duration::from_secs(1),
            clock: None,
            high_water_file: None,
        })
    }
}

impl Postgres {
    /// Prepares a database for this version, as `hapax migrate` does: applies the migrations that
    /// are due. Two nodes may do so at once, and nodes of the version before go on serving. The role
    /// must be allowed to create a schema, or own the schema `hapax`; [`schema::grant`] lets another
    /// role use the store.
    pub async fn migrate(connection: &str) -> Result<(), OpenError> {
        let connection = ConnectOptions::parse(connection)?;
        schema::migrate(&connection, &schema::migrations(), |migration| {
            tracing::info!(
                version = migration.version,
                name = migration.name,
                "a migration was applied"
            );
        })
        .await?;
        Ok(())
    }

    /// Opens a database that was [prepared](Postgres::migrate) for it, by its URL or a `key=value`
    /// text.
    pub async fn open(connection: &str) -> Result<Postgres, OpenError> {
        Postgres::open_with(Options::new(connection)?).await
    }

    /// Opens a database with options. Its connections run on the current runtime.
    pub async fn open_with(options: Options) -> Result<Postgres, OpenError> {
        let high_water_file = options.high_water_file.clone();
        let recalled = match high_water_file.clone() {
            Some(path) => tokio::task::spawn_blocking(move || high_water::read(&path))
                .await
                .unwrap_or_default(),
            None => None,
        };
        let shared = Arc::new(Shared::new(options, recalled));
        let link = shared.connect().await?;
        if let Some(path) = high_water_file {
            high_water::keep(path, &shared).await;
        }
        shared.counters.connected();
        let aside = Pipeline::connected(shared.clone(), link);
        let [claims, finishes, reads] =
            std::array::from_fn(|_| Pipeline::connecting(shared.clone()));
        Ok(Postgres {
            claims: Batches::start(shared.clone(), claims.clone(), aside.clone()),
            finishes: Batches::start(shared.clone(), finishes.clone(), aside.clone()),
            reads: Batches::start(shared.clone(), reads.clone(), aside.clone()),
            pipelines: [claims, finishes, reads, aside.clone()],
            aside,
            alone: Semaphore::new(ALONE_MAX),
            locked: Locked::default(),
            shared,
        })
    }

    /// Counters and gauges of the store, for metrics. Does not access the database.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let Put {
            id,
            condition,
            change,
        } = put;
        let written = match (change, condition) {
            (Change::Claim(claim), Condition::Absent) => self.claim(id, None, claim).await?,
            (Change::Claim(claim), Condition::Lapsed { fence }) => {
                self.claim(id, Some(fence), claim).await?
            }
            (Change::Finish(finish), Condition::Held { fence }) if is_end(finish.state) => {
                let ending = FinishRow::new(id, fence, &finish);
                let rows = self.through(&self.finishes, Arc::new(ending)).await?;
                self.written(rows.first().map(|row| &**row), None).await?
            }
            (Change::Lose(lifetime), Condition::Lapsed { fence }) => {
                self.lose(id, fence, lifetime).await?
            }
            (Change::Settle(finish, signed), Condition::Version { version })
                if is_end(finish.state) && finish.state != State::Unknown =>
            {
                self.settle(id, version, &finish, &signed).await?
            }
            (Change::Forget(lifetime, signed), Condition::Version { version }) => {
                self.forget(id, version, lifetime, &signed).await?
            }
            // No other pair is a transition.
            _ => {
                let Reading { mut records, now } = self.read(vec![id]).await?;
                Written::Lost(Seen {
                    record: records.pop().flatten(),
                    now,
                })
            }
        };
        if let Written::Won(won) = &written {
            self.shared.server_history.remember(&won.head, won.now);
        }
        Ok(written)
    }

    async fn claim(
        &self,
        id: RecordId,
        after: Option<Fence>,
        claim: Claim,
    ) -> Result<Written, StoreError> {
        let policy = self
            .shared
            .policies
            .number(&claim.fingerprint.policy, &self.aside)
            .await?;
        let terms = self.terms_number(&claim).await?;
        let wanted = Arc::new(ClaimRow {
            id,
            after,
            claim,
            policy,
            terms,
        });
        let rows = self.through(&self.claims, wanted.clone()).await?;
        // Usually the database already has them. But the claim may have waited for a new
        // connection, to a database that lacks them.
        self.shared
            .policies
            .number(&wanted.claim.fingerprint.policy, &self.aside)
            .await?;
        self.terms_number(&wanted.claim).await?;
        self.written(rows.first().map(|row| &**row), Some(&wanted.claim))
            .await
    }

    /// The number of the terms by which others may end the attempt, after making sure that the
    /// database has them.
    async fn terms_number(&self, claim: &Claim) -> Result<Option<i64>, StoreError> {
        match &claim.terms {
            Some(terms) => self.shared.terms.number(terms, &self.aside).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads the single row that answers a write.
    async fn written(
        &self,
        row: Option<&Row>,
        claim: Option<&Claim>,
    ) -> Result<Written, StoreError> {
        let Some(row) = row else {
            return Err(StoreError::unavailable("the database left out an answer"));
        };
        self.shared.policies.learn([row], &self.aside).await?;
        row::written(row, &self.shared.policies, claim)
    }

    /// Sends a part in a batch, or alone if it cannot be batched, and repeats that until it is
    /// decided.
    async fn through<V: Verb>(
        &self,
        batches: &Batches<V>,
        part: Arc<V::Part>,
    ) -> Result<Vec<Arc<Row>>, StoreError> {
        let mut retries = Retries::new(self.shared.options.lock_timeout);
        if V::CHANGES && self.locked.has_any(V::ids(&part)) {
            retries = Retries::alone(self.shared.options.lock_timeout);
        }
        loop {
            let sent = match retries.is_alone() {
                false => batches.ask(part.clone()).await,
                true => self.send_alone::<V>(&part, &retries).await,
            };
            if sent
                .as_ref()
                .is_err_and(|failure| failure.fault == Fault::Clock)
            {
                self.keep_time().await?;
            }
            if let Some(rows) = retries.judge(sent.and_then(decided)).await? {
                return Ok(rows);
            }
        }
    }

    async fn send_alone<V: Verb>(
        &self,
        part: &V::Part,
        retries: &Retries,
    ) -> Result<Vec<Arc<Row>>, Failure> {
        let Ok(Ok(_permit)) = tokio::time::timeout_at(retries.until(), self.alone.acquire()).await
        else {
            let error = StoreError::new(
                StoreErrorKind::Locked,
                "too many records are locked by transactions that have not ended",
            );
            return Err(Failure::connection(error));
        };
        self.shared.counters.alone.fetch_add(1, Ordering::Relaxed);
        let sent = batch::send_alone::<V>(&self.aside, part).await;
        if sent
            .as_ref()
            .is_err_and(|failure| failure.fault == Fault::Locked)
        {
            self.locked.add(V::ids(part));
        }
        sent
    }

    /// Sends a statement on the `aside` pipeline, and repeats it while a lock prevents it.
    /// Whether this namespace was given to `hapax.start` (see `docs/two-calls.md`): then every claim
    /// in it is refused.
    pub async fn is_for_start(&self, namespace: &str) -> Result<bool, StoreError> {
        let sql = "SELECT hapax.is_for_start($1)";
        let rows = self
            .aside(sql, &[(&namespace.as_bytes(), Type::BYTEA)])
            .await?;
        rows.first().map_or(Ok(false), |row| row::get(row, 0))
    }

    async fn aside(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        let mut retries = Retries::alone(self.shared.options.lock_timeout);
        loop {
            let sent = self.aside.ask(sql, parameters).await;
            if let Some(rows) = retries.judge(sent).await? {
                return Ok(rows);
            }
        }
    }
}

/// Whether an attempt can end in this state.
fn is_end(state: State) -> bool {
    matches!(
        state,
        State::Completed | State::Failed | State::Retryable | State::Unknown
    )
}

impl Store for Postgres {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(self.read(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        Box::pin(self.extend(renewals))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(self.page(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        Box::pin(self.clear(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        Box::pin(async {
            let (info, counts) = tokio::try_join!(self.server_info(), self.read_counts())?;
            Ok(StoreInfo {
                counts: Some(counts),
                ..info.store
            })
        })
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        Box::pin(self.remember_principals(principals))
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        Box::pin(self.knows_principal(principal))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(async move { self.read_log(&query).await })
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        Box::pin(self.write_note(note))
    }

    fn joins(&self) -> Option<&dyn Joins> {
        Some(self)
    }
}
