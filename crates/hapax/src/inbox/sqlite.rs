//! The inbox in the user's SQLite file: `guest/inbox.sql` has the tables.
//!
//! SQLite has one writer, so nothing happens between a look and the write that follows from it, if
//! the transaction has written before the look. Each function here begins with a write.

use std::collections::{HashMap, HashSet};
use std::time::SystemTime;

use hapax_core::flow::receipt::{Accepted, Candidate, WINDOW_DEFAULT, judge};
use hapax_core::flow::{EntityId, ReceiptId, headers_to_json};
use hapax_core::store::{Column, Dialect, Value};
use hapax_core::time::Timestamp;
use sha2::{Digest, Sha256};

use super::postgres::{COLUMNS, parked};
use super::statement::{Row, bytes, clean, hex, int, maybe, micros, text, time};
use super::{Cause, Gaps, Parked, Receipt, ReceiveError, Received, ToPark, Window};
use crate::join::Session;

type Result<T, S> = std::result::Result<T, ReceiveError<<S as Session>::Error>>;

/// Receipts that a sweep removes at once.
const SWEEP_ROWS: i64 = 10_000;
/// Bytes of a reason that are kept.
const REASON_BYTES_MAX: usize = 4096;

async fn run<S: Session>(
    session: &mut S,
    sql: &'static str,
    columns: &'static [Column],
    values: Vec<Value>,
) -> Result<Option<Row>, S> {
    let row = super::statement::run(session, Dialect::Sqlite, sql, columns, values).await?;
    Ok(row.map(Row::new))
}

fn now() -> Timestamp {
    Timestamp::from_system_time(SystemTime::now())
}

struct Consumer {
    id: i64,
    window: Window,
    since: Timestamp,
}

impl Consumer {
    fn accepts(&self, now: Timestamp) -> Accepted {
        Accepted::at(now, self.window, self.since)
    }
}

/// The consumer of this name. One that is not there is registered.
async fn consumer<S: Session>(session: &mut S, name: &str) -> Result<Consumer, S> {
    // A write, also if there is nothing to insert.
    let sql = "INSERT INTO hapax_consumers (name, time_window, created_at) VALUES (CAST(?1 AS TEXT), ?2, ?3) ON CONFLICT DO NOTHING";
    let window = micros(Timestamp::ZERO.after(WINDOW_DEFAULT));
    run(
        session,
        sql,
        &[],
        vec![text(name), int(window), time(now())],
    )
    .await?;
    let sql = "SELECT id, since, time_window FROM hapax_consumers WHERE name = CAST(?1 AS TEXT)";
    let columns = &[Column::Int, Column::Int, Column::Int];
    let row = run(session, sql, columns, vec![text(name)]).await?;
    let read = |mut row: Row| {
        Some(Consumer {
            id: row.int()?,
            since: row.time()?,
            window: match row.time() {
                Some(window) => Window::Limited(window.since(Timestamp::ZERO)),
                None => Window::Forever,
            },
        })
    };
    row.and_then(read)
        .ok_or(ReceiveError::Corrupt("a consumer that cannot be read"))
}

pub(super) async fn receive_all<S: Session>(
    session: &mut S,
    name: &str,
    batch: &[Received<'_>],
    gaps: Gaps,
) -> Result<Vec<Receipt>, S> {
    let consumer = consumer(session, name).await?;
    let now = now();
    let candidates: Vec<Candidate> = batch
        .iter()
        .map(|message| Candidate {
            id: ReceiptId::of(name, message.id),
            at: message.at.unwrap_or(now),
            entity: message
                .entity
                .map(|(entity, version)| (EntityId::of(name, entity), version)),
        })
        .collect();
    let known = known(session, &candidates).await?;
    let mut last = last_versions(session, &candidates).await?;
    let before = last.clone();
    let receipts = judge(&candidates, &known, &consumer.accepts(now), &mut last, gaps);
    let is_written = |(_, receipt): &(&Candidate, &Receipt)| receipt.is_written();
    let written: Vec<&Candidate> = candidates
        .iter()
        .zip(&receipts)
        .filter(is_written)
        .map(|(message, _)| message)
        .collect();
    write_receipts(session, &consumer, &written).await?;
    let moved: Vec<(EntityId, i64)> = last
        .into_iter()
        .filter(|(entity, version)| before.get(entity) != Some(version))
        .collect();
    write_versions(session, &consumer, &moved, gaps).await?;
    Ok(receipts)
}

async fn known<S: Session>(session: &mut S, batch: &[Candidate]) -> Result<HashSet<ReceiptId>, S> {
    let sql = "SELECT CAST(group_concat(f.flag, '') AS BLOB) FROM (\
               SELECT EXISTS (SELECT 1 FROM hapax_receipts AS r WHERE r.id = substr(?1, 16 * n.key + 1, 16)) AS flag \
               FROM json_each(CAST(?2 AS TEXT)) AS n ORDER BY n.key) AS f";
    let ids: Vec<u8> = batch
        .iter()
        .flat_map(|message| *message.id.as_bytes())
        .collect();
    let values = vec![bytes(&ids), text(&numbers(batch.iter().map(|_| 0)))];
    let row = run(session, sql, &[Column::Bytes], values).await?;
    let flags = row.and_then(|mut row| row.bytes()).unwrap_or_default();
    if flags.len() != batch.len() {
        return Err(ReceiveError::Corrupt("not one flag for each message"));
    }
    let known = batch.iter().zip(flags).filter(|(_, flag)| *flag == b'1');
    Ok(known.map(|(message, _)| message.id).collect())
}

async fn last_versions<S: Session>(
    session: &mut S,
    batch: &[Candidate],
) -> Result<HashMap<EntityId, i64>, S> {
    let entities: Vec<EntityId> = batch
        .iter()
        .filter_map(|message| Some(message.entity?.0))
        .collect();
    if entities.is_empty() {
        return Ok(HashMap::new());
    }
    let sql = "SELECT CAST(group_concat(f.version, ',') AS BLOB) FROM (\
               SELECT coalesce((SELECT v.version FROM hapax_versions AS v WHERE v.id = substr(?1, 16 * n.key + 1, 16)), '') AS version \
               FROM json_each(CAST(?2 AS TEXT)) AS n ORDER BY n.key) AS f";
    let values = vec![
        bytes(&packed(&entities)),
        text(&numbers(entities.iter().map(|_| 0))),
    ];
    let row = run(session, sql, &[Column::Bytes], values).await?;
    let versions = row.and_then(|mut row| row.text()).unwrap_or_default();
    let last = entities.into_iter().zip(versions.split(','));
    Ok(last
        .filter_map(|(entity, version)| Some((entity, version.parse().ok()?)))
        .collect())
}

async fn write_receipts<S: Session>(
    session: &mut S,
    consumer: &Consumer,
    written: &[&Candidate],
) -> Result<(), S> {
    if written.is_empty() {
        return Ok(());
    }
    let sql = "INSERT INTO hapax_receipts (id, consumer, at) SELECT substr(?1, 16 * n.key + 1, 16), ?3, n.value \
               FROM json_each(CAST(?2 AS TEXT)) AS n WHERE true";
    let ids: Vec<u8> = written
        .iter()
        .flat_map(|message| *message.id.as_bytes())
        .collect();
    let ats = numbers(written.iter().map(|message| micros(message.at)));
    let values = vec![bytes(&ids), text(&ats), int(consumer.id)];
    run(session, sql, &[], values).await.map(drop)
}

async fn write_versions<S: Session>(
    session: &mut S,
    consumer: &Consumer,
    moved: &[(EntityId, i64)],
    gaps: Gaps,
) -> Result<(), S> {
    if moved.is_empty() {
        return Ok(());
    }
    let entities: Vec<EntityId> = moved.iter().map(|(entity, _)| *entity).collect();
    let versions = numbers(moved.iter().map(|(_, version)| *version));
    let values = vec![bytes(&packed(&entities)), text(&versions), int(consumer.id)];
    let sql = "INSERT INTO hapax_versions (id, version, consumer) SELECT substr(?1, 16 * n.key + 1, 16), n.value, ?3 \
               FROM json_each(CAST(?2 AS TEXT)) AS n WHERE true ON CONFLICT (id) DO UPDATE SET version = excluded.version";
    run(session, sql, &[], values.clone()).await?;
    if gaps == Gaps::Park {
        // What waits for these versions is tried again.
        let sql = "UPDATE hapax_parked SET state = 2, attempts = 0 WHERE consumer = ?3 AND state = 1 AND kind = 4 AND EXISTS (\
                   SELECT 1 FROM json_each(CAST(?2 AS TEXT)) AS n \
                   WHERE hapax_parked.entity = substr(?1, 16 * n.key + 1, 16) AND hapax_parked.version <= n.value + 1)";
        run(session, sql, &[], values).await?;
    }
    Ok(())
}

pub(super) async fn set_window<S: Session>(
    session: &mut S,
    name: &str,
    window: Window,
) -> Result<(), S> {
    consumer(session, name).await?;
    // What was over by a window that ended stays too old.
    let sql = "UPDATE hapax_consumers SET since = CASE WHEN ?2 IS NULL THEN max(since, ?3 - time_window) ELSE since END, time_window = ?2 \
               WHERE name = CAST(?1 AS TEXT) AND time_window IS NOT ?2";
    let window = match window {
        Window::Limited(duration) => Some(micros(Timestamp::ZERO.after(duration))),
        Window::Forever => None,
    };
    let values = vec![text(name), Value::Int(window), time(now())];
    run(session, sql, &[], values).await.map(drop)
}

pub(super) async fn sweep<S: Session>(session: &mut S, now: Timestamp) -> Result<u64, S> {
    // Failures whose message was applied since, or never came again.
    let sql = "DELETE FROM hapax_parked WHERE state = 0 AND parked_at < ?1 - 604800000000";
    run(session, sql, &[], vec![time(now)]).await?;
    let sql = "UPDATE hapax_consumers SET since = ?1 - time_window WHERE time_window IS NOT NULL AND since < ?1 - time_window";
    run(session, sql, &[], vec![time(now)]).await?;
    let sql = "DELETE FROM hapax_receipts WHERE id IN (\
               SELECT r.id FROM hapax_consumers AS c JOIN hapax_receipts AS r ON r.consumer = c.id AND r.at < c.since \
               WHERE c.time_window IS NOT NULL LIMIT ?1)";
    run(session, sql, &[], vec![int(SWEEP_ROWS)]).await?;
    let row = run(session, "SELECT changes()", &[Column::Int], Vec::new()).await?;
    let removed = row.and_then(|mut row| row.int()).unwrap_or_default();
    Ok(removed.unsigned_abs())
}

pub(super) async fn failed<S: Session>(
    session: &mut S,
    name: &str,
    id: &str,
    reason: &str,
) -> Result<u32, S> {
    let consumer = consumer(session, name).await?;
    let sql = "INSERT INTO hapax_parked (consumer, receipt, id, state, kind, attempts, reason, parked_at) \
               VALUES (?1, ?2, CAST(?3 AS TEXT), 0, 1, 1, CAST(?4 AS TEXT), ?5) \
               ON CONFLICT (consumer, receipt) DO UPDATE SET attempts = attempts + 1, reason = excluded.reason, \
               parked_at = CASE WHEN state = 0 THEN excluded.parked_at ELSE parked_at END RETURNING attempts";
    let values = vec![
        int(consumer.id),
        bytes(ReceiptId::of(name, id).as_bytes()),
        text(id),
        clean(shortened(reason)),
        time(now()),
    ];
    let row = run(session, sql, &[Column::Int], values).await?;
    let attempts = row.and_then(|mut row| row.int());
    let attempts = attempts.ok_or(ReceiveError::Corrupt("a failure that was not counted"))?;
    Ok(u32::try_from(attempts).unwrap_or(u32::MAX))
}

pub(super) async fn recovered<S: Session>(
    session: &mut S,
    name: &str,
    id: &str,
) -> Result<bool, S> {
    let sql = "DELETE FROM hapax_parked WHERE receipt = ?2 AND consumer = (SELECT id FROM hapax_consumers WHERE name = CAST(?1 AS TEXT)) AND state = 0 RETURNING 1";
    let values = vec![text(name), bytes(ReceiptId::of(name, id).as_bytes())];
    Ok(run(session, sql, &[Column::Int], values).await?.is_some())
}

pub(super) async fn park<S: Session>(
    session: &mut S,
    name: &str,
    message: &ToPark<'_>,
) -> Result<bool, S> {
    let consumer = consumer(session, name).await?;
    let id = message
        .id
        .map_or_else(|| id_of_content(message), str::to_owned);
    let entity = message
        .entity
        .map(|(entity, version)| (EntityId::of(name, entity), version));
    let state = match (message.cause, entity) {
        (Cause::Gap, Some((entity, version))) => {
            let last = last_version(session, entity).await?;
            // The gap may have closed meanwhile.
            if last.is_some_and(|last| version <= last.saturating_add(1)) {
                2
            } else {
                1
            }
        }
        _ => 1,
    };
    let sql = "INSERT INTO hapax_parked (consumer, receipt, id, state, kind, attempts, reason, topic, key, entity, version, at, headers, payload, parked_at) \
               VALUES (?1, ?2, CAST(?3 AS TEXT), ?4, ?5, 0, CAST(?6 AS TEXT), CAST(?7 AS TEXT), CAST(?8 AS TEXT), ?9, ?10, ?11, CAST(?12 AS TEXT), ?13, ?14) \
               ON CONFLICT (consumer, receipt) DO UPDATE SET state = excluded.state, kind = excluded.kind, reason = excluded.reason, \
               topic = excluded.topic, key = excluded.key, entity = excluded.entity, version = excluded.version, at = excluded.at, \
               headers = excluded.headers, payload = excluded.payload, parked_at = excluded.parked_at WHERE state = 0 RETURNING 1";
    let values = vec![
        int(consumer.id),
        bytes(ReceiptId::of(name, &id).as_bytes()),
        text(&id),
        int(state),
        int(message.cause.code()),
        clean(shortened(message.reason)),
        maybe(message.topic),
        maybe(message.key),
        entity.map_or(Value::Bytes(None), |(entity, _)| bytes(entity.as_bytes())),
        Value::Int(entity.map(|(_, version)| version)),
        Value::Int(message.at.map(micros)),
        text(&headers_to_json(message.headers)),
        bytes(message.payload),
        time(now()),
    ];
    Ok(run(session, sql, &[Column::Int], values).await?.is_some())
}

/// The id of a message that has none.
fn id_of_content(message: &ToPark<'_>) -> String {
    let place = format!(
        "{}\u{1f}{}",
        message.topic.unwrap_or_default(),
        message.key.unwrap_or_default()
    );
    let payload = hex(&Sha256::digest(message.payload));
    let id = ReceiptId::of(&place, &payload);
    format!("no-id-{}", hex(id.as_bytes()))
}

pub(super) async fn park_again<S: Session>(
    session: &mut S,
    name: &str,
    id: &str,
    reason: &str,
) -> Result<bool, S> {
    let sql = "UPDATE hapax_parked SET state = 1, kind = 1, reason = CAST(?3 AS TEXT) \
               WHERE receipt = ?2 AND consumer = (SELECT id FROM hapax_consumers WHERE name = CAST(?1 AS TEXT)) AND state = 2 RETURNING 1";
    let values = vec![
        text(name),
        bytes(ReceiptId::of(name, id).as_bytes()),
        clean(shortened(reason)),
    ];
    Ok(run(session, sql, &[Column::Int], values).await?.is_some())
}

pub(super) async fn take_parked<S: Session>(
    session: &mut S,
    name: &str,
) -> Result<Option<Parked>, S> {
    let consumer = consumer(session, name).await?;
    // One whose receipt may be gone by now waits for an operator.
    let sql = "UPDATE hapax_parked SET state = 1, kind = 2 WHERE consumer = ?1 AND state = 2 AND NOT not_applied AND coalesce(at, parked_at) < ?2";
    let since = consumer.accepts(now()).since;
    run(session, sql, &[], vec![int(consumer.id), time(since)]).await?;
    let sql = "SELECT CAST(id AS BLOB), kind, attempts, CAST(reason AS BLOB), CAST(topic AS BLOB), CAST(key AS BLOB), version, at, \
               CAST(headers AS BLOB), payload FROM hapax_parked WHERE consumer = ?1 AND state = 2 ORDER BY number LIMIT 1";
    let row = run(session, sql, COLUMNS, vec![int(consumer.id)]).await?;
    row.map(|row| {
        parked(row).ok_or(ReceiveError::Corrupt(
            "a parked message that cannot be read",
        ))
    })
    .transpose()
}

pub(super) async fn parked_done<S: Session>(
    session: &mut S,
    name: &str,
    id: &str,
) -> Result<bool, S> {
    let consumer = consumer(session, name).await?;
    let receipt = ReceiptId::of(name, id);
    let sql = "DELETE FROM hapax_parked WHERE consumer = ?1 AND receipt = ?2 AND state = 2 \
               RETURNING not_applied, parked_at, at, version, entity";
    let columns = &[
        Column::Int,
        Column::Int,
        Column::Int,
        Column::Int,
        Column::Bytes,
    ];
    let values = vec![int(consumer.id), bytes(receipt.as_bytes())];
    let Some(mut row) = run(session, sql, columns, values).await? else {
        return Ok(false);
    };
    let is_stated = row.int().unwrap_or_default() != 0;
    let parked_at = row.time().unwrap_or_default();
    let (at, version, entity) = (row.time(), row.int(), row.bytes());
    let now = now();
    let sql = "INSERT INTO hapax_receipts (id, consumer, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING RETURNING 1";
    let values = vec![
        bytes(receipt.as_bytes()),
        int(consumer.id),
        time(at.unwrap_or(now).min(now)),
    ];
    if run(session, sql, &[Column::Int], values).await?.is_none() {
        return Ok(false);
    }
    if !is_stated && at.unwrap_or(parked_at) < consumer.accepts(now).since {
        return Err(ReceiveError::TooOld);
    }
    let entity = entity.and_then(|entity| <[u8; 16]>::try_from(entity).ok());
    let (Some(version), Some(entity)) = (version, entity.map(EntityId::from_bytes)) else {
        return Ok(true);
    };
    if last_version(session, entity)
        .await?
        .is_some_and(|last| version <= last)
    {
        return Ok(false);
    }
    write_versions(session, &consumer, &[(entity, version)], Gaps::Park).await?;
    Ok(true)
}

async fn last_version<S: Session>(session: &mut S, entity: EntityId) -> Result<Option<i64>, S> {
    let sql = "SELECT version FROM hapax_versions WHERE id = ?1";
    let values = vec![bytes(entity.as_bytes())];
    let row = run(session, sql, &[Column::Int], values).await?;
    Ok(row.and_then(|mut row| row.int()))
}

fn packed(entities: &[EntityId]) -> Vec<u8> {
    entities
        .iter()
        .flat_map(|entity| *entity.as_bytes())
        .collect()
}

/// A JSON array of numbers.
fn numbers(numbers: impl Iterator<Item = i64>) -> String {
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}
