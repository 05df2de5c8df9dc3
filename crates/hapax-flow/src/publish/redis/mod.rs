//! Redis Streams.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::publish::{RedisOptions, RedisStreams};
//!
//! let mut options = RedisOptions::new("redis://localhost:6379");
//! options.stream = "shop:{topic}".into();
//! let redis = RedisStreams::new(options)?;
//! # Ok(())
//! # }
//! ```
//!
//! A message is an entry with its payload in the field `payload`, and the attributes of CloudEvents
//! and other headers in fields of their names.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use hapax_core::flow::Outage;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::sync::Mutex;

use super::cloud_events::CloudEvents;
use super::template::Template;
use super::{Envelope, Publisher, Reply, Verdict};
use crate::redis::{PAYLOAD, RedisError, RedisServer, Script, Server};

static PUBLISH: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("publish.lua")));

/// How [`RedisStreams`] publishes.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// Where the server is.
    pub server: RedisServer,
    /// The stream of a message, with `{topic}` where its topic stands: `{topic}` alone by default,
    /// `shop:{topic}` for a prefix.
    pub stream: String,
    /// What is removed from a stream when a message is added to it. Nothing, by default.
    pub trim: RedisTrim,
    /// How messages look.
    pub events: CloudEvents,
}

impl RedisOptions {
    /// The defaults, with this server.
    pub fn new(url: impl Into<String>) -> RedisOptions {
        RedisOptions {
            server: RedisServer::new(url),
            stream: "{topic}".to_owned(),
            trim: RedisTrim::Never,
            events: CloudEvents::default(),
        }
    }
}

/// What is removed from a stream, whether it was consumed or not. Somewhat more is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedisTrim {
    /// Nothing: the stream grows until somebody trims it.
    #[default]
    Never,
    /// All entries but the newest ones, of this number.
    Length(u64),
    /// Entries that are older than this.
    Age(Duration),
}

/// Publishes to Redis Streams: a batch is one script.
///
/// It connects by itself, at the first call and after each loss. A relay that was paused and wakes
/// up after another took over is kept out: the script looks who publishes for the reader.
///
/// An accepted message is as durable as the server makes it: with `appendonly yes` and `appendfsync
/// always` it is on disk. With the defaults of Redis a crash of the machine, or a failover to a
/// replica, can lose it.
pub struct RedisStreams {
    server: Server,
    template: Template,
    options: RedisOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<MultiplexedConnection>,
    place: Place,
}

/// Whether this publisher may publish for its reader.
#[derive(Clone, Default)]
enum Place {
    /// It has no reader: nobody asks.
    #[default]
    Free,
    /// The relay has to take the reader's place first.
    Lost { reader: String },
    /// It has, with this token.
    Taken { reader: String, token: String },
}

impl RedisStreams {
    /// A publisher that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`RedisError`] if the URL, the template of streams or a certificate cannot be used.
    pub fn new(options: RedisOptions) -> Result<RedisStreams, RedisError> {
        let template = Template::parse(&options.stream).map_err(|reason| {
            let template = &options.stream;
            RedisError::Name(format!("stream {template:?} of Redis: {reason}"))
        })?;
        Ok(RedisStreams {
            server: options.server.parse()?,
            template,
            state: Mutex::default(),
            options,
        })
    }

    async fn connection(&self) -> Result<MultiplexedConnection, Outage> {
        let mut state = self.state.lock().await;
        self.connection_of(&mut state).await
    }

    async fn connection_of(&self, state: &mut State) -> Result<MultiplexedConnection, Outage> {
        if let Some(connection) = &state.connection {
            return Ok(connection.clone());
        }
        let connected = self.server.connect(Duration::ZERO).await;
        let connection = connected.map_err(|error| self.outage(&error))?;
        warn_of_losses(&self.server, connection.clone()).await;
        Ok(state.connection.insert(connection).clone())
    }

    fn outage(&self, error: &redis::RedisError) -> Outage {
        Outage::new(self.server.explain(error))
    }

    /// What is under way may arrive later. Another place keeps it out.
    async fn lose(&self) {
        let mut state = self.state.lock().await;
        state.connection = None;
        if let Place::Taken { reader, .. } = &state.place {
            let reader = reader.clone();
            state.place = Place::Lost { reader };
        }
    }

    async fn publish_batch(&self, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.connection().await?;
        let place = self.state.lock().await.place.clone();
        let (reader, token) = match &place {
            Place::Free => ("", ""),
            Place::Lost { reader } => {
                let reason = format!(
                    "Redis at {}: the relay has to take the reader {reader} again",
                    self.server
                );
                return Err(Outage::new(reason));
            }
            Place::Taken { reader, token } => (reader.as_str(), token.as_str()),
        };
        let call = Call::new(self, batch, fence(reader), token);
        let ran = PUBLISH
            .run(&mut connection, |command| call.write(command))
            .await;
        match ran.and_then(read_answers) {
            Ok(answers) if answers.len() == batch.len() => Ok(answers),
            Ok(_) => Err(Outage::new("Redis did not answer for each message")),
            Err(error) => {
                self.lose().await;
                Err(match error.code() {
                    Some("HAPAXFENCED") => Outage::new(fenced(&self.server, reader)),
                    _ => self.outage(&error),
                })
            }
        }
    }

    /// Takes the place of whoever publishes for this reader.
    async fn take_place(&self, of: &str) -> Result<(), Outage> {
        let mut state = self.state.lock().await;
        if matches!(&state.place, Place::Taken { reader, .. } if reader == of) {
            return Ok(());
        }
        let reader = of.to_owned();
        state.place = Place::Lost {
            reader: reader.clone(),
        };
        let mut connection = self.connection_of(&mut state).await?;
        let token = uuid::Uuid::new_v4().to_string();
        let mut command = redis::cmd("SET");
        command.arg(fence(of)).arg(&token);
        match command.query_async::<()>(&mut connection).await {
            Ok(()) => {
                state.place = Place::Taken { reader, token };
                Ok(())
            }
            Err(error) => {
                state.connection = None;
                Err(self.outage(&error))
            }
        }
    }
}

impl std::fmt::Debug for RedisStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStreams")
            .field("server", &self.server.to_string())
            .field("stream", &self.options.stream)
            .finish_non_exhaustive()
    }
}

impl Publisher for RedisStreams {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(self.publish_batch(batch))
    }

    fn take_place<'a>(&'a self, reader: &'a str) -> Reply<'a, Result<(), Outage>> {
        Box::pin(self.take_place(reader))
    }
}

/// The key that says who publishes for a reader.
fn fence(reader: &str) -> String {
    format!("hapax:relay:{reader}")
}

fn fenced(server: &Server, reader: &str) -> String {
    format!(
        "Redis at {server}: another relay publishes for the reader {reader}. \
         Relays of different databases need readers of different names here"
    )
}

/// One call of the script.
struct Call<'a> {
    publisher: &'a RedisStreams,
    batch: &'a [Envelope],
    fence: String,
    token: &'a str,
    streams: Vec<String>,
    /// For each message the numbers of its stream and of its chain, from one.
    places: Vec<(usize, usize)>,
}

impl<'a> Call<'a> {
    fn new(
        publisher: &'a RedisStreams,
        batch: &'a [Envelope],
        fence: String,
        token: &'a str,
    ) -> Call<'a> {
        let (mut streams, mut number_of) = (Vec::new(), HashMap::new());
        let mut chains: HashMap<(&str, &str), usize> = HashMap::new();
        let mut chain_count = 0;
        let mut places = Vec::with_capacity(batch.len());
        for message in batch {
            let stream = number_of.entry(message.topic.as_str()).or_insert_with(|| {
                streams.push(publisher.template.name(&message.topic));
                streams.len()
            });
            let mut next = || {
                chain_count += 1;
                chain_count
            };
            let chain = match message.ordered_key() {
                Some(key) => *chains.entry(key).or_insert_with(next),
                None => next(),
            };
            places.push((*stream, chain));
        }
        Call {
            publisher,
            batch,
            fence,
            token,
            streams,
            places,
        }
    }

    fn write(&self, command: &mut redis::Cmd) {
        command.arg(1 + self.streams.len());
        command.arg(&self.fence).arg(&self.streams).arg(self.token);
        match self.publisher.options.trim {
            RedisTrim::Never => command.arg("").arg(0),
            RedisTrim::Length(entries) => command.arg("MAXLEN").arg(entries),
            RedisTrim::Age(age) => {
                let millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
                command.arg("MINID").arg(millis)
            }
        };
        for (message, (stream, chain)) in self.batch.iter().zip(&self.places) {
            let events = &self.publisher.options.events;
            let (fields, payload) = events.wrap_plainly(message, "ce-");
            // A name that a client would see twice must mean the payload.
            let fields: Vec<_> = fields.iter().filter(|(name, _)| name != PAYLOAD).collect();
            command.arg(*stream).arg(*chain).arg(2 * fields.len() + 2);
            for (name, value) in fields {
                command.arg(name.as_bytes()).arg(value.as_bytes());
            }
            command.arg(PAYLOAD).arg(&payload[..]);
        }
    }
}

fn read_answers(answers: Value) -> Result<Vec<Verdict>, redis::RedisError> {
    let answers: Vec<String> = FromRedisValue::from_redis_value(answers)?;
    let verdicts = answers.into_iter().map(|answer| match answer.as_str() {
        "" => Verdict::NotSent,
        _ => match answer.strip_prefix('!') {
            Some(reason) if reason.contains("WRONGTYPE") => Verdict::Failed(
                "Redis: something other than a stream has the name of the stream: remove it, or choose another template".to_owned(),
            ),
            Some(reason) => Verdict::Failed(format!("Redis: {reason}")),
            None => Verdict::ACCEPTED,
        },
    });
    Ok(verdicts.collect())
}

/// Says once for each connection how the server may lose what it has accepted.
async fn warn_of_losses(server: &Server, mut connection: MultiplexedConnection) {
    let asked: Result<String, _> = redis::cmd("INFO").query_async(&mut connection).await;
    let Ok(information) = asked else {
        // This user may not ask.
        return;
    };
    let says = |line: &str| information.lines().any(|said| said == line);
    if says("aof_enabled:0") {
        tracing::warn!(%server, "Redis loses accepted messages when it ends: set `appendonly yes`, and `appendfsync always` to lose none");
    }
    let evicts = information
        .lines()
        .any(|line| line.starts_with("maxmemory_policy:allkeys"));
    if evicts && !says("maxmemory:0") {
        tracing::warn!(%server, "Redis removes whole streams when it is full: set `maxmemory-policy noeviction`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_makes_no_name_is_refused() {
        for template in ["", "{key}", "a{topic"] {
            let mut options = RedisOptions::new("redis://a");
            options.stream = template.to_owned();
            assert!(RedisStreams::new(options).is_err(), "{template:?}");
        }
    }

    #[test]
    fn errors_of_one_message_are_told_apart_from_its_followers() {
        let answers = ["1-1", "!WRONGTYPE x", "", "!ERR y"];
        let answers = answers.map(|text| Value::BulkString(text.into()));
        let verdicts = read_answers(Value::Array(answers.into())).unwrap();
        assert_eq!(verdicts[0], Verdict::ACCEPTED);
        assert!(matches!(&verdicts[1], Verdict::Failed(why) if why.contains("template")));
        assert_eq!(verdicts[2], Verdict::NotSent);
        assert_eq!(verdicts[3], Verdict::Failed("Redis: ERR y".to_owned()));
    }
}
