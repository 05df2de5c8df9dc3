//! Operators on SQLite: the same as the functions of Postgres, in SQL of its own.

use bytes::Bytes;
use hapax_core::audit::{Note, Signed};
use hapax_core::flow::MessageId;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, named_params, params};

use super::{
    AsideQuery, AsideState, Found, Head, Listed, Oldest, Operators, ReaderState, SetAside, number,
    time,
};
use crate::outbox::sqlite::{execute, explain, now, wake_next};
use crate::outbox::{OutboxError, Reply, SqliteOutbox, read_headers};

impl Operators for SqliteOutbox {
    fn readers(&self) -> Reply<'_, Result<Vec<ReaderState>, OutboxError>> {
        self.on_file(|connection| {
            // All of one moment.
            let tx = connection.transaction().map_err(explain)?;
            readers(&tx)
        })
    }

    fn set_aside<'a>(
        &'a self,
        query: &'a AsideQuery,
    ) -> Reply<'a, Result<Vec<Listed>, OutboxError>> {
        let query = query.clone();
        self.on_file(move |connection| set_aside(connection, &query))
    }

    fn find(&self, id: MessageId) -> Reply<'_, Result<Vec<Found>, OutboxError>> {
        self.on_file(move |connection| find(connection, id))
    }

    fn retry<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        let (reader, signed) = (reader.to_owned(), signed.clone());
        self.write(move |tx| {
            // One that was given up goes behind the earlier ones of its key that still wait.
            let sql = "UPDATE hapax_deliveries AS d SET state = 1, attempts = 0, due_at = CASE WHEN EXISTS (\
                         SELECT 1 FROM hapax_deliveries AS e WHERE e.reader = d.reader AND e.topic = d.topic AND e.key = d.key \
                         AND e.seq < d.seq AND e.state <> 3 AND e.ordered AND e.key IS NOT NULL AND d.ordered) THEN NULL ELSE ?3 END \
                       WHERE reader = ?1 AND id = ?2 AND (state <> 1 OR due_at IS NOT NULL)";
            let is_done = execute(tx, sql, params![reader, id.as_bytes(), now()])? > 0;
            if is_done {
                write_down(tx, "outbox-retry", &signed, &format!("{reader}, {id}"))?;
            }
            Ok(is_done)
        })
    }

    fn skip<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        let (reader, signed) = (reader.to_owned(), signed.clone());
        self.write(move |tx| {
            let is_done = skip(tx, &reader, id)?;
            if is_done {
                write_down(tx, "outbox-skip", &signed, &format!("{reader}, {id}"))?;
            }
            Ok(is_done)
        })
    }

    fn start<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        let sql = "UPDATE hapax_readers SET stopped = NULL WHERE name = ?1 AND stopped IS NOT NULL";
        let (reader, signed) = (reader.to_owned(), signed.clone());
        self.write(move |tx| {
            let is_done = execute(tx, sql, [&reader])? > 0;
            if is_done {
                write_down(tx, "reader-start", &signed, &reader)?;
            }
            Ok(is_done)
        })
    }

    fn remove<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        let sql = "DELETE FROM hapax_readers WHERE name = ?1 AND lease_until <= ?2";
        let (reader, signed) = (reader.to_owned(), signed.clone());
        self.write(move |tx| {
            let is_done = execute(tx, sql, params![reader, now()])? > 0;
            if is_done {
                write_down(tx, "reader-remove", &signed, &reader)?;
            }
            Ok(is_done)
        })
    }
}

fn readers(tx: &Transaction<'_>) -> Result<Vec<ReaderState>, OutboxError> {
    let sql = "SELECT name, owner, lease_until, published, published_at, stopped, after, \
               (SELECT count(*) FROM hapax_deliveries AS d WHERE d.reader = r.name AND d.state = 1), \
               (SELECT count(*) FROM hapax_deliveries AS d WHERE d.reader = r.name AND d.state = 2), \
               (SELECT count(*) FROM hapax_deliveries AS d WHERE d.reader = r.name AND d.state = 3) \
               FROM hapax_readers AS r ORDER BY name";
    let now = now();
    let mut statement = tx.prepare(sql).map_err(explain)?;
    let read = |row: &Row<'_>| -> rusqlite::Result<(ReaderState, i64)> {
        let lease_until: i64 = row.get(2)?;
        let state = ReaderState {
            name: row.get(0)?,
            active: row
                .get::<_, Option<String>>(1)?
                .filter(|_| lease_until > now),
            published: number(row.get(3)?),
            published_at: row.get::<_, Option<i64>>(4)?.map(time),
            stopped: row.get(5)?,
            waiting: number(row.get(7)?),
            held: number(row.get(8)?),
            dead: number(row.get(9)?),
            oldest: None,
            writer: None,
            now: time(now),
        };
        Ok((state, row.get(6)?))
    };
    let rows = statement.query_map([], read).map_err(explain)?;
    let rows: Vec<_> = rows.collect::<Result<_, _>>().map_err(explain)?;
    let whole = |(state, after): (ReaderState, i64)| {
        let oldest = oldest(tx, &state.name, after)?;
        Ok(ReaderState { oldest, ..state })
    };
    rows.into_iter().map(whole).collect()
}

fn oldest(
    connection: &Connection,
    reader: &str,
    after: i64,
) -> Result<Option<Oldest>, OutboxError> {
    let sql = "SELECT at, id, topic, key FROM (\
               SELECT * FROM (SELECT at, id, topic, key FROM hapax_outbox WHERE seq > ?2 ORDER BY seq LIMIT 1) \
               UNION ALL \
               SELECT * FROM (SELECT at, id, topic, key FROM hapax_deliveries WHERE reader = ?1 AND state <> 3 ORDER BY seq LIMIT 1)\
               ) ORDER BY at LIMIT 1";
    let read = |row: &Row<'_>| {
        Ok(Oldest {
            at: time(row.get(0)?),
            id: MessageId::from_bytes(row.get(1)?),
            topic: row.get(2)?,
            key: row.get(3)?,
        })
    };
    let found = connection.query_row(sql, params![reader, after], read);
    found.optional().map_err(explain)
}

const HEAD: &str = "at, id, topic, key, ordered, version, headers";

fn set_aside(connection: &Connection, query: &AsideQuery) -> Result<Vec<Listed>, OutboxError> {
    let sql = format!(
        "SELECT {HEAD}, reader, state, attempts, due_at, reason, seq, length(CAST(payload AS BLOB)) FROM hapax_deliveries \
         WHERE (:reader IS NULL OR reader = :reader) AND (:state IS NULL OR state = :state) \
         AND (:after_reader IS NULL OR (reader, seq) > (:after_reader, :after_seq)) ORDER BY reader, seq LIMIT :limit"
    );
    let values = named_params! {
        ":reader": query.reader,
        ":state": query.state.map(AsideState::code),
        ":after_reader": query.after.as_ref().map(|(reader, _)| reader),
        ":after_seq": query.after.as_ref().map(|(_, sequence)| sequence),
        ":limit": query.limit,
    };
    all(connection, &sql, values, |row| {
        Ok(Listed {
            head: head(row)?,
            aside: aside(row)?,
            sequence: row.get(12).map_err(explain)?,
            payload_bytes: number(row.get(13).map_err(explain)?),
        })
    })
}

fn find(connection: &Connection, id: MessageId) -> Result<Vec<Found>, OutboxError> {
    let sql = format!(
        "SELECT {HEAD}, reader, state, attempts, due_at, reason, CAST(payload AS BLOB) FROM hapax_deliveries WHERE id = ?1"
    );
    let mut found = all(connection, &sql, [id.as_bytes()], |row| {
        Ok(Found {
            head: head(row)?,
            aside: Some(aside(row)?),
            payload: payload(row, 12)?,
        })
    })?;
    let sql = format!("SELECT {HEAD}, CAST(payload AS BLOB) FROM hapax_outbox WHERE id = ?1");
    found.extend(all(connection, &sql, [id.as_bytes()], |row| {
        Ok(Found {
            head: head(row)?,
            aside: None,
            payload: payload(row, 7)?,
        })
    })?);
    Ok(found)
}

/// Every row of a query.
fn all<T>(
    connection: &Connection,
    sql: &str,
    values: impl rusqlite::Params,
    read: impl Fn(&Row<'_>) -> Result<T, OutboxError>,
) -> Result<Vec<T>, OutboxError> {
    let mut statement = connection.prepare(sql).map_err(explain)?;
    let mut rows = statement.query(values).map_err(explain)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next().map_err(explain)? {
        all.push(read(row)?);
    }
    Ok(all)
}

fn head(row: &Row<'_>) -> Result<Head, OutboxError> {
    let headers: String = row.get(6).map_err(explain)?;
    Ok(Head {
        at: time(row.get(0).map_err(explain)?),
        id: MessageId::from_bytes(row.get(1).map_err(explain)?),
        topic: row.get(2).map_err(explain)?,
        key: row.get(3).map_err(explain)?,
        ordered: row.get(4).map_err(explain)?,
        version: row.get(5).map_err(explain)?,
        headers: read_headers(&headers)?,
    })
}

fn aside(row: &Row<'_>) -> Result<SetAside, OutboxError> {
    Ok(SetAside {
        reader: row.get(7).map_err(explain)?,
        state: AsideState::of(row.get(8).map_err(explain)?)?,
        attempts: row.get(9).map_err(explain)?,
        due_at: row.get::<_, Option<i64>>(10).map_err(explain)?.map(time),
        reason: row.get(11).map_err(explain)?,
    })
}

fn payload(row: &Row<'_>, column: usize) -> Result<Bytes, OutboxError> {
    let payload: Vec<u8> = row.get(column).map_err(explain)?;
    Ok(Bytes::from(payload))
}

fn skip(tx: &Transaction<'_>, reader: &str, id: MessageId) -> Result<bool, OutboxError> {
    let sql = "DELETE FROM hapax_deliveries WHERE reader = ?1 AND id = ?2 \
               RETURNING topic, CASE WHEN ordered THEN key END";
    let mut statement = tx.prepare(sql).map_err(explain)?;
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let rows = statement.query_map(params![reader, id.as_bytes()], read);
    let removed: Vec<(String, Option<String>)> =
        rows.and_then(|rows| rows.collect()).map_err(explain)?;
    for (topic, key) in &removed {
        if let Some(key) = key {
            wake_next(tx, reader, topic, key, now())?;
        }
    }
    let sql = "UPDATE hapax_readers SET set_aside = set_aside - ?2 WHERE name = ?1";
    let count = i64::try_from(removed.len()).unwrap_or(i64::MAX);
    execute(tx, sql, params![reader, count])?;
    Ok(!removed.is_empty())
}

/// Writes into the audit log of the file what was done to what.
pub(crate) fn write_down(
    tx: &Transaction<'_>,
    action: &str,
    signed: &Signed,
    what: &str,
) -> Result<(), OutboxError> {
    let reason = format!("{} ({what})", signed.reason());
    let note = Signed::new(signed.by(), &reason).and_then(|signed| Note::new(action, signed));
    let note = note.map_err(|error| OutboxError::Refused(error.to_string()))?;
    hapax::store::guest::write_down(tx, note, time(now())).map_err(explain)
}
