//! Operators on Postgres: the section "For operators" of `0008_inbox.sql` has the functions.

use bytes::Bytes;
use hapax::store::postgres::ConnectOptions;
use hapax_core::audit::Signed;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::{
    ConsumerState, Found, Head, InboxError, Listed, Operators, ParkedQuery, ParkedState, number,
    time, window,
};
use crate::outbox::postgres::{Failure, get, one};
use crate::outbox::{OutboxError, PostgresOutbox, read_headers};
use crate::publish::Reply;

/// The inbox in a Postgres database.
#[derive(Debug)]
pub struct PostgresInbox(PostgresOutbox);

impl PostgresInbox {
    /// The inbox in this database. It connects when it is first used.
    pub fn new(options: ConnectOptions) -> PostgresInbox {
        PostgresInbox(PostgresOutbox::new(options))
    }

    async fn query(
        &self,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, InboxError> {
        let asked = self.0.query_for_operators(sql, values).await;
        asked.map_err(|failure| explain(&failure))
    }
}

impl Operators for PostgresInbox {
    fn consumers(&self) -> Reply<'_, Result<Vec<ConsumerState>, InboxError>> {
        Box::pin(async move {
            let sql = "SELECT name, time_window, trying, again, failed + too_old + ahead + gap + no_id AS parked, oldest_parked_at, now \
                       FROM hapax.consumers_now()";
            let state = |row: &Row| {
                Ok(ConsumerState {
                    name: get(row, "name")?,
                    window: window(get(row, "time_window")?),
                    trying: number(get(row, "trying")?),
                    parked: number(get(row, "parked")?),
                    again: number(get(row, "again")?),
                    oldest_parked_at: get::<Option<i64>>(row, "oldest_parked_at")?.map(time),
                    now: time(get(row, "now")?),
                })
            };
            self.query(sql, &[]).await?.iter().map(state).collect()
        })
    }

    fn parked<'a>(&'a self, query: &'a ParkedQuery) -> Reply<'a, Result<Vec<Listed>, InboxError>> {
        Box::pin(async move {
            let sql = "SELECT * FROM hapax.parked_list($1, $2, $3, $4)";
            let state = query.state.map(ParkedState::code);
            let rows = i32::try_from(query.limit).unwrap_or(i32::MAX);
            let values: [(&(dyn ToSql + Sync), Type); 4] = [
                (&query.consumer, Type::TEXT),
                (&state, Type::INT2),
                (&query.after, Type::INT8),
                (&rows, Type::INT4),
            ];
            let listed = |row: &Row| {
                let bytes: Option<i32> = get(row, "payload_bytes")?;
                Ok(Listed {
                    head: head(row)?,
                    payload_bytes: number(i64::from(bytes.unwrap_or(0))),
                })
            };
            self.query(sql, &values).await?.iter().map(listed).collect()
        })
    }

    fn find<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
    ) -> Reply<'a, Result<Option<Found>, InboxError>> {
        Box::pin(async move {
            let sql = "SELECT * FROM hapax.parked_find($1, $2)";
            let values: [(&(dyn ToSql + Sync), Type); 2] =
                [(&consumer, Type::TEXT), (&id, Type::TEXT)];
            let found = |row: &Row| {
                let payload: Option<Vec<u8>> = get(row, "payload")?;
                Ok(Found {
                    head: head(row)?,
                    payload: Bytes::from(payload.unwrap_or_default()),
                })
            };
            self.query(sql, &values)
                .await?
                .first()
                .map(found)
                .transpose()
        })
    }

    fn retry<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        not_applied: bool,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>> {
        Box::pin(async move {
            let sql = "SELECT hapax.parked_retry($1, $2, $3, $4, $5)";
            let (by, reason) = (signed.by().as_bytes(), signed.reason().as_bytes());
            let values: [(&(dyn ToSql + Sync), Type); 5] = [
                (&consumer, Type::TEXT),
                (&id, Type::TEXT),
                (&not_applied, Type::BOOL),
                (&by, Type::BYTEA),
                (&reason, Type::BYTEA),
            ];
            Ok(one(&self.query(sql, &values).await?)?)
        })
    }

    fn skip<'a>(
        &'a self,
        consumer: &'a str,
        id: &'a str,
        signed: &'a Signed,
    ) -> Reply<'a, Result<bool, InboxError>> {
        Box::pin(async move {
            let sql = "SELECT hapax.parked_skip($1, $2, $3, $4)";
            let (by, reason) = (signed.by().as_bytes(), signed.reason().as_bytes());
            let values: [(&(dyn ToSql + Sync), Type); 4] = [
                (&consumer, Type::TEXT),
                (&id, Type::TEXT),
                (&by, Type::BYTEA),
                (&reason, Type::BYTEA),
            ];
            Ok(one(&self.query(sql, &values).await?)?)
        })
    }
}

fn head(row: &Row) -> Result<Head, OutboxError> {
    let headers: Option<String> = get(row, "headers")?;
    let state = ParkedState::of(get(row, "state")?);
    Ok(Head {
        number: get(row, "number")?,
        consumer: get(row, "consumer")?,
        id: get(row, "id")?,
        state: state.map_err(|error| OutboxError::Corrupt(error.to_string()))?,
        cause: get(row, "kind")?,
        attempts: get::<i32>(row, "attempts")?.unsigned_abs(),
        reason: get(row, "reason")?,
        topic: get(row, "topic")?,
        key: get(row, "key")?,
        version: get(row, "version")?,
        at: get::<Option<i64>>(row, "at")?.map(time),
        headers: headers.as_deref().map_or(Ok(Vec::new()), read_headers)?,
        parked_at: time(get(row, "parked_at")?),
    })
}

fn explain(failure: &Failure) -> InboxError {
    let error = match failure {
        Failure::Away(why) => return InboxError::Unavailable(why.clone()),
        Failure::Said(error) => error,
    };
    let Some(said) = error.as_db_error() else {
        return InboxError::Unavailable(format!("the connection was lost ({error})"));
    };
    match said.code().code() {
        "HX013" => InboxError::TooOld,
        "42883" | "3F000" => {
            InboxError::Unusable("the database has no inbox: run `hapax migrate`".to_owned())
        }
        "42501" => InboxError::Unusable(format!(
            "{}: run `hapax migrate --role ROLE`",
            said.message()
        )),
        _ => InboxError::Unavailable(said.message().to_owned()),
    }
}
