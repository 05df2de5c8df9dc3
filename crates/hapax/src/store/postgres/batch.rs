//! Batching: calls that arrive while one statement is in flight share the next one. A single caller
//! does not wait for others. If a statement fails because of one of its parts, it is sent again in
//! halves until that part is alone, so that the others need not be sent one by one.

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

/// Parts that may wait. Further ones are refused, which a caller sees as an unavailable store.
const QUEUE_MAX: usize = 4096;
/// Rows in one statement. Bounds how long the first of them waits for the last.
const BATCH_MAX: usize = 256;
/// Bytes in one statement, for the same reason. The last part may exceed it.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Parts that were put off because the current batch has a part of the same record. At this number,
/// no further parts are looked at.
const PUT_OFF_MAX: usize = 1024;

/// Batches that are sent in halves at the same time. Each may wait for a lock and delay the others
/// on that pipeline; beyond this number, the next batch waits.
const SPLITS_MAX: usize = 2;

/// A call that can be made for many callers in one statement.
pub(super) trait Verb: Send + Sync + 'static {
    /// One caller's arguments.
    type Part: Send + Sync + 'static;

    /// Whether it changes records. No statement changes a record twice, and each changes its
    /// records in the order of their ids; otherwise two statements could deadlock.
    const CHANGES: bool;

    /// The records that it concerns. Each is answered by one row.
    fn ids(part: &Self::Part) -> &[RecordId];

    /// The approximate memory that it holds while it waits.
    fn bytes(part: &Self::Part) -> usize;

    /// Sends all parts in one statement.
    fn send(
        pipeline: &Arc<Pipeline>,
        parts: &[&Self::Part],
    ) -> impl Future<Output = Result<Vec<Row>, Failure>> + Send;
}

/// One caller's part, and the channel for its rows.
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

    /// Returns the rows for this part, one for each record, in the order of its ids. Refused at
    /// once if too much is waiting, so that callers fail early rather than after waiting. Dropping
    /// the future cancels nothing.
    pub(super) async fn ask(&self, part: Arc<V::Part>) -> Result<Vec<Arc<Row>>, Failure> {
        let (reply, answer) = oneshot::channel();
        self.enqueue(Asked { part, reply })?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    fn enqueue(&self, asked: Asked<V>) -> Result<(), Failure> {
        let bytes = V::bytes(&asked.part) as u64;
        let counters = &self.shared.counters;
        let waiting = counters.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        // One part is always accepted: a single answer larger than the whole queue must be written
        // too.
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

/// Sends batch after batch, until the queue is closed. One at a time: with a second batch in flight
/// the batches were smaller and each write cost the server a sixth more, only to save a gap between
/// two statements that is short compared with their commit (measured with 64 and 256 callers).
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
        // Callers that were just answered may ask again at once. Yield so that they get into the
        // next batch together; otherwise one of them would be sent alone, and the others after it.
        tokio::task::yield_now().await;
    }
}

/// Sends a batch and distributes its rows. Returns the batch if one of its parts made it fail.
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

/// Runs on another pipeline: on the main one, other batches would wait for the lock once for every
/// half that contains it.
async fn send_in_halves<V: Verb>(batch: Vec<Asked<V>>, pipeline: &Arc<Pipeline>, shared: &Shared) {
    let mut left = vec![batch];
    while let Some(mut first) = left.pop() {
        let second = first.split_off(first.len() / 2);
        for half in [first, second] {
            left.extend(send(half, pipeline, shared).await);
        }
    }
}

/// The parts that have arrived and have not been sent.
struct Gathering<V: Verb> {
    queue: mpsc::Receiver<Asked<V>>,
    /// Parts that wait for a later batch, because the current one has their record.
    put_off: VecDeque<Asked<V>>,
    shared: Arc<Shared>,
}

impl<V: Verb> Gathering<V> {
    /// The next batch: waits for one part, and adds all parts that have arrived. `None` when the
    /// queue is closed.
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
                // If the queue is closed, the next call returns `None`.
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

/// A batch that is being gathered.
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

    /// Adds a part, or returns it if it does not fit.
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

/// Distributes the rows to the callers.
fn deal<V: Verb>(batch: Vec<Asked<V>>, rows: Result<Vec<Row>, Failure>) {
    let rows = rows.and_then(by_id);
    for Asked { part, reply } in batch {
        let mine = rows
            .as_ref()
            .map_err(Failure::clone)
            .and_then(|rows| pick::<V>(&part, rows));
        // The caller may have gone; the write took place anyway.
        let _ = reply.send(mine);
    }
}

/// Sends one part in its own statement.
pub(super) async fn send_alone<V: Verb>(
    pipeline: &Arc<Pipeline>,
    part: &V::Part,
) -> Result<Vec<Arc<Row>>, Failure> {
    pick::<V>(part, &by_id(V::send(pipeline, &[part]).await?)?)
}

/// The rows that answer a part. A missing row does not mean that the record is absent.
fn pick<V: Verb>(part: &V::Part, rows: &Rows) -> Result<Vec<Arc<Row>>, Failure> {
    V::ids(part)
        .iter()
        .map(|id| rows.get(id).cloned().ok_or_else(left_out))
        .collect()
}

/// Shared, because two callers may have asked for the same record.
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

/// The failure for a missing row: the part is sent again.
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
