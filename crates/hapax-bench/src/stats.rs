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

/// The results of all rounds of one measurement.
#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) rates: Vec<f64>,
    pub(crate) quantiles: Vec<Quantiles>,
    /// For a store: the mean number of calls that were sent together.
    pub(crate) shared: Vec<f64>,
}

impl Rounds {
    pub(crate) fn add(&mut self, rate: f64, quantiles: Quantiles) {
        self.rates.push(rate);
        self.quantiles.push(quantiles);
    }

    pub(crate) fn rate(&self) -> f64 {
        median(self.rates.iter().copied())
    }

    pub(crate) fn latency(&self, part: fn(&Quantiles) -> f64) -> f64 {
        median(self.quantiles.iter().map(part))
    }

    pub(crate) fn calls_together(&self) -> f64 {
        median(self.shared.iter().copied())
    }

    /// The median of the ratios of the rates of each round. The measurements of one round are
    /// within seconds of each other.
    pub(crate) fn against(&self, others: &Rounds) -> f64 {
        let rates = self.rates.iter().zip(&others.rates);
        median(rates.map(|(this, other)| this / other))
    }
}

/// Quantiles in milliseconds.
#[derive(Clone, Copy)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}
