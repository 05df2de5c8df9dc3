//! What is known about a request's exchange with the upstream, for its line in the access log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;

/// Stands in the extensions of a request whose exchange is to be recorded. If a request has several
/// exchanges, the last one counts.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    status: AtomicU16,
    /// The duration in microseconds plus one; zero if there was no exchange.
    took: AtomicU64,
}

impl Exchange {
    /// The status of the upstream's answer.
    pub(crate) fn status(&self) -> Option<u16> {
        Some(self.status.load(Ordering::Relaxed)).filter(|status| *status != 0)
    }

    /// The duration of the exchange: from asking for a connection to the end of the answer's body.
    pub(crate) fn took(&self) -> Option<Duration> {
        self.took
            .load(Ordering::Relaxed)
            .checked_sub(1)
            .map(Duration::from_micros)
    }
}

/// Measures an exchange, and records its duration when dropped.
pub(super) struct Stopwatch {
    exchange: Arc<Exchange>,
    since: Instant,
}

impl Stopwatch {
    pub(super) fn start(exchange: Arc<Exchange>) -> Stopwatch {
        Stopwatch {
            exchange,
            since: Instant::now(),
        }
    }

    /// Records the status when the head of the answer has arrived.
    pub(super) fn answered(&self, status: StatusCode) {
        self.exchange
            .status
            .store(status.as_u16(), Ordering::Relaxed);
    }
}

impl Drop for Stopwatch {
    fn drop(&mut self) {
        let micros = u64::try_from(self.since.elapsed().as_micros()).unwrap_or(u64::MAX - 1);
        self.exchange.took.store(micros + 1, Ordering::Relaxed);
    }
}
