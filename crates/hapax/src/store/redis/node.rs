//! One server: a connection that is made anew when it is lost, and the queue in front of it.
//!
//! Calls that arrive while a pipeline is under way go with the next one: many callers share a round
//! trip, and a single caller does not wait for others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hapax_core::store::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, Value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::address::Host;
use super::error::lost;
use super::inspect;
use super::shared::Shared;
use super::stats::Counters;

/// Calls in one pipeline.
const PIPELINE_MAX: usize = 1_024;

/// How often a server is looked at again.
const INSPECTED_EVERY: Duration = Duration::from_secs(60);

/// A server of the address.
pub(super) struct Node {
    pub(super) host: Host,
    queue: mpsc::UnboundedSender<Call>,
    shared: Arc<Shared>,
}

/// One command, or two that belong together.
struct Call {
    commands: Vec<Cmd>,
    writes: bool,
    reply: oneshot::Sender<Result<Value, Failure>>,
}

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
            inspected_at: Instant::now(),
        };
        tokio::spawn(server.run(calls));
        Arc::new(Node {
            host,
            queue,
            shared,
        })
    }

    /// Sends a command of this size and returns its reply, which may be an error of the server. The
    /// last of several commands is the one whose reply counts.
    pub(super) async fn ask(
        &self,
        commands: Vec<Cmd>,
        bytes: usize,
        writes: bool,
    ) -> Result<Value, Failure> {
        let bytes = bytes as u64;
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
        let call = Call {
            commands,
            writes,
            reply,
        };
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
    inspected_at: Instant,
}

impl Server {
    async fn run(mut self, mut calls: mpsc::UnboundedReceiver<Call>) {
        let mut batch = Vec::new();
        while calls.recv_many(&mut batch, PIPELINE_MAX).await > 0 {
            // Whoever has given up is not served: its write would only surprise.
            batch.retain(|call: &Call| !call.reply.is_closed());
            if batch.is_empty() {
                continue;
            }
            match self.connected().await {
                Ok(connection) => self.send(connection, &mut batch).await,
                Err(error) => fail(&mut batch, || Failure::NotSent(error.clone())),
            }
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
        // Less than a call may take, so that its caller can still find another server.
        let limit = self.shared.options.call_timeout / 2;
        let opened = timeout(limit, self.open(known)).await;
        let connection = opened.map_err(|_| {
            StoreError::unavailable(format!("Redis at {} does not answer", self.host))
        })??;
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

    async fn send(&mut self, mut connection: MultiplexedConnection, batch: &mut Vec<Call>) {
        let replicas = self.shared.options.replicas;
        let waits = replicas > 0 && batch.iter().any(|call| call.writes);
        let mut pipeline = Pipeline::with_capacity(batch.len() + 1);
        let mut lengths = Vec::with_capacity(batch.len());
        for call in batch.iter_mut() {
            lengths.push(call.commands.len());
            for command in call.commands.drain(..) {
                pipeline.add_command(command);
            }
        }
        if waits {
            let patience = self.shared.options.replica_timeout.as_millis() as u64;
            pipeline.cmd("WAIT").arg(replicas).arg(patience);
        }
        self.shared.counters.pipeline(batch.len());
        let count = pipeline.len();
        let sent = connection.send_packed_commands(&pipeline, 0, count);
        let limit = self.shared.options.call_timeout;
        let limit = if waits {
            limit + self.shared.options.replica_timeout
        } else {
            limit
        };
        let replies = match timeout(limit, sent).await {
            Ok(Ok(replies)) if replies.len() == count => replies,
            Ok(Ok(_)) => {
                return self.lose(batch, &StoreError::unavailable("Redis left out a reply"));
            }
            Ok(Err(error)) => return self.lose(batch, &lost(&self.host, error)),
            Err(_) => {
                let late = format!("Redis at {} did not answer in time", self.host);
                return self.lose(batch, &StoreError::unavailable(late));
            }
        };
        self.distribute(batch, &lengths, replies, waits);
    }

    fn distribute(
        &self,
        batch: &mut Vec<Call>,
        lengths: &[usize],
        mut replies: Vec<Value>,
        waits: bool,
    ) {
        let confirmed = match waits.then(|| replies.pop()).flatten() {
            Some(Value::Int(count)) => u32::try_from(count).unwrap_or(0),
            Some(_) => 0,
            None => u32::MAX,
        };
        let is_replicated = confirmed >= self.shared.options.replicas;
        let mut replies = replies.into_iter();
        for (call, length) in batch.drain(..).zip(lengths) {
            let value = replies.by_ref().take(*length).last().unwrap_or(Value::Nil);
            let is_refusal = matches!(value, Value::ServerError(_));
            let result = if call.writes && !is_replicated && !is_refusal {
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

    fn lose(&mut self, batch: &mut Vec<Call>, error: &StoreError) {
        self.connection = None;
        self.shared.counters.connection_lost();
        fail(batch, || Failure::Unclear(error.clone()));
    }
}

fn fail(batch: &mut Vec<Call>, failure: impl Fn() -> Failure) {
    for call in batch.drain(..) {
        drop(call.reply.send(Err(failure())));
    }
}
