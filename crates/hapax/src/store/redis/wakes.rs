//! Being told of changes: Redis' publish and subscribe.
//!
//! Whoever changes a record publishes on a channel with the name of the record's head, and a node
//! subscribes to the channels of the records that its requests wait for. In a cluster from version 7
//! on the channels are sharded: only the server of the partition knows of them.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::scope::RecordId;
use hapax_core::store::Wakes;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::{Mutex, mpsc};

use super::address::Host;
use super::partition::{self, Partition};
use super::topology::Topology;

/// Subscriptions, on connections of their own.
pub(super) struct Subscriptions {
    orders: mpsc::UnboundedSender<Order>,
    changes: Mutex<mpsc::Receiver<RecordId>>,
}

enum Order {
    Watch(RecordId),
    Unwatch(RecordId),
    Lost(Host),
}

/// Changes that wait to be looked at. Beyond it they are dropped: the poll finds them.
const CHANGES_MAX: usize = 10_000;

/// The pause before a lost connection is made anew.
const PAUSE: Duration = Duration::from_millis(200);

/// The time for one subscription.
const TIMEOUT: Duration = Duration::from_secs(1);

impl Subscriptions {
    /// Served by a task on the current runtime, which ends with the store.
    pub(super) fn start(topology: &Arc<Topology>) -> Subscriptions {
        let (orders, received) = mpsc::unbounded_channel();
        let (changed, changes) = mpsc::channel(CHANGES_MAX);
        let subscriber = Subscriber {
            topology: Arc::downgrade(topology),
            orders: orders.downgrade(),
            changed,
            watched: HashMap::new(),
            connections: HashMap::new(),
        };
        tokio::spawn(subscriber.run(received));
        Subscriptions {
            orders,
            changes: Mutex::new(changes),
        }
    }
}

impl Wakes for Subscriptions {
    fn watch(&self, id: RecordId) {
        drop(self.orders.send(Order::Watch(id)));
    }

    fn unwatch(&self, id: RecordId) {
        drop(self.orders.send(Order::Unwatch(id)));
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
    orders: mpsc::WeakUnboundedSender<Order>,
    changed: mpsc::Sender<RecordId>,
    /// How many requests wait for each record.
    watched: HashMap<RecordId, u32>,
    connections: HashMap<Host, MultiplexedConnection>,
}

impl Subscriber {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Watch(id) => {
                    let count = self.watched.entry(id).or_default();
                    *count += 1;
                    if *count == 1 {
                        self.subscribe(id).await;
                    } else {
                        let _ = self.changed.try_send(id);
                    }
                }
                Order::Unwatch(id) => self.unwatch(id).await,
                Order::Lost(host) => {
                    if self.connections.remove(&host).is_some() {
                        tokio::time::sleep(PAUSE).await;
                        for id in self.watched.keys().copied().collect::<Vec<_>>() {
                            self.subscribe(id).await;
                        }
                    }
                }
            }
        }
    }

    async fn unwatch(&mut self, id: RecordId) {
        let Some(count) = self.watched.get_mut(&id) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.watched.remove(&id);
        let Some(topology) = self.topology.upgrade() else {
            return;
        };
        let command = if topology.is_sharded() {
            "SUNSUBSCRIBE"
        } else {
            "UNSUBSCRIBE"
        };
        for connection in self.connections.values_mut() {
            let mut unsubscribe = redis::cmd(command);
            unsubscribe.arg(partition::head(&id));
            let sent = connection.send_packed_command(&unsubscribe);
            drop(tokio::time::timeout(TIMEOUT, sent).await);
        }
    }

    /// Subscribes, and tells of the record at once: it may have changed before.
    async fn subscribe(&mut self, id: RecordId) {
        match tokio::time::timeout(TIMEOUT, self.try_subscribe(id)).await {
            Ok(Ok(())) => {
                let _ = self.changed.try_send(id);
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "Redis takes no subscription: waiters are polled for")
            }
            Err(_) => {
                tracing::debug!("Redis takes no subscription in time: waiters are polled for")
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
                        drop(orders.send(Order::Lost(host_of_pushes.clone())));
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
