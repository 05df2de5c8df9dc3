//! The tally: what a history was made of, so that a test can see that it tested something.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;

/// How often each kind of step came to each result.
///
/// Kinds: `claim`, `takeover`, `completion`, `late completion`, `release`, `giving up`, `loss`,
/// `settlement`, `forgetting`, `stray write` and `renewal` are `won` or `lost`; of a `sweep` are
/// counted the records `lost`, `buried` and `removed`, and the sweeps that found `nothing`; of a
/// `get` the records `found` and `missing`; a `list` or a page of the `log` has `some` or is
/// `empty`; the `clock` is `moved`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<(&'static str, &'static str), usize>,
}

impl Tally {
    /// How often this kind of step came to this result.
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
