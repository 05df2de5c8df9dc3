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

use futures_util::FutureExt as _;
use hapax::BoxError;
use hapax::outbox::{Message, MessageId};
use hapax_core::flow::{Next, RetryPolicy, Verdict};
use hapax_core::time::Timestamp;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::attempt::said;
use super::progress::{Progress, add};
use super::received::Received;
use super::run::{Pause, random, wait_until};
use super::sources::kafka::incoming;
use crate::kafka::{
    Carrier, CarrierOptions, Entry, Fault, Fetched, KafkaError, KafkaServers, Trouble, check_name,
    check_topics,
};
use crate::publish::cloud_events::CloudEvents;
use crate::publish::entry_of;

/// How long a member waits for messages before it looks whether it is to stop.
const WAIT: Duration = Duration::from_millis(200);

/// Of a reason, so that it fits into a header.
const REASON_CHARS_MAX: usize = 1000;

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
    /// The name of this member, which no other member of the group has: made up by default. The
    /// transactional id is `GROUP-MEMBER`. With a fixed one, such as the name of the host, a member
    /// that begins again ends its transaction of before at once. Otherwise readers wait for it until
    /// Kafka gives it up: four times [`timeout`](KafkaPipeOptions::timeout), and at least 10 s.
    pub member: Option<String>,
    /// How the messages look that are written.
    pub events: CloudEvents,
    /// The header with the id of a message that is no CloudEvent. It must be the producer's.
    pub id_header: Option<String>,
    /// How often a message is tried before it is parked. The batch waits meanwhile.
    pub retry: RetryPolicy,
    /// How long one try may take.
    pub try_timeout: Duration,
    /// The most messages of one transaction.
    pub batch_max: usize,
    /// How long an answer of Kafka may take.
    pub timeout: Duration,
    /// A member that is silent for this long has died, and others get its messages.
    pub session: Duration,
    /// How long this member may work before others get its messages; what it makes of them is not
    /// written then. A batch that takes longer than a third of it is written in parts.
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
            member: None,
            group,
            events: CloudEvents::default(),
            id_header: None,
            retry: RetryPolicy {
                pause_min: Duration::from_millis(100),
                pause_max: Duration::from_secs(5),
                attempts_max: 5,
                ..RetryPolicy::default()
            },
            try_timeout: Duration::from_secs(20),
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
/// So readers under `read_committed` see the output for each place of a topic once, whenever a member
/// or a broker dies. Effects of the handler elsewhere are not part of that: they may be repeated. A
/// message that stands in the topic twice is handled twice; but what is made of it has the same ids
/// ([`Received::causes`]), so that a [`Consumer`](super::Consumer) behind it knows it.
///
/// A message whose handler fails is tried a few times. Then it is written to a topic of its own, in
/// the same transaction, with the reason in the header `hapax-parked-reason` and its place in
/// `hapax-parked-from`, and the others go on. The same happens if Kafka refuses what was made of it.
pub struct KafkaPipe {
    options: KafkaPipeOptions,
    consumer: Arc<str>,
    transactional_id: String,
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
        if options.group.is_empty() {
            return Err(KafkaError::Name(options.group));
        }
        check_topics(&options.topics)?;
        check_topics(std::slice::from_ref(&options.parked))?;
        if options.topics.contains(&options.parked) {
            let reason = "what is parked there would be read again";
            return Err(KafkaError::Topic(options.parked, reason));
        }
        let needed = longest(&options).saturating_mul(2);
        if options.patience <= needed {
            return Err(KafkaError::Patience(needed));
        }
        let made_up = || uuid::Uuid::new_v4().to_string();
        let member = options.member.clone().unwrap_or_else(made_up);
        Ok(KafkaPipe {
            consumer: options.group.as_str().into(),
            transactional_id: format!("{}-{member}", options.group),
            options,
            progress: Arc::default(),
        })
    }

    /// What it has done, for [`metrics`](super::metrics).
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Works until `stop` is cancelled. While Kafka cannot be used it logs why, and tries again.
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

    /// Joins the group and works, until `stop` is cancelled or something fails. After a failure only
    /// the group's position tells what was written: the next member goes on there.
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
                Ok(read) if read.is_empty() => Ok(()),
                Ok(read) => {
                    let carried = self.carry(&mut carrier, &read, handler, stop).await;
                    carried.inspect(|()| pause.reset())
                }
                Err(reason) => Err(reason),
            };
            if worked.is_ok() {
                self.progress.set_lag(carrier.lag().await);
            }
        }
        carrier.close().await;
        worked
    }

    /// Handles messages and writes what was made of them: in parts, if that takes long, or if it is
    /// to stop. What is left then is the next member's.
    async fn carry<H, F, E>(
        &self,
        carrier: &mut Carrier,
        read: &[Fetched],
        handler: &H,
        stop: &CancellationToken,
    ) -> Result<(), String>
    where
        H: Fn(Received) -> F + Send + Sync,
        F: Future<Output = Result<Vec<Message>, E>> + Send,
        E: Into<BoxError>,
    {
        let (mut made, mut first) = (Vec::new(), 0);
        let mut began = Instant::now();
        for (place, record) in read.iter().enumerate() {
            let handled = match stop.is_cancelled() {
                true => None,
                false => self.handle(record, handler, stop).await,
            };
            let Some(one) = handled else {
                return self.write(carrier, &read[first..place], made).await;
            };
            made.push(one);
            if began.elapsed() > self.options.patience / 3 {
                let part = std::mem::take(&mut made);
                self.write(carrier, &read[first..=place], part).await?;
                (first, began) = (place + 1, Instant::now());
            }
        }
        self.write(carrier, &read[first..], made).await
    }

    /// Tries a message until something is made of it, or it is parked. `None`: `stop` came first.
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
            let limit = self.options.try_timeout;
            let made = match timeout(limit, handled).await {
                Ok(Ok(Ok(messages))) => self.entries(&message, messages),
                Ok(Ok(Err(error))) => Err(error.into().to_string()),
                Ok(Err(panic)) => Err(format!("the handler panicked: {}", said(&*panic))),
                Err(_) => Err(format!("the handler took longer than {limit:?}")),
            };
            let reason = match made {
                Ok(entries) => {
                    return Some(Made {
                        entries,
                        parked: None,
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
            check_name(&envelope.topic).map_err(|reason| {
                let topic = &envelope.topic;
                format!("{topic:?} is no name of a topic of Kafka: {reason}")
            })?;
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
        let reason: String = reason.chars().take(REASON_CHARS_MAX).collect();
        let mut headers = record.headers.clone();
        for (name, value) in [
            ("hapax-parked-reason", &reason),
            ("hapax-parked-from", &from),
        ] {
            headers.push((name.to_owned(), Some(value.clone().into())));
        }
        let entry = Entry {
            id: MessageId::from_bytes([0; 16]),
            topic: self.options.parked.clone(),
            key: record.key.clone(),
            headers,
            payload: record.value.clone(),
        };
        Made {
            entries: vec![entry],
            parked: Some(Parked {
                from,
                reason,
                is_bare: false,
            }),
        }
    }

    /// Writes all of it in one transaction. A message of which Kafka does not take what was made is
    /// parked.
    async fn write(
        &self,
        carrier: &mut Carrier,
        read: &[Fetched],
        mut made: Vec<Made>,
    ) -> Result<(), String> {
        if read.is_empty() {
            return Ok(());
        }
        let mut one_by_one = false;
        loop {
            let owners: Vec<usize> = made
                .iter()
                .enumerate()
                .flat_map(|(owner, made)| made.entries.iter().map(move |_| owner))
                .collect();
            let entries: Vec<&Entry> = made.iter().flat_map(|made| &made.entries).collect();
            let faults = match carrier.write(read, &entries, one_by_one).await {
                Ok(()) => break,
                Err(Trouble::Lost(reason)) => return Err(reason),
                Err(Trouble::Entries(faults)) => faults,
            };
            // Of several that were sent together, perhaps only one is too large.
            let are_alone = one_by_one || faults.len() == 1;
            one_by_one = true;
            for (place, fault) in faults {
                let (owner, reason) = match fault {
                    Fault::Failed(reason) => return Err(reason),
                    Fault::TooLarge(_) if !are_alone => continue,
                    Fault::TooLarge(reason) | Fault::Refused(reason) => (owners[place], reason),
                };
                match &mut made[owner].parked {
                    None => made[owner] = self.park(&read[owner], &reason),
                    Some(parked) if !parked.is_bare => {
                        parked.is_bare = true;
                        made[owner].entries.iter_mut().for_each(strip);
                    }
                    Some(_) => return Err(format!("a message cannot even be parked: {reason}")),
                }
            }
        }
        self.count(&made);
        Ok(())
    }

    fn count(&self, made: &[Made]) {
        let consumer = &*self.consumer;
        let parked: Vec<&Parked> = made.iter().filter_map(|one| one.parked.as_ref()).collect();
        for Parked { from, reason, .. } in &parked {
            tracing::error!(consumer, from, reason, "ALARM: a message was parked");
        }
        add(&self.progress.parked, parked.len());
        add(&self.progress.applied, made.len() - parked.len());
        add(&self.progress.batches, 1);
    }

    fn carrier_options(&self) -> CarrierOptions {
        let options = &self.options;
        CarrierOptions {
            servers: options.servers.clone(),
            group: options.group.clone(),
            topics: options.topics.clone(),
            parked: options.parked.clone(),
            name: self.transactional_id.clone(),
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
    /// Why it is parked, if it is.
    parked: Option<Parked>,
}

struct Parked {
    from: String,
    reason: String,
    /// Only its place and reason are written, because all of it is too large.
    is_bare: bool,
}

/// Leaves only what was added when it was parked.
fn strip(entry: &mut Entry) {
    entry.payload = None;
    entry
        .headers
        .retain(|(name, _)| name.starts_with("hapax-parked-"));
}

/// How long all tries of one message may take.
fn longest(options: &KafkaPipeOptions) -> Duration {
    let retry = &options.retry;
    let pauses = (1..retry.attempts_max).map(|tries| {
        let doubled = retry.pause_min.saturating_mul(1 << (tries - 1).min(31));
        doubled.min(retry.pause_max)
    });
    pauses.fold(
        options.try_timeout.saturating_mul(retry.attempts_max),
        |sum, pause| sum.saturating_add(pause),
    )
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::from_micros(since.map_or(0, |since| since.as_micros() as u64))
}
