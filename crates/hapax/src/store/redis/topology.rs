//! Which server has which partition, and how a call gets there.
//!
//! The client library can route calls through a cluster too. This store does it itself: it has only
//! 65 slots to find, it looks at a server before the first call on a new connection, and it never
//! sends a write again that a server may have executed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::scope::RecordId;
use hapax_core::store::StoreError;
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ProtocolVersion, RedisError, RedisResult, Value};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::address::{Host, Kind};
use super::error::{Refused, refused};
use super::node::{Failure, Job, Node};
use super::partition::{Partition, record_keys};
use super::scripts::{self, Script};
use super::shared::Shared;
use super::stats::Counters;
use crate::backoff::Backoff;

/// The servers, as far as they are known.
pub(super) struct Topology {
    shared: Arc<Shared>,
    nodes: Mutex<HashMap<Host, Arc<Node>>>,
    /// The server of each partition, by its [index](Partition::index).
    routes: RwLock<Vec<Option<Host>>>,
    /// When the routes were last looked up.
    looked_up: tokio::sync::Mutex<Option<Instant>>,
}

/// A look-up within this time of the last one is left out.
const LOOK_UP_PAUSE: Duration = Duration::from_millis(50);

/// The time for one server to tell the routes.
const LOOK_UP_TIMEOUT: Duration = Duration::from_millis(500);

/// A script with its keys and arguments, or a plain command.
pub(super) struct Command {
    what: What,
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

enum What {
    Script(&'static Script),
    /// One call of the script that takes several.
    Record(RecordCall),
    Plain(&'static str),
}

/// What `records.lua` does with a record, by its number there. Calls of one kind are sent together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordCall {
    Read = 0,
    Claim = 1,
    /// Apart from claims, because a full Redis takes ends and refuses claims.
    Finish = 2,
}

impl Command {
    pub(super) fn script(script: &'static Script, keys: Vec<Vec<u8>>) -> Command {
        Command {
            what: What::Script(script),
            keys,
            arguments: Vec::new(),
        }
    }

    /// A call about a record. The arguments are its numbers and its bytes.
    pub(super) fn record(
        call: RecordCall,
        id: &RecordId,
        numbers: Vec<u8>,
        bytes: Vec<u8>,
    ) -> Command {
        Command {
            what: What::Record(call),
            keys: record_keys(id),
            arguments: vec![numbers, bytes],
        }
    }

    /// A command that reads.
    pub(super) fn plain(name: &'static str, key: Vec<u8>) -> Command {
        Command {
            what: What::Plain(name),
            keys: vec![key],
            arguments: Vec::new(),
        }
    }

    pub(super) fn arg(mut self, argument: impl Into<Vec<u8>>) -> Command {
        self.arguments.push(argument.into());
        self
    }

    pub(super) fn number(self, number: u64) -> Command {
        self.arg(number.to_string())
    }

    pub(super) fn writes(&self) -> bool {
        match self.what {
            What::Script(script) => script.writes,
            What::Record(call) => call != RecordCall::Read,
            What::Plain(_) => false,
        }
    }

    /// Its approximate size.
    pub(super) fn bytes(&self) -> usize {
        let parts = self.keys.iter().chain(&self.arguments);
        parts.map(|part| part.len() + 16).sum::<usize>() + 64
    }

    /// What it does with a record, if it is a call that can be sent together with others.
    pub(super) fn record_call(&self) -> Option<RecordCall> {
        match self.what {
            What::Record(call) => Some(call),
            What::Script(_) | What::Plain(_) => None,
        }
    }

    /// A command that is sent by itself.
    pub(super) fn encode(&self, with_text: bool) -> Cmd {
        let mut command = match self.what {
            What::Script(script) => script.command(with_text, self.keys.len()),
            What::Plain(name) => redis::cmd(name),
            What::Record(_) => unreachable!("calls about records are encoded together"),
        };
        for part in self.keys.iter().chain(&self.arguments) {
            command.arg(part.as_slice());
        }
        command
    }

    /// Calls about records, in one script.
    pub(super) fn encode_records(calls: &[&Command], with_text: bool, shared: &Shared) -> Cmd {
        let keys = calls.iter().map(|call| call.keys.len()).sum();
        let mut command = scripts::RECORDS.command(with_text, keys);
        for key in calls.iter().flat_map(|call| &call.keys) {
            command.arg(key.as_slice());
        }
        command.arg(shared.publish()).arg(shared.highest_fence());
        for argument in calls.iter().flat_map(|call| &call.arguments) {
            command.arg(argument.as_slice());
        }
        command
    }
}

impl Topology {
    pub(super) fn new(shared: Arc<Shared>) -> Topology {
        Topology {
            shared,
            nodes: Mutex::default(),
            routes: RwLock::new(vec![None; Partition::all().count()]),
            looked_up: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a command to the server of a partition. What a server has certainly not executed is
    /// sent again, until [`call_timeout`](super::Options::call_timeout) is over.
    pub(super) async fn call(
        self: &Arc<Self>,
        partition: Partition,
        command: Command,
    ) -> Result<Value, StoreError> {
        let called = self.try_call(partition, Arc::new(command)).await;
        match &called {
            Ok(_) => self.shared.counters.succeeded(),
            Err(error) => self
                .shared
                .counters
                .failed(error, self.shared.options.is_store),
        }
        called
    }

    async fn try_call(
        self: &Arc<Self>,
        partition: Partition,
        command: Arc<Command>,
    ) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.shared.options.call_timeout;
        let mut pauses =
            Backoff::new(Duration::from_millis(2), Duration::from_millis(100)).immediate();
        let (mut with_text, mut asked_for) = (false, None);
        loop {
            let is_asking = asked_for.is_some();
            let node = match asked_for.take() {
                Some(host) => self.node(&host),
                None => self.node_by(partition, deadline).await?,
            };
            let job = Job {
                command: command.clone(),
                partition,
                with_text,
                is_asking,
            };
            let asked = timeout_at(deadline, node.ask(job)).await;
            let error = match asked {
                Err(_) => {
                    // A master that fell silent may have been replaced: the next call knows.
                    drop(self.start_look_up());
                    let late = format!("Redis at {} did not answer in time", node.host);
                    return Err(StoreError::unavailable(late));
                }
                Ok(Ok(Value::ServerError(error))) => {
                    let error = RedisError::from(error);
                    match refused(&error, &node.host) {
                        Refused::NoScript => {
                            with_text = true;
                            Counters::add(&self.shared.counters.sent_again);
                            continue;
                        }
                        Refused::Ask(host) => {
                            asked_for = Some(host);
                            Counters::add(&self.shared.counters.sent_again);
                            continue;
                        }
                        Refused::Moved => {
                            self.look_up(deadline).await;
                            StoreError::unavailable(format!("a slot has moved ({error})"))
                        }
                        Refused::NotMaster(error) => {
                            self.look_up(deadline).await;
                            error
                        }
                        Refused::Later(error) => {
                            self.look_up(deadline).await;
                            error
                        }
                        Refused::Final(error) => return Err(error),
                    }
                }
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(Failure::NotSent(error))) => {
                    self.look_up(deadline).await;
                    error
                }
                Ok(Err(Failure::Unclear(error))) if !command.writes() => {
                    self.look_up(deadline).await;
                    error
                }
                Ok(Err(failure)) => {
                    drop(self.start_look_up());
                    return Err(failure.into_error());
                }
            };
            let pause = pauses.next_pause();
            if Instant::now() + pause >= deadline {
                return Err(error);
            }
            Counters::add(&self.shared.counters.sent_again);
            tokio::time::sleep(pause).await;
        }
    }

    /// A client for a server of this address.
    pub(super) fn client(&self, host: &Host, protocol: ProtocolVersion) -> RedisResult<Client> {
        self.shared.options.address.client(host, protocol)
    }

    /// Whether channels belong to slots.
    pub(super) fn is_sharded(&self) -> bool {
        self.shared.has_sharded_channels()
    }

    /// The command that tells other nodes of a change.
    pub(super) fn publish(&self) -> &'static str {
        self.shared.publish()
    }

    /// The server of a partition.
    pub(super) async fn node_of(
        self: &Arc<Self>,
        partition: Partition,
    ) -> Result<Arc<Node>, StoreError> {
        let deadline = Instant::now() + self.shared.options.call_timeout;
        self.node_by(partition, deadline).await
    }

    async fn node_by(
        self: &Arc<Self>,
        partition: Partition,
        deadline: Instant,
    ) -> Result<Arc<Node>, StoreError> {
        if let Some(host) = self.route(partition) {
            return Ok(self.node(&host));
        }
        self.look_up(deadline).await;
        match self.route(partition) {
            Some(host) => Ok(self.node(&host)),
            None => Err(StoreError::unavailable(format!(
                "no server of {} tells who has the records",
                self.shared.options.address
            ))),
        }
    }

    fn route(&self, partition: Partition) -> Option<Host> {
        self.routes.read()[partition.index()].clone()
    }

    fn node(&self, host: &Host) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let start = || Node::start(host.clone(), self.shared.clone());
        nodes.entry(host.clone()).or_insert_with(start).clone()
    }

    /// Finds the servers anew, unless that was just done. It goes on after the deadline, for the
    /// calls that come later.
    async fn look_up(self: &Arc<Self>, deadline: Instant) {
        drop(timeout_at(deadline, self.start_look_up()).await);
    }

    fn start_look_up(self: &Arc<Self>) -> JoinHandle<()> {
        let topology = self.clone();
        tokio::spawn(async move { topology.look_up_now().await })
    }

    async fn look_up_now(&self) {
        let mut looked_up = self.looked_up.lock().await;
        if looked_up.is_some_and(|at| at.elapsed() < LOOK_UP_PAUSE) {
            return;
        }
        if let Some(routes) = self.find().await {
            let before = self.routes.read().clone();
            if before.iter().any(Option::is_some) && before != routes {
                self.shared.server_changed();
            }
            // Servers without a partition are left, and their connections closed.
            self.nodes
                .lock()
                .retain(|host, _| routes.contains(&Some(host.clone())));
            *self.routes.write() = routes;
        }
        *looked_up = Some(Instant::now());
    }

    async fn find(&self) -> Option<Vec<Option<Host>>> {
        let address = &self.shared.options.address;
        let everywhere = |host: Host| vec![Some(host); Partition::all().count()];
        match &address.kind {
            Kind::Single => Some(everywhere(address.hosts[0].clone())),
            Kind::Sentinel { master } => {
                for sentinel in &address.hosts {
                    let asked = ask_sentinel(address.sentinel_client(sentinel), master);
                    match tokio::time::timeout(LOOK_UP_TIMEOUT, asked).await {
                        Ok(Ok(Some(host))) => return Some(everywhere(host)),
                        Ok(Ok(None)) => {
                            tracing::warn!("the sentinel at {sentinel} knows no master {master}");
                        }
                        Ok(Err(error)) => {
                            tracing::debug!(%error, "the sentinel at {sentinel} cannot be asked");
                        }
                        Err(_) => tracing::debug!("the sentinel at {sentinel} does not answer"),
                    }
                }
                None
            }
            Kind::Cluster => {
                let known: Vec<_> = self.nodes.lock().keys().cloned().collect();
                for host in known.iter().chain(&address.hosts) {
                    let asked = ask_cluster(address.client(host, ProtocolVersion::RESP2), host);
                    if let Ok(Ok(routes)) = tokio::time::timeout(LOOK_UP_TIMEOUT, asked).await {
                        return Some(routes);
                    }
                }
                None
            }
        }
    }
}

async fn connect(client: RedisResult<Client>) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(LOOK_UP_TIMEOUT));
    client?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

async fn ask_sentinel(client: RedisResult<Client>, master: &str) -> RedisResult<Option<Host>> {
    let found: Option<(String, u16)> = redis::cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(master)
        .query_async(&mut connect(client).await?)
        .await?;
    Ok(found.map(|(name, port)| Host { name, port }))
}

/// The master of each partition, as one node of the cluster knows it.
async fn ask_cluster(client: RedisResult<Client>, asked: &Host) -> RedisResult<Vec<Option<Host>>> {
    let ranges: Vec<Value> = redis::cmd("CLUSTER")
        .arg("SLOTS")
        .query_async(&mut connect(client).await?)
        .await?;
    let ranges: Vec<_> = ranges
        .into_iter()
        .filter_map(|range| slot_range(range, asked))
        .collect();
    let route = |partition: Partition| {
        let slot = partition.slot();
        let found = ranges
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        found.map(|(_, _, host)| host.clone())
    };
    let routes: Vec<_> = Partition::all().map(route).collect();
    if routes.iter().all(Option::is_none) {
        // A node that was just taken out of the cluster knows no slots.
        let text = "this node knows no slots";
        return Err((redis::ErrorKind::Client, text).into());
    }
    Ok(routes)
}

/// First slot, last slot, master. A master without a name is the node that was asked.
fn slot_range(range: Value, asked: &Host) -> Option<(u16, u16, Host)> {
    let Value::Array(parts) = range else {
        return None;
    };
    let mut parts = parts.into_iter();
    let mut number = || redis::from_redis_value::<u16>(parts.next()?).ok();
    let (first, last) = (number()?, number()?);
    let Value::Array(master) = parts.next()? else {
        return None;
    };
    let mut master = master.into_iter();
    let name = redis::from_redis_value::<Option<String>>(master.next()?).ok()?;
    let name = name.filter(|name| !name.is_empty() && name != "?");
    Some((
        first,
        last,
        Host {
            name: name.unwrap_or_else(|| asked.name.clone()),
            port: redis::from_redis_value(master.next()?).ok()?,
        },
    ))
}
