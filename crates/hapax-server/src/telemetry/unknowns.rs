//! How many outcomes wait for somebody to settle them, and for how long; and how long the oldest
//! attempt has been running.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax::Hapax;
use hapax::core::record::{Head, State};
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Metrics;
use super::metrics::Open;

/// Counted no further: by then somebody should look at the list, not at the number.
pub(super) const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1_000;
/// Nor looked any further: attempts under way are among them, and a node may have as many.
const SEEN_MAX: usize = 50_000;
/// A count is good for at least so long,
const GOOD_FOR_MIN: Duration = Duration::from_secs(5);
/// and for so many times as long as it took: a store without an index by state reads every record
/// for it.
const PAUSE_FACTOR: u32 = 50;
/// How long whoever asks waits for a new count before getting the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keeps `hapax_unknown` and the ages of what has no end up to date, for as long as somebody asks.
#[derive(Clone)]
pub struct Unknowns(Arc<Inner>);

struct Inner {
    hapax: Hapax,
    gauges: Open,
    /// Whether a lost attempt waits for a person: the next repeat resolves the others.
    is_counted: Box<dyn Fn(&Head) -> bool + Send + Sync>,
    /// When to count again; held while somebody counts.
    due: Mutex<Option<Instant>>,
}

impl Unknowns {
    /// Counts the unknown records of this one, as far as they count.
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

    /// Counts, if the last count is old enough; goes on in the background if it takes long. If the
    /// store fails, the last count stays.
    pub async fn refresh(&self) {
        let inner = self.0.clone();
        let counting = tokio::spawn(async move { inner.refresh().await });
        let _ = tokio::time::timeout(PATIENCE, counting).await;
    }
}

impl Inner {
    async fn refresh(&self) {
        // Somebody counts already.
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
            // Whatever nobody knows the end of: past its retention an unknown one reads as expired,
            // and one of a process that was killed as running, until a sweep comes by.
            let page = self
                .hapax
                .list(ListQuery {
                    state: Some(State::OPEN),
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

/// What was found of the records that have no end.
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
        // One that was forgotten waits for nobody.
        if !head.is_unresolved(state) || !is_counted(head) {
            return;
        }
        // One that nobody wrote down yet is unknown since its lease was over.
        let since = if head.state == State::Running {
            head.lease_until
        } else {
            head.finished_at
        };
        self.unknown += 1;
        self.oldest_unknown = self.oldest_unknown.max(now.since(since));
    }
}
