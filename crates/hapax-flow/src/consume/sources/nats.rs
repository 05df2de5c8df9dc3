//! NATS JetStream, with a durable consumer that members pull from.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::consume::{Consumer, NatsSource, NatsSourceOptions};
//!
//! let options = NatsSourceOptions::new(["nats://localhost:4222"], "SHOP", "inventory");
//! let consumer = Consumer::new("inventory").source(NatsSource::new(options)?);
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{HeaderMap, Message, StatusCode, Subscriber};
use futures_util::{FutureExt, StreamExt, stream};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::consume::source::{Delivery, Incoming, Retention, Source};
use crate::nats::{ApiError, Connection, NatsError, NatsServers, Server, Unanswered, is_name};
use hapax_core::flow::Outage;

/// How long a pull waits at the server for the first message.
const PULL: Duration = Duration::from_secs(5);
/// How long messages are gathered after the first of a pull has come. The server says when there
/// are no more, so that this is only waited for when it is slow.
const GATHER: Duration = Duration::from_millis(50);
/// The pause after the server said that too much is open.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// Acknowledgements under way at a time.
const IN_FLIGHT_MAX: usize = 256;
/// What a consumer that is made here may have open with all its members. Each may have a thousand
/// messages that wait for another try, and they must not keep new ones from the others.
const OPEN_MAX: i64 = 20_000;
/// The server acknowledges nothing that it calls by these numbers: it has no such thing.
const NO_CONSUMER: u64 = 10014;
const NO_STREAM: u64 = 10059;
/// The consumer was made by another member just now.
const CONSUMER_IS_THERE: u64 = 10148;

/// Where a [`NatsSource`] takes messages from.
#[derive(Clone, Debug)]
pub struct NatsSourceOptions {
    /// Where the servers are.
    pub servers: NatsServers,
    /// The stream.
    pub stream: String,
    /// The durable consumer, which all members share. If it is not there, it is made, and begins
    /// with the first message of the stream. If it is, it is used as it is.
    pub consumer: String,
    /// The subjects of a consumer that is made; all of the stream, if there are none. They may have
    /// wildcards.
    pub subjects: Vec<String>,
    /// How long a message stays with a member that is stopped or dead, with a consumer that is
    /// made: half a minute by default.
    pub ack_wait: Duration,
    /// Where the id of a message is.
    pub id: NatsId,
}

impl NatsSourceOptions {
    /// The defaults, with these servers, this stream and this durable consumer.
    pub fn new(
        urls: impl IntoIterator<Item = impl Into<String>>,
        stream: impl Into<String>,
        consumer: impl Into<String>,
    ) -> NatsSourceOptions {
        NatsSourceOptions {
            servers: NatsServers::new(urls),
            stream: stream.into(),
            consumer: consumer.into(),
            subjects: Vec::new(),
            ack_wait: Duration::from_secs(30),
            id: NatsId::CloudEvents,
        }
    }
}

/// Where a producer writes the id of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NatsId {
    /// In `ce-id`, as CloudEvents and the relay of Hapax do.
    #[default]
    CloudEvents,
    /// In `Nats-Msg-Id`. Only if the producer makes it of what happened: many clients make a new
    /// one for each publication.
    MessageId,
    /// In another header.
    Header(String),
}

/// Takes messages from a stream of NATS JetStream.
///
/// The names of attributes of CloudEvents are those of its binding for NATS. Acknowledgements are
/// confirmed by the server. While messages are worked on, the server is told so.
pub struct NatsSource {
    options: NatsSourceOptions,
    servers: Vec<Server>,
    session: Option<Session>,
    /// That of the consumer, once it is known.
    ack_wait: Duration,
}

/// Identifies a delivery of NATS: the subject to which it is acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsTag(Arc<str>);

impl NatsSource {
    /// A source that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`NatsError`] if a URL or a name cannot be one.
    pub fn new(options: NatsSourceOptions) -> Result<NatsSource, NatsError> {
        if !is_name(&options.stream) {
            return Err(NatsError::Stream {
                name: options.stream,
                reason: "this cannot be the name of a stream".to_owned(),
            });
        }
        if !is_name(&options.consumer) {
            return Err(NatsError::Consumer(options.consumer));
        }
        Ok(NatsSource {
            servers: options.servers.parse()?,
            session: None,
            ack_wait: options.ack_wait,
            options,
        })
    }

    /// The session, a new one if need be.
    async fn session(&mut self) -> Result<&mut Session, String> {
        if let Some(session) = &self.session
            && !session.connection.is_usable()
        {
            // What it had fetched comes again.
            self.session = None;
        }
        if self.session.is_none() {
            let limit = self.options.servers.timeout;
            let opened = tokio::time::timeout(limit, Session::open(&self.servers, &self.options));
            let opened = opened
                .await
                .unwrap_or_else(|_| Err(format!("no connection within {limit:?}")))?;
            let (session, ack_wait) = opened;
            self.ack_wait = ack_wait;
            self.session = Some(session);
        }
        self.session
            .as_mut()
            .ok_or_else(|| "it is not connected".to_owned())
    }

    /// The next call begins with another connection.
    fn lost(&mut self, what: &str) -> Outage {
        let Some(session) = self.session.take() else {
            return Outage::new(format!("NATS: {what}"));
        };
        let complaint = session.connection.complaint();
        let complaint = complaint.map_or_else(String::new, |text| format!("; it says: {text}"));
        let server = session.connection.server();
        Outage::new(format!("NATS at {server}: {what}{complaint}"))
    }

    async fn receive_now(&mut self, max: usize) -> Result<Vec<Delivery<NatsTag>>, String> {
        let (limit, id) = (self.options.servers.timeout, self.options.id.clone());
        let session = self.session().await?;
        let mut gathered = None;
        loop {
            session.take_what_has_arrived(&id)?;
            let has_some = !session.arrived.is_empty();
            if has_some && (session.pull.is_none() || session.arrived.len() >= max) {
                return Ok(session.next(max));
            }
            let ends = match session.pull {
                Some(pull) => pull.ends,
                None => session.begin_pull(max).await?,
            };
            let until = match has_some {
                true => *gathered.get_or_insert(Instant::now() + GATHER),
                false => ends + limit,
            };
            match timeout_at(until, session.messages.next()).await {
                Ok(Some(message)) => session.take(message, &id)?,
                _ if has_some => return Ok(session.next(max)),
                Ok(None) => return Err("the connection was lost".to_owned()),
                Err(_) => return Err("it does not answer".to_owned()),
            }
            if session.is_full {
                tokio::time::sleep(FULL_PAUSE).await;
                session.is_full = false;
            }
        }
    }

    /// Asks JetStream about the stream or the consumer.
    async fn ask<T: for<'a> Deserialize<'a>>(&mut self, question: &str) -> Result<T, Outage> {
        let limit = self.options.servers.timeout;
        let asked = async {
            let session = self.session().await?;
            let answer = ask(&session.connection, question, Vec::new(), limit).await;
            answer.map_err(|error| error.to_string())
        };
        let answer: Result<T, String> = asked.await;
        answer.map_err(|reason| self.lost(&reason))
    }
}

impl std::fmt::Debug for NatsSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsSource")
            .field("stream", &self.options.stream)
            .field("consumer", &self.options.consumer)
            .finish_non_exhaustive()
    }
}

impl Source for NatsSource {
    type Tag = NatsTag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<NatsTag>>, Outage> {
        let received = self.receive_now(max.max(1)).await;
        received.map_err(|reason| self.lost(&reason))
    }

    async fn acknowledge(&mut self, tags: &[NatsTag]) -> Result<(), Outage> {
        let missing = match self.acknowledge_now(tags).await {
            Ok(missing) => missing,
            Err(reason) => return Err(self.lost(&reason)),
        };
        if missing > 0 {
            // A server that lives has no such delivery. It delivers the message again, or never.
            self.ask::<Consumer>(&self.consumer_question()).await?;
            tracing::warn!(missing, "NATS did not confirm acknowledgements");
        }
        Ok(())
    }

    async fn give_back(&mut self, tags: &[NatsTag]) -> Result<(), Outage> {
        self.tell(tags, "-NAK", false).await
    }

    async fn keep(&mut self, tags: &[NatsTag]) -> Result<(), Outage> {
        self.tell(tags, "+WPI", true).await
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.ack_wait / 3)
    }

    async fn retention(&mut self) -> Result<Retention, Outage> {
        let question = format!("STREAM.INFO.{}", self.options.stream);
        let stream: Stream = self.ask(&question).await?;
        Ok(match stream.config.max_age {
            0 => Retention::Forever,
            nanoseconds => Retention::Limited(Duration::from_nanos(nanoseconds)),
        })
    }

    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        let consumer: Consumer = self.ask(&self.consumer_question()).await?;
        Ok(Some(consumer.num_pending))
    }
}

impl NatsSource {
    fn consumer_question(&self) -> String {
        let NatsSourceOptions {
            stream, consumer, ..
        } = &self.options;
        format!("CONSUMER.INFO.{stream}.{consumer}")
    }

    /// Acknowledges, and returns how many of these the server did not confirm in time.
    async fn acknowledge_now(&mut self, tags: &[NatsTag]) -> Result<usize, String> {
        let limit = self.options.servers.timeout;
        let connection = &self.session().await?.connection;
        let heard = stream::iter(tags.iter().cloned())
            .map(|tag| async move { connection.say_and_hear(&tag.0, "+ACK", limit).await })
            .buffer_unordered(IN_FLIGHT_MAX)
            .collect::<Vec<_>>()
            .await;
        let mut missing = 0;
        for answer in heard {
            match answer {
                // Without the consumer there is nothing to acknowledge.
                Ok(()) | Err(Unanswered::NoResponder) => {}
                Err(Unanswered::Missing) => missing += 1,
                Err(Unanswered::Lost | Unanswered::TooLarge(_)) => {
                    return Err("the connection was lost".to_owned());
                }
            }
        }
        Ok(missing)
    }

    /// Says a word about deliveries; `with_fetched`: also about those that nobody has taken yet.
    async fn tell(
        &mut self,
        tags: &[NatsTag],
        word: &'static str,
        with_fetched: bool,
    ) -> Result<(), Outage> {
        let (limit, id) = (self.options.servers.timeout, self.options.id.clone());
        let told = async {
            let session = self.session().await?;
            let fetched = with_fetched.then_some(&id);
            session.tell(tags, word, fetched, limit).await
        };
        let told = told.await;
        told.map_err(|reason| self.lost(&reason))
    }
}

/// One connection, and what it has brought.
struct Session {
    connection: Connection,
    /// Where pulls are answered, and the answers.
    inbox: String,
    messages: Subscriber,
    pull_subject: String,
    pulls: u64,
    pull: Option<Pull>,
    arrived: VecDeque<Delivery<NatsTag>>,
    /// The server delivers no more before something is acknowledged.
    is_full: bool,
}

/// A pull that may still bring messages.
#[derive(Clone, Copy)]
struct Pull {
    number: u64,
    left: usize,
    ends: Instant,
}

impl Session {
    /// Connects, and makes the consumer if it is not there. Returns its ack wait too.
    async fn open(
        servers: &[Server],
        options: &NatsSourceOptions,
    ) -> Result<(Session, Duration), String> {
        let connection = Connection::open(servers, &options.servers, "hapax consumer").await?;
        let ack_wait = prepare(&connection, options).await?;
        let (inbox, messages) = connection.inbox().await?;
        let NatsSourceOptions {
            stream, consumer, ..
        } = options;
        let session = Session {
            connection,
            inbox,
            messages,
            pull_subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            pulls: 0,
            pull: None,
            arrived: VecDeque::new(),
            is_full: false,
        };
        Ok((session, ack_wait))
    }

    /// Asks for what there is, or for the first message that comes. So nothing is fetched that
    /// nobody waits for: its ack wait would run.
    async fn begin_pull(&mut self, max: usize) -> Result<Instant, String> {
        let wanted = serde_json::json!({
            "batch": max,
            "no_wait": true,
            "expires": u64::try_from(PULL.as_nanos()).unwrap_or(u64::MAX),
        });
        let reply = format!("{}.{}", self.inbox, self.pulls + 1);
        let sent = self
            .connection
            .send(&self.pull_subject, Some(reply), wanted.to_string().into());
        sent.await.map_err(|_| "the connection was lost")?;
        self.pulls += 1;
        let ends = Instant::now() + PULL;
        self.pull = Some(Pull {
            number: self.pulls,
            left: max,
            ends,
        });
        Ok(ends)
    }

    /// Takes what is here already, without waiting.
    fn take_what_has_arrived(&mut self, id: &NatsId) -> Result<(), String> {
        while let Some(Some(message)) = self.messages.next().now_or_never() {
            self.take(message, id)?;
        }
        Ok(())
    }

    fn take(&mut self, message: Message, id: &NatsId) -> Result<(), String> {
        if let Some(status) = message.status {
            return self.take_status(status, &message);
        }
        let Some(reply) = &message.reply else {
            return Ok(());
        };
        let tag = NatsTag(reply.as_str().into());
        if let Some(pull) = &mut self.pull {
            pull.left = pull.left.saturating_sub(1);
            if pull.left == 0 {
                self.pull = None;
            }
        }
        let deliveries = deliveries(&tag.0);
        let message = incoming(message, id, deliveries);
        self.arrived.push_back(Delivery { message, tag });
        Ok(())
    }

    /// The server says why a pull brings no more.
    fn take_status(&mut self, status: StatusCode, message: &Message) -> Result<(), String> {
        let number = message.subject.rsplit('.').next().unwrap_or_default();
        let is_of = |pull: &Pull| pull.number.to_string() == number;
        if status.as_u16() == 100 || !self.pull.as_ref().is_some_and(is_of) {
            return Ok(());
        }
        self.pull = None;
        let description = message.description.as_deref().unwrap_or_default();
        match status.as_u16() {
            404 | 408 => Ok(()),
            409 if description.contains("MaxAckPending") => {
                self.is_full = true;
                Ok(())
            }
            503 => Err("nobody answers for the consumer".to_owned()),
            code => Err(format!("{description} (status {code})")),
        }
    }

    fn next(&mut self, max: usize) -> Vec<Delivery<NatsTag>> {
        let count = max.min(self.arrived.len());
        self.arrived.drain(..count).collect()
    }

    async fn tell(
        &mut self,
        tags: &[NatsTag],
        word: &'static str,
        fetched: Option<&NatsId>,
        limit: Duration,
    ) -> Result<(), String> {
        let mut subjects: Vec<NatsTag> = tags.to_vec();
        if let Some(id) = fetched {
            self.take_what_has_arrived(id)?;
            subjects.extend(self.arrived.iter().map(|delivery| delivery.tag.clone()));
        }
        let lost = |_| "the connection was lost".to_owned();
        for tag in subjects {
            let said = self.connection.send(&tag.0, None, word.into());
            said.await.map_err(lost)?;
        }
        self.connection.flush(limit).await.map_err(lost)
    }
}

/// A delivered message.
fn incoming(message: Message, id: &NatsId, deliveries: Option<u32>) -> Incoming {
    let headers = message.headers.as_ref().map_or_else(Vec::new, headers);
    let mut incoming =
        Incoming::from_cloud_event(message.subject.as_str(), headers, message.payload);
    incoming.deliveries = deliveries;
    if incoming.key.is_none() {
        incoming.key = incoming.header("hapax-key").map(str::to_owned);
    }
    let name = match id {
        NatsId::CloudEvents => return incoming,
        NatsId::MessageId => "nats-msg-id".to_owned(),
        NatsId::Header(name) => name.to_ascii_lowercase(),
    };
    let given = incoming.header(&name).filter(|id| !id.is_empty());
    incoming.id = given.map(str::to_owned);
    incoming
}

/// Names in lower case. Attributes of CloudEvents are percent-encoded, as in HTTP.
fn headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let each = headers.iter().flat_map(|(name, values)| {
        let name = name.to_string().to_ascii_lowercase();
        values.iter().map(move |value| (name.clone(), value))
    });
    each.map(|(name, value)| {
        let value = value.as_str();
        let value = match name.starts_with("ce-") {
            true => percent_decode_str(value)
                .decode_utf8()
                .map_or_else(|_| value.to_owned(), |decoded| decoded.into_owned()),
            false => value.to_owned(),
        };
        (name, value)
    })
    .collect()
}

/// How often a message was delivered, as the subject of its acknowledgement says:
/// `$JS.ACK.STREAM.CONSUMER.DELIVERIES.…`, with a domain and an account before the stream at newer
/// servers.
fn deliveries(reply: &str) -> Option<u32> {
    let tokens: Vec<&str> = reply.split('.').collect();
    let place = if tokens.len() >= 11 { 6 } else { 4 };
    let stated = tokens.get(place)?.parse::<u64>().ok()?;
    Some(u32::try_from(stated).unwrap_or(u32::MAX))
}

/// Looks at the consumer, and makes it if it is not there. Returns its ack wait.
async fn prepare(connection: &Connection, options: &NatsSourceOptions) -> Result<Duration, String> {
    let NatsSourceOptions {
        stream, consumer, ..
    } = options;
    let limit = options.servers.timeout;
    let question = format!("CONSUMER.INFO.{stream}.{consumer}");
    let about = |error: Refusal| explained(&error, options);
    let found = match ask::<Consumer>(connection, &question, Vec::new(), limit).await {
        Err(error) if error.is(NO_CONSUMER) => {
            let order = format!("CONSUMER.CREATE.{stream}.{consumer}");
            match ask::<Consumer>(connection, &order, new_consumer(options), limit).await {
                Err(error) if error.is(CONSUMER_IS_THERE) => {
                    ask::<Consumer>(connection, &question, Vec::new(), limit).await
                }
                made => made,
            }
        }
        found => found,
    };
    let config = found.map_err(about)?.config;
    if config.ack_policy != "explicit" {
        return Err(format!(
            "the consumer {consumer} has the ack policy `{}`: make another one, with `explicit`",
            config.ack_policy
        ));
    }
    if config.deliver_subject.is_some() {
        return Err(format!(
            "the consumer {consumer} pushes: make another one, that is pulled from"
        ));
    }
    if config.max_deliver > 0 {
        let max = config.max_deliver;
        tracing::warn!(
            consumer,
            "NATS gives a message up after {max} deliveries (max_deliver), also one that was never applied: set it to -1"
        );
    }
    Ok(Duration::from_nanos(config.ack_wait))
}

fn new_consumer(options: &NatsSourceOptions) -> Vec<u8> {
    let order = NewConsumer {
        stream_name: &options.stream,
        action: "create",
        config: NewConfig {
            durable_name: &options.consumer,
            description: "made by Hapax",
            ack_policy: "explicit",
            deliver_policy: "all",
            ack_wait: u64::try_from(options.ack_wait.as_nanos()).unwrap_or(u64::MAX),
            max_deliver: -1,
            max_ack_pending: OPEN_MAX,
            filter_subjects: &options.subjects,
        },
    };
    serde_json::to_vec(&order).unwrap_or_default()
}

fn explained(error: &Refusal, options: &NatsSourceOptions) -> String {
    let stream = &options.stream;
    match error.is(NO_STREAM) {
        true => format!(
            "there is no stream {stream}. Make it: nats stream add {stream} --subjects 'SUBJECT' --defaults"
        ),
        false => error.to_string(),
    }
}

/// Asks JetStream a question.
async fn ask<T: for<'a> Deserialize<'a>>(
    connection: &Connection,
    question: &str,
    payload: Vec<u8>,
    limit: Duration,
) -> Result<T, Refusal> {
    let answer = connection.ask(question, payload, limit).await;
    let answer = answer.map_err(Refusal::Unanswered)?;
    let unreadable = |error: serde_json::Error| Refusal::Unanswered(error.to_string());
    let refused: Refused = serde_json::from_slice(&answer).map_err(unreadable)?;
    match refused.error {
        Some(error) => Err(Refusal::Api(error)),
        None => serde_json::from_slice(&answer).map_err(unreadable),
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Unanswered(String),
    #[error("{} (error {})", .0.description, .0.err_code)]
    Api(ApiError),
}

impl Refusal {
    fn is(&self, number: u64) -> bool {
        matches!(self, Refusal::Api(error) if error.err_code == number)
    }
}

#[derive(Deserialize)]
struct Refused {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct Stream {
    config: StreamConfig,
}

#[derive(Deserialize)]
struct StreamConfig {
    #[serde(default)]
    max_age: u64,
}

#[derive(Deserialize)]
struct Consumer {
    config: ConsumerConfig,
    #[serde(default)]
    num_pending: u64,
}

#[derive(Deserialize)]
struct ConsumerConfig {
    #[serde(default)]
    ack_policy: String,
    #[serde(default)]
    ack_wait: u64,
    #[serde(default)]
    max_deliver: i64,
    deliver_subject: Option<String>,
}

#[derive(Serialize)]
struct NewConsumer<'a> {
    stream_name: &'a str,
    action: &'a str,
    config: NewConfig<'a>,
}

#[derive(Serialize)]
struct NewConfig<'a> {
    durable_name: &'a str,
    description: &'a str,
    ack_policy: &'a str,
    deliver_policy: &'a str,
    ack_wait: u64,
    max_deliver: i64,
    max_ack_pending: i64,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    filter_subjects: &'a [String],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_are_read_from_old_and_new_subjects() {
        assert_eq!(deliveries("$JS.ACK.S.C.3.10.12.1700000000.5"), Some(3));
        assert_eq!(deliveries("$JS.ACK._.hash.S.C.4.10.12.17.5"), Some(4));
        assert_eq!(deliveries("$JS.ACK.d.hash.S.C.4.10.12.17.5.rand"), Some(4));
        assert_eq!(deliveries("_INBOX.x"), None);
    }

    #[test]
    fn a_name_with_a_dot_is_none() {
        let made = |stream, consumer| {
            NatsSource::new(NatsSourceOptions::new(["nats://a"], stream, consumer))
        };
        assert!(made("S", "c").is_ok());
        assert!(matches!(made("S.x", "c"), Err(NatsError::Stream { .. })));
        assert!(matches!(made("S", "c.x"), Err(NatsError::Consumer(_))));
    }

    #[test]
    fn the_id_may_be_in_another_header() {
        let mut given = HeaderMap::new();
        given.insert("Nats-Msg-Id", "n-1");
        given.insert("Order-Event", "o-1");
        given.insert("ce-id", "c%201");
        let read = |id: NatsId| {
            let message = Message {
                subject: "orders".into(),
                reply: None,
                payload: bytes::Bytes::new(),
                headers: Some(given.clone()),
                status: None,
                description: None,
                length: 0,
            };
            incoming(message, &id, None).id
        };
        assert_eq!(read(NatsId::CloudEvents).as_deref(), Some("c 1"));
        assert_eq!(read(NatsId::MessageId).as_deref(), Some("n-1"));
        let named = |name: &str| NatsId::Header(name.to_owned());
        assert_eq!(read(named("order-event")).as_deref(), Some("o-1"));
        assert_eq!(read(named("other")), None);
    }
}
