//! Measures how long a peer was waited for, and how many bytes moved.

use std::time::Duration;

use tokio::time::Instant;

use super::Pace;

/// Counts waiting time and progress in one direction. Time in which nothing is expected of the peer
/// does not count.
#[derive(Debug, Default)]
pub(super) struct Meter {
    waiting: Option<Instant>,
    /// Time waited since the last progress.
    still: Duration,
    /// Time waited in the current window; `bytes` counts what moved in it.
    waited: Duration,
    bytes: u64,
}

/// The peer is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooSlow;

impl Meter {
    /// Starts or continues waiting for the peer. Returns the deadline that applies if no byte moves
    /// before.
    pub(super) fn wait(&mut self, now: Instant, pace: &Pace) -> Result<Instant, TooSlow> {
        self.pass(now);
        self.waiting = Some(now);
        if self.still >= pace.stall {
            return Err(TooSlow);
        }
        if self.waited >= pace.stall {
            if self.bytes < bytes_min(pace) {
                return Err(TooSlow);
            }
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
        Ok(now + (pace.stall - self.still.max(self.waited)))
    }

    /// Records that bytes moved. It reads the clock only if they had to be waited for.
    pub(super) fn progress(&mut self, bytes: usize) {
        if self.waiting.is_some() {
            self.pass(Instant::now());
        }
        self.still = Duration::ZERO;
        self.bytes += bytes as u64;
    }

    /// Resets the meter: nothing is expected of the peer any more.
    pub(super) fn rest(&mut self) {
        *self = Meter::default();
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    fn pass(&mut self, now: Instant) {
        if let Some(since) = self.waiting.take() {
            let passed = now.saturating_duration_since(since);
            self.still += passed;
            self.waited += passed;
        }
    }
}

fn bytes_min(pace: &Pace) -> u64 {
    u64::try_from(u128::from(pace.rate_min) * pace.stall.as_millis() / 1_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace {
        header: Duration::from_secs(1),
        keep_alive: Duration::from_secs(1),
        stall: Duration::from_secs(20),
        rate_min: 10,
    };

    #[tokio::test(start_paused = true)]
    async fn who_does_nothing_is_too_slow_after_the_stall() {
        let (mut meter, start) = (Meter::default(), Instant::now());
        assert_eq!(meter.wait(start, &PACE), Ok(start + PACE.stall));
        assert_eq!(
            meter.wait(start + PACE.stall / 2, &PACE),
            Ok(start + PACE.stall)
        );
        assert_eq!(meter.wait(start + PACE.stall, &PACE), Err(TooSlow));
    }

    #[tokio::test(start_paused = true)]
    async fn who_trickles_is_too_slow_and_who_keeps_the_rate_is_not() {
        for (bytes_a_second, verdict) in [(9, Err(TooSlow)), (10, Ok(()))] {
            let (mut meter, mut verdicts) = (Meter::default(), Vec::new());
            for _ in 0..100 {
                verdicts.push(meter.wait(Instant::now(), &PACE).map(drop));
                tokio::time::advance(Duration::from_secs(1)).await;
                meter.progress(bytes_a_second);
            }
            assert_eq!(verdicts.into_iter().collect::<Result<(), _>>(), verdict);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nothing_is_wanted_does_not_count() {
        let mut meter = Meter::default();
        for _ in 0..10 {
            meter.wait(Instant::now(), &PACE).unwrap();
            tokio::time::advance(Duration::from_secs(1)).await;
            meter.progress(1);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }
}
