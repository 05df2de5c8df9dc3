//! The inbox in Postgres: `0008_inbox.sql` has the functions.

use bytes::Bytes;
use hapax_core::flow::{EntityId, ReceiptId, headers_from_json, headers_to_json};
use hapax_core::store::{Column, Dialect, Value};
use hapax_core::time::Timestamp;

use super::statement::{Row, clean, hex, int, maybe, micros, text, time};
use super::{Cause, Gaps, Parked, Receipt, ReceiveError, Received, ToPark, Window};
use crate::join::Session;

type Result<T, S> = std::result::Result<T, ReceiveError<<S as Session>::Error>>;

async fn run<S: Session>(
    session: &mut S,
    sql: &'static str,
    columns: &'static [Column],
    values: Vec<Value>,
) -> Result<Option<Row>, S> {
    let row = super::statement::run(session, Dialect::Postgres, sql, columns, values).await?;
    Ok(row.map(Row::new))
}

/// Runs a function that returns a number.
async fn number<S: Session>(
    session: &mut S,
    sql: &'static str,
    values: Vec<Value>,
) -> Result<i64, S> {
    let row = run(session, sql, &[Column::Int], values).await?;
    row.and_then(|mut row| row.int())
        .ok_or(ReceiveError::Corrupt("a function without a result"))
}

pub(super) async fn receive<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    at: Option<Timestamp>,
) -> Result<Receipt, S> {
    let sql = "SELECT hapax.receive_message(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), $3::int8)";
    let values = vec![text(consumer), text(id), Value::Int(at.map(micros))];
    let letter = number(session, sql, values).await?;
    let letter = u8::try_from(letter).ok().and_then(Receipt::from_letter);
    letter.ok_or(ReceiveError::Corrupt("a receipt of no known kind"))
}

pub(super) async fn receive_all<S: Session>(
    session: &mut S,
    consumer: &str,
    batch: &[Received<'_>],
    gaps: Gaps,
) -> Result<Vec<Receipt>, S> {
    let sql = "SELECT convert_to(hapax.receive_batch(convert_from($1, 'UTF8'), convert_from($2, 'UTF8')::uuid[], convert_from($3, 'UTF8')::int8[], \
               convert_from($4, 'UTF8')::uuid[], convert_from($5, 'UTF8')::int8[], $6::int8 <> 0), 'UTF8')";
    let ids = array(
        batch
            .iter()
            .map(|message| Some(hex(ReceiptId::of(consumer, message.id).as_bytes()))),
    );
    let ats = array(
        batch
            .iter()
            .map(|message| message.at.map(|at| micros(at).to_string())),
    );
    let has_entities = batch.iter().any(|message| message.entity.is_some());
    let entities = has_entities.then(|| {
        array(
            batch
                .iter()
                .map(|message| Some(hex(EntityId::of(consumer, message.entity?.0).as_bytes()))),
        )
    });
    let versions = has_entities.then(|| {
        array(
            batch
                .iter()
                .map(|message| Some(message.entity?.1.to_string())),
        )
    });
    let values = vec![
        text(consumer),
        text(&ids),
        text(&ats),
        maybe(entities.as_deref()),
        maybe(versions.as_deref()),
        int((gaps == Gaps::Park).into()),
    ];
    let letters = run(session, sql, &[Column::Bytes], values).await?;
    let letters = letters.and_then(|mut row| row.bytes()).unwrap_or_default();
    let receipts: Option<Vec<Receipt>> = letters
        .iter()
        .map(|letter| Receipt::from_letter(*letter))
        .collect();
    receipts
        .filter(|receipts| receipts.len() == batch.len())
        .ok_or(ReceiveError::Corrupt("not one receipt for each message"))
}

pub(super) async fn set_window<S: Session>(
    session: &mut S,
    consumer: &str,
    window: Window,
) -> Result<(), S> {
    let sql = "SELECT 1::int8 FROM hapax.set_window(convert_from($1, 'UTF8'), $2::int8 * interval '1 microsecond')";
    let window = match window {
        Window::Limited(duration) => Some(micros(Timestamp::ZERO.after(duration))),
        Window::Forever => None,
    };
    let values = vec![text(consumer), Value::Int(window)];
    number(session, sql, values).await.map(drop)
}

pub(super) async fn sweep<S: Session>(session: &mut S, now: Timestamp) -> Result<u64, S> {
    let emptied = number(
        session,
        "SELECT hapax.receipts_sweep($1::int8)",
        vec![time(now)],
    )
    .await?;
    Ok(emptied.unsigned_abs())
}

pub(super) async fn failed<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    reason: &str,
) -> Result<u32, S> {
    let sql = "SELECT hapax.message_failed(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), convert_from($3, 'UTF8'))";
    let attempts = number(session, sql, vec![text(consumer), text(id), clean(reason)]).await?;
    Ok(u32::try_from(attempts).unwrap_or(u32::MAX))
}

pub(super) async fn recovered<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
) -> Result<bool, S> {
    let sql = "SELECT hapax.message_recovered(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'))::int4::int8";
    Ok(number(session, sql, vec![text(consumer), text(id)]).await? != 0)
}

pub(super) async fn park<S: Session>(
    session: &mut S,
    consumer: &str,
    message: &ToPark<'_>,
) -> Result<bool, S> {
    let sql = "SELECT hapax.park_message(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), convert_from($3, 'UTF8'), convert_from($4, 'UTF8'), \
               convert_from($5, 'UTF8'), convert_from($6, 'UTF8'), convert_from($7, 'UTF8'), $8::int8, $9::int8, convert_from($10, 'UTF8')::jsonb, \
               $11::bytea)::int4::int8";
    let values = vec![
        text(consumer),
        maybe(message.id),
        text(message.cause.word()),
        clean(message.reason),
        maybe(message.topic),
        maybe(message.key),
        message
            .entity
            .map_or(Value::Bytes(None), |(entity, _)| text(entity)),
        Value::Int(message.entity.map(|(_, version)| version)),
        Value::Int(message.at.map(micros)),
        text(&headers_to_json(message.headers)),
        Value::Bytes(Some(message.payload.to_vec())),
    ];
    Ok(number(session, sql, values).await? != 0)
}

pub(super) async fn park_again<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
    reason: &str,
) -> Result<bool, S> {
    let sql = "SELECT hapax.park_again(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'), convert_from($3, 'UTF8'))::int4::int8";
    Ok(number(session, sql, vec![text(consumer), text(id), clean(reason)]).await? != 0)
}

pub(super) async fn take_parked<S: Session>(
    session: &mut S,
    consumer: &str,
) -> Result<Option<Parked>, S> {
    let sql = "SELECT convert_to(id, 'UTF8'), array_position('{failed,too-old,ahead,gap,no-id}', kind)::int8, attempts, convert_to(reason, 'UTF8'), convert_to(topic, 'UTF8'), convert_to(key, 'UTF8'), \
               version, at, convert_to(headers, 'UTF8'), payload FROM hapax.parked_take(convert_from($1, 'UTF8'))";
    let row = run(session, sql, COLUMNS, vec![text(consumer)]).await?;
    row.map(|row| {
        parked(row).ok_or(ReceiveError::Corrupt(
            "a parked message that cannot be read",
        ))
    })
    .transpose()
}

/// The columns of a parked message.
pub(super) const COLUMNS: &[Column] = &[
    Column::Bytes,
    Column::Int,
    Column::Int,
    Column::Bytes,
    Column::Bytes,
    Column::Bytes,
    Column::Int,
    Column::Int,
    Column::Bytes,
    Column::Bytes,
];

pub(super) fn parked(mut row: Row) -> Option<Parked> {
    Some(Parked {
        id: row.text()?,
        cause: Cause::from_code(row.int()?)?,
        attempts: u32::try_from(row.int()?).unwrap_or(u32::MAX),
        reason: row.text(),
        topic: row.text(),
        key: row.text(),
        version: row.int(),
        at: row.time(),
        headers: headers_from_json(&row.bytes().unwrap_or_else(|| b"{}".to_vec()))?,
        payload: Bytes::from(row.bytes().unwrap_or_default()),
    })
}

pub(super) async fn parked_done<S: Session>(
    session: &mut S,
    consumer: &str,
    id: &str,
) -> Result<bool, S> {
    let sql =
        "SELECT hapax.parked_done(convert_from($1, 'UTF8'), convert_from($2, 'UTF8'))::int4::int8";
    Ok(number(session, sql, vec![text(consumer), text(id)]).await? != 0)
}

/// An array as Postgres writes it.
fn array(values: impl Iterator<Item = Option<String>>) -> String {
    let values: Vec<String> = values
        .map(|value| value.unwrap_or_else(|| "NULL".to_owned()))
        .collect();
    format!("{{{}}}", values.join(","))
}
