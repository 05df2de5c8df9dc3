//! Pauses between tries, each twice as long as the one before.

use std::time::Duration;

/// The pauses of one loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses for `min` first, and never longer than `max`.
    pub(crate) fn new(min: Duration, max: Duration) -> Backoff {
        Backoff {
            first: min,
            min,
            max,
            next: min,
        }
    }

    /// Makes the first try follow without a pause.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
    pub(crate) fn immediate(self) -> Backoff {
        Backoff {
            first: Duration::ZERO,
            next: Duration::ZERO,
            ..self
        }
    }

    /// Returns the pause to make now, and lengthens the next one.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).clamp(self.min, self.max);
        pause
    }

    pub(crate) async fn pause(&mut self) {
        let pause = self.next_pause();
        // Sleeping for no time at all would still wait for the timer's next tick.
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }

    /// Starts again with the first pause, after a try has succeeded.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(10);
    const MAX: Duration = Duration::from_millis(35);

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest() {
        let begun = tokio::time::Instant::now();
        let mut backoff = Backoff::new(MIN, MAX);
        backoff.pause().await;
        assert_eq!(begun.elapsed(), MIN);
        assert_eq!([(); 3].map(|()| backoff.next_pause()), [MIN * 2, MAX, MAX]);
        backoff.reset();
        assert_eq!(backoff.next_pause(), MIN);
    }

    #[cfg(any(feature = "postgres", feature = "redis", feature = "sqlite"))]
    #[test]
    fn an_immediate_one_begins_without_a_pause() {
        let mut backoff = Backoff::new(MIN, MAX).immediate();
        for _ in 0..2 {
            assert_eq!(
                [(); 3].map(|()| backoff.next_pause()),
                [Duration::ZERO, MIN, MIN * 2]
            );
            backoff.reset();
        }
    }
}
