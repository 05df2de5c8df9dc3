//! Operators on SQLite: the same as the functions of Postgres, in SQL of its own.

use std::path::PathBuf;

use bytes::Bytes;
use hapax_core::audit::Signed;
use hapax_core::flow::ReceiptId;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params};

use super::{
    ConsumerState, Found, Head, InboxError, Listed, Operators, ParkedQuery, ParkedState, number,
    time, window,
};
use crate::outbox::operate::write_down;
use crate::outbox::sqlite::{execute, explain, now};
use crate::outbox::{OutboxError, SqliteOutbox, read_headers};
use crate::publish::Reply;

/// The inbox in a SQLite file, which was made by opening the file as a
/// [`Guest`](hapax::store::guest::Guest).
#[derive(Debug)]
pub struct SqliteInbox(SqliteOutbox);

impl SqliteInbox {
    /// The inbox in this file. It is opened when it is first used.
    pub fn new(path: impl Into<PathBuf>) -> SqliteInbox {
        SqliteInbox(SqliteOutbox::new(path))
    }
}

impl Operators for SqliteInbox {
    fn consumers(&self) -> Reply<'_, Result<Vec<ConsumerState>, InboxError>> {
        Box::pin(async move { Ok(self.0.on_file(|connection| consumers(connection)).await?) })
    }

    fn parked<'a>(&'a self, query: &'a ParkedQuery) -> Reply<'a, Result<Vec<Listed>, InboxError>> {
        let query = query.clone();
        Box::pin(async move {
            let listed = self.0.on_file(move |connection| parked(connection, &query));
            Ok(listed.await?)
        })
    }

    fn find<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
    ) -> Reply<'a, Result<Option<Found>, InboxError>> {
        let (consumer, id) = (consumer.to_owned(), id.to_owned());
        Box::pin(async move {
            let found = self
                .0
                .on_file(move |connection| find(connection, &consumer, &id));
            Ok(found.await?)
        })
    }

    fn retry<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        not_applied: bool,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>> {
        let (consumer, id, signed) = (consumer.to_owned(), id.to_owned(), signed.clone());
        Box::pin(async move {
            let retried = self
                .0
                .write(move |tx| retry(tx, &consumer, &id, not_applied, &signed))
                .await?;
            match retried {
                Retried::Done => Ok(true),
                Retried::NotParked => Ok(false),
                Retried::TooOld => Err(InboxError::TooOld),
            }
        })
    }

    fn skip<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>> {
        let (consumer, id, signed) = (consumer.to_owned(), id.to_owned(), signed.clone());
        Box::pin(async move {
            let skipped = self.0.write(move |tx| skip(tx, &consumer, &id, &signed));
            Ok(skipped.await?)
        })
    }
}

fn consumers(connection: &Connection) -> Result<Vec<ConsumerState>, OutboxError> {
    let sql = "SELECT name, time_window, \
               (SELECT count(*) FROM hapax_parked AS p WHERE p.consumer = c.id AND p.state = 0), \
               (SELECT count(*) FROM hapax_parked AS p WHERE p.consumer = c.id AND p.state = 1), \
               (SELECT count(*) FROM hapax_parked AS p WHERE p.consumer = c.id AND p.state = 2), \
               (SELECT min(parked_at) FROM hapax_parked AS p WHERE p.consumer = c.id AND p.state = 1) \
               FROM hapax_consumers AS c ORDER BY name";
    let now = time(now());
    let mut statement = connection.prepare(sql).map_err(explain)?;
    let read = |row: &Row<'_>| {
        Ok(ConsumerState {
            name: row.get(0)?,
            window: window(row.get(1)?),
            trying: number(row.get(2)?),
            parked: number(row.get(3)?),
            again: number(row.get(4)?),
            oldest_parked_at: row.get::<_, Option<i64>>(5)?.map(time),
            now,
        })
    };
    let rows = statement.query_map([], read).map_err(explain)?;
    rows.collect::<Result<_, _>>().map_err(explain)
}

const HEAD: &str = "p.number, c.name, p.id, p.state, p.kind, p.attempts, p.reason, p.topic, p.key, p.version, p.at, p.headers, p.parked_at";
const FROM: &str = "FROM hapax_parked AS p JOIN hapax_consumers AS c ON c.id = p.consumer";

fn parked(connection: &Connection, query: &ParkedQuery) -> Result<Vec<Listed>, OutboxError> {
    let sql = format!(
        "SELECT {HEAD}, coalesce(length(p.payload), 0) {FROM} \
         WHERE (:consumer IS NULL OR c.name = :consumer) AND (:state IS NULL OR p.state = :state) AND p.number > :after \
         ORDER BY p.number LIMIT :limit"
    );
    let values = named_params! {
        ":consumer": query.consumer,
        ":state": query.state.map(ParkedState::code),
        ":after": query.after.unwrap_or(0),
        ":limit": query.limit,
    };
    let mut statement = connection.prepare(&sql).map_err(explain)?;
    let mut rows = statement.query(values).map_err(explain)?;
    let mut listed = Vec::new();
    while let Some(row) = rows.next().map_err(explain)? {
        listed.push(Listed {
            head: head(row)?,
            payload_bytes: number(row.get(13).map_err(explain)?),
        });
    }
    Ok(listed)
}

fn find(connection: &Connection, consumer: &str, id: &str) -> Result<Option<Found>, OutboxError> {
    let sql = format!("SELECT {HEAD}, p.payload {FROM} WHERE c.name = ?1 AND p.receipt = ?2");
    let mut statement = connection.prepare(&sql).map_err(explain)?;
    let receipt = ReceiptId::of(consumer, id);
    let mut rows = statement
        .query(params![consumer, receipt.as_bytes()])
        .map_err(explain)?;
    let Some(row) = rows.next().map_err(explain)? else {
        return Ok(None);
    };
    let payload: Option<Vec<u8>> = row.get(13).map_err(explain)?;
    Ok(Some(Found {
        head: head(row)?,
        payload: Bytes::from(payload.unwrap_or_default()),
    }))
}

fn head(row: &Row<'_>) -> Result<Head, OutboxError> {
    let state = ParkedState::of(row.get(3).map_err(explain)?);
    let kind: u8 = row.get(4).map_err(explain)?;
    let causes = ["failed", "too-old", "ahead", "gap", "no-id"];
    let cause = kind
        .checked_sub(1)
        .and_then(|place| causes.get(usize::from(place)));
    let headers: Option<String> = row.get(11).map_err(explain)?;
    Ok(Head {
        number: row.get(0).map_err(explain)?,
        consumer: row.get(1).map_err(explain)?,
        id: row.get(2).map_err(explain)?,
        state: state.map_err(|error| OutboxError::Corrupt(error.to_string()))?,
        cause: cause.map_or_else(|| kind.to_string(), ToString::to_string),
        attempts: row.get(5).map_err(explain)?,
        reason: row.get(6).map_err(explain)?,
        topic: row.get(7).map_err(explain)?,
        key: row.get(8).map_err(explain)?,
        version: row.get(9).map_err(explain)?,
        at: row.get::<_, Option<i64>>(10).map_err(explain)?.map(time),
        headers: headers.as_deref().map_or(Ok(Vec::new()), read_headers)?,
        parked_at: time(row.get(12).map_err(explain)?),
    })
}

/// What became of a wish to try a message again.
enum Retried {
    Done,
    NotParked,
    TooOld,
}

fn retry(
    tx: &Transaction<'_>,
    consumer: &str,
    id: &str,
    not_applied: bool,
    signed: &Signed,
) -> Result<Retried, OutboxError> {
    // The window may be without end, which is null.
    let sql = "SELECT p.number, p.kind = 2 OR coalesce(p.at, p.parked_at) < max(c.since, coalesce(?3 - c.time_window, c.since)) \
               FROM hapax_parked AS p JOIN hapax_consumers AS c ON c.id = p.consumer \
               WHERE c.name = ?1 AND p.receipt = ?2 AND p.state = 1";
    let receipt = ReceiptId::of(consumer, id);
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let found: Option<(i64, bool)> = tx
        .query_row(sql, params![consumer, receipt.as_bytes(), now()], read)
        .optional()
        .map_err(explain)?;
    let Some((number, is_too_old)) = found else {
        return Ok(Retried::NotParked);
    };
    if is_too_old && !not_applied {
        return Ok(Retried::TooOld);
    }
    let sql = "UPDATE hapax_parked SET state = 2, attempts = 0, not_applied = ?2 WHERE number = ?1";
    execute(tx, sql, params![number, not_applied])?;
    let stated = if not_applied { ", not applied" } else { "" };
    write_down(
        tx,
        "inbox-retry",
        signed,
        &format!("{consumer}, {id}{stated}"),
    )?;
    Ok(Retried::Done)
}

fn skip(
    tx: &Transaction<'_>,
    consumer: &str,
    id: &str,
    signed: &Signed,
) -> Result<bool, OutboxError> {
    let sql = "DELETE FROM hapax_parked WHERE receipt = ?2 AND consumer = (SELECT id FROM hapax_consumers WHERE name = ?1) \
               RETURNING consumer, at, entity, version";
    let receipt = ReceiptId::of(consumer, id);
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    type Found = (i64, Option<i64>, Option<Vec<u8>>, Option<i64>);
    let found: Option<Found> = tx
        .query_row(sql, params![consumer, receipt.as_bytes()], read)
        .optional()
        .map_err(explain)?;
    let Some((number, at, entity, version)) = found else {
        return Ok(false);
    };
    let sql =
        "INSERT INTO hapax_receipts (id, consumer, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
    let at = at.unwrap_or(i64::MAX).min(now());
    execute(tx, sql, params![receipt.as_bytes(), number, at])?;
    // What waits for its version is tried.
    let sql = "UPDATE hapax_parked SET state = 2, attempts = 0 \
               WHERE consumer = ?1 AND state = 1 AND kind = 4 AND entity = ?2 AND version <= ?3 + 1";
    execute(tx, sql, params![number, entity, version])?;
    write_down(tx, "inbox-skip", signed, &format!("{consumer}, {id}"))?;
    Ok(true)
}
