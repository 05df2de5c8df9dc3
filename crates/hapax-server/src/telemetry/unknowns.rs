//! Counts the outcomes that wait to be settled and how long they have waited, and finds the age of
//! the oldest running attempt.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax::Hapax;
use hapax::core::record::{Head, State, StateFilter};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Metrics;
use super::metrics::Open;

/// Limit on the count: with so many, an operator needs the list, not the number.
pub(super) const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1_000;
/// Limit on the records read: running attempts are among them, and a node may have that many.
const SEEN_MAX: usize = 50_000;
/// A count stays valid for at least this long,
const GOOD_FOR_MIN: Duration = Duration::from_secs(5);
/// and for this many times the duration of counting: a store without an index by state reads every
/// record.
const PAUSE_FACTOR: u32 = 50;
/// How long a scrape waits for a new count before it gets the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keeps `hapax_unknown` and the ages of unfinished records up to date, whenever metrics are
/// scraped.
#[derive(Clone)]
pub struct Unknowns(Arc<Inner>);

struct Inner {
    hapax: Hapax,
    gauges: Open,
    /// Whether a lost attempt waits for a person; the next repeat resolves the others.
    is_counted: Box<dyn Fn(&Head) -> bool + Send + Sync>,
    /// When to count again; locked while counting.
    due: Mutex<Option<Instant>>,
}

impl Unknowns {
    /// Counts the unknown records in the store of `hapax` for which `is_counted` holds.
    pub fn new(
        hapax: Hapax,
        metrics: &Metrics,
        is_counted: impl Fn(&Head) -> bool + Send + Sync + 'static,
    ) -> Unknowns {
        let inner = Inner {
            hapax,
            gauges: metrics.open(),
            is_counted: Box::new(is_counted),
            due: Mutex::new(None),
        };
        Unknowns(Arc::new(inner))
    }

    /// Counts if the last count is old enough. A count that takes long continues in the background.
    /// If the store fails, the last count stays.
    pub async fn refresh(&self) {
        let inner = self.0.clone();
        let counting = tokio::spawn(async move { inner.refresh().await });
        let _ = tokio::time::timeout(PATIENCE, counting).await;
    }
}

impl Inner {
    async fn refresh(&self) {
        // Another task is counting already.
        let Ok(mut due) = self.due.try_lock() else {
            return;
        };
        let began = Instant::now();
        if due.is_some_and(|due| began < due) {
            return;
        }
        match self.count().await {
            Ok(found) => {
                self.gauges
                    .unknown
                    .set(i64::try_from(found.unknown).unwrap_or(i64::MAX));
                self.gauges
                    .oldest_unknown
                    .set(found.oldest_unknown.as_secs_f64());
                self.gauges
                    .oldest_attempt
                    .set(found.oldest_attempt.as_secs_f64());
            }
            Err(error) => {
                tracing::warn!(%error, "the unknown records could not be counted; hapax_unknown stays as it is");
            }
        }
        *due = Some(Instant::now() + GOOD_FOR_MIN.max(began.elapsed() * PAUSE_FACTOR));
    }

    async fn count(&self) -> Result<Found, StoreError> {
        let (mut found, mut seen, mut after) = (Found::default(), 0, None);
        while found.unknown < COUNTED_MAX && seen < SEEN_MAX {
            // All unfinished records: an unknown past its retention reads as expired, and an
            // attempt of a killed process as running until a sweep finds it.
            let page = self
                .hapax
                .list(ListQuery {
                    state: Some(StateFilter::Open),
                    after,
                    limit: PAGE,
                })
                .await?;
            let now = Timestamp::from_system_time(SystemTime::now());
            page.iter()
                .for_each(|head| found.add(head, now, &self.is_counted));
            seen += page.len();
            after = page.last().map(|head| head.id);
            if page.len() < PAGE {
                break;
            }
        }
        Ok(found)
    }
}

/// The result of a count.
#[derive(Default)]
struct Found {
    unknown: usize,
    oldest_unknown: Duration,
    oldest_attempt: Duration,
}

impl Found {
    fn add(&mut self, head: &Head, now: Timestamp, is_counted: impl Fn(&Head) -> bool) {
        let state = head.state_at(now);
        if state == State::Running {
            self.oldest_attempt = self.oldest_attempt.max(now.since(head.claimed_at));
            return;
        }
        // A forgotten record does not wait for a settlement.
        if !head.is_unresolved(state) || !is_counted(head) {
            return;
        }
        // An attempt not yet marked as lost is unknown since the end of its lease.
        let since = if head.state == State::Running {
            head.lease_until
        } else {
            head.finished_at
        };
        self.unknown += 1;
        self.oldest_unknown = self.oldest_unknown.max(now.since(since));
    }
}
