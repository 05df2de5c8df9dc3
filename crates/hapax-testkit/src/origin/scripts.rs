//! What both origins share: the scripts, the ledger, and the word to go on.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::Ledger;

/// The scripts of an origin, one for each request to come.
#[derive(Debug)]
pub(super) struct Scripts<S> {
    scripts: Mutex<VecDeque<Vec<S>>>,
    idle_max: Mutex<Option<Duration>>,
    go: Semaphore,
    pub(super) ledger: Ledger,
}

impl<S> Scripts<S> {
    pub(super) fn new() -> Self {
        Scripts {
            scripts: Mutex::default(),
            idle_max: Mutex::default(),
            go: Semaphore::new(0),
            ledger: Ledger::default(),
        }
    }

    pub(super) fn add(&self, script: impl IntoIterator<Item = S>) {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(script.into_iter().collect());
    }

    pub(super) fn next(&self) -> Option<Vec<S>> {
        self.scripts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    }

    pub(super) fn set_idle_max(&self, idle_max: Duration) {
        *self.idle_max.lock().unwrap_or_else(PoisonError::into_inner) = Some(idle_max);
    }

    pub(super) fn idle_max(&self) -> Option<Duration> {
        *self.idle_max.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn go(&self) {
        self.go.add_permits(1);
    }

    pub(super) async fn wait(&self) {
        if let Ok(permit) = self.go.acquire().await {
            permit.forget();
        }
    }
}
