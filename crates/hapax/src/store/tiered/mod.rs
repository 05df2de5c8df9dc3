//! Redis over Postgres: Postgres decides, Redis makes repeats cheap.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use hapax::store::tiered::{Options, Tiered};
//! use hapax::{Hapax, Postgres};
//!
//! let postgres = Postgres::open("postgres://app@db.internal/payments").await?;
//! let store = Tiered::new(postgres, &Options::new("redis://cache.internal"))?;
//! let hapax = Hapax::new(store).namespace("payments");
//! # Ok(()) }
//! ```
//!
//! Redis may only ever say "this request has its answer, and here it is". Every claim is decided by
//! Postgres. So a Redis that is flushed, dead, slow, old or full of forgeries costs time, and never
//! an effect or a wrong answer:
//!
//! - A copy is sealed with a key from Postgres. Whoever reads Redis cannot read it, and whoever
//!   writes to Redis cannot make one.
//! - A copy counts only under the forget-epoch in which it was made, only before its retention is
//!   over, and only for a request with the same fingerprint. In any other case Postgres is asked.
//! - The epoch that a copy is marked with was read before the record was, so that a copy of a
//!   forgotten record is never marked with the epoch after it.
//! - A Redis that fails three times in a row is left alone for a while.
//!
//! Through the same Redis a node learns at once that an attempt of another node has ended.

mod seal;
mod stats;

use std::sync::Arc;
use std::time::Duration;

use hapax_core::guard;
use hapax_core::planted::{self, Bug};
use hapax_core::record::{Fence, Record, State};
use hapax_core::scope::RecordId;
use hapax_core::store::{
    Change, Claim, Condition, EPOCH_GOOD_FOR, Joins, Put, Reply, Seen, Store, StoreError,
    StoreInfo, Wakes, Won, Written,
};
use hapax_core::time::Timestamp;
use hapax_core::{Secret, forward_store};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use stats::Stats;

use self::seal::{Opened, Seal};
use self::stats::Counters;
use super::postgres::Postgres;
use super::redis::AddressError;
use super::redis::cache::{Cache, Found};

/// A Postgres with a Redis that keeps copies of answers.
pub struct Tiered {
    store: Postgres,
    cache: Arc<Cache>,
    answer_bytes_max: usize,
    known: Mutex<Option<Known>>,
    counters: Arc<Counters>,
}

/// How to use the Redis.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Where it is: see [`Address`](super::redis::Address).
    pub address: String,
    /// How long a call to Redis may take before Postgres is asked instead; 50 milliseconds by
    /// default.
    pub timeout: Duration,
    /// The largest answer that is copied; a mebibyte by default.
    pub answer_bytes_max: usize,
}

impl Options {
    /// The default options for the Redis at this address.
    pub fn new(address: impl Into<String>) -> Options {
        Options {
            address: address.into(),
            timeout: Duration::from_millis(50),
            answer_bytes_max: 1 << 20,
        }
    }
}

/// What Postgres said of itself a moment ago.
#[derive(Clone)]
struct Known {
    asked_at: Instant,
    now: Timestamp,
    epoch: u64,
    secret: Secret,
    seal: Arc<Seal>,
}

impl Known {
    /// The store's time, or a little later: a copy ends rather too early than too late.
    fn now(&self) -> Timestamp {
        self.now.after(self.asked_at.elapsed())
    }
}

/// A copy is not used in the last moment of its retention: clocks and pauses may differ by that.
const MARGIN: Duration = Duration::from_secs(2);

impl Tiered {
    /// A Redis in front of a Postgres. Redis need not be reachable, now or later.
    pub fn new(store: Postgres, options: &Options) -> Result<Tiered, AddressError> {
        Ok(Tiered {
            store,
            cache: Arc::new(Cache::new(&options.address, options.timeout)?),
            answer_bytes_max: options.answer_bytes_max,
            known: Mutex::default(),
            counters: Arc::default(),
        })
    }

    /// The Postgres.
    pub fn postgres(&self) -> &Postgres {
        &self.store
    }

    /// Counters and gauges of the cache, for metrics.
    pub fn stats(&self) -> Stats {
        self.counters.read(self.cache.is_left_alone())
    }

    async fn read_info(&self) -> Result<StoreInfo, StoreError> {
        let asked_at = Instant::now();
        let info = self.store.info().await?;
        let mut known = self.known.lock();
        if known.as_ref().is_none_or(|known| known.asked_at < asked_at) {
            let seal = match &*known {
                Some(known) if known.secret == info.secret => known.seal.clone(),
                _ => Arc::new(Seal::new(&info.secret)),
            };
            *known = Some(Known {
                asked_at,
                now: info.now,
                epoch: info.epoch,
                secret: info.secret,
                seal,
            });
        }
        Ok(info)
    }

    /// What is known of Postgres, if it was read recently enough to use copies by it.
    fn known(&self) -> Option<Known> {
        let known = self.known.lock().clone();
        known.filter(|known| known.asked_at.elapsed() < EPOCH_GOOD_FOR)
    }

    async fn put(&self, put: Put) -> Result<Written, StoreError> {
        // Before anything is read: what is read under it may be kept under it.
        let known = self.known();
        if let (Change::Claim(claim), Condition::Absent, Some(known)) =
            (&put.change, put.condition, &known)
            && let Some(seen) = self.look_up(&put.id, claim, known).await
        {
            return Ok(Written::Lost(seen));
        }
        if planted::is(Bug::RedisTierBelievesAbsence)
            && let (Some(known), Condition::Absent) = (&known, put.condition)
            && let Ok(head) = guard::judge(None, &put, known.now(), Fence::ZERO)
        {
            let now = known.now();
            return Ok(Written::Won(Won { head, now }));
        }
        let (id, answer) = (put.id, put.change.answer().cloned());
        let (ends, is_forgetting) = match &put.change {
            Change::Finish(_) | Change::Settle(..) | Change::Lose(_) => (true, false),
            Change::Forget(..) => (true, true),
            Change::Claim(_) => (false, false),
        };
        let written = self.store.put_if(put).await?;
        match &written {
            Written::Won(_) if is_forgetting => self.cache.remove(&id).await,
            Written::Won(Won { head, now }) if ends => {
                let head = head.clone();
                let record = Record { head, answer };
                let kept = known.is_some_and(|known| self.keep(&record, *now, &known));
                if !kept {
                    let cache = self.cache.clone();
                    tokio::spawn(async move { cache.publish(&id).await });
                }
            }
            Written::Lost(Seen {
                record: Some(record),
                now,
            }) => {
                if let Some(known) = known {
                    self.keep(record, *now, &known);
                }
            }
            _ => {}
        }
        Ok(written)
    }

    /// The answer to this very request, if Redis has a copy that counts.
    async fn look_up(&self, id: &RecordId, claim: &Claim, known: &Known) -> Option<Seen> {
        let value = match self.cache.get(id).await {
            Found::Value(value) => value,
            Found::Nothing => return self.counters.miss(),
            Found::Failed => return self.counters.failure(),
            Found::LeftAlone => return self.counters.left_alone(),
        };
        let Some(Opened { epoch, record }) = known.seal.open(id, &value) else {
            // Postgres settles it, and the copy is replaced by a good one.
            return self.counters.unreadable();
        };
        let now = known.now();
        let is_current = epoch == known.epoch || planted::is(Bug::RedisTierIgnoresEpoch);
        let is_current = is_current && record.head.expires_at > now.after(MARGIN);
        let is_same = record.head.fingerprint.as_ref() == Some(&claim.fingerprint)
            || planted::is(Bug::RedisTierIgnoresFingerprint);
        if !(is_current && is_same && is_answered(&record)) {
            return self.counters.set_aside();
        }
        self.counters.hit();
        let record = Some(record);
        Some(Seen { record, now })
    }

    /// Copies an answered record to Redis, in the background. Returns whether it does.
    fn keep(&self, record: &Record, now: Timestamp, known: &Known) -> bool {
        let Some(answer) = record.answer.as_ref().filter(|_| is_answered(record)) else {
            return false;
        };
        let left = record.head.expires_at.since(now);
        if left <= MARGIN || answer.encoded_len() > self.answer_bytes_max {
            return false;
        }
        let id = record.head.id;
        let value = known.seal.seal(record, known.epoch);
        let (cache, counters) = (self.cache.clone(), self.counters.clone());
        tokio::spawn(async move {
            if cache.put(&id, value, left).await {
                counters.kept();
            }
        });
        true
    }
}

/// Whether a record may be copied: its effect is done or refused, and its answer is there.
fn is_answered(record: &Record) -> bool {
    matches!(record.head.state, State::Completed | State::Failed) && record.answer.is_some()
}

impl Store for Tiered {
    fn put_if(&self, put: Put) -> Reply<'_, Written> {
        Box::pin(self.put(put))
    }

    fn info(&self) -> Reply<'_, StoreInfo> {
        Box::pin(self.read_info())
    }

    fn wakes(&self) -> Option<&dyn Wakes> {
        Some(self.cache.wakes())
    }

    fn joins(&self) -> Option<&dyn Joins> {
        self.store.joins()
    }

    forward_store!(self => self.store; get, renew, list, sweep, remember, knows, log, note);
}
