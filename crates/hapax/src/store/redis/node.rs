//! One server: a connection that is made anew when it is lost, and the queue in front of it.
//!
//! Calls that arrive while a pipeline is under way go with the next one: many callers share a round
//! trip, and a single caller does not wait for others. Reads, claims and ends of records share a
//! script too, as far as their keys may.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hapax_core::store::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Pipeline, ProtocolVersion, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::address::Host;
use super::error::lost;
use super::inspect;
use super::partition::Partition;
use super::shared::Shared;
use super::stats::Counters;
use super::topology::{Command, RecordCall};

/// Calls in one pipeline.
const PIPELINE_MAX: usize = 1_024;

/// Pipelines under way at once: Redis has the next one while this process reads the replies of the
/// one before.
const PIPELINES_MAX: usize = 2;

/// How often a server is looked at again.
const INSPECTED_EVERY: Duration = Duration::from_secs(60);

/// A server of the address.
pub(super) struct Node {
    pub(super) host: Host,
    queue: mpsc::UnboundedSender<Call>,
    shared: Arc<Shared>,
}

/// A command for a server.
pub(super) struct Job {
    pub(super) command: Arc<Command>,
    pub(super) partition: Partition,
    /// Send the text of the script, which the server lacks.
    pub(super) with_text: bool,
    /// The server is about to get the partition.
    pub(super) is_asking: bool,
}

struct Call {
    job: Job,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

/// Calls in one script, and their bytes. Redis does nothing else while it runs one: about a
/// millisecond.
const SCRIPT_MAX: usize = 64;
const SCRIPT_BYTES_MAX: usize = 256 << 10;

/// Why a call has no reply.
pub(super) enum Failure {
    /// Nothing was sent.
    NotSent(StoreError),
    /// It may have been executed or not.
    Unclear(StoreError),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Failure::NotSent(error) | Failure::Unclear(error) => error,
        }
    }
}

impl Node {
    /// A server to which nothing is connected yet. It is served by a task on the current runtime.
    pub(super) fn start(host: Host, shared: Arc<Shared>) -> Arc<Node> {
        let (queue, calls) = mpsc::unbounded_channel();
        let server = Server {
            host: host.clone(),
            shared: shared.clone(),
            connection: None,
            opened: 0,
            inspected_at: Instant::now(),
        };
        tokio::spawn(server.run(calls));
        Arc::new(Node {
            host,
            queue,
            shared,
        })
    }

    /// Sends a command and returns its reply, which may be an error of the server.
    pub(super) async fn ask(&self, job: Job) -> Result<Value, Failure> {
        let bytes = job.command.bytes() as u64;
        let counters = &self.shared.counters;
        let waiting = counters.queue_bytes.fetch_add(bytes, Ordering::Relaxed);
        let _waits = Waits { counters, bytes };
        if waiting + bytes > self.shared.options.queue_bytes_max as u64 {
            Counters::add(&counters.refused);
            return Err(Failure::NotSent(StoreError::unavailable(
                "too much waits to be sent to Redis: it is slower than its callers",
            )));
        }
        let (reply, replied) = oneshot::channel();
        let call = Call { job, reply };
        let gone = || StoreError::unavailable("the runtime of the Redis store has shut down");
        if self.queue.send(call).is_err() {
            return Err(Failure::NotSent(gone()));
        }
        replied
            .await
            .unwrap_or_else(|_| Err(Failure::Unclear(gone())))
    }
}

/// Counts a call's bytes as waiting until it has its reply, or its caller has gone.
struct Waits<'a> {
    counters: &'a Counters,
    bytes: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.counters
            .queue_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The task behind a [`Node`].
struct Server {
    host: Host,
    shared: Arc<Shared>,
    connection: Option<MultiplexedConnection>,
    /// The number of the connection: how many were opened, or tried to.
    opened: u64,
    inspected_at: Instant,
}

impl Server {
    async fn run(mut self, mut calls: mpsc::UnboundedReceiver<Call>) {
        let mut batch = Vec::new();
        let mut under_way = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(ended) = under_way.next() => {
                    if let Ended::Lost { connection } = ended {
                        self.lose(connection);
                    }
                }
                count = calls.recv_many(&mut batch, PIPELINE_MAX),
                    if under_way.len() < PIPELINES_MAX =>
                {
                    if count == 0 {
                        break;
                    }
                    // A caller that has given up is not served: its write would only surprise.
                    batch.retain(|call: &Call| !call.reply.is_closed());
                    if batch.is_empty() {
                        continue;
                    }
                    let batch = std::mem::take(&mut batch);
                    match self.connected().await {
                        Ok(connection) => under_way.push(self.sending().send(connection, batch)),
                        Err(error) => fail(batch, || Failure::NotSent(error.clone())),
                    }
                }
            }
        }
        while under_way.next().await.is_some() {}
    }

    fn sending(&self) -> Sending {
        Sending {
            host: self.host.clone(),
            shared: self.shared.clone(),
            number: self.opened,
        }
    }

    /// The connection with this number is lost. There may be a newer one.
    fn lose(&mut self, number: u64) {
        if number == self.opened && self.connection.take().is_some() {
            self.shared.counters.connection_lost();
            self.shared.server_changed();
        }
    }

    /// A connection to a server that was looked at within the last minute.
    async fn connected(&mut self) -> Result<MultiplexedConnection, StoreError> {
        if let Some(connection) = &self.connection
            && self.inspected_at.elapsed() < INSPECTED_EVERY
        {
            return Ok(connection.clone());
        }
        let known = self.connection.take();
        let is_known = known.is_some();
        self.opened += u64::from(!is_known);
        // Less than a call may take, so that its caller can still find another server.
        let limit = self.shared.options.call_timeout / 2;
        let opened = timeout(limit, self.open(known)).await.unwrap_or_else(|_| {
            let silent = format!("Redis at {} does not answer", self.host);
            Err(StoreError::unavailable(silent))
        });
        if is_known && opened.is_err() {
            self.shared.counters.connection_lost();
            self.shared.server_changed();
        }
        let connection = opened?;
        self.connection = Some(connection.clone());
        self.inspected_at = Instant::now();
        Ok(connection)
    }

    /// Connects, unless there is a connection, and looks at the server before anything is sent.
    async fn open(
        &self,
        known: Option<MultiplexedConnection>,
    ) -> Result<MultiplexedConnection, StoreError> {
        let unreachable = |error: redis::RedisError| {
            StoreError::unavailable(format!("Redis at {} cannot be used: {error}", self.host))
                .because(error)
        };
        let mut connection = match known {
            Some(connection) => connection,
            None => {
                let client = self
                    .shared
                    .options
                    .address
                    .client(&self.host, ProtocolVersion::RESP2)
                    .map_err(unreachable)?;
                // Each pipeline has a time limit of its own.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.shared.options.call_timeout))
                    .set_response_timeout(None);
                let connection = client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
                    .map_err(unreachable)?;
                Counters::add(&self.shared.counters.connections);
                connection
            }
        };
        let found = inspect::ask(&mut connection).await.map_err(unreachable)?;
        self.shared.found(&self.host, &found)?;
        Ok(connection)
    }
}

/// How a pipeline ended.
enum Ended {
    Answered,
    /// The connection with this number did not answer.
    Lost {
        connection: u64,
    },
}

/// What a pipeline needs while it is under way.
struct Sending {
    host: Host,
    shared: Arc<Shared>,
    /// The number of its connection.
    number: u64,
}

impl Sending {
    async fn send(self, mut connection: MultiplexedConnection, batch: Vec<Call>) -> Ended {
        let replicas = self.shared.options.replicas;
        let waits = replicas > 0 && batch.iter().any(|call| call.job.command.writes());
        let groups = grouped(&batch, self.shared.is_cluster());
        let mut pipeline = Pipeline::with_capacity(groups.len() + 1);
        for group in &groups {
            group.encode(&batch, &self.shared, &mut pipeline);
        }
        if waits {
            let patience = self.shared.options.replica_timeout.as_millis() as u64;
            pipeline.cmd("WAIT").arg(replicas).arg(patience);
        }
        self.shared.counters.pipeline(batch.len());
        let count = pipeline.len();
        let sent = connection.send_packed_commands(&pipeline, 0, count);
        let limit = self.shared.options.call_timeout;
        // The pipeline before this one may wait for replicas.
        let limit = if replicas > 0 {
            limit + self.shared.options.replica_timeout
        } else {
            limit
        };
        let error = match timeout(limit, sent).await {
            Ok(Ok(replies)) if replies.len() == count => {
                self.distribute(batch, &groups, replies, waits);
                return Ended::Answered;
            }
            Ok(Ok(_)) => StoreError::unavailable("Redis left out a reply"),
            Ok(Err(error)) => lost(&self.host, error),
            Err(_) => {
                let late = format!("Redis at {} did not answer in time", self.host);
                StoreError::unavailable(late)
            }
        };
        fail(batch, || Failure::Unclear(error.clone()));
        Ended::Lost {
            connection: self.number,
        }
    }

    fn distribute(&self, batch: Vec<Call>, groups: &[Group], mut replies: Vec<Value>, waits: bool) {
        let confirmed = match waits.then(|| replies.pop()).flatten() {
            Some(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Some(_) => 0,
            None => u32::MAX,
        };
        let is_replicated = confirmed >= self.shared.options.replicas;
        let mut of_calls = vec![Value::Nil; batch.len()];
        let mut replies = replies.into_iter();
        for group in groups {
            let replies = replies.by_ref().take(group.commands());
            let reply = replies.last().unwrap_or(Value::Nil);
            group.distribute(&batch, reply, &mut of_calls);
        }
        for (call, value) in batch.into_iter().zip(of_calls) {
            let is_refusal = matches!(value, Value::ServerError(_));
            let result = if call.job.command.writes() && !is_replicated && !is_refusal {
                Counters::add(&self.shared.counters.unreplicated);
                Err(Failure::Unclear(StoreError::unavailable(format!(
                    "{confirmed} of {} replicas have confirmed a write in time",
                    self.shared.options.replicas
                ))))
            } else {
                Ok(value)
            };
            drop(call.reply.send(result));
        }
    }
}

/// Calls that are sent as one command: several about records, or a single one.
struct Group {
    /// What they do and where, if others can join.
    open_to: Option<(RecordCall, Option<Partition>, WithText)>,
    /// Their numbers in the batch.
    calls: Vec<usize>,
    bytes: usize,
    is_asking: bool,
}

/// Whether the text of the script is sent.
type WithText = bool;

/// Sorts calls into groups. In a cluster the keys of a script are of one partition.
fn grouped(batch: &[Call], is_cluster: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (number, Call { job, .. }) in batch.iter().enumerate() {
        let record_call = job.command.record_call();
        let open_to = record_call
            .filter(|_| !job.is_asking)
            .map(|call| (call, is_cluster.then_some(job.partition), job.with_text));
        let bytes = job.command.bytes();
        let joined = groups.iter_mut().rev().find(|group| {
            open_to.is_some()
                && group.open_to == open_to
                && group.calls.len() < SCRIPT_MAX
                && group.bytes + bytes <= SCRIPT_BYTES_MAX
        });
        match joined {
            Some(group) => {
                group.calls.push(number);
                group.bytes += bytes;
            }
            None => groups.push(Group {
                open_to,
                calls: vec![number],
                bytes,
                is_asking: job.is_asking,
            }),
        }
    }
    groups
}

impl Group {
    fn encode(&self, batch: &[Call], shared: &Shared, pipeline: &mut Pipeline) {
        if self.is_asking {
            pipeline.cmd("ASKING");
        }
        let jobs = self.calls.iter().map(|number| &batch[*number].job);
        let with_text = jobs.clone().any(|job| job.with_text);
        let commands: Vec<&Command> = jobs.map(|job| &*job.command).collect();
        pipeline.add_command(match commands[..] {
            [command] if command.record_call().is_none() => command.encode(with_text),
            _ => Command::encode_records(&commands, with_text, shared),
        });
    }

    /// How many commands it sends. The reply of the last one counts.
    fn commands(&self) -> usize {
        1 + usize::from(self.is_asking)
    }

    /// Gives each call its part of the reply.
    fn distribute(&self, batch: &[Call], reply: Value, of_calls: &mut [Value]) {
        let is_record = |number: &usize| batch[*number].job.command.record_call().is_some();
        match reply {
            Value::Array(parts) if self.calls.iter().all(is_record) => {
                for (number, part) in self.calls.iter().zip(parts) {
                    of_calls[*number] = part;
                }
            }
            reply => {
                for number in &self.calls {
                    of_calls[*number] = reply.clone();
                }
            }
        }
    }
}

fn fail(batch: Vec<Call>, failure: impl Fn() -> Failure) {
    for call in batch {
        drop(call.reply.send(Err(failure())));
    }
}
