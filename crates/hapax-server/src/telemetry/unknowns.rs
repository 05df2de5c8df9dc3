//! How many outcomes wait to be settled.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hapax::Hapax;
use hapax::core::record::State;
use hapax::core::store::{ListQuery, StoreError};
use hapax::core::time::Timestamp;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::Metrics;

/// Counted no further: by then somebody should look at the list, not at the number.
pub(super) const COUNTED_MAX: usize = 10_000;
const PAGE: usize = 1_000;
/// A count is good for at least so long,
const GOOD_FOR_MIN: Duration = Duration::from_secs(5);
/// and for so many times as long as it took: a store without an index by state reads every record for it.
const PAUSE_FACTOR: u32 = 50;
/// How long whoever asks waits for a new count before getting the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Keeps `hapax_unknown` up to date, for as long as somebody asks.
#[derive(Clone)]
pub struct Unknowns(Arc<Inner>);

struct Inner {
    hapax: Hapax,
    gauge: Gauge,
    /// When to count again; held while somebody counts.
    due: Mutex<Option<Instant>>,
}

impl Unknowns {
    /// Counts the unknown records of this one.
    pub fn new(hapax: Hapax, metrics: &Metrics) -> Unknowns {
        Unknowns(Arc::new(Inner { hapax, gauge: metrics.unknown(), due: Mutex::new(None) }))
    }

    /// Counts, if the last count is old enough; goes on in the background if it takes long. If the store fails, the last count stays.
    pub async fn refresh(&self) {
        let inner = self.0.clone();
        let counting = tokio::spawn(async move { inner.refresh().await });
        let _ = tokio::time::timeout(PATIENCE, counting).await;
    }
}

impl Inner {
    async fn refresh(&self) {
        // Somebody counts already.
        let Ok(mut due) = self.due.try_lock() else { return };
        let began = Instant::now();
        if due.is_some_and(|due| began < due) {
            return;
        }
        match count(&self.hapax).await {
            Ok(count) => {
                self.gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
            }
            Err(error) => tracing::warn!(%error, "the unknown records could not be counted; hapax_unknown stays as it is"),
        }
        *due = Some(Instant::now() + GOOD_FOR_MIN.max(began.elapsed() * PAUSE_FACTOR));
    }
}

async fn count(hapax: &Hapax) -> Result<usize, StoreError> {
    let (mut count, mut after) = (0, None);
    while count < COUNTED_MAX {
        // Whatever nobody knows the end of: past its retention an unknown one reads as expired, and one of a process that was killed as
        // running, until a sweep comes by.
        let page = hapax.list(ListQuery { state: Some(State::OPEN), after, limit: PAGE }).await?;
        let now = Timestamp::from_system_time(SystemTime::now());
        count += page.iter().filter(|head| head.state_at(now) != State::Running).count();
        after = page.last().map(|head| head.id);
        if page.len() < PAGE {
            break;
        }
    }
    Ok(count)
}
