//! RabbitMQ, with quorum and classic queues.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::consume::{Consumer, RabbitSource, RabbitSourceOptions};
//! use hapax_flow::publish::RabbitServers;
//!
//! let servers = RabbitServers::new(["amqp://shop:word@localhost/shop"]);
//! let source = RabbitSource::new(RabbitSourceOptions::new(servers, "orders"))?;
//! let consumer = Consumer::new("inventory").source(source);
//! # Ok(()) }
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{FutureExt, StreamExt};
use hapax_core::flow::Outage;
use hapax_core::time::Timestamp;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use tokio::time::timeout;

use crate::consume::source::{Delivery, Incoming, Retention, Source};
use crate::rabbitmq::{Cluster, Link, RabbitError, RabbitServers};

/// What attributes of CloudEvents are called in headers: the two forms of the binding for AMQP, and
/// those of HTTP and Kafka, which some producers and bridges write. In lower case.
const PREFIXES: [&str; 4] = ["cloudevents:", "cloudevents_", "ce-", "ce_"];

/// How often a quorum queue has delivered a message before.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// Where a [`RabbitSource`] takes messages from.
#[derive(Clone, Debug)]
pub struct RabbitSourceOptions {
    /// Where the servers are.
    pub servers: RabbitServers,
    /// The queue. It must be there.
    pub queue: String,
    /// How many messages the server sends ahead of their acknowledgement, to each member. What
    /// waits for another try counts.
    pub prefetch: u16,
    /// Where the producer writes the id of a message.
    pub id: RabbitId,
    /// Where the producer writes the time of a message.
    pub time: RabbitTime,
}

impl RabbitSourceOptions {
    /// The defaults, with these servers and this queue.
    pub fn new(servers: RabbitServers, queue: impl Into<String>) -> RabbitSourceOptions {
        RabbitSourceOptions {
            servers,
            queue: queue.into(),
            prefetch: 2000,
            id: RabbitId::default(),
            time: RabbitTime::default(),
        }
    }
}

/// Where a producer writes the id of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RabbitId {
    /// In the attribute `id`, as CloudEvents and the relay of Hapax do.
    #[default]
    CloudEvents,
    /// In the property `message_id`. Only if the producer makes it of what happened: some clients
    /// make a new one for each publication.
    MessageId,
    /// In a header, whose name is in lower case.
    Header(String),
}

/// Where a producer writes the time of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RabbitTime {
    /// In the attribute `time`, as CloudEvents and the relay of Hapax do.
    #[default]
    CloudEvents,
    /// In the property `timestamp`, in seconds. Only if the producer writes it, and the same one
    /// when it publishes the message again: a plugin of RabbitMQ writes another one each time.
    Timestamp,
}

/// Takes messages from a queue of RabbitMQ.
///
/// Messages are acknowledged one by one, when they are done with; those given back are queued again.
/// A member that ends has its messages delivered to others when its connection ends: at once, or
/// after twenty seconds without a heartbeat.
///
/// A quorum queue counts deliveries, and one with a `delivery-limit` (20 by default from RabbitMQ 4
/// on) drops a message, or has it dead-lettered, that was given back more often. Set the limit to
/// -1: Hapax parks what fails, and loses nothing.
pub struct RabbitSource {
    cluster: Arc<Cluster>,
    queue: String,
    prefetch: u16,
    id: RabbitId,
    time: RabbitTime,
    /// On its way. It outlives the call that began it, which may be dropped sooner than a slow
    /// server answers.
    opening: Option<Opening>,
    session: Option<Session>,
    /// Counts sessions: deliveries of an earlier one are no more.
    sessions: u64,
}

/// A delivery of a [`RabbitSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RabbitTag {
    session: u64,
    number: u64,
}

type Opening = Pin<Box<dyn Future<Output = Result<Session, String>> + Send>>;

/// A connection that consumes.
struct Session {
    number: u64,
    deliveries: lapin::Consumer,
    /// Delivered by the server, and not yet by the source.
    ready: VecDeque<lapin::message::Delivery>,
    channel: Channel,
    // Last: it is closed when everything else is.
    link: Link,
}

impl RabbitSource {
    /// A source that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`RabbitError`] if nothing could ever be consumed so.
    pub fn new(options: RabbitSourceOptions) -> Result<RabbitSource, RabbitError> {
        let queue = options.queue;
        if queue.is_empty() || queue.len() > 255 {
            let reason = "a queue has a name of 1 to 255 bytes".to_owned();
            return Err(RabbitError::Name(queue, reason));
        }
        Ok(RabbitSource {
            cluster: Arc::new(Cluster::new(&options.servers)?),
            queue,
            prefetch: options.prefetch.max(1),
            id: options.id,
            time: options.time,
            opening: None,
            session: None,
            sessions: 0,
        })
    }

    /// The session, a new one if need be.
    async fn session(&mut self) -> Result<&mut Session, Outage> {
        let is_usable =
            |session: &Session| session.link.is_usable() && session.channel.status().connected();
        if !self.session.as_ref().is_some_and(is_usable) {
            self.session = None;
            let opening = self.opening.get_or_insert_with(|| {
                self.sessions += 1;
                let (cluster, queue) = (self.cluster.clone(), self.queue.clone());
                Box::pin(open(cluster, queue, self.prefetch, self.sessions))
            });
            let opened = opening.await;
            self.opening = None;
            self.session = Some(opened.map_err(Outage::new)?);
        }
        // Just put there.
        self.session
            .as_mut()
            .ok_or_else(|| Outage::new("no session"))
    }

    /// The channel and those of these deliveries that are of this session: the server has taken
    /// back all others.
    fn open_here(&self, tags: &[RabbitTag]) -> Option<(Channel, Vec<u64>)> {
        let session = self.session.as_ref()?;
        let numbers = tags
            .iter()
            .filter(|tag| tag.session == session.number)
            .map(|tag| tag.number)
            .collect();
        Some((session.channel.clone(), numbers))
    }

    /// Ends the session, as the server does not answer as it should.
    fn give_up(&mut self, reason: String) -> Outage {
        if let Some(session) = self.session.take() {
            session.link.cut();
        }
        Outage::new(reason)
    }

    /// Waits for the server to be told something.
    async fn told(
        &mut self,
        telling: impl Future<Output = lapin::Result<Vec<()>>>,
    ) -> Result<(), Outage> {
        let limit = self.cluster.timeout;
        match timeout(limit, telling).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.give_up(format!("RabbitMQ: {error}"))),
            Err(_) => Err(self.give_up(format!("RabbitMQ takes nothing within {limit:?}"))),
        }
    }

    fn delivery(&self, session: u64, delivered: lapin::message::Delivery) -> Delivery<RabbitTag> {
        let tag = RabbitTag {
            session,
            number: delivered.delivery_tag,
        };
        let mut message = Incoming::from_cloud_event(
            topic(&delivered, &self.queue),
            headers(&delivered.properties),
            Bytes::from(delivered.data),
        );
        match &self.id {
            RabbitId::CloudEvents => {}
            RabbitId::MessageId => message.id = text(delivered.properties.message_id()),
            RabbitId::Header(name) => message.id = message.header(name).map(str::to_owned),
        }
        message.id = message.id.filter(|id| !id.is_empty());
        if self.time == RabbitTime::Timestamp {
            let seconds = *delivered.properties.timestamp();
            message.at = seconds
                .and_then(|seconds| seconds.checked_mul(1_000_000))
                .map(Timestamp::from_micros);
        }
        // It counts the deliveries before this one, and begins with the second.
        let before = message
            .header(DELIVERY_COUNT)
            .and_then(|count| count.parse::<u32>().ok());
        message.deliveries = before.map(|before| before.saturating_add(1));
        Delivery { message, tag }
    }
}

/// Connects and begins to consume, within the time limit.
async fn open(
    cluster: Arc<Cluster>,
    queue: String,
    prefetch: u16,
    number: u64,
) -> Result<Session, String> {
    let opening = async {
        let link = cluster.connect("hapax consumer").await?;
        let consuming = async {
            let channel = link.channel().await?;
            let options = BasicQosOptions::default();
            channel.basic_qos(prefetch, options).await?;
            let (queue, options) = (queue.as_str().into(), BasicConsumeOptions::default());
            let deliveries = channel
                .basic_consume(queue, "".into(), options, FieldTable::default())
                .await?;
            Ok((channel, deliveries))
        };
        let (channel, deliveries) = consuming
            .await
            .map_err(|error: lapin::Error| format!("RabbitMQ: {error}"))?;
        Ok(Session {
            number,
            deliveries,
            ready: VecDeque::new(),
            channel,
            link,
        })
    };
    let limit = cluster.timeout;
    timeout(limit, opening)
        .await
        .unwrap_or_else(|_| Err(format!("RabbitMQ does not answer within {limit:?}")))
}

impl Session {
    /// Waits until something is ready, and takes what has come meanwhile.
    async fn fill(&mut self) -> Result<(), String> {
        if self.ready.is_empty() {
            let next = self.deliveries.next().await;
            self.put(next)?;
        }
        self.take_what_is_there()
    }

    fn take_what_is_there(&mut self) -> Result<(), String> {
        while let Some(next) = self.deliveries.next().now_or_never() {
            self.put(next)?;
        }
        Ok(())
    }

    fn put(&mut self, next: Option<lapin::Result<lapin::message::Delivery>>) -> Result<(), String> {
        match next {
            Some(Ok(delivery)) => {
                self.ready.push_back(delivery);
                Ok(())
            }
            Some(Err(error)) => Err(format!("RabbitMQ: {error}")),
            None => Err("RabbitMQ delivers no more: the queue was deleted or moved".to_owned()),
        }
    }
}

impl std::fmt::Debug for RabbitSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitSource")
            .field("servers", &self.cluster)
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

impl Source for RabbitSource {
    type Tag = RabbitTag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<RabbitTag>>, Outage> {
        let session = self.session().await?;
        if let Err(reason) = session.fill().await {
            return Err(self.give_up(reason));
        }
        let count = session.ready.len().min(max);
        let (number, taken) = (session.number, session.ready.drain(..count));
        let taken: Vec<_> = taken.collect();
        let deliveries = taken.into_iter().map(|one| self.delivery(number, one));
        Ok(deliveries.collect())
    }

    async fn acknowledge(&mut self, tags: &[RabbitTag]) -> Result<(), Outage> {
        let Some((channel, numbers)) = self.open_here(tags) else {
            return Ok(());
        };
        let options = BasicAckOptions::default();
        let telling = numbers
            .into_iter()
            .map(|number| channel.basic_ack(number, options));
        self.told(try_join_all(telling)).await
    }

    async fn give_back(&mut self, tags: &[RabbitTag]) -> Result<(), Outage> {
        let Some((channel, numbers)) = self.open_here(tags) else {
            return Ok(());
        };
        let options = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        let telling = numbers
            .into_iter()
            .map(|number| channel.basic_nack(number, options));
        self.told(try_join_all(telling)).await
    }

    /// Does nothing: a delivery stays with its connection, up to the `consumer_timeout` of the
    /// server, which is half an hour unless it is set.
    async fn keep(&mut self, _tags: &[RabbitTag]) -> Result<(), Outage> {
        Ok(())
    }

    fn keep_every(&self) -> Option<Duration> {
        None
    }

    /// A queue does not tell its time to live.
    async fn retention(&mut self) -> Result<Retention, Outage> {
        Ok(Retention::Unknown)
    }

    /// What is in the queue, and what the server has sent ahead.
    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        let limit = self.cluster.timeout;
        let Some(session) = self.session.as_mut() else {
            // Whoever only asks takes no messages.
            let asking = async {
                let link = self.cluster.connect("hapax consumer").await?;
                let waiting = waiting(&link, &self.queue).await;
                waiting.map_err(|error| format!("RabbitMQ: {error}"))
            };
            let waiting = timeout(limit, asking).await;
            return match waiting.unwrap_or_else(|_| Err("RabbitMQ does not answer".to_owned())) {
                Ok(waiting) => Ok(Some(waiting)),
                Err(reason) => Err(Outage::new(reason)),
            };
        };
        let waiting = match timeout(limit, waiting(&session.link, &self.queue)).await {
            Ok(Ok(waiting)) => waiting,
            Ok(Err(error)) => return Err(self.give_up(format!("RabbitMQ: {error}"))),
            Err(_) => return Err(self.give_up("RabbitMQ does not answer".to_owned())),
        };
        if let Err(reason) = session.take_what_is_there() {
            return Err(self.give_up(reason));
        }
        Ok(Some(waiting + session.ready.len() as u64))
    }
}

/// How many messages of a queue are sent to nobody yet.
async fn waiting(link: &Link, queue: &str) -> lapin::Result<u64> {
    // On a channel of its own: the server would close it if the queue were not there.
    let channel = link.channel().await?;
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel
        .queue_declare(queue.into(), options, FieldTable::default())
        .await?;
    Ok(queue.message_count().into())
}

/// The routing key: what a message is about, where the queue may have many topics. The queue, if
/// there is none.
fn topic(delivered: &lapin::message::Delivery, queue: &str) -> String {
    match delivered.routing_key.as_str() {
        "" => queue.to_owned(),
        routing_key => routing_key.to_owned(),
    }
}

/// The headers and the media type of a message, as a source tells them.
fn headers(properties: &BasicProperties) -> Vec<(String, String)> {
    let content_type = text(properties.content_type());
    let content_type = content_type.map(|text| ("content-type".to_owned(), text));
    let table = properties.headers().as_ref();
    let given = table.into_iter().flatten().filter_map(|(name, value)| {
        let name = name.as_str().to_ascii_lowercase();
        Some((attribute(&name).unwrap_or(name), plain(value)?))
    });
    given.chain(content_type).collect()
}

/// The name of an attribute of CloudEvents, as a source tells it.
fn attribute(name: &str) -> Option<String> {
    let attribute = PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))?;
    Some(format!("ce-{attribute}"))
}

/// A value as text. What is no single value is left out.
fn plain(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.to_string()),
        AMQPValue::Boolean(value) => Some(value.to_string()),
        AMQPValue::ShortShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortShortUInt(value) => Some(value.to_string()),
        AMQPValue::ShortInt(value) => Some(value.to_string()),
        AMQPValue::ShortUInt(value) => Some(value.to_string()),
        AMQPValue::LongInt(value) => Some(value.to_string()),
        AMQPValue::LongUInt(value) => Some(value.to_string()),
        AMQPValue::LongLongInt(value) => Some(value.to_string()),
        AMQPValue::Float(value) => Some(value.to_string()),
        AMQPValue::Double(value) => Some(value.to_string()),
        AMQPValue::Timestamp(value) => Some(value.to_string()),
        AMQPValue::DecimalValue(_)
        | AMQPValue::FieldArray(_)
        | AMQPValue::FieldTable(_)
        | AMQPValue::ByteArray(_)
        | AMQPValue::Void => None,
    }
}

fn text(value: &Option<lapin::types::ShortString>) -> Option<String> {
    value.as_ref().map(ToString::to_string)
}
