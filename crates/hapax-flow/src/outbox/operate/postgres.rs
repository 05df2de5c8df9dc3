//! Operators on Postgres: the section "For operators" of `0007_outbox.sql` has the functions.

use bytes::Bytes;
use hapax_core::audit::Signed;
use hapax_core::flow::MessageId;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::{
    AsideQuery, AsideState, Found, Head, Listed, Oldest, Operators, ReaderState, SetAside, Writer,
    number, time,
};
use crate::outbox::postgres::{get, one};
use crate::outbox::{OutboxError, PostgresOutbox, Reply, read_headers};

impl Operators for PostgresOutbox {
    fn readers(&self) -> Reply<'_, Result<Vec<ReaderState>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT * FROM hapax.readers_now()";
            self.query(sql, &[])
                .await?
                .iter()
                .map(reader_state)
                .collect()
        })
    }

    fn set_aside<'a>(
        &'a self,
        query: &'a AsideQuery,
    ) -> Reply<'a, Result<Vec<Listed>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT * FROM hapax.deliveries_list($1, $2, $3, $4, $5)";
            let state = query.state.map(AsideState::code);
            let after_reader = query.after.as_ref().map(|(reader, _)| reader);
            let after_sequence = query.after.as_ref().map(|(_, sequence)| sequence);
            let rows = i32::try_from(query.limit).unwrap_or(i32::MAX);
            let values: [(&(dyn ToSql + Sync), Type); 5] = [
                (&query.reader, Type::TEXT),
                (&state, Type::INT2),
                (&after_reader, Type::TEXT),
                (&after_sequence, Type::INT8),
                (&rows, Type::INT4),
            ];
            let listed = |row: &Row| {
                Ok(Listed {
                    sequence: get(row, "seq")?,
                    aside: set_aside(row, get(row, "reader")?)?,
                    head: head(row)?,
                    payload_bytes: number(i64::from(get::<i32>(row, "payload_bytes")?)),
                })
            };
            self.query(sql, &values).await?.iter().map(listed).collect()
        })
    }

    fn find(&self, id: MessageId) -> Reply<'_, Result<Vec<Found>, OutboxError>> {
        Box::pin(async move {
            let sql = "SELECT * FROM hapax.message_find($1)";
            let rows = self.query(sql, &[(&uuid(id), Type::UUID)]).await?;
            rows.iter().map(found).collect()
        })
    }

    fn retry<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        Box::pin(self.change_message(
            "SELECT hapax.delivery_retry($1, $2, $3, $4)",
            reader,
            id,
            signed,
        ))
    }

    fn skip<'a>(
        &'a self,
        reader: &'a str,
        id: MessageId,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        Box::pin(self.change_message(
            "SELECT hapax.delivery_skip($1, $2, $3, $4)",
            reader,
            id,
            signed,
        ))
    }

    fn start<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        Box::pin(self.change_reader("SELECT hapax.reader_start($1, $2, $3)", reader, signed))
    }

    fn remove<'a>(
        &'a self,
        reader: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, OutboxError>> {
        Box::pin(self.change_reader("SELECT hapax.reader_remove($1, $2, $3)", reader, signed))
    }
}

impl PostgresOutbox {
    async fn change_message(
        &self,
        sql: &str,
        reader: &str,
        id: MessageId,
        signed: &Signed,
    ) -> Result<bool, OutboxError> {
        let id = uuid(id);
        let (by, reason) = (signed.by().as_bytes(), signed.reason().as_bytes());
        let values: [(&(dyn ToSql + Sync), Type); 4] = [
            (&reader, Type::TEXT),
            (&id, Type::UUID),
            (&by, Type::BYTEA),
            (&reason, Type::BYTEA),
        ];
        Ok(one::<i32>(&self.query(sql, &values).await?)? > 0)
    }

    async fn change_reader(
        &self,
        sql: &str,
        reader: &str,
        signed: &Signed,
    ) -> Result<bool, OutboxError> {
        let (by, reason) = (signed.by().as_bytes(), signed.reason().as_bytes());
        let values: [(&(dyn ToSql + Sync), Type); 3] = [
            (&reader, Type::TEXT),
            (&by, Type::BYTEA),
            (&reason, Type::BYTEA),
        ];
        Ok(one::<i32>(&self.query(sql, &values).await?)? > 0)
    }
}

fn reader_state(row: &Row) -> Result<ReaderState, OutboxError> {
    let (lease_until, now): (i64, i64) = (get(row, "lease_until")?, get(row, "now")?);
    let count = |column| get::<i64>(row, column).map(number);
    let oldest = match get::<Option<i64>>(row, "oldest_at")? {
        None => None,
        Some(at) => Some(Oldest {
            at: time(at),
            id: message_id(row, "oldest_id")?,
            topic: get(row, "oldest_topic")?,
            key: get(row, "oldest_key")?,
        }),
    };
    let writer = match get::<Option<i32>>(row, "writer_pid")? {
        None => None,
        Some(pid) => Some(Writer {
            pid,
            since: time(get(row, "writer_since")?),
        }),
    };
    Ok(ReaderState {
        name: get(row, "name")?,
        active: get::<Option<String>>(row, "owner")?.filter(|_| lease_until > now),
        published: count("published")?,
        published_at: get::<Option<i64>>(row, "published_at")?.map(time),
        stopped: get(row, "stopped")?,
        waiting: count("waiting")?,
        held: count("held")?,
        dead: count("dead")?,
        oldest,
        writer,
        now: time(now),
    })
}

fn found(row: &Row) -> Result<Found, OutboxError> {
    let aside = match get::<Option<String>>(row, "reader")? {
        None => None,
        Some(reader) => Some(set_aside(row, reader)?),
    };
    Ok(Found {
        aside,
        head: head(row)?,
        payload: Bytes::from(get::<Vec<u8>>(row, "payload")?),
    })
}

fn set_aside(row: &Row, reader: String) -> Result<SetAside, OutboxError> {
    Ok(SetAside {
        reader,
        state: AsideState::of(get(row, "state")?)?,
        attempts: get::<i32>(row, "attempts")?.unsigned_abs(),
        due_at: get::<Option<i64>>(row, "due_at")?.map(time),
        reason: get(row, "reason")?,
    })
}

fn head(row: &Row) -> Result<Head, OutboxError> {
    Ok(Head {
        at: time(get(row, "at")?),
        id: message_id(row, "id")?,
        topic: get(row, "topic")?,
        key: get(row, "key")?,
        ordered: get(row, "ordered")?,
        version: get(row, "version")?,
        headers: read_headers(get(row, "headers")?)?,
    })
}

fn message_id(row: &Row, column: &str) -> Result<MessageId, OutboxError> {
    let id: uuid::Uuid = get(row, column)?;
    Ok(MessageId::from_bytes(id.into_bytes()))
}

fn uuid(id: MessageId) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*id.as_bytes())
}
