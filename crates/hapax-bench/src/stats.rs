//! Medians and percentiles.

use std::time::Duration;

/// The median, which is robust against noise on the machine.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Durations in microseconds.
#[derive(Default)]
pub(crate) struct Latencies(Vec<u32>);

impl Latencies {
    pub(crate) fn push(&mut self, latency: Duration) {
        self.0
            .push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }

    pub(crate) fn merge(&mut self, others: Latencies) {
        self.0.extend(others.0);
    }

    /// The quantiles, in milliseconds.
    pub(crate) fn quantiles(mut self) -> Quantiles {
        self.0.sort_unstable();
        let at = |share: f64| {
            let place = (self.0.len() as f64 * share) as usize;
            self.0
                .get(place.min(self.0.len().saturating_sub(1)))
                .map_or(f64::NAN, |&micros| f64::from(micros) / 1e3)
        };
        Quantiles {
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
        }
    }
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}
