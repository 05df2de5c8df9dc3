//! When a message that failed is tried again.

use std::time::Duration;

use super::Verdict;

/// What becomes of a message whose tries are used up, or that the destination refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum GiveUp {
    /// It waits for an operator, and so do the later ones of its key.
    #[default]
    Hold,
    /// It is kept for an operator to see, and the later ones of its key go on.
    Dead,
}

/// What happens to a message after a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is tried again after this time.
    RetryAfter(Duration),
    /// It is given up.
    GiveUp(GiveUp),
}

/// How a failing message is tried again: after pauses that double, with a random part, up to a
/// limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The pause after the first failure.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// Tries of one message, the first one included.
    pub attempts_max: u32,
    /// What happens after them.
    pub give_up: GiveUp,
}

impl Default for RetryPolicy {
    /// Eleven pauses from one second to ten minutes: about 47 minutes in all.
    fn default() -> Self {
        RetryPolicy {
            pause_min: Duration::from_secs(1),
            pause_max: Duration::from_secs(600),
            attempts_max: 12,
            give_up: GiveUp::Hold,
        }
    }
}

impl RetryPolicy {
    /// What happens after the try number `attempts`, counted from one. `random` is a number from 0
    /// to 1, so that messages that failed together are not tried again together.
    pub fn next(&self, verdict: &Verdict, attempts: u32, random: f64) -> Next {
        let is_refused = matches!(verdict, Verdict::Refused(_));
        if is_refused || attempts >= self.attempts_max {
            return Next::GiveUp(self.give_up);
        }
        let doublings = attempts.saturating_sub(1).min(31);
        let pause = self
            .pause_min
            .saturating_mul(1 << doublings)
            .min(self.pause_max);
        // Half of the pause is fixed and half is random.
        Next::RetryAfter(pause.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Verdict {
        Verdict::Failed("no".into())
    }

    #[test]
    fn pauses_double_up_to_a_limit() {
        let policy = RetryPolicy::default();
        let pause = |attempts| policy.next(&failed(), attempts, 1.0);
        assert_eq!(pause(1), Next::RetryAfter(Duration::from_secs(1)));
        assert_eq!(pause(4), Next::RetryAfter(Duration::from_secs(8)));
        assert_eq!(pause(11), Next::RetryAfter(Duration::from_secs(600)));
        assert_eq!(pause(12), Next::GiveUp(GiveUp::Hold));
    }

    #[test]
    fn half_of_a_pause_is_random() {
        let policy = RetryPolicy::default();
        let pause = policy.next(&failed(), 2, 0.0);
        assert_eq!(pause, Next::RetryAfter(Duration::from_secs(1)));
    }

    #[test]
    fn a_refusal_is_not_tried_again() {
        let policy = RetryPolicy {
            give_up: GiveUp::Dead,
            ..RetryPolicy::default()
        };
        let refused = Verdict::Refused("400".into());
        assert_eq!(policy.next(&refused, 1, 0.5), Next::GiveUp(GiveUp::Dead));
    }

    #[test]
    fn no_number_of_attempts_overflows() {
        let policy = RetryPolicy {
            attempts_max: u32::MAX,
            ..RetryPolicy::default()
        };
        let pause = policy.next(&failed(), u32::MAX - 1, 1.0);
        assert_eq!(pause, Next::RetryAfter(Duration::from_secs(600)));
    }
}
