//! Being told of changes: Redis' publish and subscribe.
//!
//! Whoever changes a record publishes on a channel with the name of the record's head, and a node
//! subscribes to the channels of the records that its requests wait for. In a cluster from version 7
//! on the channels are sharded: only the server of the partition knows of them.

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::scope::RecordId;
use hapax_core::store::Wakes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;

use super::address::Host;
use super::partition::{self, Partition};
use super::topology::Topology;

/// Subscriptions, on connections of their own.
pub(super) struct Subscriptions {
    /// How many requests wait for each record.
    watched: Arc<Watched>,
    orders: mpsc::Sender<Order>,
    changes: Mutex<mpsc::Receiver<RecordId>>,
}

type Watched = parking_lot::Mutex<HashMap<RecordId, u32>>;

enum Order {
    /// Requests have begun or ended to wait for this record.
    Look(RecordId),
    /// A connection to this server was lost.
    Lost(Host),
}

/// Orders and changes that wait to be looked at. Beyond it they are dropped: the poll serves those
/// who wait.
const QUEUE_MAX: usize = 10_000;

/// How long nothing is tried after a subscription has failed.
const PAUSE: Duration = Duration::from_millis(200);

/// The time for one subscription.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Subscriptions {
    /// Served by a task on the current runtime, which ends with the store.
    pub(super) fn start(topology: &Arc<Topology>) -> Subscriptions {
        let (orders, received) = mpsc::channel(QUEUE_MAX);
        let (changed, changes) = mpsc::channel(QUEUE_MAX);
        let watched = Arc::<Watched>::default();
        let subscriber = Subscriber {
            topology: Arc::downgrade(topology),
            orders: orders.downgrade(),
            changed,
            watched: watched.clone(),
            subscribed: HashSet::new(),
            connections: HashMap::new(),
            failed_at: None,
        };
        tokio::spawn(subscriber.run(received));
        Subscriptions {
            watched,
            orders,
            changes: Mutex::new(changes),
        }
    }
}

impl Wakes for Subscriptions {
    fn watch(&self, id: RecordId) {
        *self.watched.lock().entry(id).or_default() += 1;
        let _ = self.orders.try_send(Order::Look(id));
    }

    fn unwatch(&self, id: RecordId) {
        let mut watched = self.watched.lock();
        if let Some(count) = watched.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                watched.remove(&id);
                let _ = self.orders.try_send(Order::Look(id));
            }
        }
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = RecordId> + Send + '_>> {
        Box::pin(async move {
            match self.changes.lock().await.recv().await {
                Some(id) => id,
                None => std::future::pending().await,
            }
        })
    }
}

struct Subscriber {
    topology: Weak<Topology>,
    orders: mpsc::WeakSender<Order>,
    changed: mpsc::Sender<RecordId>,
    watched: Arc<Watched>,
    subscribed: HashSet<RecordId>,
    connections: HashMap<Host, MultiplexedConnection>,
    failed_at: Option<Instant>,
}

impl Subscriber {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            let order = match self.failed_at {
                None => orders.recv().await,
                Some(at) => match tokio::time::timeout_at(at + PAUSE, orders.recv()).await {
                    Ok(order) => order,
                    Err(_) => {
                        self.subscribe_all().await;
                        continue;
                    }
                },
            };
            let Some(order) = order else {
                return;
            };
            match order {
                Order::Look(id) => {
                    let is_watched = self.watched.lock().contains_key(&id);
                    match (is_watched, self.subscribed.contains(&id)) {
                        (true, false) => self.subscribe(id).await,
                        // It may have changed since the one before began to wait.
                        (true, true) => self.tell(id),
                        (false, true) => self.unsubscribe(id).await,
                        (false, false) => {}
                    }
                }
                Order::Lost(host) => {
                    if self.connections.remove(&host).is_some() {
                        self.subscribed.clear();
                        self.failed_at = Some(Instant::now());
                    }
                }
            }
        }
    }

    /// Subscribes to everything that is watched, until that fails.
    async fn subscribe_all(&mut self) {
        self.failed_at = None;
        let watched: Vec<_> = self.watched.lock().keys().copied().collect();
        for id in watched {
            if !self.subscribed.contains(&id) {
                self.subscribe(id).await;
            }
        }
    }

    fn tell(&self, id: RecordId) {
        let _ = self.changed.try_send(id);
    }

    async fn unsubscribe(&mut self, id: RecordId) {
        self.subscribed.remove(&id);
        let Some(topology) = self.topology.upgrade() else {
            return;
        };
        let command = if topology.is_sharded() {
            "SUNSUBSCRIBE"
        } else {
            "UNSUBSCRIBE"
        };
        let mut unsubscribe = redis::cmd(command);
        unsubscribe.arg(partition::head(&id));
        let Ok(node) = topology.node_of(Partition::of(&id)).await else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&node.host) {
            let sent = connection.send_packed_command(&unsubscribe);
            drop(tokio::time::timeout(TIMEOUT, sent).await);
        }
    }

    /// Subscribes, and tells of the record at once: it may have changed before.
    async fn subscribe(&mut self, id: RecordId) {
        if self.failed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        match tokio::time::timeout(TIMEOUT, self.try_subscribe(id)).await {
            Ok(Ok(())) => {
                self.failed_at = None;
                self.subscribed.insert(id);
                self.tell(id);
            }
            Ok(Err(error)) => {
                self.failed_at = Some(Instant::now());
                tracing::debug!(%error, "Redis takes no subscription: waiters are polled for");
            }
            Err(_) => {
                self.failed_at = Some(Instant::now());
                tracing::debug!("Redis takes no subscription in time: waiters are polled for");
            }
        }
    }

    async fn try_subscribe(&mut self, id: RecordId) -> RedisResult<()> {
        let Some(topology) = self.topology.upgrade() else {
            return Ok(());
        };
        let node = topology.node_of(Partition::of(&id)).await;
        let host = match node {
            Ok(node) => node.host.clone(),
            Err(error) => {
                let text = error.to_string();
                return Err((redis::ErrorKind::Client, "no server", text).into());
            }
        };
        if !self.connections.contains_key(&host) {
            let connection = self.connect(&topology, &host).await?;
            self.connections.insert(host.clone(), connection);
        }
        let Some(connection) = self.connections.get_mut(&host) else {
            return Ok(());
        };
        let command = if topology.is_sharded() {
            "SSUBSCRIBE"
        } else {
            "SUBSCRIBE"
        };
        let mut subscribe = redis::cmd(command);
        subscribe.arg(partition::head(&id));
        let subscribed = connection.send_packed_command(&subscribe).await;
        let subscribed = subscribed.and_then(|value| match value {
            Value::ServerError(error) => Err(error.into()),
            _ => Ok(()),
        });
        if subscribed.is_err() {
            self.connections.remove(&host);
        }
        subscribed
    }

    async fn connect(
        &self,
        topology: &Topology,
        host: &Host,
    ) -> RedisResult<MultiplexedConnection> {
        let (changed, orders, host_of_pushes) =
            (self.changed.clone(), self.orders.clone(), host.clone());
        let push = move |push: PushInfo| {
            match push.kind {
                PushKind::Message | PushKind::SMessage => {
                    if let Some(Value::BulkString(channel)) = push.data.first()
                        && let Some(id) = partition::id_of_head(channel)
                    {
                        let _ = changed.try_send(id);
                    }
                }
                PushKind::Disconnection => {
                    if let Some(orders) = orders.upgrade() {
                        let _ = orders.try_send(Order::Lost(host_of_pushes.clone()));
                    }
                }
                // Also a sharded channel that the server gives up because its slot moves: the poll
                // serves those who wait then.
                _ => {}
            }
            Ok::<(), std::convert::Infallible>(())
        };
        let client = topology.client(host, ProtocolVersion::RESP3)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT))
            .set_push_sender(push);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }
}
