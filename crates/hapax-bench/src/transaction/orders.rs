//! The example business: each order is one row, written over the service's own connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hapax::join::tokio_postgres::Effect;
use hapax::{Answer, Hapax, Mode, Once, Operation, Policy, Postgres};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

use super::Who;
use crate::Error;
use crate::load::ANSWER_BYTES;
use crate::stats::Latencies;

const INSERT: &str = "INSERT INTO orders (id, item) VALUES ($1, $2)";

/// The result of one run.
pub(super) struct Ran {
    /// Orders per second.
    pub(super) rate: f64,
    pub(super) latencies: Latencies,
}

pub(super) struct Orders {
    url: String,
    once: Once,
}

/// The connection of one client.
struct Desk {
    client: Client,
    insert: Statement,
    effect: Effect,
}

impl Orders {
    /// Opens the orders on a database with the schema of a store.
    pub(super) async fn open(url: &str) -> Result<Orders, Error> {
        let desk = connect(url).await?;
        desk.batch_execute(
            "CREATE TABLE orders (id uuid PRIMARY KEY, item text NOT NULL, ordered_at timestamptz NOT NULL DEFAULT now())",
        )
        .await?;
        let policy = Policy {
            mode: Mode::Transaction,
            ..Policy::default()
        };
        let once = Hapax::new(Postgres::open(url).await?)
            .namespace("shop")
            .once("order")
            .policy(policy)?;
        Ok(Orders {
            url: url.to_owned(),
            once,
        })
    }

    pub(super) async fn run(
        &self,
        clients: usize,
        who: Who,
        duration: Duration,
    ) -> Result<Ran, Error> {
        let mut desks = Vec::new();
        for _ in 0..clients {
            let client = connect(&self.url).await?;
            let (insert, effect) = (
                client.prepare(INSERT).await?,
                Effect::prepare(&client, INSERT).await?,
            );
            desks.push(Arc::new(Mutex::new(Desk {
                client,
                insert,
                effect,
            })));
        }
        let (begin, mut latencies) = (Instant::now(), Latencies::default());
        let clients = desks.into_iter().map(|desk| {
            let once = self.once.clone();
            tokio::spawn(async move { order_until(begin + duration, who, &once, desk).await })
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

async fn order_until(
    end: Instant,
    who: Who,
    once: &Once,
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
            Who::Bare => bare(desk, id).await?,
            Who::Transaction | Who::Effect => {
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

async fn bare(mut desk: OwnedMutexGuard<Desk>, id: Uuid) -> Result<(), Error> {
    let Desk { client, insert, .. } = &mut *desk;
    let tx = client.transaction().await?;
    tx.execute(insert, &[&id, &"a book"]).await?;
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
    } = &mut *desk;
    let answer = Answer::new(201, vec![b'x'; ANSWER_BYTES]);
    let kept = match who {
        Who::Effect => {
            effect
                .finish(&operation, client, &[&id, &"a book"], answer)
                .await?
        }
        Who::Bare | Who::Transaction => {
            let tx = client.transaction().await?;
            tx.execute(insert, &[&id, &"a book"]).await?;
            operation.finish(tx, answer).await?
        }
    };
    Ok(kept.into_response().into_body())
}

async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
