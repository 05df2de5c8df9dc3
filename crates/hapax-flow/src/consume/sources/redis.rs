//! Redis Streams, with a group whose members share the entries of one stream.
//!
//! ```no_run
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::consume::{Consumer, RedisStreamOptions, RedisStreamSource};
//!
//! let options = RedisStreamOptions::new("redis://localhost:6379", "orders", "inventory");
//! let consumer = Consumer::new("inventory").source(RedisStreamSource::new(options)?);
//! # Ok(())
//! # }
//! ```
//!
//! An entry that is delivered and not acknowledged is open: the group knows with which member, and
//! for how long nothing was heard of it. Members take over what has been idle for too long.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use hapax_core::flow::Outage;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::consume::source::{Delivery, Incoming, Retention, Source};
use crate::redis::{RedisError, RedisServer, Script, Server};

/// How long the server waits for new entries, at most.
const BLOCK_MAX: Duration = Duration::from_secs(1);
/// How often members that are gone are removed.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
/// How long nothing was heard of a member that is gone.
const GONE_AFTER: Duration = Duration::from_hours(24);
/// Entries in one acknowledgement.
const ACKNOWLEDGED_MAX: usize = 1000;

/// Says for how long nothing was heard of entries, as far as they are still with this member.
static SET_IDLE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for i = 4, #ARGV do
            local open = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1)[1]
            if open and open[2] == ARGV[2] then
                redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'IDLE', ARGV[3], 'JUSTID')
            end
        end",
    )
});

/// Removes members that are gone and have nothing open. A member that comes back is made anew.
static SWEEP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "for _, member in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
            local of = {}
            for i = 1, #member, 2 do of[member[i]] = member[i + 1] end
            if of.pending == 0 and of.idle > tonumber(ARGV[2]) then
                redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of.name)
            end
        end",
    )
});

/// Where a [`RedisStreamSource`] takes messages from.
#[derive(Clone, Debug)]
pub struct RedisStreamOptions {
    /// Where the server is.
    pub server: RedisServer,
    /// The stream.
    pub stream: String,
    /// The group, which all members share. If it is not there, it is made, and begins with the
    /// first entry of the stream.
    pub group: String,
    /// How long an entry stays with a member that is stopped or dead: half a minute by default. It
    /// must be the same for all members.
    pub idle: Duration,
    /// Where the id of a message is.
    pub id: RedisId,
    /// The field with the payload. The other fields are headers.
    pub payload: String,
}

impl RedisStreamOptions {
    /// The defaults, with this server, stream and group.
    pub fn new(
        url: impl Into<String>,
        stream: impl Into<String>,
        group: impl Into<String>,
    ) -> RedisStreamOptions {
        RedisStreamOptions {
            server: RedisServer::new(url),
            stream: stream.into(),
            group: group.into(),
            idle: Duration::from_secs(30),
            id: RedisId::CloudEvents,
            payload: crate::redis::PAYLOAD.to_owned(),
        }
    }
}

/// Where a producer writes the id of a message. Never the id of the entry: a message that is added
/// twice has two of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RedisId {
    /// In the field `ce-id`, as the relay of Hapax does.
    #[default]
    CloudEvents,
    /// In another field.
    Field(String),
}

/// Takes messages from a Redis stream.
///
/// It needs Redis 7 or newer, or Valkey. While messages are worked on, the server is told so.
pub struct RedisStreamSource {
    options: Arc<RedisStreamOptions>,
    server: Server,
    member: Arc<str>,
    session: Option<Session>,
    next_claim: Instant,
    next_sweep: Instant,
}

/// Identifies a delivery of a Redis stream: the id of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisTag(Arc<str>);

impl RedisStreamSource {
    /// A source that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`RedisError`] if the URL, a name or a certificate cannot be used.
    pub fn new(options: RedisStreamOptions) -> Result<RedisStreamSource, RedisError> {
        for (what, name) in [("stream", &options.stream), ("group", &options.group)] {
            if name.is_empty() {
                let reason = format!("the {what} of Redis has no name");
                return Err(RedisError::Name(reason));
            }
        }
        Ok(RedisStreamSource {
            server: options.server.parse()?,
            options: Arc::new(options),
            member: uuid::Uuid::new_v4().to_string().into(),
            session: None,
            next_claim: Instant::now(),
            next_sweep: Instant::now() + SWEEP_EVERY,
        })
    }

    /// The session, a new one if need be.
    async fn session(&mut self) -> Result<&mut Session, redis::RedisError> {
        let session = match self.session.take() {
            Some(session) => session,
            None => {
                let mut commands = self.server.connect(Duration::ZERO).await?;
                let reader = self.server.connect(BLOCK_MAX).await?;
                make_group(&mut commands, &self.options).await?;
                Session {
                    commands,
                    reader,
                    reading: None,
                    arrived: VecDeque::new(),
                }
            }
        };
        Ok(self.session.insert(session))
    }

    /// The next call begins with another connection.
    fn lost(&mut self, error: &redis::RedisError) -> Outage {
        self.session = None;
        Outage::new(self.server.explain(error))
    }

    async fn receive_now(
        &mut self,
        max: usize,
    ) -> Result<Vec<Delivery<RedisTag>>, redis::RedisError> {
        loop {
            let session = self.session().await?;
            if !session.arrived.is_empty() {
                let count = max.min(session.arrived.len());
                return Ok(session.arrived.drain(..count).collect());
            }
            if session.reading.is_none() {
                let wanted = self.wanted(max);
                let session = self.session().await?;
                let reader = session.reader.clone();
                // A call that is dropped leaves the reading to the next one.
                session.reading = Some(tokio::spawn(wanted.read(reader)));
            }
            let session = self.session().await?;
            if let Some(reading) = &mut session.reading {
                let read = reading.await;
                session.reading = None;
                let stopped = (redis::ErrorKind::Client, "the program is stopping");
                let read = read.unwrap_or_else(|_| Err(stopped.into()));
                session.arrived.extend(read?);
            }
        }
    }

    /// What is to be read now.
    fn wanted(&mut self, max: usize) -> Wanted {
        let now = Instant::now();
        let claim_every = (self.options.idle / 4).min(BLOCK_MAX);
        let with_idle = now >= self.next_claim;
        if with_idle {
            self.next_claim = now + claim_every;
        }
        let with_sweep = now >= self.next_sweep;
        if with_sweep {
            self.next_sweep = now + SWEEP_EVERY;
        }
        Wanted {
            options: self.options.clone(),
            member: self.member.clone(),
            max,
            with_idle,
            with_sweep,
            block: self.next_claim - now,
        }
    }

    /// Says for how long nothing was heard of deliveries.
    async fn set_idle(&mut self, tags: &[RedisTag], idle: Duration) -> Result<(), Outage> {
        if tags.is_empty() {
            return Ok(());
        }
        let (options, member) = (self.options.clone(), self.member.clone());
        let set = async {
            let mut connection = self.session().await?.commands.clone();
            let run = SET_IDLE.run(&mut connection, |command| {
                command.arg(1).arg(&options.stream).arg(&options.group);
                command.arg(&*member).arg(millis(idle));
                for tag in tags {
                    command.arg(&*tag.0);
                }
            });
            run.await
        };
        match set.await {
            Ok(_) => Ok(()),
            // Nothing is open any more.
            Err(error) if error.code() == Some("NOGROUP") => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }
}

impl std::fmt::Debug for RedisStreamSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStreamSource")
            .field("stream", &self.options.stream)
            .field("group", &self.options.group)
            .finish_non_exhaustive()
    }
}

impl Source for RedisStreamSource {
    type Tag = RedisTag;

    async fn receive(&mut self, max: usize) -> Result<Vec<Delivery<RedisTag>>, Outage> {
        let received = self.receive_now(max.max(1)).await;
        received.map_err(|error| self.lost(&error))
    }

    async fn acknowledge(&mut self, tags: &[RedisTag]) -> Result<(), Outage> {
        let options = self.options.clone();
        let acknowledged = async {
            let mut connection = self.session().await?.commands.clone();
            for tags in tags.chunks(ACKNOWLEDGED_MAX) {
                let mut command = redis::cmd("XACK");
                command.arg(&options.stream).arg(&options.group);
                for tag in tags {
                    command.arg(&*tag.0);
                }
                command.query_async::<()>(&mut connection).await?;
            }
            Ok(())
        };
        let acknowledged: Result<(), redis::RedisError> = acknowledged.await;
        acknowledged.map_err(|error| self.lost(&error))
    }

    async fn give_back(&mut self, tags: &[RedisTag]) -> Result<(), Outage> {
        let idle = self.options.idle;
        self.set_idle(tags, idle).await?;
        self.next_claim = Instant::now();
        Ok(())
    }

    async fn keep(&mut self, tags: &[RedisTag]) -> Result<(), Outage> {
        let mut all = tags.to_vec();
        if let Some(session) = &mut self.session {
            // These have been delivered too, and nobody has taken them yet.
            session.take_what_was_read();
            all.extend(session.arrived.iter().map(|delivery| delivery.tag.clone()));
        }
        self.set_idle(&all, Duration::ZERO).await
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.options.idle / 3)
    }

    /// A stream is trimmed by its producers, and does not say so.
    async fn retention(&mut self) -> Result<Retention, Outage> {
        Ok(Retention::Unknown)
    }

    async fn lag(&mut self) -> Result<Option<u64>, Outage> {
        let options = self.options.clone();
        let asked = async {
            let mut connection = self.session().await?.commands.clone();
            let mut command = redis::cmd("XINFO");
            command.arg("GROUPS").arg(&options.stream);
            command.query_async::<Vec<Value>>(&mut connection).await
        };
        match asked.await {
            Ok(groups) => Ok(lag(groups, &options.group)),
            // There is no stream any more.
            Err(error) if error.code() == Some("ERR") => Ok(None),
            Err(error) => Err(self.lost(&error)),
        }
    }
}

/// Connections, and what they have brought.
struct Session {
    commands: MultiplexedConnection,
    /// Another one, as it waits for new entries.
    reader: MultiplexedConnection,
    reading: Option<JoinHandle<Result<Vec<Delivery<RedisTag>>, redis::RedisError>>>,
    arrived: VecDeque<Delivery<RedisTag>>,
}

impl Session {
    /// Takes what was read for a call that was dropped. An error comes again with the next reading.
    fn take_what_was_read(&mut self) {
        let read = self.reading.as_mut().and_then(FutureExt::now_or_never);
        if let Some(read) = read {
            self.reading = None;
            self.arrived.extend(read.into_iter().flatten().flatten());
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(reading) = &self.reading {
            reading.abort();
        }
    }
}

/// What is to be read.
struct Wanted {
    options: Arc<RedisStreamOptions>,
    member: Arc<str>,
    max: usize,
    /// Entries that are idle with other members, too.
    with_idle: bool,
    with_sweep: bool,
    block: Duration,
}

impl Wanted {
    async fn read(
        self,
        mut connection: MultiplexedConnection,
    ) -> Result<Vec<Delivery<RedisTag>>, redis::RedisError> {
        match self.try_to_read(&mut connection).await {
            Err(error) if error.code() == Some("NOGROUP") => {
                // The stream was removed, or the server has lost its data.
                make_group(&mut connection, &self.options).await?;
                Ok(Vec::new())
            }
            read => read,
        }
    }

    async fn try_to_read(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Delivery<RedisTag>>, redis::RedisError> {
        if self.with_sweep {
            let run = SWEEP.run(connection, |command| {
                command.arg(1).arg(&self.options.stream);
                command.arg(&self.options.group).arg(millis(GONE_AFTER));
            });
            run.await?;
        }
        if self.with_idle {
            let claimed = self.claim(connection).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
        }
        self.read_new(connection).await
    }

    /// Takes over what has been idle for too long, in the order of the stream.
    async fn claim(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Delivery<RedisTag>>, redis::RedisError> {
        let (options, idle) = (&self.options, millis(self.options.idle));
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&options.stream).arg(&options.group);
        pending.arg("IDLE").arg(idle);
        pending.arg("-").arg("+").arg(self.max);
        let open: Vec<(String, String, u64, u32)> = pending.query_async(connection).await?;
        if open.is_empty() {
            return Ok(Vec::new());
        }
        let mut claim = redis::cmd("XCLAIM");
        claim.arg(&options.stream).arg(&options.group);
        // Of two members that ask at the same time, one gets it.
        claim.arg(&*self.member).arg(idle);
        for (id, ..) in &open {
            claim.arg(id);
        }
        let claimed: Vec<Value> = claim.query_async(connection).await?;
        let mut deliveries = Vec::new();
        for entry in claimed {
            let Some(mut delivery) = delivery(entry, options)? else {
                continue;
            };
            let before = open.iter().find(|(id, ..)| **id == *delivery.tag.0);
            delivery.message.deliveries = before.map(|(.., times)| times.saturating_add(1));
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }

    async fn read_new(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Delivery<RedisTag>>, redis::RedisError> {
        let options = &self.options;
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(&options.group).arg(&*self.member);
        command.arg("COUNT").arg(self.max);
        // 0 would be for ever.
        command.arg("BLOCK").arg(millis(self.block).max(1));
        command.arg("STREAMS").arg(&options.stream).arg(">");
        let streams: Option<Vec<(Value, Vec<Value>)>> = command.query_async(connection).await?;
        let mut deliveries = Vec::new();
        for (_, entries) in streams.unwrap_or_default() {
            for entry in entries {
                deliveries.extend(delivery(entry, options)?);
            }
        }
        Ok(deliveries)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Makes the group, and the stream, if they are not there.
async fn make_group(
    connection: &mut MultiplexedConnection,
    options: &RedisStreamOptions,
) -> Result<(), redis::RedisError> {
    let mut command = redis::cmd("XGROUP");
    command
        .arg("CREATE")
        .arg(&options.stream)
        .arg(&options.group);
    command.arg("0").arg("MKSTREAM");
    match command.query_async::<()>(connection).await {
        Err(error) if error.code() == Some("BUSYGROUP") => Ok(()),
        made => made,
    }
}

/// The id of an entry and its fields; none if it was removed.
type Entry = (String, Option<Vec<(String, Vec<u8>)>>);

/// A delivered entry. `None`: it was removed from the stream.
fn delivery(
    entry: Value,
    options: &RedisStreamOptions,
) -> Result<Option<Delivery<RedisTag>>, redis::RedisError> {
    if entry == Value::Nil {
        return Ok(None);
    }
    let (id, fields): Entry = FromRedisValue::from_redis_value(entry)?;
    let Some(fields) = fields else {
        return Ok(None);
    };
    let mut payload = Bytes::new();
    let mut headers = Vec::with_capacity(fields.len());
    for (name, value) in fields {
        match name == options.payload {
            true => payload = value.into(),
            false => headers.push((
                name.to_ascii_lowercase(),
                String::from_utf8_lossy(&value).into_owned(),
            )),
        }
    }
    let mut message = Incoming::from_cloud_event(options.stream.as_str(), headers, payload);
    if let RedisId::Field(name) = &options.id {
        let given = message.header(&name.to_ascii_lowercase());
        message.id = given.filter(|id| !id.is_empty()).map(str::to_owned);
    }
    message.deliveries = Some(1);
    Ok(Some(Delivery {
        message,
        tag: RedisTag(id.into()),
    }))
}

/// How many entries the group has not delivered yet. Redis does not know after entries were
/// removed.
fn lag(groups: Vec<Value>, name: &str) -> Option<u64> {
    groups.into_iter().find_map(|group| {
        let fields: Vec<(String, Value)> = FromRedisValue::from_redis_value(group).ok()?;
        let find = |wanted: &str| {
            let found = fields.iter().find(|(field, _)| field == wanted);
            found.map(|(_, value)| value.clone())
        };
        let is_it = String::from_redis_value(find("name")?).ok()? == name;
        match find("lag") {
            Some(Value::Int(lag)) if is_it => u64::try_from(lag).ok(),
            _ => None,
        }
    })
}
