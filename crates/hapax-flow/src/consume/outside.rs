//! The life of a consumer whose effects are outside a database: each message is an operation.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hapax::{BoxError, Once, Operation, RunError};
use hapax_core::flow::{Outage, RetryPolicy};
use hapax_core::record::Last;
use hapax_core::{Key, Rejection};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::Source;
use super::backlog::{Backlog, Item, tags};
use super::progress::{Progress, add};
use super::received::{Lane, Received, named};
use super::rules::Rules;
use super::run::{Kept, Pause, STOP_MAX, WAITING_MAX, random, wait_until};

/// The pause before a message is tried again for which a person must decide.
const UNDECIDED: Duration = Duration::from_secs(30);
/// The longest pause of a consumer with nothing to do.
const IDLE: Duration = Duration::from_secs(2);

pub(super) struct Outside<S: Source, H> {
    rules: Rules,
    source: Kept<S>,
    runner: Runner<H>,
    backlog: Backlog<S::Tag>,
    /// Done with, but the broker could not be told yet.
    unacknowledged: Vec<S::Tag>,
    progress: Arc<Progress>,
}

/// Runs operations.
struct Runner<H> {
    once: Once,
    handler: Arc<H>,
    retry: RetryPolicy,
}

/// What became of the messages of a lane.
struct Outcome<T> {
    done: Vec<(Item<T>, Replayed)>,
    /// The first that failed and when it is tried again, and those behind it.
    failed: Option<(Item<T>, Duration, VecDeque<Item<T>>)>,
}

type Replayed = bool;

impl<S, H, F, E> Outside<S, H>
where
    S: Source,
    H: Fn(Received, Operation) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    pub(super) fn new(
        rules: Rules,
        source: S,
        once: Once,
        handler: Arc<H>,
        progress: Arc<Progress>,
    ) -> Outside<S, H> {
        let retry = rules.retry;
        Outside {
            rules,
            source: Kept::new(source),
            runner: Runner {
                once,
                handler,
                retry,
            },
            backlog: Backlog::new(),
            unacknowledged: Vec::new(),
            progress,
        }
    }

    pub(super) async fn run(mut self, stop: &CancellationToken) {
        let mut pause = Pause::new();
        while !stop.is_cancelled() {
            match self.turn(stop).await {
                Ok(()) => pause.reset(),
                Err(outage) => {
                    add(&self.progress.outages, 1);
                    let consumer = &*self.rules.name;
                    tracing::warn!(consumer, reason = outage.reason, "a consumer waits");
                    pause.wait(stop).await;
                }
            }
        }
        // What the broker is not told it delivers again by itself.
        drop(timeout(STOP_MAX, self.stop()).await);
    }

    /// Lets other members have at once what is left.
    async fn stop(&mut self) -> Result<(), Outage> {
        self.acknowledge(Vec::new()).await?;
        let left = self.backlog.tags();
        match left.is_empty() {
            true => Ok(()),
            false => self.source.broker.give_back(&left).await,
        }
    }

    async fn turn(&mut self, stop: &CancellationToken) -> Result<(), Outage> {
        self.acknowledge(Vec::new()).await?;
        if self.source.is_due() {
            self.source.keep(&self.backlog.tags()).await?;
        }
        let now = Instant::now();
        let mut due = Vec::new();
        while due.len() < self.rules.batch_max
            && let Some(items) = self.backlog.take_due(now)
        {
            due.push(items);
        }
        if !due.is_empty() {
            let worked = self.work(due).await;
            self.backlog.rest(now.elapsed());
            return worked;
        }
        let idle = self.source.due_before(Instant::now() + IDLE);
        let wake = self.backlog.next_due().map_or(idle, |due| due.min(idle));
        let is_full = self.backlog.len() >= WAITING_MAX;
        let batch_max = if is_full { 0 } else { self.rules.batch_max };
        let received = tokio::select! {
            received = self.source.broker.receive(batch_max), if !is_full => received?,
            () = wait_until(wake, stop) => Vec::new(),
        };
        if received.is_empty() {
            let lag = self.source.broker.lag().await?;
            self.progress.set_lag(lag);
            return Ok(());
        }
        let mut lanes: HashMap<Lane, VecDeque<Item<S::Tag>>> = HashMap::new();
        for delivery in received {
            let item = Item {
                received: self.rules.receive(delivery.message),
                tags: vec![delivery.tag],
                failures: 0,
            };
            if let Some(item) = self.backlog.put_behind(item) {
                lanes
                    .entry(item.received.lane())
                    .or_default()
                    .push_back(item);
            }
        }
        self.work(lanes.into_values().collect()).await
    }

    /// Runs lanes at the same time, and the messages of each one after the other.
    async fn work(&mut self, lanes: Vec<VecDeque<Item<S::Tag>>>) -> Result<(), Outage> {
        let mut open = self.backlog.tags();
        open.extend(tags(lanes.iter().flatten()));
        let running = join_all(lanes.into_iter().map(|lane| self.runner.run(lane)));
        let outcomes = self.source.keep_during(&open, running).await;
        let mut done = Vec::new();
        for outcome in outcomes {
            for (item, replayed) in outcome.done {
                let counter = match replayed {
                    true => &self.progress.duplicates,
                    false => &self.progress.applied,
                };
                add(counter, 1);
                done.extend(item.tags);
            }
            if let Some((first, pause, behind)) = outcome.failed {
                add(&self.progress.failed, 1);
                self.backlog.put_first(first, Instant::now() + pause);
                for item in behind {
                    self.backlog.put_behind(item);
                }
            }
        }
        let waiting = self.backlog.len() as u64;
        self.progress.waiting.store(waiting, Ordering::Relaxed);
        self.acknowledge(done).await
    }

    /// Acknowledges these, and what could not be acknowledged before.
    async fn acknowledge(&mut self, tags: Vec<S::Tag>) -> Result<(), Outage> {
        self.unacknowledged.extend(tags);
        if !self.unacknowledged.is_empty() {
            self.source.broker.acknowledge(&self.unacknowledged).await?;
            self.unacknowledged.clear();
        }
        Ok(())
    }
}

impl<H, F, E> Runner<H>
where
    H: Fn(Received, Operation) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    async fn run<T>(&self, mut lane: VecDeque<Item<T>>) -> Outcome<T> {
        let mut done = Vec::new();
        while let Some(mut item) = lane.pop_front() {
            match self.run_one(&item.received).await {
                Ok(replayed) => done.push((item, replayed)),
                Err(error) => {
                    item.failures += 1;
                    let pause = self.pause(&item, &error);
                    let failed = Some((item, pause, lane));
                    return Outcome { done, failed };
                }
            }
        }
        Outcome { done, failed: None }
    }

    /// Only the id says which message it is, as in a database: not its content, which a producer may
    /// write in another way when it sends the message again.
    async fn run_one(&self, message: &Received) -> Result<Replayed, RunError> {
        let (handler, received) = (self.handler.clone(), message.clone());
        let work = async move |operation: Operation| {
            let handled = handler(received, operation).await;
            handled.map(|()| Bytes::new())
        };
        match self.once.run(key(message.id()), Bytes::new(), work).await {
            Ok(done) => Ok(done.replayed),
            Err(RunError::Rejected(rejection)) if is_decided(&rejection) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn pause<T>(&self, item: &Item<T>, error: &RunError) -> Duration {
        let id = item.received.id();
        match error.retry() {
            Some(least) => {
                tracing::warn!(id, %error, "an operation of a message failed");
                let doublings = item.failures.saturating_sub(1).min(31);
                let pause = self.retry.pause_min.saturating_mul(1 << doublings);
                let pause = pause
                    .min(self.retry.pause_max)
                    .mul_f64(0.5 + random() / 2.0);
                pause.max(least)
            }
            None => {
                tracing::error!(id, %error, "ALARM: a message waits until its operation is settled");
                UNDECIDED
            }
        }
    }
}

/// The key of a message's operation: its id, or a digest of it if that cannot be a key.
fn key(id: &str) -> String {
    match Key::new(id) {
        Ok(_) => id.to_owned(),
        Err(_) => named("sha256-", &Sha256::digest(id.as_bytes())),
    }
}

/// Whether it is known that the operation was done, or is never to be done, though there is no value
/// of it: a person may have settled it so.
fn is_decided(rejection: &Rejection) -> bool {
    use Rejection::{AnswerNotKept, KeyExpired};
    match rejection {
        AnswerNotKept { .. } => true,
        KeyExpired { last, .. } => matches!(last, Some(Last::Completed | Last::Failed)),
        _ => false,
    }
}
