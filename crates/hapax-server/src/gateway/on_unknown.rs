//! `[on_unknown]`: one webhook for each record whose outcome is unknown and waits for a person.
//!
//! The store is the queue. A record is told about for as long as it is unknown and until the
//! receiver has taken it, also by a gateway that was started anew: nothing else has to be kept, and
//! nothing is lost. So a restart, or another gateway on the same store, tells again. The id is made
//! of the record and of its lost attempt, so it is the same each time and receivers can drop
//! repeats.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hapax::core::flow::{Envelope, MessageId, headers as names};
use hapax::core::operation::OperationIds;
use hapax::core::record::{Fence, Head, State, StateFilter};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use hapax::{Event, Hapax, Observer, RecordId};
use hapax_flow::publish::{Publisher, Verdict};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::admin::keys::time::Time;
use crate::admin::keys::wire::{Cause, Entry, hex};
use crate::telemetry::Metrics;

/// Records that may wait to be told about. Others are found again when the store is next looked
/// through.
const WAITING_MAX: usize = 10_000;
/// Records without an end that are looked at.
const SEEN_MAX: usize = 50_000;
const PAGE: usize = 1_000;
/// The store is looked through for what other processes lost, at least this long apart,
const LOOK_PAUSE_MIN: Duration = Duration::from_secs(10);
/// and this many times as long as it takes: a store without an index by state reads every record.
const LOOK_PAUSE_FACTOR: u32 = 50;
/// Pauses while the receiver fails, each twice as long as the one before.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(300);

/// The topic of the messages, which is the type of their events.
const TYPE: &str = "hapax.outcome-unknown";

/// Hears of records that this process loses, so that they are told about at once.
pub(super) struct Hints {
    lost: mpsc::Sender<RecordId>,
    /// Gets every event too.
    also: Arc<dyn Observer>,
}

impl Hints {
    /// Returns what hears, and where it passes records on.
    pub(super) fn new(also: Arc<dyn Observer>) -> (Hints, mpsc::Receiver<RecordId>) {
        let (lost, receiver) = mpsc::channel(WAITING_MAX);
        (Hints { lost, also }, receiver)
    }
}

impl Observer for Hints {
    fn on(&self, event: &Event<'_>) {
        if let Event::Finished {
            subject,
            state: State::Unknown,
            ..
        } = event
        {
            // One that finds no room is found by looking through the store.
            let _ = self.lost.try_send(subject.id);
        }
        self.also.on(event);
    }
}

/// Tells of unknown outcomes.
pub(super) struct OnUnknown {
    pub(super) receiver: Arc<dyn Publisher>,
    pub(super) hapax: Hapax,
    pub(super) metrics: Metrics,
    pub(super) operation_ids: OperationIds,
    /// Whether a record with an unknown outcome is of this gateway, and waits for a person.
    pub(super) is_meant: Box<dyn Fn(&Head) -> bool + Send + Sync>,
}

impl OnUnknown {
    /// Tells until the returned value is dropped. What is not told then is told after the next start.
    pub(super) fn start(self, hints: mpsc::Receiver<RecordId>) -> Telling {
        let teller = Teller {
            on_unknown: self,
            hints,
            waiting: VecDeque::new(),
            known: HashMap::new(),
            failures: 0,
        };
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let ended = tokio::spawn(async move {
            stopped.run_until_cancelled(teller.run()).await;
        });
        Telling {
            stop: stop.drop_guard(),
            ended,
        }
    }
}

/// The work of an [`OnUnknown`].
pub(super) struct Telling {
    stop: DropGuard,
    ended: JoinHandle<()>,
}

impl Telling {
    /// Ends it, and waits until it no longer holds the store.
    pub(super) async fn end(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}

struct Teller {
    on_unknown: OnUnknown,
    hints: mpsc::Receiver<RecordId>,
    waiting: VecDeque<RecordId>,
    /// The lost attempts that wait or were told about.
    known: HashMap<RecordId, Fence>,
    /// Failed requests in a row.
    failures: u32,
}

/// What became of a request.
enum Told {
    /// The receiver has it, or refused it for good, or nobody has to be told any more.
    Done,
    /// Again later.
    Failed(String),
    /// The receiver wants nothing more.
    Gone(String),
}

impl Teller {
    async fn run(mut self) {
        let (mut look_at, mut send_at) = (Instant::now(), Instant::now());
        loop {
            if look_at <= Instant::now() {
                look_at = self.look().await;
            }
            if send_at <= Instant::now()
                && let Some(id) = self.waiting.pop_front()
            {
                match self.tell(id).await {
                    Told::Done => self.succeeded(),
                    Told::Failed(reason) => send_at = Instant::now() + self.failed(id, &reason),
                    Told::Gone(reason) => return gone(&reason),
                }
                continue;
            }
            let due = match self.waiting.is_empty() {
                true => look_at,
                false => look_at.min(send_at),
            };
            tokio::select! {
                hint = self.hints.recv() => match hint {
                    Some(id) => self.hear(id).await,
                    None => return,
                },
                () = sleep_until(due) => {}
            }
        }
    }

    /// Looks through the store. Returns when to do so again.
    async fn look(&mut self) -> Instant {
        let began = Instant::now();
        if let Err(error) = self.look_through().await {
            tracing::debug!(%error, "unknown outcomes could not be looked for");
        }
        Instant::now() + LOOK_PAUSE_MIN.max(began.elapsed() * LOOK_PAUSE_FACTOR)
    }

    async fn look_through(&mut self) -> Result<(), StoreError> {
        let (mut seen, mut after, mut open) = (0, None, HashSet::new());
        loop {
            let query = ListQuery {
                state: Some(StateFilter::Open),
                after,
                limit: PAGE,
            };
            let page = self.on_unknown.hapax.list(query).await?;
            for head in &page {
                open.insert(head.id);
                self.consider(head);
            }
            seen += page.len();
            after = page.last().map(|head| head.id);
            if page.len() < PAGE {
                // Whatever is no longer open needs no memory.
                self.known.retain(|id, _| open.contains(id));
                return Ok(());
            }
            if seen >= SEEN_MAX {
                return Ok(());
            }
        }
    }

    /// A record that this process has just lost. If the store fails, it is found by looking.
    async fn hear(&mut self, id: RecordId) {
        if let Ok((record, _)) = self.on_unknown.hapax.look(id).await {
            self.consider(&record.head);
        }
    }

    /// Lets a record wait, unless its attempt is known already.
    fn consider(&mut self, head: &Head) {
        let is_new = self.known.get(&head.id) != Some(&head.fence);
        if is_new && self.is_untold(head) && self.waiting.len() < WAITING_MAX {
            self.known.insert(head.id, head.fence);
            self.waiting.push_back(head.id);
        }
    }

    /// Whether a person has to find out what became of it. What was not recorded as lost may still
    /// be running, whatever the clock of this node says.
    fn is_untold(&self, head: &Head) -> bool {
        head.state != State::Running
            && head.is_unresolved(head.state_at(now()))
            && (self.on_unknown.is_meant)(head)
    }

    /// Sends one request, if its record is still unknown.
    async fn tell(&mut self, id: RecordId) -> Told {
        let head = match self.on_unknown.hapax.look(id).await {
            Ok((record, _)) => record.head,
            Err(error) => {
                tracing::debug!(%error, record = %id, "it is not told about now");
                // Looking through the store finds it again, if it is there.
                self.known.remove(&id);
                return Told::Done;
            }
        };
        if !self.is_untold(&head) {
            return Told::Done;
        }
        self.known.insert(id, head.fence);
        let message = envelope(&head, &self.on_unknown.operation_ids);
        let count = |result| self.on_unknown.metrics.told_of_unknown(result);
        let reason = match self.on_unknown.receiver.publish(&[message]).await {
            Ok(verdicts) => match verdicts.into_iter().next() {
                Some(Verdict::Accepted { .. }) => {
                    count("sent");
                    return Told::Done;
                }
                Some(Verdict::Refused(reason)) => {
                    count("dropped");
                    tracing::error!(
                        record = %id,
                        reason,
                        "ALARM: the receiver of [on_unknown] refuses to hear of an unknown outcome: see hapax keys list --state unknown"
                    );
                    return Told::Done;
                }
                Some(Verdict::Failed(reason) | Verdict::Unclear(reason)) => reason,
                Some(Verdict::NotSent) | None => "it was not sent".to_owned(),
            },
            Err(outage) if outage.permanent => {
                count("dropped");
                return Told::Gone(outage.reason);
            }
            Err(outage) => outage.reason,
        };
        count("failed");
        Told::Failed(reason)
    }

    fn succeeded(&mut self) {
        if self.failures > 0 {
            tracing::info!("the receiver of [on_unknown] takes requests again");
        }
        self.failures = 0;
    }

    /// Puts a record behind the others. Returns the pause before the next request.
    fn failed(&mut self, id: RecordId, reason: &str) -> Duration {
        if self.failures == 0 {
            tracing::warn!(
                reason,
                waiting = self.waiting.len() + 1,
                "the receiver of [on_unknown] cannot be told of unknown outcomes; trying again until it can"
            );
        }
        self.waiting.push_back(id);
        let pause = RETRY_MIN.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        pause.min(RETRY_MAX)
    }
}

fn gone(reason: &str) {
    tracing::error!(
        reason,
        "ALARM: the receiver of [on_unknown] wants nothing more: it is told of no unknown outcome until the gateway is started again"
    );
}

/// What the receiver gets.
#[derive(Serialize)]
struct Unknown {
    record: String,
    operation_id: String,
    fence: u64,
    namespace: String,
    method: String,
    path: String,
    /// The key itself may let somebody repeat the request.
    key_sha256: String,
    request_id: Option<String>,
    attempts: u32,
    /// What the service answered with, if it did.
    status: Option<u16>,
    cause: Option<Cause>,
    /// When the attempt that was lost began,
    claimed_at: Time,
    /// and when it was lost.
    unknown_since: Time,
}

impl Unknown {
    fn new(head: &Head, entry: Entry) -> Unknown {
        Unknown {
            key_sha256: hex(&Sha256::digest(entry.key)),
            record: entry.id,
            operation_id: entry.operation_id,
            fence: entry.fence,
            namespace: entry.namespace,
            method: entry.method,
            path: entry.path,
            request_id: entry.request_id,
            attempts: entry.attempts,
            status: entry.status,
            cause: entry.cause,
            claimed_at: entry.claimed_at,
            unknown_since: Time(head.finished_at),
        }
    }
}

fn envelope(head: &Head, operation_ids: &OperationIds) -> Envelope {
    let unknown = Unknown::new(head, Entry::new(head, now(), operation_ids));
    let payload = serde_json::to_vec(&unknown).expect("it has no maps with odd keys");
    let fence = head.fence.as_u64().to_string();
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut headers = vec![header(names::CONTENT_TYPE, "application/json")];
    if let Some(request_id) = &unknown.request_id {
        headers.push(header(names::CORRELATION_ID, request_id));
    }
    Envelope {
        sequence: 0,
        id: MessageId::caused_by(TYPE, &unknown.record, &fence),
        at: head.finished_at,
        topic: TYPE.to_owned(),
        key: None,
        ordered: false,
        version: None,
        headers,
        payload: Bytes::from(payload),
    }
}

fn now() -> Timestamp {
    Timestamp::from_system_time(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hapax::BoxError;
    use hapax::core::operation::Secret;
    use hapax_flow::publish::{Outage, Reply};

    use super::*;

    /// Counts requests, and answers the first ones with a failure.
    #[derive(Default)]
    struct Receiver {
        asked: AtomicUsize,
        failures: usize,
    }

    impl Publisher for Receiver {
        fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
            let asked = self.asked.fetch_add(batch.len(), Ordering::SeqCst);
            let verdict = match asked < self.failures {
                true => Verdict::Failed("not now".to_owned()),
                false => Verdict::ACCEPTED,
            };
            Box::pin(async move { Ok(vec![verdict]) })
        }
    }

    fn teller(hapax: &Hapax, receiver: &Arc<Receiver>) -> Teller {
        Teller {
            on_unknown: OnUnknown {
                receiver: receiver.clone(),
                hapax: hapax.clone(),
                metrics: Metrics::new(),
                operation_ids: OperationIds::new(Secret::from_bytes([7; 32]), now()),
                is_meant: Box::new(|_| true),
            },
            hints: mpsc::channel(1).1,
            waiting: VecDeque::new(),
            known: HashMap::new(),
            failures: 0,
        }
    }

    async fn lose(hapax: &Hapax, key: &str) {
        let once = hapax.once("charge");
        let work = async |_| Err::<Bytes, BoxError>("the connection broke".into());
        assert!(once.run(key, "", work).await.is_err());
    }

    /// Looks through the store and sends all that waits.
    async fn turn(teller: &mut Teller) {
        teller.look().await;
        while let Some(id) = teller.waiting.pop_front() {
            if let Told::Failed(reason) = teller.tell(id).await {
                teller.failed(id, &reason);
                break;
            }
        }
    }

    #[tokio::test]
    async fn a_record_is_told_about_once_however_often_the_store_is_looked_through() {
        let (hapax, receiver) = (Hapax::memory(), Arc::new(Receiver::default()));
        let mut teller = teller(&hapax, &receiver);
        lose(&hapax, "order-17").await;
        for _ in 0..3 {
            turn(&mut teller).await;
        }
        lose(&hapax, "order-18").await;
        turn(&mut teller).await;
        assert_eq!(receiver.asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn what_the_receiver_did_not_take_is_told_again() {
        let failing = Receiver {
            failures: 2,
            ..Receiver::default()
        };
        let (hapax, receiver) = (Hapax::memory(), Arc::new(failing));
        let mut teller = teller(&hapax, &receiver);
        lose(&hapax, "order-17").await;
        for _ in 0..5 {
            turn(&mut teller).await;
        }
        assert_eq!(receiver.asked.load(Ordering::SeqCst), 3);
    }
}
