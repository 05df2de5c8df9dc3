//! The example business: each order is one row, written over the service's own connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::join::tokio_postgres::Effect;
use hapax::outbox::{Message, emit};
use hapax::{Answer, Hapax, Mode, Once, Operation, Policy, Postgres};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement, Transaction};
use uuid::Uuid;

use super::Who;
use crate::Error;
use crate::load::ANSWER_BYTES;
use crate::postgres::connect;
use crate::stats::Latencies;

const INSERT: &str = "INSERT INTO orders (id, item) VALUES ($1, $2)";
const EMIT: &str = "SELECT hapax.emit('orders', $1, $2::text)";
const BEGIN: &str =
    "SELECT operation_id, fence FROM hapax.start('two-calls', NULL, 'POST /orders', $1, $2)";
const COMPLETE: &str =
    r#"SELECT hapax.complete($1, $2, 201, '{"content-type": "application/json"}', $3::bytea)"#;
/// Duplicates that are sent while the first transaction is open.
const DUPLICATES: usize = 500;

/// The result of one run.
pub(crate) struct Ran {
    /// Orders per second.
    pub(crate) rate: f64,
    pub(crate) latencies: Latencies,
}

pub(crate) struct Orders {
    url: String,
    /// Of the namespace whose keys are claimed before the transaction.
    once: Once,
    /// Of the one whose keys are claimed in it.
    at_once: Once,
}

/// The connection of one client.
struct Desk {
    client: Client,
    insert: Statement,
    effect: Effect,
    emit: Statement,
    begin: Statement,
    complete: Statement,
}

impl Desk {
    async fn open(url: &str) -> Result<Desk, Error> {
        let client = connect(url).await?;
        Ok(Desk {
            insert: client.prepare(INSERT).await?,
            effect: Effect::prepare(&client, INSERT).await?,
            emit: client.prepare(EMIT).await?,
            begin: client.prepare(BEGIN).await?,
            complete: client.prepare(COMPLETE).await?,
            client,
        })
    }
}

impl Orders {
    /// Opens the orders on a database with the schema of a store.
    pub(crate) async fn open(url: &str) -> Result<Orders, Error> {
        let desk = connect(url).await?;
        desk.batch_execute(
            "SELECT hapax.set_namespace('two-calls');
             CREATE TABLE orders (id uuid PRIMARY KEY, item text NOT NULL, ordered_at timestamptz NOT NULL DEFAULT now())",
        )
        .await?;
        let policy = Policy {
            mode: Mode::Transaction,
            ..Policy::default()
        };
        let hapax = Hapax::new(Postgres::open(url).await?);
        Ok(Orders {
            url: url.to_owned(),
            once: hapax
                .clone()
                .namespace("shop")
                .once("order")
                .policy(policy)?,
            at_once: hapax.namespace("two-calls").once("order"),
        })
    }

    pub(crate) async fn run(
        &self,
        clients: usize,
        who: Who,
        duration: Duration,
    ) -> Result<Ran, Error> {
        let mut desks = Vec::new();
        for _ in 0..clients {
            desks.push(Arc::new(Mutex::new(Desk::open(&self.url).await?)));
        }
        let (begin, mut latencies) = (Instant::now(), Latencies::default());
        let clients = desks.into_iter().map(|desk| {
            let (once, at_once) = (self.once.clone(), self.at_once.clone());
            tokio::spawn(
                async move { order_until(begin + duration, who, &once, &at_once, desk).await },
            )
        });
        let mut orders = 0;
        for client in clients.collect::<Vec<_>>() {
            let (count, of_client) = client.await??;
            orders += count;
            latencies.merge(of_client);
        }
        Ok(Ran {
            rate: orders as f64 / begin.elapsed().as_secs_f64(),
            latencies,
        })
    }
}

impl Orders {
    /// How long duplicates take to hear that their key is in flight, one after the other, while the
    /// first transaction stays open.
    pub(crate) async fn told_in_flight(&self) -> Result<Latencies, Error> {
        let (first, duplicate) = (Desk::open(&self.url).await?, Desk::open(&self.url).await?);
        let fingerprint = [7_u8; 32];
        first.client.batch_execute("BEGIN").await?;
        let values: [&(dyn ToSql + Sync); 2] = [&"in flight", &&fingerprint[..]];
        first.client.query_one(&first.begin, &values).await?;
        let mut latencies = Latencies::default();
        for _ in 0..DUPLICATES {
            let since = Instant::now();
            let told = duplicate.client.query_one(&duplicate.begin, &values).await;
            let code = told.err().and_then(|error| error.code().cloned());
            if code.as_ref().map(SqlState::code) != Some("HX409") {
                return Err(format!("a duplicate got {code:?}, and not HX409").into());
            }
            latencies.push(since.elapsed());
        }
        Ok(latencies)
    }
}

async fn order_until(
    end: Instant,
    who: Who,
    once: &Once,
    at_once: &Once,
    desk: Arc<Mutex<Desk>>,
) -> Result<(usize, Latencies), Error> {
    let (mut count, mut latencies) = (0, Latencies::default());
    while Instant::now() < end {
        let (since, id, desk) = (
            Instant::now(),
            Uuid::new_v4(),
            desk.clone().lock_owned().await,
        );
        match who {
            Who::Bare | Who::Emit => plain(desk, who, id).await?,
            Who::EmitWithCommit => emit_with_commit(desk, id).await?,
            Who::TwoCalls => two_calls(desk, id).await?,
            Who::InTransaction => in_transaction(at_once, desk, id).await?,
            Who::Transaction | Who::TransactionEmit | Who::Effect => {
                let request = id.into_bytes().to_vec();
                once.run(id.to_string(), request, move |operation| {
                    with_its_record(operation, who, desk, id)
                })
                .await?;
            }
        }
        latencies.push(since.elapsed());
        count += 1;
    }
    Ok((count, latencies))
}

async fn plain(mut desk: OwnedMutexGuard<Desk>, who: Who, id: Uuid) -> Result<(), Error> {
    let Desk { client, insert, .. } = &mut *desk;
    let mut tx = client.transaction().await?;
    tx.execute(insert, &[&id, &"a book"]).await?;
    if who == Who::Emit {
        emit(&mut tx, placed(id)).await?;
    }
    Ok(tx.commit().await?)
}

/// The SQL that any language has, on a connection that pipelines.
async fn emit_with_commit(mut desk: OwnedMutexGuard<Desk>, id: Uuid) -> Result<(), Error> {
    let Desk {
        client,
        insert,
        emit,
        ..
    } = &mut *desk;
    client.batch_execute("BEGIN").await?;
    client.execute(insert, &[&id, &"a book"]).await?;
    let (key, payload) = (id.to_string(), payload(id));
    let values: [&(dyn ToSql + Sync); 2] = [&key, &payload];
    // As in `two_calls`.
    let (emitted, committed) = tokio::join!(
        biased;
        client.execute(emit, &values),
        client.batch_execute("COMMIT"),
    );
    emitted?;
    Ok(committed?)
}

/// The message of an order.
pub(crate) fn placed(id: Uuid) -> Message {
    Message::new("orders", id.to_string(), payload(id)).json()
}

/// JSON of 200 bytes.
fn payload(id: Uuid) -> String {
    format!("{:200}", format!("{{\"order\": \"{id}\"}}"))
}

/// In three round trips, like the bare transaction: the calls are sent together with `BEGIN` and
/// `COMMIT`.
async fn two_calls(desk: OwnedMutexGuard<Desk>, id: Uuid) -> Result<(), Error> {
    let Desk {
        client,
        insert,
        begin,
        complete,
        ..
    } = &*desk;
    let (key, fingerprint) = (id.to_string(), [7_u8; 32]);
    let values: [&(dyn ToSql + Sync); 2] = [&key, &&fingerprint[..]];
    // The futures are polled in this order, and each sends its message when first polled.
    let (began, begun) = tokio::join!(
        biased;
        client.batch_execute("BEGIN"),
        client.query_one(begin, &values),
    );
    began?;
    let begun = begun?;
    let (operation, fence): (&str, i64) = (begun.get(0), begun.get(1));
    client.execute(insert, &[&id, &"a book"]).await?;
    let answer = [b'x'; ANSWER_BYTES];
    let values: [&(dyn ToSql + Sync); 3] = [&operation, &fence, &&answer[..]];
    let (completed, committed) = tokio::join!(
        biased;
        client.execute(complete, &values),
        client.batch_execute("COMMIT"),
    );
    completed?;
    Ok(committed?)
}

/// In five round trips: the library does not begin the transaction, nor commit it.
async fn in_transaction(
    once: &Once,
    mut desk: OwnedMutexGuard<Desk>,
    id: Uuid,
) -> Result<(), Error> {
    let Desk { client, insert, .. } = &mut *desk;
    let mut tx = client.transaction().await?;
    let work = async |tx: &mut Transaction<'_>, _: &Operation| {
        tx.execute(&*insert, &[&id, &"a book"]).await?;
        Ok::<_, tokio_postgres::Error>(vec![b'x'; ANSWER_BYTES].into())
    };
    let request = id.into_bytes().to_vec();
    once.in_transaction(&mut tx, id.to_string(), request, work)
        .await?;
    Ok(tx.commit().await?)
}

async fn with_its_record(
    operation: Operation,
    who: Who,
    mut desk: OwnedMutexGuard<Desk>,
    id: Uuid,
) -> Result<Bytes, Error> {
    let Desk {
        client,
        insert,
        effect,
        ..
    } = &mut *desk;
    let answer = Answer::new(201, vec![b'x'; ANSWER_BYTES]);
    let kept = match who {
        Who::Effect => {
            effect
                .finish(&operation, client, &[&id, &"a book"], answer)
                .await?
        }
        _ => {
            let mut tx = client.transaction().await?;
            tx.execute(insert, &[&id, &"a book"]).await?;
            if who == Who::TransactionEmit {
                operation.emit(&mut tx, placed(id).step("placed")).await?;
            }
            operation.finish(tx, answer).await?
        }
    };
    Ok(kept.into_response().into_body())
}
