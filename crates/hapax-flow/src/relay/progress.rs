//! What a relay tells about itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hapax_core::flow::{Envelope, Verdict};

/// What a relay has done since it began, and how it is.
#[derive(Debug, Default)]
pub struct Progress {
    published: AtomicU64,
    duplicates: AtomicU64,
    bytes: AtomicU64,
    retried: AtomicU64,
    set_aside: AtomicU64,
    given_up: AtomicU64,
    outages: AtomicU64,
    failovers: AtomicU64,
    is_active: AtomicBool,
    delay_us: AtomicU64,
    stopped: Mutex<Option<String>>,
}

/// Numbers of a [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that the destination accepted. One that was sent again counts again.
    pub published: u64,
    /// Of these, messages that the destination had already, as far as it says.
    pub duplicates: u64,
    /// Bytes of payload that were accepted.
    pub bytes: u64,
    /// Attempts to send a message that was set aside.
    pub retried: u64,
    /// Messages that were set aside: because they failed, or behind one that did.
    pub set_aside: u64,
    /// Messages that wait for an operator, or are dead.
    pub given_up: u64,
    /// Batches that the destination did not take at all.
    pub outages: u64,
    /// Changes of the database server.
    pub failovers: u64,
}

impl Counts {
    /// What came since.
    pub(super) fn since(&self, before: &Counts) -> Counts {
        Counts {
            published: self.published - before.published,
            duplicates: self.duplicates - before.duplicates,
            bytes: self.bytes - before.bytes,
            retried: self.retried - before.retried,
            set_aside: self.set_aside - before.set_aside,
            given_up: self.given_up - before.given_up,
            outages: self.outages - before.outages,
            failovers: self.failovers - before.failovers,
        }
    }
}

impl Progress {
    /// The numbers at this moment.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            published: read(&self.published),
            duplicates: read(&self.duplicates),
            bytes: read(&self.bytes),
            retried: read(&self.retried),
            set_aside: read(&self.set_aside),
            given_up: read(&self.given_up),
            outages: read(&self.outages),
            failovers: read(&self.failovers),
        }
    }

    /// Whether this relay has the reader.
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// How old the latest published message was when it was accepted, by the clocks of the database
    /// and of this machine.
    pub fn delay(&self) -> Duration {
        Duration::from_micros(self.delay_us.load(Ordering::Relaxed))
    }

    /// Why an operator has to start the reader again.
    pub fn stopped(&self) -> Option<String> {
        self.lock_stopped().clone()
    }

    pub(super) fn set_active(&self, is_active: bool) {
        self.is_active.store(is_active, Ordering::Relaxed);
    }

    pub(super) fn set_stopped(&self, reason: Option<&str>) {
        *self.lock_stopped() = reason.map(str::to_owned);
    }

    pub(super) fn count_accepted(&self, message: &Envelope, verdict: &Verdict) {
        let Verdict::Accepted { duplicate } = verdict else {
            return;
        };
        add(&self.published, 1);
        add(&self.bytes, message.payload.len());
        add(&self.duplicates, usize::from(*duplicate));
        let now = hapax_core::time::Timestamp::from_system_time(std::time::SystemTime::now());
        let delay = u64::try_from(now.since(message.at).as_micros()).unwrap_or(u64::MAX);
        self.delay_us.store(delay, Ordering::Relaxed);
    }

    pub(super) fn count_retried(&self, count: usize) {
        add(&self.retried, count);
    }

    pub(super) fn count_aside(&self, count: usize) {
        add(&self.set_aside, count);
    }

    pub(super) fn count_given_up(&self) {
        add(&self.given_up, 1);
    }

    pub(super) fn count_outage(&self) {
        add(&self.outages, 1);
    }

    pub(super) fn count_failover(&self) {
        add(&self.failovers, 1);
    }

    fn lock_stopped(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.stopped
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}
