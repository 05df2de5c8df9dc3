//! Gathering: while one statement is in flight, whatever arrives goes into the next one together. A
//! single caller waits for nobody. A statement that fails for one of its parts is sent again in
//! halves, until that part is alone: the others need not go one by one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::Row;

use super::error::{Failure, Fault};
use super::pipeline::Pipeline;
use super::row;
use super::shared::Shared;
use crate::hash::Ids;

/// Parts that may wait; further ones are refused, which a caller sees as a store that is
/// unavailable.
const QUEUE_MAX: usize = 4096;
/// Rows asked for in one statement: bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 256;
/// Bytes in one statement, for the same reason: a part more may go over it.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Parts put off because the statement being gathered has one of the same record. With so many,
/// nothing further is looked at.
const PUT_OFF_MAX: usize = 1024;

/// Batches sent in halves at a time. Each waits for a lock before the others on that pipeline;
/// should there be more, the next batch waits.
const SPLITS_MAX: usize = 2;

/// What can be asked for many callers in one statement.
pub(super) trait Verb: Send + Sync + 'static {
    /// What one caller asks.
    type Part: Send + Sync + 'static;

    /// Whether it changes records. No statement changes a record twice, and each changes its
    /// records in the order of their ids: two that wait for each other would wait for ever.
    const CHANGES: bool;

    /// The records it is about. Each is answered by a row.
    fn ids(part: &Self::Part) -> &[RecordId];

    /// Roughly how much memory it holds while it waits.
    fn bytes(part: &Self::Part) -> usize;

    /// Sends all of it in one statement.
    fn send(
        pipeline: &Arc<Pipeline>,
        parts: &[&Self::Part],
    ) -> impl Future<Output = Result<Vec<Row>, Failure>> + Send;
}

/// What one caller asks, and where its rows go.
struct Asked<V: Verb> {
    part: Arc<V::Part>,
    reply: oneshot::Sender<Result<Vec<Arc<Row>>, Failure>>,
}

/// The queue of one verb, and the task that empties it.
pub(super) struct Batches<V: Verb> {
    queue: mpsc::Sender<Asked<V>>,
    shared: Arc<Shared>,
}

impl<V: Verb> Batches<V> {
    pub(super) fn start(
        shared: Arc<Shared>,
        pipeline: Arc<Pipeline>,
        aside: Arc<Pipeline>,
    ) -> Batches<V> {
        let (queue, asked) = mpsc::channel(QUEUE_MAX);
        let gathering = Gathering {
            queue: asked,
            put_off: VecDeque::new(),
            shared: shared.clone(),
        };
        tokio::spawn(run(gathering, pipeline, aside));
        Batches { queue, shared }
    }

    /// The rows that answer this, one for each record, in the order asked. Refused at once if too
    /// much is waiting: callers learn now what a queue would only tell them later. Dropping this
    /// takes nothing back.
    pub(super) async fn ask(&self, part: Arc<V::Part>) -> Result<Vec<Arc<Row>>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Asked { part, reply })?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    fn enqueue(&self, asked: Asked<V>) -> Result<(), Failure> {
        let bytes = V::bytes(&asked.part) as u64;
        let counters = &self.shared.counters;
        let waiting = counters.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One is always let in: a single answer larger than the whole queue must be written too.
        let is_full = waiting > 0 && waiting + bytes > self.shared.options.queue_bytes_max as u64;
        let refused = match is_full {
            true => Some(full()),
            false => self.queue.try_send(asked).err().map(|error| match error {
                mpsc::error::TrySendError::Full(_) => full(),
                mpsc::error::TrySendError::Closed(_) => stopped(),
            }),
        };
        let Some(refused) = refused else {
            return Ok(());
        };
        counters.queue_bytes.fetch_sub(bytes, Ordering::Relaxed);
        counters.refused.fetch_add(1, Ordering::Relaxed);
        Err(refused)
    }
}

/// Batch after batch, until nobody can ask any more. One at a time: with a second in flight the
/// batches were smaller and each write cost the server a sixth more, for a gap between two
/// statements that is short beside their commit (measured with 64 and 256 callers).
async fn run<V: Verb>(mut gathering: Gathering<V>, pipeline: Arc<Pipeline>, aside: Arc<Pipeline>) {
    let splits = Arc::new(Semaphore::new(SPLITS_MAX));
    while let Some(batch) = gathering.next().await {
        if let Some(batch) = send(batch, &pipeline, &gathering.shared).await {
            let Ok(split) = splits.clone().acquire_owned().await else {
                return;
            };
            let (aside, shared) = (aside.clone(), gathering.shared.clone());
            tokio::spawn(async move {
                send_in_halves(batch, &aside, &shared).await;
                drop(split);
            });
        }
        // Those who were answered may ask for more at once. Let them come first: else one of them
        // would go alone, and the others only after it.
        tokio::task::yield_now().await;
    }
}

/// Sends a batch and gives everybody their rows; or gives the batch back, if one of its parts
/// stands in the way of the others.
async fn send<V: Verb>(
    batch: Vec<Asked<V>>,
    pipeline: &Arc<Pipeline>,
    shared: &Shared,
) -> Option<Vec<Asked<V>>> {
    let rows = {
        let parts: Vec<&V::Part> = batch.iter().map(|asked| &*asked.part).collect();
        V::send(pipeline, &parts).await
    };
    shared.counters.batch(batch.len());
    let is_of_a_part = rows
        .as_ref()
        .is_err_and(|failure| matches!(failure.fault, Fault::Locked | Fault::Part));
    if is_of_a_part && batch.len() > 1 {
        return Some(batch);
    }
    deal(batch, rows);
    None
}

/// Aside from the others, which would have to wait for the lock as often as there are halves with
/// it.
async fn send_in_halves<V: Verb>(batch: Vec<Asked<V>>, pipeline: &Arc<Pipeline>, shared: &Shared) {
    let mut left = vec![batch];
    while let Some(mut first) = left.pop() {
        let second = first.split_off(first.len() / 2);
        for half in [first, second] {
            left.extend(send(half, pipeline, shared).await);
        }
    }
}

/// What has arrived and not been sent.
struct Gathering<V: Verb> {
    queue: mpsc::Receiver<Asked<V>>,
    /// What has to wait for a statement that does not touch its record.
    put_off: VecDeque<Asked<V>>,
    shared: Arc<Shared>,
}

impl<V: Verb> Gathering<V> {
    /// The next batch: one part as soon as there is one, and with it all that are there already.
    /// `None` when nobody can ask any more.
    async fn next(&mut self) -> Option<Vec<Asked<V>>> {
        let mut batch = Batch::default();
        for asked in std::mem::take(&mut self.put_off) {
            self.put_off.extend(batch.add(asked));
        }
        while batch.asked.is_empty() {
            let asked = self.queue.recv().await?;
            self.put_off.extend(batch.add(asked));
        }
        while batch.has_room() && self.put_off.len() < PUT_OFF_MAX {
            match self.queue.try_recv() {
                Ok(asked) => self.put_off.extend(batch.add(asked)),
                // Should nobody be left to ask, the next call says so.
                Err(_) => break,
            }
        }
        self.shared
            .counters
            .queue_bytes
            .fetch_sub(batch.bytes as u64, Ordering::Relaxed);
        if V::CHANGES {
            batch
                .asked
                .sort_unstable_by(|a, b| V::ids(&a.part).cmp(V::ids(&b.part)));
        }
        Some(batch.asked)
    }
}

/// A statement while it is gathered.
struct Batch<V: Verb> {
    asked: Vec<Asked<V>>,
    changes: HashSet<RecordId, Ids>,
    rows: usize,
    bytes: usize,
}

impl<V: Verb> Default for Batch<V> {
    fn default() -> Self {
        Batch {
            asked: Vec::new(),
            changes: HashSet::default(),
            rows: 0,
            bytes: 0,
        }
    }
}

impl<V: Verb> Batch<V> {
    fn has_room(&self) -> bool {
        self.rows < BATCH_MAX && self.bytes < BATCH_BYTES_MAX
    }

    /// Takes a part in, or gives it back.
    fn add(&mut self, asked: Asked<V>) -> Option<Asked<V>> {
        let ids = V::ids(&asked.part);
        if !self.has_room() || (V::CHANGES && ids.iter().any(|id| !self.changes.insert(*id))) {
            return Some(asked);
        }
        self.rows += ids.len();
        self.bytes += V::bytes(&asked.part);
        self.asked.push(asked);
        None
    }
}

/// Gives everybody their rows.
fn deal<V: Verb>(batch: Vec<Asked<V>>, rows: Result<Vec<Row>, Failure>) {
    let rows = rows.and_then(by_id);
    for Asked { part, reply } in batch {
        let mine = rows
            .as_ref()
            .map_err(Failure::clone)
            .and_then(|rows| pick::<V>(&part, rows));
        // Nobody may be waiting any more: the write took place all the same.
        let _ = reply.send(mine);
    }
}

/// Sends one caller's part by itself.
pub(super) async fn send_alone<V: Verb>(
    pipeline: &Arc<Pipeline>,
    part: &V::Part,
) -> Result<Vec<Arc<Row>>, Failure> {
    pick::<V>(part, &by_id(V::send(pipeline, &[part]).await?)?)
}

/// The rows that answer a part. One that is missing says nothing: least of all that there is no
/// record.
fn pick<V: Verb>(part: &V::Part, rows: &Rows) -> Result<Vec<Arc<Row>>, Failure> {
    V::ids(part)
        .iter()
        .map(|id| rows.get(id).cloned().ok_or_else(left_out))
        .collect()
}

/// Shared, as two callers may have asked for the same record.
type Rows = HashMap<RecordId, Arc<Row>, Ids>;

fn by_id(rows: Vec<Row>) -> Result<Rows, Failure> {
    let broken = |error| Failure {
        fault: Fault::Server,
        error,
    };
    rows.into_iter()
        .map(|row| Ok((row::id(&row).map_err(broken)?, Arc::new(row))))
        .collect()
}

/// Says nothing, so that it is sent again.
pub(super) fn left_out() -> Failure {
    Failure {
        fault: Fault::Undecided,
        error: StoreError::unavailable("the database left out an answer"),
    }
}

fn full() -> Failure {
    Failure {
        fault: Fault::Server,
        error: StoreError::unavailable(
            "too many requests wait for the database: it is too slow for them",
        ),
    }
}

fn stopped() -> Failure {
    Failure {
        fault: Fault::Server,
        error: StoreError::unavailable("the store has stopped"),
    }
}
