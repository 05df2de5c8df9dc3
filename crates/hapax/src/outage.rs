//! Lasting failures: reported when they begin and when they are over, not each time that a caller
//! meets one.

use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// One kind of failure, which lasts or not.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    /// Checked without taking the lock.
    is_on: AtomicBool,
    inside: Mutex<Option<Inside>>,
}

#[derive(Debug)]
struct Inside {
    since: Instant,
    met: Instant,
    refused: u64,
}

/// A report about an outage that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) lasted: Duration,
    /// Requests that were refused during the outage.
    pub(crate) refused: u64,
}

impl Outage {
    /// Notes that a caller met the failure. Returns whether the outage begins with this.
    pub(crate) fn meet(&self) -> bool {
        let (mut inside, now) = (self.inside.lock(), Instant::now());
        match &mut *inside {
            Some(inside) => {
                inside.met = now;
                false
            }
            none => {
                *none = Some(Inside {
                    since: now,
                    met: now,
                    refused: 0,
                });
                self.is_on.store(true, Ordering::Relaxed);
                true
            }
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Notes that a request was refused during the outage.
    pub(crate) fn refuse(&self) {
        if let Some(inside) = &mut *self.inside.lock() {
            inside.refused += 1;
        }
    }

    /// Notes that a caller did not meet the failure. The outage is over if no caller has met it for
    /// `quiet`.
    pub(crate) fn pass(&self, quiet: Duration) -> Option<Over> {
        if !self.is_on() {
            return None;
        }
        let mut inside = self.inside.lock();
        let Inside { since, refused, .. } =
            inside.take_if(|inside| inside.met.elapsed() >= quiet)?;
        self.is_on.store(false, Ordering::Relaxed);
        Some(Over {
            lasted: since.elapsed(),
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn it_begins_once_and_is_over_when_nobody_has_met_it_for_a_while() {
        let outage = Outage::default();
        assert_eq!(outage.pass(QUIET), None, "there was none");
        assert!(outage.meet());
        for _ in 0..10 {
            tokio::time::advance(QUIET / 2).await;
            assert!(!outage.meet(), "it goes on");
            outage.refuse();
            assert_eq!(
                outage.pass(QUIET),
                None,
                "one that gets through is not the end of it"
            );
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(
            outage.pass(QUIET),
            Some(Over {
                lasted: QUIET * 6,
                refused: 10
            })
        );
        assert_eq!(outage.pass(QUIET), None, "once");
        assert!(outage.meet(), "and begins anew");
    }
}
