//! The store in a Redis or Valkey, which many nodes may share. It keeps what Redis keeps: a crash or
//! a failover may lose the latest records, and their requests may run again. For payments use
//! Postgres, with Redis as a cache in front of it if you like.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::Hapax;
//!
//! let hapax = Hapax::redis_best_effort("redis://cache.internal").await?.namespace("shop");
//! # Ok(()) }
//! ```
//!
//! With other options:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::redis::{Options, Redis};
//! use hapax::Hapax;
//!
//! let mut options = Options::best_effort("redis+sentinel://a,b,c/hapax")?;
//! options.replicas = 1;
//! let hapax = Hapax::new(Redis::open(options).await?).namespace("shop");
//! # Ok(()) }
//! ```
//!
//! Every verb is one script: one atomic step, one round trip. The scripts follow the rules of
//! [`hapax_core::guard`] and use the server's clock. A record with a known end leaves Redis after its
//! tombstone: by a sweep, or by itself a week later. A running or unknown one never does.
//!
//! Guide to the code: `scripts/` has the scripts, `partition` the keys. `node` is a connection that
//! reconnects and the queue in front of it, `topology` finds the server of a partition: one server,
//! a sentinel's master, or nodes of a cluster. `inspect` looks at what a server keeps. `head` is the
//! layout of a record. `audit`, `upkeep` and `transfer` have the calls that are rare.

mod address;
mod audit;
#[cfg(feature = "postgres")]
pub(super) mod cache;
mod error;
pub(super) mod head;
mod inspect;
mod node;
mod partition;
mod reply;
mod scripts;
mod shared;
mod stats;
mod topology;
mod transfer;
mod upkeep;
mod wakes;

use std::sync::Arc;
use std::time::Duration;

use hapax_core::audit::{LogEntry, LogQuery, Note, Signed};
use hapax_core::record::{Fence, Head, State};
use hapax_core::scope::{PrincipalId, RecordId};
use hapax_core::store::{
    Change, Claim, Condition, Finish, KnownPrincipal, Lifetime, ListQuery, Put, Reading, Renewal,
    Reply, Seen, Store, StoreError, StoreInfo, Swept, Wakes, Written,
};

pub use address::{Address, AddressError};
pub use error::OpenError;
pub use stats::Stats;
pub use transfer::Mover;

use self::head::NO_STATUS;
use self::partition::{Partition, record_keys};
use self::shared::Shared;
use self::topology::{Command, RecordCall, Topology};
use self::wakes::Subscriptions;
use super::codec;

/// Records in a Redis or Valkey.
pub struct Redis {
    topology: Arc<Topology>,
    subscriptions: Subscriptions,
    shared: Arc<Shared>,
}

/// How to use a Redis.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where it is.
    pub address: Address,
    /// How many replicas must confirm a write before it counts; none by default. A write that fewer
    /// confirm in time is an error whose outcome is not known. This makes a lost write rare, not
    /// impossible: a replica that has confirmed may not be the one that is promoted.
    pub replicas: u32,
    /// How long to wait for the replicas; half a second by default.
    pub replica_timeout: Duration,
    /// How long a call may take; 1.5 seconds by default, which is less than the two seconds after
    /// which a request is given up.
    pub call_timeout: Duration,
    /// Bytes that may wait to be sent; 64 MiB by default. Beyond it a request is refused at once.
    pub queue_bytes_max: usize,
    /// How many records may be running or unknown; a million by default. These never leave Redis
    /// by themselves. Beyond it new keys are refused.
    pub open_records_max: u64,
    /// Whether records are kept here, and not only copies of them.
    is_store: bool,
}

impl Options {
    /// The default options. The name is the promise: what Redis loses is lost, and a request whose
    /// record is lost may have its effect again.
    pub fn best_effort(address: &str) -> Result<Options, AddressError> {
        Ok(Options {
            address: address.parse()?,
            replicas: 0,
            replica_timeout: Duration::from_millis(500),
            call_timeout: Duration::from_millis(1500),
            queue_bytes_max: 64 << 20,
            open_records_max: 1_000_000,
            is_store: true,
        })
    }
}

impl Redis {
    /// Connects, and looks at what the server keeps: one that evicts records is refused, other
    /// weak settings are logged as warnings. Connections run on the current runtime.
    pub async fn open(options: Options) -> Result<Redis, OpenError> {
        let store = Redis::connect(options).await?;
        let standing = store.standing().await;
        let standing = standing.map_err(|source| store.not_opened(source))?;
        match standing.refusal() {
            None => Ok(store),
            Some(refusal) => Err(OpenError::Standing {
                address: store.shared.options.address.to_string(),
                refusal,
            }),
        }
    }

    /// As [`open`](Redis::open), whatever the standing of the store.
    async fn connect(options: Options) -> Result<Redis, OpenError> {
        let shared = Arc::new(Shared::new(options));
        let topology = Arc::new(Topology::new(shared.clone()));
        let store = Redis {
            subscriptions: Subscriptions::start(&topology),
            topology,
            shared,
        };
        match store.read_info().await {
            Ok(_) => Ok(store),
            Err(error) => Err(store.not_opened(error)),
        }
    }

    fn not_opened(&self, source: StoreError) -> OpenError {
        let address = self.shared.options.address.to_string();
        match self.shared.unfit() {
            Some(reason) => OpenError::Unfit { address, reason },
            None => OpenError::Connect { address, source },
        }
    }

    /// Counters and gauges of the store, for metrics. Does not access Redis.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read()
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        let Put {
            id,
            condition,
            change,
        } = put;
        let claim = match &change {
            Change::Claim(claim) => Some(claim.clone()),
            _ => None,
        };
        let publish = self.topology.publish();
        let by_hand = matches!(change, Change::Settle(..) | Change::Forget(..));
        let command = match (change, condition) {
            (Change::Claim(claim), Condition::Absent) => self.claim(&id, None, &claim),
            (Change::Claim(claim), Condition::Lapsed { fence }) => {
                self.claim(&id, Some(fence), &claim)
            }
            (Change::Finish(finish), Condition::Held { fence }) if is_end(finish.state) => {
                end(&id, fence, &finish)
            }
            (Change::Lose(lifetime), Condition::Lapsed { fence }) => {
                lose(&id, &fence.to_string(), lifetime, publish)
            }
            (Change::Settle(finish, signed), Condition::Version { version })
                if is_end(finish.state) && finish.state != State::Unknown =>
            {
                operator(&id, "settle", version, &signed, &finish, publish)
            }
            (Change::Forget(lifetime, signed), Condition::Version { version }) => {
                let finish = Finish {
                    state: State::Completed,
                    status: None,
                    answer: None,
                    lifetime,
                };
                operator(&id, "forget", version, &signed, &finish, publish)
            }
            // No other pair is a transition.
            _ => return self.read_one(id).await.map(Written::Lost),
        };
        let reply = self.topology.call(Partition::of(&id), command).await?;
        let written = reply::written(id, reply, &self.shared.policies, claim.as_ref())?;
        if let Written::Won(won) = &written {
            self.shared.saw(won.head.fence);
            if by_hand {
                self.hand_on_log(Partition::of(&id)).await?;
            }
        }
        Ok(written)
    }

    fn claim(&self, id: &RecordId, after: Option<Fence>, claim: &Claim) -> Command {
        let open_max = self.shared.options.open_records_max;
        let open_max = open_max.div_ceil(partition::RECORD_PARTITIONS.into());
        let numbers = packed(
            RecordCall::Claim,
            &[
                &[after.is_some().into()],
                &after.map_or(0, Fence::as_u64).to_be_bytes(),
                &micros(claim.lease).to_be_bytes(),
                &open_max.min(1 << 52).to_be_bytes(),
            ],
        );
        Command::record(RecordCall::Claim, id, numbers, head::rest(claim))
    }

    async fn read_one(&self, id: RecordId) -> Result<Seen, StoreError> {
        let reply = self
            .topology
            .call(Partition::of(&id), read(&id, true))
            .await?;
        reply::seen(id, reply, &self.shared.policies)
    }

    /// All at once: they share round trips.
    async fn read(&self, ids: Vec<RecordId>) -> Result<Reading, StoreError> {
        let seen = together(ids.into_iter().map(|id| self.read_one(id))).await?;
        let now = seen.iter().map(|seen| seen.now).max();
        let now = match now {
            Some(now) => now,
            None => self.read_info().await?.now,
        };
        let records = seen.into_iter().map(|seen| seen.record).collect();
        Ok(Reading { records, now })
    }

    async fn renew_one(&self, renewal: Renewal) -> Result<bool, StoreError> {
        let Renewal { id, fence, lease } = renewal;
        let command = Command::script(&scripts::RENEW, record_keys(&id))
            .arg(fence.to_string())
            .number(micros(lease));
        let reply = self.topology.call(Partition::of(&id), command).await?;
        reply::integer(&reply).map(|renewed| renewed == 1)
    }
}

/// Whether an attempt can end in this state.
fn is_end(state: State) -> bool {
    matches!(
        state,
        State::Completed | State::Failed | State::Retryable | State::Unknown
    )
}

/// The numbers of a call about a record, as its script unpacks them.
fn packed(call: RecordCall, numbers: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40);
    bytes.push(call as u8);
    for number in numbers {
        bytes.extend_from_slice(number);
    }
    bytes
}

fn read(id: &RecordId, with_answer: bool) -> Command {
    let numbers = packed(RecordCall::Read, &[&[with_answer.into()]]);
    Command::record(RecordCall::Read, id, numbers, Vec::new())
}

fn end(id: &RecordId, fence: Fence, finish: &Finish) -> Command {
    let numbers = packed(
        RecordCall::Finish,
        &[
            &fence.as_u64().to_be_bytes(),
            &[codec::state_code(finish.state) as u8],
            &finish.status.map_or(NO_STATUS, u32::from).to_be_bytes(),
            &micros(finish.lifetime.retention).to_be_bytes(),
            &micros(finish.lifetime.tombstone).to_be_bytes(),
        ],
    );
    let answer = finish.answer.as_ref();
    let answer = answer.map_or(Vec::new(), |answer| answer.encode(id));
    Command::record(RecordCall::Finish, id, numbers, answer)
}

fn operator(
    id: &RecordId,
    action: &str,
    version: u64,
    signed: &Signed,
    finish: &Finish,
    publish: &str,
) -> Command {
    let mut keys = record_keys(id);
    keys.push(Partition::of(id).log());
    let command = Command::script(&scripts::OPERATOR, keys)
        .arg(action)
        .number(version)
        .arg(audit::signature(signed))
        .number(codec::state_code(finish.state).unsigned_abs().into())
        .number(finish.status.map_or(NO_STATUS, u32::from).into());
    let command = lifetime(command, finish.lifetime).arg(publish);
    match &finish.answer {
        Some(answer) => command.arg(answer.encode(id)),
        None => command,
    }
}

/// Without a fence, of the attempt that is there.
fn lose(id: &RecordId, fence: &str, lost_for: Lifetime, publish: &str) -> Command {
    let command = Command::script(&scripts::LOSE, record_keys(id)).arg(fence);
    lifetime(command, lost_for).arg(publish)
}

fn lifetime(command: Command, lifetime: Lifetime) -> Command {
    command
        .number(micros(lifetime.retention))
        .number(micros(lifetime.tombstone))
}

/// A duration in microseconds, capped so that the scripts can count with it.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros())
        .unwrap_or(u64::MAX)
        .min(1 << 52)
}

/// Waits for all of these at once. The first error ends the wait.
async fn together<T>(
    calls: impl Iterator<Item = impl Future<Output = Result<T, StoreError>>>,
) -> Result<Vec<T>, StoreError> {
    futures_util::future::try_join_all(calls).await
}

impl Store for Redis {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(self.read(ids))
    }

    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    fn renew(&self, renewals: Vec<Renewal>) -> Reply<'_, Vec<bool>> {
        Box::pin(together(
            renewals.into_iter().map(|renewal| self.renew_one(renewal)),
        ))
    }

    fn list(&self, query: ListQuery) -> Reply<'_, Vec<Head>> {
        Box::pin(self.list_heads(query))
    }

    fn sweep(&self, limit: usize) -> Reply<'_, Swept> {
        Box::pin(self.sweep_once(limit))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        Box::pin(self.read_info())
    }

    fn remember(&self, principals: Vec<KnownPrincipal>) -> Reply<'_, ()> {
        Box::pin(self.remember_all(principals))
    }

    fn knows(&self, principal: PrincipalId) -> Reply<'_, bool> {
        Box::pin(self.is_known(principal))
    }

    fn log(&self, query: LogQuery) -> Reply<'_, Vec<LogEntry>> {
        Box::pin(self.read_log(query))
    }

    fn note(&self, note: Note) -> Reply<'_, LogEntry> {
        Box::pin(self.write_note(note))
    }

    fn wakes(&self) -> Option<&dyn Wakes> {
        Some(&self.subscriptions)
    }
}
