//! How long after its commit a message is published, while the machine has half of the work that it
//! can do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hapax::outbox::{MessageId, emit};
use hapax_flow::publish::{Envelope, Outage, Publisher, Reply, Verdict};
use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use crate::Error;
use crate::postgres::{Cluster, connect};
use crate::report::{Table, at_most, number};
use crate::stats::{Latencies, Quantiles, median};
use crate::transaction::{Orders, placed};

use super::Scale;
use super::backlog::Relaying;

const CLIENTS: usize = 16;
const P99_MAX_MS: f64 = 50.0;

/// A destination that notes when each message came.
#[derive(Clone, Default)]
struct Noting(Arc<Mutex<HashMap<MessageId, Instant>>>);

impl Noting {
    fn came(&self) -> HashMap<MessageId, Instant> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Publisher for Noting {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        let now = Instant::now();
        let mut came = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        came.extend(batch.iter().map(|message| (message.id, now)));
        Box::pin(std::future::ready(Ok(vec![Verdict::ACCEPTED; batch.len()])))
    }
}

/// When a client was told that a message had committed.
type Committed = (MessageId, Instant);

pub(super) async fn run(cluster: &Cluster, scale: Scale) -> Result<(), Error> {
    let Scale {
        seconds, rounds, ..
    } = scale;
    let title = format!(
        "outbox: from the commit to the destination, {CLIENTS} clients at half of their rate; medians of {rounds} rounds of {seconds:?}"
    );
    let mut table = Table::new(&title, &["", "per second", "p50 ms", "p99 ms", "max ms"]);
    let url = cluster.migrated().await?;
    // Makes the table of orders.
    Orders::open(&url).await?;
    let mut results: Vec<(f64, Quantiles)> = Vec::new();
    for round in 1..=rounds {
        eprintln!("  delay: round {round} of {rounds}");
        let noting = Noting::default();
        let relaying = Relaying::start(&url, noting.clone())?;
        let full = write(&url, None, seconds).await?.len();
        relaying.published(full as u64).await?;
        noting.came();
        let rate = full as f64 / seconds.as_secs_f64() / 2.0;
        let committed = write(&url, Some(rate), seconds).await?;
        relaying.published((full + committed.len()) as u64).await?;
        relaying.stop().await?;
        let delays = delays(&committed, &noting.came())?;
        results.push((
            committed.len() as f64 / seconds.as_secs_f64(),
            delays.quantiles(),
        ));
    }
    let of = |part: fn(&(f64, Quantiles)) -> f64| median(results.iter().map(part));
    let p99 = of(|round| round.1.p99);
    let cells = [of(|round| round.0), of(|round| round.1.p50), p99];
    let cells = cells.into_iter().chain([of(|round| round.1.max)]);
    table.row("relay", cells.map(number));
    table.print();
    at_most("from commit to publish, p99", p99, P99_MAX_MS, " ms");
    Ok(())
}

/// Has the clients write orders with a message each: as fast as they can, or so many a second in
/// all.
async fn write(url: &str, rate: Option<f64>, duration: Duration) -> Result<Vec<Committed>, Error> {
    let end = Instant::now() + duration;
    let pause = rate.map(|rate| Duration::from_secs_f64(CLIENTS as f64 / rate));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(write_until(url.to_owned(), pause, end)))
        .collect();
    let mut committed = Vec::new();
    for client in clients {
        committed.extend(client.await??);
    }
    Ok(committed)
}

async fn write_until(
    url: String,
    pause: Option<Duration>,
    end: Instant,
) -> Result<Vec<Committed>, Error> {
    let mut client = connect(&url).await?;
    let insert = "INSERT INTO orders (id, item) VALUES ($1, $2)";
    let insert = client.prepare(insert).await?;
    let mut ticks = pause.map(tokio::time::interval);
    if let Some(ticks) = &mut ticks {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    }
    let mut committed = Vec::new();
    while Instant::now() < end {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let order = Uuid::new_v4();
        let mut tx = client.transaction().await?;
        tx.execute(&insert, &[&order, &"a book"]).await?;
        let id = emit(&mut tx, placed(order)).await?;
        tx.commit().await?;
        committed.push((id, Instant::now()));
    }
    Ok(committed)
}

/// The relay may have a message before its client hears of the commit.
fn delays(committed: &[Committed], came: &HashMap<MessageId, Instant>) -> Result<Latencies, Error> {
    let mut delays = Latencies::default();
    for (id, at) in committed {
        let came = came.get(id).ok_or("a message was not published")?;
        delays.push(came.saturating_duration_since(*at));
    }
    Ok(delays)
}
