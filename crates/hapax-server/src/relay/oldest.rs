//! How old the oldest message is that a reader has not published. The database is asked when metrics
//! are scraped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::core::time::Timestamp;
use hapax_flow::outbox::operate::{Operators, ReaderState};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Source;

/// How long an answer is good.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// How long a scrape waits for a new answer before it gets the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Knows the age of the oldest unpublished message of each reader.
pub(crate) struct Oldest {
    operators: Arc<dyn Operators>,
    runtime: Handle,
    known: Mutex<BTreeMap<String, f64>>,
    /// When to ask again; locked while asking.
    due: tokio::sync::Mutex<Option<Instant>>,
}

impl Oldest {
    /// Asks this outbox, on this runtime.
    pub(crate) fn new(source: &Source, runtime: Handle) -> Arc<Oldest> {
        Arc::new(Oldest {
            operators: source.operators(),
            runtime,
            known: Mutex::default(),
            due: tokio::sync::Mutex::new(None),
        })
    }

    /// Asks if the last answer is old enough. If the database fails, that answer stays.
    pub(crate) async fn refresh(self: &Arc<Self>) {
        let oldest = self.clone();
        let asking = self.runtime.spawn(async move { oldest.ask().await });
        let _ = tokio::time::timeout(PATIENCE, asking).await;
    }

    /// The age in seconds at the last answer; 0 if everything is published, `None` if nobody has
    /// answered yet.
    pub(crate) fn seconds(&self, reader: &str) -> Option<f64> {
        self.known.lock().get(reader).copied()
    }

    async fn ask(&self) {
        // Another task is asking already.
        let Ok(mut due) = self.due.try_lock() else {
            return;
        };
        if due.is_some_and(|due| Instant::now() < due) {
            return;
        }
        match self.operators.readers().await {
            Ok(readers) => {
                *self.known.lock() = readers
                    .iter()
                    .map(|reader| (reader.name.clone(), age(reader)))
                    .collect();
            }
            Err(error) => {
                tracing::warn!(%error, "the age of the oldest message could not be asked for; its metric stays as it is");
            }
        }
        *due = Some(Instant::now() + GOOD_FOR);
    }
}

fn age(reader: &ReaderState) -> f64 {
    let at: Option<Timestamp> = reader.oldest.as_ref().map(|oldest| oldest.at);
    at.map_or(0.0, |at| reader.now.since(at).as_secs_f64())
}
