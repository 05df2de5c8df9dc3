//! Copies everything from the database into another store, or the reverse.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogEntry, PAGE_MAX};
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::operation::Secret;
use hapax_core::record::Record;
use hapax_core::scope::RecordId;
use hapax_core::store::{Reply, StoreError, StoreErrorKind};
use hapax_core::transfer::{
    Account, CopyId, Left, Page, Passage, Position, Shipment, Standing, Survey, Transfer,
    out_of_turn, shipped,
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::connect::{Connected, connect};
use super::error::{Failure, OpenError, is_missing, refused_role};
use super::import_columns::{entry_columns, record_columns};
use super::pipeline::Parameters;
use super::policies::{self, Policies};
use super::row;
use super::server_history::check_schema;
use super::{ConnectOptions, audit};
use crate::store::codec::{self, bigint};

/// A database as the source or target of a [copy](crate::store::copy), even if it is out of use.
/// Needs the role that owns the schema, because only that role may take a store out of use.
pub struct Mover {
    database: String,
    connected: Connected,
    policies: Policies,
    /// The policies that were sent to the database.
    sent: Mutex<HashMap<Arc<FingerprintPolicy>, i64>>,
    /// When the store was taken out of use, at the latest.
    closed: Mutex<Instant>,
}

/// How long a store is out of use at least before another one takes its place. Nodes ask for the
/// store info once a second, so a node that was started on the empty store notices before it could
/// continue under the old secret.
const NOTICE: Duration = Duration::from_millis(1100);

impl Mover {
    /// Opens a database that was [prepared](super::schema::migrate) for it.
    pub async fn open(connection: &ConnectOptions) -> Result<Mover, OpenError> {
        let (database, connected) = (connection.to_string(), connect(connection).await?);
        let (policies, sent, closed) = (
            Policies::default(),
            Mutex::default(),
            Mutex::new(Instant::now()),
        );
        let mover = Mover {
            database,
            connected,
            policies,
            sent,
            closed,
        };
        let rows = mover
            .connected
            .client
            .query_typed("SELECT schema, oldest FROM hapax.meta", &[])
            .await;
        let rows = rows.map_err(|error| mover.not_opened(error))?;
        let numbers = rows
            .first()
            .map(|row| Ok((row::get::<i32>(row, 0)?, row::get::<i32>(row, 1)?)))
            .transpose();
        let unusable = |source| OpenError::Unusable {
            database: mover.database.clone(),
            source,
        };
        let (schema, oldest) =
            numbers
                .map_err(unusable)?
                .ok_or_else(|| OpenError::NotMigrated {
                    database: mover.database.clone(),
                })?;
        check_schema(connection, schema.unsigned_abs(), oldest.unsigned_abs())?;
        Ok(mover)
    }

    fn not_opened(&self, error: tokio_postgres::Error) -> OpenError {
        let database = self.database.clone();
        match refused_role(&error) {
            Some(_) => OpenError::NotTheOwner { database },
            None if is_missing(&error) => OpenError::NotMigrated { database },
            None => OpenError::Unusable {
                database,
                source: Failure::new(error).error,
            },
        }
    }

    async fn ask(&self, sql: &str, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        self.connected.client.query_typed(sql, parameters).await.map_err(|error| match refused_role(&error) {
            Some(_) => StoreError::unavailable(OpenError::NotTheOwner { database: self.database.clone() }.to_string()),
            None if is_locked(&error) => {
                let text = "somebody is writing to it and does not end: stop every node, see pg_stat_activity, and try again";
                StoreError::unavailable(text).because(error)
            }
            None => Failure::new(error).error,
        })
    }

    /// Runs a statement that returns a single value.
    async fn ask_one<T>(&self, sql: &str, parameters: Parameters<'_>) -> Result<T, StoreError>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let rows = self.ask(sql, parameters).await?;
        row::get(
            rows.first()
                .ok_or_else(|| StoreError::unavailable("the database left out an answer"))?,
            0,
        )
    }

    async fn in_turn(&self, sql: &str, parameters: Parameters<'_>) -> Result<(), StoreError> {
        if self.ask_one(sql, parameters).await? {
            Ok(())
        } else {
            Err(out_of_turn())
        }
    }

    async fn look(&self) -> Result<Survey, StoreError> {
        let sql = "SELECT word, copy, other, record, entry, secret, epoch, floor, logged, now, records, running, lives_since FROM hapax.survey()";
        let rows = self.ask(sql, &[]).await?;
        let row = rows
            .first()
            .ok_or_else(|| StoreError::corrupt("the database has nothing to say of itself"))?;
        Ok(Survey {
            standing: standing(row)?,
            account: Account {
                secret: Secret::from_bytes(row::array(row::get(row, 5)?)?),
                lives_since: row::time(row, 12)?,
                epoch: row::number(row, 6)?,
                floor: row::fence(row, 7)?,
                logged: row::number(row, 8)?,
                now: row::time(row, 9)?,
            },
            records: row::number(row, 10)?,
            running: row::number(row, 11)?,
        })
    }

    async fn begin_to_leave(&self, copy: Passage) -> Result<Left, StoreError> {
        let (id, other) = (uuid(copy.copy), copy.other.clone());
        let refusal = refusal(&Standing::Leaving(copy));
        let parameters: Parameters<'_> = &[
            (&id, Type::UUID),
            (&other.as_bytes(), Type::BYTEA),
            (&refusal, Type::TEXT),
        ];
        match self
            .ask_one::<Option<i64>>("SELECT hapax.leave($1, $2, $3)", parameters)
            .await?
        {
            None => Ok(Left::Left),
            Some(live @ 1..) => Ok(Left::Busy(live.unsigned_abs())),
            Some(_) => Err(out_of_turn()),
        }
    }

    async fn next(&self, after: Option<RecordId>, page: Page) -> Result<Vec<Record>, StoreError> {
        let after = after.as_ref().map(|id| &id.as_bytes()[..]);
        let (rows, bytes) = (
            i32::try_from(page.records).unwrap_or(i32::MAX),
            i64::try_from(page.bytes).unwrap_or(i64::MAX),
        );
        let parameters: Parameters<'_> = &[
            (&after, Type::BYTEA),
            (&rows, Type::INT4),
            (&bytes, Type::INT8),
        ];
        let rows = self
            .ask("SELECT * FROM hapax.export($1, $2, $3)", parameters)
            .await?;
        self.learn(&rows).await?;
        let mut records = rows
            .iter()
            .map(|row| self.whole(row))
            .collect::<Result<Vec<_>, _>>()?;
        records.sort_unstable_by_key(|record| record.head.id);
        Ok(records)
    }

    /// The whole record in a row. An error names the record, because it stops the copy.
    fn whole(&self, row: &Row) -> Result<Record, StoreError> {
        let id = row::id(row)?;
        let read = || {
            let head = row::head(row, &self.policies, None)?;
            let head = head.ok_or_else(|| {
                StoreError::unavailable("it has been removed: somebody uses the store")
            })?;
            let answer = row::record(row, &self.policies, None)?.and_then(|record| record.answer);
            Ok(shipped(Record { head, answer }, row::now(row)?))
        };
        read().map_err(|error| codec::not_copied(id, error))
    }

    /// Makes sure that every policy named in these rows is known.
    async fn learn(&self, rows: &[Row]) -> Result<(), StoreError> {
        let missing = self.policies.missing(rows)?;
        if missing.is_empty() {
            return Ok(());
        }
        let rows = self
            .ask(policies::SQL, &[(&missing, Type::INT8_ARRAY)])
            .await?;
        self.policies.take_in(&rows)
    }

    /// Sends the fingerprint policies of these records to the database, and returns their numbers.
    async fn tell(
        &self,
        records: &[Record],
    ) -> Result<HashMap<Arc<FingerprintPolicy>, i64>, StoreError> {
        let policies = records
            .iter()
            .filter_map(|record| record.head.fingerprint.as_ref())
            .map(|fingerprint| &fingerprint.policy);
        let mut sent = self.sent.lock().clone();
        for policy in policies.collect::<HashSet<_>>() {
            if !sent.contains_key(policy) {
                let text = policy.to_string();
                let number = policies::number(&text);
                self.ask(
                    "SELECT hapax.policy($1, $2)",
                    &[(&number, Type::INT8), (&text.as_bytes(), Type::BYTEA)],
                )
                .await?;
                sent.insert(policy.clone(), number);
            }
        }
        self.sent.lock().clone_from(&sent);
        Ok(sent)
    }

    async fn take_in(&self, copy: CopyId, shipment: Shipment) -> Result<(), StoreError> {
        let Shipment {
            records,
            log,
            position,
        } = shipment;
        let (copy, entry) = (uuid(copy), bigint(position.entry));
        let record = position.record.as_ref().map(|id| &id.as_bytes()[..]);
        let position: Parameters<'_> = &[
            (&copy, Type::UUID),
            (&record, Type::BYTEA),
            (&entry, Type::INT8),
        ];
        // A shipment has either records or log entries, so the position is written together with
        // all of it. An empty shipment only writes its position.
        if !records.is_empty() || log.is_empty() {
            let numbers = self.tell(&records).await?;
            let columns = record_columns(&records, &numbers);
            let parameters = [position, &columns.parameters()].concat();
            self.in_turn(&columns.call("import"), &parameters).await?;
        }
        if !log.is_empty() {
            let columns = entry_columns(&log);
            let parameters = [position, &columns.parameters()].concat();
            self.in_turn(&columns.call("import_log"), &parameters)
                .await?;
        }
        Ok(())
    }
}

impl Transfer for Mover {
    fn survey(&self) -> Reply<'_, Survey> {
        Box::pin(self.look())
    }

    fn leave(&self, copy: Passage) -> Reply<'_, Left> {
        Box::pin(self.begin_to_leave(copy))
    }

    fn export(&self, after: Option<RecordId>, page: Page) -> Reply<'_, Vec<Record>> {
        Box::pin(self.next(after, page))
    }

    fn entries(&self, after: u64) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(async move {
            let (after, rows) = (bigint(after), i32::try_from(PAGE_MAX).unwrap_or(i32::MAX));
            let sql = "SELECT * FROM hapax.log(NULL, $1, NULL, $2)";
            self.ask(sql, &[(&after, Type::INT8), (&rows, Type::INT4)])
                .await?
                .iter()
                .map(audit::entry)
                .collect()
        })
    }

    fn moved(&self, copy: CopyId) -> Reply<'_, ()> {
        Box::pin(async move {
            let (Standing::Leaving(passage) | Standing::Moved(passage)) =
                self.look().await?.standing
            else {
                return Err(out_of_turn());
            };
            let refusal = refusal(&Standing::Moved(passage));
            self.in_turn(
                "SELECT hapax.moved($1, $2)",
                &[(&uuid(copy), Type::UUID), (&refusal, Type::TEXT)],
            )
            .await
        })
    }

    fn give_up(&self) -> Reply<'_, ()> {
        Box::pin(self.in_turn("SELECT hapax.give_up()", &[]))
    }

    fn arrive(&self, copy: Passage, account: Account) -> Reply<'_, bool> {
        Box::pin(async move {
            let (id, other, secret) = (
                uuid(copy.copy),
                copy.other.clone(),
                account.secret.to_bytes(),
            );
            let refusal = refusal(&Standing::Arriving(copy, Position::default()));
            let lives_since = bigint(account.lives_since.as_micros());
            let parameters: Parameters<'_> = &[
                (&id, Type::UUID),
                (&other.as_bytes(), Type::BYTEA),
                (&&secret[..], Type::BYTEA),
                (&lives_since, Type::INT8),
                (&refusal, Type::TEXT),
            ];
            let arrived = self
                .ask_one("SELECT hapax.arrive($1, $2, $3, $4, $5)", parameters)
                .await;
            *self.closed.lock() = Instant::now();
            arrived
        })
    }

    fn import(&self, copy: CopyId, shipment: Shipment) -> Reply<'_, ()> {
        Box::pin(self.take_in(copy, shipment))
    }

    fn settle_in(&self, copy: CopyId, account: Account) -> Reply<'_, ()> {
        Box::pin(async move {
            let Account {
                epoch,
                floor,
                logged,
                now,
                ..
            } = account;
            let closed = *self.closed.lock();
            tokio::time::sleep_until(closed + NOTICE).await;
            let parameters: Parameters<'_> = &[
                (&uuid(copy), Type::UUID),
                (&bigint(epoch), Type::INT8),
                (&bigint(floor.as_u64()), Type::INT8),
                (&bigint(logged), Type::INT8),
                (&bigint(now.as_micros()), Type::INT8),
            ];
            self.in_turn("SELECT hapax.settle_in($1, $2, $3, $4, $5)", parameters)
                .await
        })
    }
}

fn uuid(copy: CopyId) -> Uuid {
    Uuid::from_bytes(*copy.as_bytes())
}

/// The message for everyone else. In ASCII, so that a database of any encoding can store it.
fn refusal(standing: &Standing) -> String {
    let refusal = standing.refusal().unwrap_or_default();
    refusal
        .chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .collect()
}

/// The store's standing, from the first columns of a survey.
fn standing(row: &Row) -> Result<Standing, StoreError> {
    let Some(word) = row::get::<Option<&str>>(row, 0)? else {
        return Ok(Standing::Live);
    };
    let copy = CopyId::from_bytes(row::get::<Uuid>(row, 1)?.into_bytes());
    let record = row::get::<Option<&[u8]>>(row, 3)?
        .map(row::array)
        .transpose()?
        .map(RecordId::from_bytes);
    let (passage, position) = (
        Passage {
            copy,
            other: row::text(row, 2)?.to_owned(),
        },
        Position {
            record,
            entry: row::number(row, 4)?,
        },
    );
    let unknown = || {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "the store stands where this version does not know: run a newer one",
        )
    };
    Standing::of(word, passage, position).ok_or_else(unknown)
}

fn is_locked(error: &tokio_postgres::Error) -> bool {
    error
        .code()
        .is_some_and(|code| matches!(code.code(), "55P03" | "40P01"))
}
