//! Shows the progress of a copy on a terminal, in one line that is overwritten.

use std::io::Write;
use std::time::{Duration, Instant};

use hapax::store::copy::Step;

/// Often enough to be seen moving.
const REDRAW: Duration = Duration::from_millis(100);

/// Shows the progress of one copy on standard error.
pub(super) struct Meter {
    is_shown: bool,
    begun: Instant,
    drawn: Option<Instant>,
    /// Records that an earlier run had copied: they do not count for the speed of this one.
    before: Option<u64>,
}

impl Meter {
    pub(super) fn new(is_shown: bool) -> Meter {
        Meter {
            is_shown,
            begun: Instant::now(),
            drawn: None,
            before: None,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(super) fn tell(&mut self, step: Step) {
        if !self.is_shown {
            return;
        }
        match step {
            Step::Records { done, of } => {
                let before = *self.before.get_or_insert(done);
                if done == of || self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW) {
                    self.draw(&line(done, of, done - before, self.begun.elapsed()));
                }
            }
            Step::Log { done, of } => self.draw(&format!("entry {done} of {of} of the audit log")),
            _ => {}
        }
    }

    /// Clears the line.
    pub(super) fn clear(&mut self) {
        if self.drawn.is_some() {
            self.draw("");
        }
    }

    fn draw(&mut self, line: &str) {
        self.drawn = Some(Instant::now());
        let mut out = std::io::stderr().lock();
        // A closed standard error is no reason to stop.
        let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
    }
}

fn line(done: u64, of: u64, fresh: u64, elapsed: Duration) -> String {
    let rate = fresh as f64 / elapsed.as_secs_f64().max(0.001);
    let left = if fresh > 0 && rate > 0.0 {
        format!(", {} left", time((of.saturating_sub(done)) as f64 / rate))
    } else {
        String::new()
    };
    format!("{done} of {of} records, {rate:.0}/s{left}")
}

fn time(seconds: f64) -> String {
    match seconds as u64 {
        seconds @ 0..90 => format!("{seconds} s"),
        seconds @ 90..5_400 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h", seconds.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_how_fast_and_how_long() {
        assert_eq!(
            line(5_000, 20_000, 5_000, Duration::from_secs(2)),
            "5000 of 20000 records, 2500/s, 6 s left"
        );
        assert_eq!(
            line(5_000, 2_000_000, 1_000, Duration::from_secs(1)),
            "5000 of 2000000 records, 1000/s, 34 min left"
        );
        assert_eq!(
            line(7_000, 20_000, 0, Duration::from_secs(2)),
            "7000 of 20000 records, 0/s"
        );
    }
}
