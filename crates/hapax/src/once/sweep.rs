//! Sweeping: writing the changes that only time has caused, in bounded batches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use hapax_core::store::{Store, StoreError, Swept};

use super::engine::Engine;
use crate::background;
use crate::observe::Event;

/// When and how much to sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The pause between rounds.
    pub interval: Duration,
    /// Records in one batch, at least one: bounds how long a sweep holds up other writes.
    pub batch: usize,
}

impl Default for Sweep {
    fn default() -> Self {
        // A second, so that a lapsed attempt shows as unknown within a second.
        Sweep {
            interval: Duration::from_secs(1),
            batch: 256,
        }
    }
}

/// Sweeps one bounded batch.
pub(crate) async fn run_once(engine: &Engine) -> Result<Swept, StoreError> {
    let swept = engine
        .store
        .sweep(engine.sweep.unwrap_or_default().batch.max(1))
        .await;
    if swept.is_ok() {
        engine.store_answers();
    }
    match &swept {
        Ok(swept) if swept.total() > 0 => {
            engine.observe(&Event::Swept(*swept));
            if swept.lost > 0 {
                tracing::warn!(
                    lost = swept.lost,
                    see = "hapax keys list --state unknown, or Hapax::list",
                    "attempts were found lost: the process that ran them ended before they did, and their outcome is unknown"
                );
                engine.store.count_again();
            }
        }
        Ok(_) => {}
        Err(error) => engine.store_failed(error),
    }
    swept
}

/// Sweeps batch after batch, pausing when nothing is due, until the engine is dropped.
async fn run(engine: Weak<Engine>, sweep: Sweep) {
    loop {
        let swept = match engine.upgrade() {
            None => return,
            Some(engine) => run_once(&engine).await.unwrap_or_default(),
        };
        if swept.total() < sweep.batch.max(1) {
            tokio::time::sleep(sweep.interval).await;
        }
    }
}

impl Engine {
    /// Starts sweeping in the background, unless it is running.
    pub(super) fn start_sweeping(self: &Arc<Self>) {
        if let Some(sweep) = self.sweep
            && !self.sweeping.swap(true, Ordering::Relaxed)
        {
            let engine = Arc::downgrade(self);
            background::spawn(run(engine.clone(), sweep), move || {
                if let Some(engine) = engine.upgrade() {
                    engine.sweeping.store(false, Ordering::Relaxed);
                }
            });
        }
    }
}
