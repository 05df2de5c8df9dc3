//! The metrics of consumers, for the program that runs them.

use std::fmt::Write;

use super::progress::{Counts, Progress};

type Counter = (&'static str, &'static str, fn(&Counts) -> u64);

const COUNTERS: [Counter; 9] = [
    ("applied", "Messages whose effect was applied", |counts| {
        counts.applied
    }),
    (
        "duplicates",
        "Deliveries of messages that had been applied before: they changed nothing",
        |counts| counts.duplicates,
    ),
    (
        "stale",
        "Messages that were skipped, because a later version of their entity had been applied",
        |counts| counts.stale,
    ),
    (
        "failed",
        "Tries of a single message that failed",
        |counts| counts.failed,
    ),
    (
        "parked",
        "Messages that were parked for an operator",
        |counts| counts.parked,
    ),
    (
        "retried",
        "Parked messages that were applied after an operator asked for it",
        |counts| counts.retried,
    ),
    (
        "lost",
        "Messages that failed under at-most-once: they are not tried again",
        |counts| counts.lost,
    ),
    ("batches", "Transactions with messages", |counts| {
        counts.batches
    }),
    (
        "outages",
        "Times that the broker or the database could not be used",
        |counts| counts.outages,
    ),
];

/// The metrics of these consumers, each with its name, in the text format of OpenMetrics 1.0 and
/// without its last line `# EOF`: append them to what your program offers.
///
/// ```
/// use hapax_flow::consume::{Progress, metrics};
///
/// let progress = Progress::default();   // that of a consumer: `handled.progress()`
/// let text = metrics([("inventory", &progress)]);
/// assert!(text.contains("hapax_consumer_applied_total{consumer=\"inventory\"} 0\n"));
/// ```
pub fn metrics<'a>(consumers: impl IntoIterator<Item = (&'a str, &'a Progress)>) -> String {
    let consumers: Vec<(String, &Progress)> = consumers
        .into_iter()
        .map(|(name, progress)| (escaped(name), progress))
        .collect();
    let mut text = String::new();
    for (name, help, count) in COUNTERS {
        let values = consumers
            .iter()
            .map(|(consumer, progress)| (consumer, count(&progress.counts())));
        family(&mut text, name, help, "counter", values);
    }
    let waiting = consumers
        .iter()
        .map(|(consumer, progress)| (consumer, progress.waiting()));
    let help = "Messages that wait here for another try, or behind one that does";
    family(&mut text, "waiting", help, "gauge", waiting);
    let lag = consumers
        .iter()
        .filter_map(|(consumer, progress)| Some((consumer, progress.lag()?)));
    let help = "Messages that wait at the broker, if it says";
    family(&mut text, "lag", help, "gauge", lag);
    text
}

fn family<'a>(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    values: impl Iterator<Item = (&'a String, u64)>,
) {
    let name = format!("hapax_consumer_{name}");
    let total = if kind == "counter" { "_total" } else { "" };
    let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
    for (consumer, value) in values {
        let _ = writeln!(text, "{name}{total}{{consumer=\"{consumer}\"}} {value}");
    }
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_that_is_not_known_has_no_sample() {
        let (known, unknown) = (Progress::default(), Progress::default());
        known.set_lag(Some(17));
        known.applied.store(3, std::sync::atomic::Ordering::Relaxed);
        let text = metrics([("a", &known), ("b\"\n", &unknown)]);
        let samples: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("applied_total") || line.contains("consumer_lag{"))
            .collect();
        assert_eq!(
            samples,
            [
                "hapax_consumer_applied_total{consumer=\"a\"} 3",
                "hapax_consumer_applied_total{consumer=\"b\\\"\\n\"} 0",
                "hapax_consumer_lag{consumer=\"a\"} 17",
            ]
        );
    }
}
