//! The tally: the steps and results of a history, so that a test can check that it was meaningful.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

/// How often each kind of step had each result.
///
/// `claim`, `takeover`, `completion`, `late completion`, `release`, `giving up`, `loss`,
/// `settlement`, `forgetting`, `stray write` and `renewal` are `won` or `lost`. A `sweep` counts
/// the records `lost`, `buried` and `removed`, and the sweeps that found `nothing`. A `get` counts
/// the records `found` and `missing`. A `list` or a page of the `log` has `some` or is `empty`. The
/// `clock` is `moved`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<(&'static str, &'static str), usize>,
}

impl Tally {
    /// How often this kind of step had this result.
    pub fn count(&self, kind: &str, result: &str) -> usize {
        self.iter()
            .filter(|(k, r, _)| *k == kind && *r == result)
            .map(|(_, _, count)| count)
            .sum()
    }

    /// Every kind, result and count.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, usize)> + '_ {
        self.counts
            .iter()
            .map(|(&(kind, result), &count)| (kind, result, count))
    }

    pub(super) fn add(&mut self, kind: &'static str, result: &'static str, count: usize) {
        *self.counts.entry((kind, result)).or_default() += count;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        other
            .iter()
            .for_each(|(kind, result, count)| self.add(kind, result, count));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter()
            .try_for_each(|(kind, result, count)| writeln!(f, "{kind:>16} {result:<8} {count:>8}"))
    }
}
