//! From topics of Kafka to topics of Kafka, without a database.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::outbox::Message;
//! use hapax_flow::consume::{KafkaPipe, KafkaPipeOptions, KafkaServers, Received};
//! use tokio_util::sync::CancellationToken;
//!
//! let servers = KafkaServers::new(["localhost:9092"]);
//! let pipe = KafkaPipe::new(KafkaPipeOptions::new(servers, "shipping", ["orders"]))?;
//! let handler = async |order: Received| {
//!     let key = order.key.clone().ok_or("an order without a key")?;
//!     let shipment = Message::new("shipments", key, order.payload.clone());
//!     Ok::<_, hapax::BoxError>(vec![order.causes("shipped", shipment)])
//! };
//! pipe.run(CancellationToken::new(), handler).await;
//! # Ok(()) }
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::FutureExt as _;
use hapax::BoxError;
use hapax::outbox::{Message, MessageId};
use hapax_core::flow::{Next, RetryPolicy, Verdict};
use hapax_core::time::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::said;
use super::progress::{Progress, add};
use super::received::Received;
use super::run::{Pause, random, wait_until};
use super::sources::kafka::incoming;
use crate::kafka::{
    Batch, Carrier, CarrierOptions, Entry, Fault, Fetched, KafkaError, KafkaServers, Trouble,
    check_name,
};
use crate::publish::cloud_events::CloudEvents;
use crate::publish::entry_of;

/// How long a member waits for messages before it looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(200);

/// How a [`KafkaPipe`] works.
#[derive(Clone, Debug)]
pub struct KafkaPipeOptions {
    /// Where the servers are, and who one is there.
    pub servers: KafkaServers,
    /// The group. Each message goes to one of its members. Ids of what is written are made of it.
    pub group: String,
    /// The topics to read. A new group begins with the oldest message that is there.
    pub topics: Vec<String>,
    /// The topic of messages that cannot be handled, `GROUP.parked` by default. It must be there.
    pub parked: String,
    /// The transactional id, which no other member has: made up by default. With a fixed one, such
    /// as the name of the host, a member that begins again ends its transaction of before at once.
    /// Otherwise readers wait for it until Kafka gives it up: four times
    /// [`timeout`](KafkaPipeOptions::timeout), and at least 10 s.
    pub member: String,
    /// How the messages look that are written.
    pub events: CloudEvents,
    /// The header with the id of a message that is no CloudEvent. It must be the producer's.
    pub id_header: Option<String>,
    /// How often a message is tried before it is parked. The batch waits meanwhile.
    pub retry: RetryPolicy,
    /// The most messages of one transaction.
    pub batch_max: usize,
    /// How long an answer of Kafka may take.
    pub timeout: Duration,
    /// A member that is silent for this long has died, and others get its messages.
    pub session: Duration,
    /// How long a batch may take, before others get it too. What it makes of it is not written then.
    pub patience: Duration,
}

impl KafkaPipeOptions {
    /// The defaults, with these servers, this group and these topics.
    pub fn new(
        servers: KafkaServers,
        group: impl Into<String>,
        topics: impl IntoIterator<Item = impl Into<String>>,
    ) -> KafkaPipeOptions {
        let group = group.into();
        KafkaPipeOptions {
            servers,
            topics: topics.into_iter().map(Into::into).collect(),
            parked: format!("{group}.parked"),
            member: format!("{group}-{}", uuid::Uuid::new_v4()),
            group,
            events: CloudEvents::default(),
            id_header: None,
            retry: RetryPolicy {
                pause_min: Duration::from_millis(100),
                pause_max: Duration::from_secs(5),
                attempts_max: 5,
                ..RetryPolicy::default()
            },
            batch_max: 500,
            timeout: Duration::from_secs(5),
            session: Duration::from_secs(10),
            patience: Duration::from_mins(5),
        }
    }
}

/// Reads topics as a member of a group, under `read_committed`, and writes what a handler makes of
/// each message. A batch of messages, what was made of it and the position of the group behind it
/// are one transaction of Kafka.
///
/// So readers under `read_committed` see what was made of each place of a topic once, whoever dies
/// and whenever. Effects of the handler elsewhere are not part of that: they may be repeated. A
/// message that stands in the topic twice is handled twice; but what is made of it has the same ids
/// ([`Received::causes`]), so that a [`Consumer`](super::Consumer) behind it knows it.
///
/// A message whose handler fails is tried a few times. Then it is written to a topic of its own, in
/// the same transaction, with the reason in the header `hapax-parked-reason` and its place in
/// `hapax-parked-from`, and the others go on. The same happens if Kafka refuses what was made of it.
pub struct KafkaPipe {
    options: KafkaPipeOptions,
    consumer: Arc<str>,
    progress: Arc<Progress>,
}

impl KafkaPipe {
    /// A pipe that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`KafkaError`]: what is wrong with the options.
    pub fn new(options: KafkaPipeOptions) -> Result<KafkaPipe, KafkaError> {
        options.servers.check()?;
        for name in [&options.group, &options.member] {
            if name.is_empty() {
                return Err(KafkaError::Name(name.clone()));
            }
        }
        if options.topics.is_empty() {
            return Err(KafkaError::Topic(String::new(), "none is given"));
        }
        for topic in options.topics.iter().chain([&options.parked]) {
            check_name(topic).map_err(|reason| KafkaError::Topic(topic.clone(), reason))?;
        }
        if options.topics.contains(&options.parked) {
            let reason = "what is parked there would be read again";
            return Err(KafkaError::Topic(options.parked, reason));
        }
        Ok(KafkaPipe {
            consumer: options.group.as_str().into(),
            options,
            progress: Arc::default(),
        })
    }

    /// What it has done, for [`metrics`](super::metrics).
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Works until it is told to stop. While Kafka cannot be used it logs why, and tries again.
    pub async fn run<H, F, E>(&self, stop: CancellationToken, handler: H)
    where
        H: Fn(Received) -> F + Send + Sync,
        F: Future<Output = Result<Vec<Message>, E>> + Send,
        E: Into<BoxError>,
    {
        let mut pause = Pause::new();
        while !stop.is_cancelled() {
            if let Err(reason) = self.be_a_member(&stop, &handler, &mut pause).await {
                add(&self.progress.outages, 1);
                let consumer = &*self.consumer;
                tracing::warn!(consumer, reason, "a pipe waits");
                pause.wait(&stop).await;
            }
        }
    }

    /// Until it is to stop, or something fails. Then nobody knows what was written, except for the
    /// group: whoever joins it next goes on at its position.
    async fn be_a_member<H, F, E>(
        &self,
        stop: &CancellationToken,
        handler: &H,
        pause: &mut Pause,
    ) -> Result<(), String>
    where
        H: Fn(Received) -> F + Send + Sync,
        F: Future<Output = Result<Vec<Message>, E>> + Send,
        E: Into<BoxError>,
    {
        let mut carrier = Carrier::open(&self.carrier_options()).await?;
        let mut worked = Ok(());
        while worked.is_ok() && !stop.is_cancelled() {
            worked = match carrier.receive(WAIT).await {
                Ok(Some(batch)) => self.carry(&mut carrier, &batch, handler, stop).await,
                Ok(None) => Ok(()),
                Err(reason) => Err(reason),
            };
            if worked.is_ok() {
                pause.reset();
                self.progress.set_lag(carrier.lag().await);
            }
        }
        carrier.close().await;
        worked
    }

    /// Handles a batch and writes what was made of it.
    async fn carry<H, F, E>(
        &self,
        carrier: &mut Carrier,
        batch: &Batch,
        handler: &H,
        stop: &CancellationToken,
    ) -> Result<(), String>
    where
        H: Fn(Received) -> F + Send + Sync,
        F: Future<Output = Result<Vec<Message>, E>> + Send,
        E: Into<BoxError>,
    {
        let mut made = Vec::with_capacity(batch.records.len());
        for record in &batch.records {
            match self.handle(record, handler, stop).await {
                Some(one) => made.push(one),
                // It is to stop, and the batch is the next member's.
                None => return Ok(()),
            }
        }
        self.write(carrier, batch, &mut made).await?;
        let parked = made.iter().filter(|made| made.is_parked).count();
        add(&self.progress.parked, parked);
        add(&self.progress.applied, made.len() - parked);
        add(&self.progress.batches, 1);
        Ok(())
    }

    /// Tries a message until something is made of it, or it is parked. `None`: not before the end.
    async fn handle<H, F, E>(
        &self,
        record: &Fetched,
        handler: &H,
        stop: &CancellationToken,
    ) -> Option<Made>
    where
        H: Fn(Received) -> F + Send + Sync,
        F: Future<Output = Result<Vec<Message>, E>> + Send,
        E: Into<BoxError>,
    {
        let incoming = incoming(record.clone(), self.options.id_header.as_deref());
        let message = Received::new(&self.consumer, incoming.id.clone(), incoming);
        let mut tries = 0;
        loop {
            let handled = AssertUnwindSafe(async { handler(message.clone()).await }).catch_unwind();
            let made = match handled.await {
                Ok(Ok(messages)) => self.entries(&message, messages),
                Ok(Err(error)) => Err(error.into().to_string()),
                Err(panic) => Err(format!("the handler panicked: {}", said(&*panic))),
            };
            let reason = match made {
                Ok(entries) => {
                    return Some(Made {
                        entries,
                        is_parked: false,
                    });
                }
                Err(reason) => reason,
            };
            tries += 1;
            add(&self.progress.failed, 1);
            let (consumer, id) = (&*self.consumer, message.id());
            let verdict = Verdict::Failed(reason.clone());
            match self.options.retry.next(&verdict, tries, random()) {
                Next::RetryAfter(pause) => {
                    tracing::warn!(consumer, id, reason, "a message failed");
                    self.progress.waiting.store(1, Ordering::Relaxed);
                    wait_until(Instant::now() + pause, stop).await;
                    self.progress.waiting.store(0, Ordering::Relaxed);
                    if stop.is_cancelled() {
                        return None;
                    }
                }
                Next::GiveUp(_) => return Some(self.park(record, &reason)),
            }
        }
    }

    /// What is written to Kafka of the handler's messages.
    fn entries(&self, cause: &Received, messages: Vec<Message>) -> Result<Vec<Entry>, String> {
        // The same when the same message is handled again: a consumer finds its receipt by it.
        let at = cause.at.unwrap_or_else(now);
        let entries = messages.into_iter().map(|message| {
            let envelope = message.into_envelope(at);
            let envelope = envelope.map_err(|error| error.to_string())?;
            if self.options.topics.contains(&envelope.topic) {
                let topic = &envelope.topic;
                return Err(format!("a message for {topic} would be read again"));
            }
            Ok(entry_of(
                &self.options.events,
                &envelope,
                envelope.topic.clone(),
            ))
        });
        entries.collect()
    }

    /// A message as it came, for the topic of those that cannot be handled.
    fn park(&self, record: &Fetched, reason: &str) -> Made {
        let from = format!("{}/{}/{}", record.topic, record.partition, record.offset);
        let consumer = &*self.consumer;
        tracing::error!(consumer, from, reason, "ALARM: a message was parked");
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut headers: Vec<(String, String)> = record
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_ref().map(text).unwrap_or_default()))
            .collect();
        headers.push(("hapax-parked-reason".to_owned(), reason.to_owned()));
        headers.push(("hapax-parked-from".to_owned(), from));
        let entry = Entry {
            id: MessageId::from_bytes([0; 16]),
            topic: self.options.parked.clone(),
            key: record.key.as_ref().map(text),
            headers,
            payload: record.value.clone().unwrap_or_default(),
        };
        Made {
            entries: vec![entry],
            is_parked: true,
        }
    }

    /// Writes all of it in one transaction. A message of which Kafka does not take what was made is
    /// parked.
    async fn write(
        &self,
        carrier: &mut Carrier,
        batch: &Batch,
        made: &mut [Made],
    ) -> Result<(), String> {
        let mut one_by_one = false;
        loop {
            let owners: Vec<usize> = made
                .iter()
                .enumerate()
                .flat_map(|(owner, made)| made.entries.iter().map(move |_| owner))
                .collect();
            let entries: Vec<&Entry> = made.iter().flat_map(|made| &made.entries).collect();
            let faults = match carrier.write(batch, &entries, one_by_one).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Lost(reason)) => return Err(reason),
                Err(Trouble::Entries(faults)) => faults,
            };
            // Of several that were sent together, perhaps only one is too large.
            let are_alone = one_by_one || faults.len() == 1;
            one_by_one = true;
            for (place, fault) in faults {
                let owner = owners[place];
                match fault {
                    Fault::Failed(reason) => return Err(reason),
                    Fault::TooLarge(_) if !are_alone => {}
                    Fault::TooLarge(reason) | Fault::Refused(reason) if made[owner].is_parked => {
                        return Err(format!("a message cannot even be parked: {reason}"));
                    }
                    Fault::TooLarge(reason) | Fault::Refused(reason) => {
                        made[owner] = self.park(&batch.records[owner], &reason);
                    }
                }
            }
        }
    }

    fn carrier_options(&self) -> CarrierOptions {
        let options = &self.options;
        CarrierOptions {
            servers: options.servers.clone(),
            group: options.group.clone(),
            topics: options.topics.clone(),
            parked: options.parked.clone(),
            name: options.member.clone(),
            batch_max: options.batch_max,
            timeout: options.timeout,
            session: options.session,
            patience: options.patience,
        }
    }
}

impl std::fmt::Debug for KafkaPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaPipe")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What was made of a message.
struct Made {
    entries: Vec<Entry>,
    is_parked: bool,
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_micros(since.map_or(0, |since| since.as_micros() as u64))
}
