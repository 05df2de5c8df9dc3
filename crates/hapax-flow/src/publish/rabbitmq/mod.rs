//! RabbitMQ.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax_flow::publish::{RabbitMq, RabbitOptions, RabbitServers};
//!
//! let mut options = RabbitOptions::new(RabbitServers::new(["amqp://shop:word@localhost/shop"]));
//! options.exchange = "events".into();
//! options.routing_key = "shop.{topic}".into();
//! let rabbit = RabbitMq::new(options)?;
//! # Ok(()) }
//! ```

mod lane;
mod parcel;

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use futures_util::{StreamExt, stream};
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};
use lapin::{Confirmation, ErrorKind};
use tokio::sync::Mutex;
use tokio::time::timeout;

use self::lane::Lane;
use self::parcel::Parcels;
use super::chains::chains;
use super::cloud_events::CloudEvents;
use super::{Envelope, Outage, Publisher, Reply, Verdict};
use crate::rabbitmq::{Cluster, Link, RabbitError, RabbitServers};

/// Channels of a connection. Each has at most one message that is not confirmed: with more, the
/// client would not know which of them a message belongs to that comes back.
const LANES: usize = 64;

/// Messages that are under way at a time, or wait for a lane.
const IN_FLIGHT_MAX: usize = 256;

/// How [`RabbitMq`] publishes.
#[derive(Clone, Debug)]
pub struct RabbitOptions {
    /// Where it is.
    pub servers: RabbitServers,
    /// The exchange of a message, with `{topic}` where its topic stands. By default the one without
    /// a name, which takes a message to the queue that is called as its routing key.
    pub exchange: String,
    /// The routing key of a message, with `{topic}` where its topic stands: `{topic}` alone by
    /// default, `shop.{topic}` for a prefix.
    pub routing_key: String,
    /// How messages look.
    pub events: CloudEvents,
}

impl RabbitOptions {
    /// The defaults, with these servers.
    pub fn new(servers: RabbitServers) -> RabbitOptions {
        RabbitOptions {
            servers,
            exchange: String::new(),
            routing_key: "{topic}".to_owned(),
            events: CloudEvents::default(),
        }
    }
}

/// Publishes to exchanges of RabbitMQ.
///
/// Messages are persistent and `mandatory`, and each is confirmed: it is accepted when every queue
/// that it was routed to has it safely. RabbitMQ recognises no repeats: its consumers do, by the
/// property `message_id` or the header `cloudEvents:id`.
///
/// It connects by itself, at the first call and after each loss.
///
/// | RabbitMQ | Verdict |
/// |---|---|
/// | confirms | accepted |
/// | returns it, because no queue is bound for it | refused |
/// | rejects it (`nack`): a queue is full, or cannot write | failed |
/// | has no such exchange, or does not allow it | failed; an [`Outage`] if nothing else was accepted |
/// | says nothing within the time limit, but answers other questions | unclear |
/// | is away, or takes nothing from anybody | an [`Outage`] |
pub struct RabbitMq {
    cluster: Cluster,
    parcels: Parcels,
    session: Mutex<Option<Arc<Session>>>,
}

impl RabbitMq {
    /// A publisher that is not connected yet.
    ///
    /// # Errors
    ///
    /// [`RabbitError`] if nothing could ever be published so.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "as every other publisher is made"
    )]
    pub fn new(options: RabbitOptions) -> Result<RabbitMq, RabbitError> {
        Ok(RabbitMq {
            cluster: Cluster::new(&options.servers)?,
            parcels: Parcels::new(&options)?,
            session: Mutex::new(None),
        })
    }

    /// The connection, a new one if need be. Calls at the same time share it.
    async fn session(&self) -> Result<Arc<Session>, Outage> {
        let connecting = async {
            let mut place = self.session.lock().await;
            if let Some(session) = place.as_ref().filter(|found| found.link.is_usable()) {
                return Ok(session.clone());
            }
            *place = None;
            let session = Session::new(self.cluster.connect("hapax relay").await?);
            Ok(place.insert(Arc::new(session)).clone())
        };
        let limit = self.cluster.timeout;
        timeout(limit, connecting)
            .await
            .unwrap_or_else(|_| Err(format!("no connection to RabbitMQ within {limit:?}")))
            .map_err(Outage::new)
    }

    async fn publish_batch(&self, batch: &[Envelope]) -> Result<Vec<Verdict>, Outage> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let sending = Sending {
            rabbit: self,
            session: self.session().await?,
            batch,
            unusable: OnceLock::new(),
        };
        let mut verdicts = vec![Verdict::NotSent; batch.len()];
        let chains = chains(batch).into_iter().map(|chain| sending.chain(chain));
        let mut chains = stream::iter(chains).buffer_unordered(IN_FLIGHT_MAX);
        while let Some(ended) = chains.next().await {
            for (place, verdict) in ended? {
                verdicts[place] = verdict;
            }
        }
        // An exchange that is not there concerns its messages alone, as long as others arrive.
        match sending.unusable.get() {
            Some(reason) if !verdicts.iter().any(Verdict::is_accepted) => Err(Outage::new(reason)),
            _ => Ok(verdicts),
        }
    }
}

impl std::fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMq")
            .field("servers", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Publisher for RabbitMq {
    fn publish<'a>(&'a self, batch: &'a [Envelope]) -> Reply<'a, Result<Vec<Verdict>, Outage>> {
        Box::pin(self.publish_batch(batch))
    }
}

/// A connection with its channels.
struct Session {
    link: Link,
    lanes: Vec<Mutex<Lane>>,
}

impl Session {
    fn new(link: Link) -> Session {
        Session {
            link,
            lanes: (0..LANES).map(|_| Mutex::default()).collect(),
        }
    }

    /// Messages of one key always have the same lane: what a dropped call has sent there is settled
    /// before anything else is sent.
    fn lane(&self, message: &Envelope, place: usize) -> &Mutex<Lane> {
        let number = match message.ordered_key() {
            Some(key) => {
                let mut hasher = DefaultHasher::new();
                key.hash(&mut hasher);
                hasher.finish() as usize
            }
            None => place,
        };
        &self.lanes[number % self.lanes.len()]
    }
}

/// One call, on one connection.
struct Sending<'a> {
    rabbit: &'a RabbitMq,
    session: Arc<Session>,
    batch: &'a [Envelope],
    /// Why an exchange takes nothing.
    unusable: OnceLock<String>,
}

impl Sending<'_> {
    /// Publishes messages one after the other, up to the first that is not accepted.
    async fn chain(&self, chain: Vec<usize>) -> Result<Vec<(usize, Verdict)>, Outage> {
        let mut verdicts = Vec::with_capacity(chain.len());
        for place in chain {
            let verdict = self.one(place).await?;
            let is_accepted = verdict.is_accepted();
            verdicts.push((place, verdict));
            if !is_accepted {
                break;
            }
        }
        Ok(verdicts)
    }

    async fn one(&self, place: usize) -> Result<Verdict, Outage> {
        let (message, session) = (&self.batch[place], &self.session);
        let frame_bytes_max = session.link.frame_bytes_max();
        let parcel = match self.rabbit.parcels.wrap(message, frame_bytes_max) {
            Ok(parcel) => parcel,
            Err(reason) => return Ok(Verdict::Refused(reason)),
        };
        let at = parcel.address();
        let limit = self.rabbit.cluster.timeout;
        let mut lane = session.lane(message, place).lock().await;
        match timeout(limit, lane.publish(&session.link, parcel)).await {
            Ok(Ok(confirmation)) => Ok(of_confirmation(&confirmation, &at)),
            Ok(Err(error)) => self.of_error(&error, &at),
            Err(_) if session.link.is_alive(limit).await => {
                lane.give_up();
                Ok(Verdict::Unclear(format!(
                    "RabbitMQ did not confirm a message for {at} within {limit:?}"
                )))
            }
            Err(_) if session.link.is_blocked() => {
                Err(self.outage("RabbitMQ takes no messages, because it lacks memory or disk"))
            }
            Err(_) => Err(self.outage("RabbitMQ does not answer")),
        }
    }

    /// What it means that the server has closed the channel, or that the connection is lost.
    fn of_error(&self, error: &lapin::Error, at: &str) -> Result<Verdict, Outage> {
        let ErrorKind::ProtocolError(told) = error.kind() else {
            return Err(self.outage(&format!("the connection to RabbitMQ was lost: {error}")));
        };
        let reason = format!("RabbitMQ: {} (message for {at})", told.get_message());
        match told.kind() {
            AMQPErrorKind::Soft(
                AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE,
            ) => Ok(Verdict::Refused(reason)),
            AMQPErrorKind::Soft(_) => {
                self.unusable.get_or_init(|| reason.clone());
                Ok(Verdict::Failed(reason))
            }
            AMQPErrorKind::Hard(_) => Err(self.outage(&reason)),
        }
    }

    fn outage(&self, what: &str) -> Outage {
        self.session.link.cut();
        Outage::new(format!("{what}: {}", self.session.link.server()))
    }
}

fn of_confirmation(confirmation: &Confirmation, at: &str) -> Verdict {
    match confirmation {
        Confirmation::Ack(None) => Verdict::ACCEPTED,
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Verdict::Refused(format!(
            "no queue of RabbitMQ is bound for {at}: bind one, then `hapax outbox retry`"
        )),
        Confirmation::Nack(None) => Verdict::Failed(format!(
            "RabbitMQ rejected a message for {at}: a queue of it is full or cannot write"
        )),
        Confirmation::NotRequested => Verdict::Unclear(format!(
            "RabbitMQ was not asked to confirm a message for {at}"
        )),
    }
}
