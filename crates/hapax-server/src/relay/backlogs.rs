//! What waits in the outbox for each reader. The database is asked when metrics are scraped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax_flow::outbox::operate::{Operators, ReaderState};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Source;
use crate::telemetry::Backlog;

/// How long an answer is good.
const GOOD_FOR: Duration = Duration::from_secs(5);
/// How long a scrape waits for a new answer before it gets the last one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Knows what waits for every reader of an outbox, also for those that no relay runs: a reader that
/// was forgotten is noticed by the age of its messages.
pub(crate) struct Backlogs {
    operators: Arc<dyn Operators>,
    runtime: Handle,
    known: Mutex<Vec<Backlog>>,
    /// When to ask again; locked while asking.
    due: tokio::sync::Mutex<Option<Instant>>,
}

impl Backlogs {
    /// Asks this outbox, on this runtime.
    pub(crate) fn new(source: &Source, runtime: Handle) -> Arc<Backlogs> {
        Arc::new(Backlogs {
            operators: source.operators(),
            runtime,
            known: Mutex::default(),
            due: tokio::sync::Mutex::new(None),
        })
    }

    /// Asks if the last answer is old enough. If the database fails, that answer stays.
    pub(crate) async fn refresh(self: &Arc<Self>) {
        let backlogs = self.clone();
        let asking = self.runtime.spawn(async move { backlogs.ask().await });
        let _ = tokio::time::timeout(PATIENCE, asking).await;
    }

    /// The last answer; nothing if nobody has answered yet.
    pub(crate) fn known(&self) -> Vec<Backlog> {
        self.known.lock().clone()
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
            Ok(readers) => *self.known.lock() = readers.iter().map(backlog).collect(),
            Err(error) => {
                tracing::warn!(%error, "the outbox could not be asked what waits in it; those metrics stay as they are");
            }
        }
        *due = Some(Instant::now() + GOOD_FOR);
    }
}

fn backlog(reader: &ReaderState) -> Backlog {
    let age = |at| reader.now.since(at).as_secs_f64();
    Backlog {
        reader: reader.name.clone(),
        oldest_seconds: reader.oldest.as_ref().map_or(0.0, |oldest| age(oldest.at)),
        waiting: reader.waiting,
        held: reader.held,
        dead: reader.dead,
    }
}
