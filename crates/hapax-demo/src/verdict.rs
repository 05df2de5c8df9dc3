//! The verdict: the ledgers compared with what the customers were told.

use std::path::Path;

use serde::Serialize;

use crate::customers::{End, Ends};
use crate::ledger::Ledger;
use crate::plan::{Fault, Plan};
use crate::reconcile::Reconciled;
use crate::supervisor::Supervisor;

/// The counts of one ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Count {
    /// Orders whose card the bank accepts: each should be charged once.
    pub(crate) orders: u64,
    /// Rows of the ledger.
    pub(crate) charges: u64,
    pub(crate) charged_once: u64,
    pub(crate) charged_more: u64,
    pub(crate) not_charged: u64,
    /// The sum of all charges beyond the first of each order.
    pub(crate) overcharged_cents: u64,
    /// Orders with a receipt and without a charge.
    pub(crate) confirmed_but_missing: u64,
    /// Orders that were charged though the bank declined the card.
    pub(crate) declined_but_charged: u64,
}

impl Count {
    pub(crate) fn read(ledger: &Path, plan: &Plan, ends: &Ends) -> rusqlite::Result<Count> {
        let charged = Ledger::read(ledger)?.orders()?;
        let mut count = Count::default();
        for order in plan.orders() {
            let times = charged.get(&order.id).map_or(0, |charged| charged.times);
            let confirmed = ends.get(&order.id) == Some(&End::Paid);
            count.add(times, order.amount_cents, order.declined, confirmed);
        }
        Ok(count)
    }

    fn add(&mut self, times: u64, amount_cents: u64, declined: bool, confirmed: bool) {
        self.charges += times;
        if declined {
            self.declined_but_charged += u64::from(times > 0);
            return;
        }
        self.orders += 1;
        match times {
            0 => self.not_charged += 1,
            1 => self.charged_once += 1,
            _ => self.charged_more += 1,
        }
        self.overcharged_cents += times.saturating_sub(1) * amount_cents;
        self.confirmed_but_missing += u64::from(confirmed && times == 0);
    }

    /// Whether Hapax's promise for any moment holds: no order is charged twice, and no receipt
    /// lacks its charge.
    fn at_most_once(&self) -> bool {
        self.charged_more == 0 && self.confirmed_but_missing == 0 && self.declined_but_charged == 0
    }

    fn exactly_once(&self) -> bool {
        self.at_most_once() && self.not_charged == 0
    }
}

/// How often each fault struck.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Struck {
    pub(crate) fault: &'static str,
    pub(crate) without_hapax: u64,
    pub(crate) with_hapax: u64,
}

/// All results of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Verdict {
    pub(crate) seed: u64,
    pub(crate) without_hapax: Count,
    pub(crate) with_hapax: Count,
    pub(crate) once_settled: Count,
    pub(crate) reconciled: Reconciled,
    pub(crate) faults: Vec<Struck>,
    /// Whether no order was charged twice with Hapax and each was charged once after settling.
    pub(crate) kept: bool,
}

impl Verdict {
    /// Faults that did not strike on both sides. The run then shows less than intended.
    pub(crate) fn missed(&self) -> Vec<&'static str> {
        let missed = self
            .faults
            .iter()
            .filter(|struck| struck.without_hapax == 0 || struck.with_hapax == 0);
        missed.map(|struck| struck.fault).collect()
    }
}

/// Whether Hapax kept its promise, by the ledgers.
pub(crate) fn is_kept(with_hapax: &Count, once_settled: &Count) -> bool {
    with_hapax.at_most_once() && once_settled.exactly_once()
}

pub(crate) fn struck(without: &Supervisor, with: &Supervisor) -> Vec<Struck> {
    let both = |fault: Fault| Struck {
        fault: fault.word(),
        without_hapax: without.struck(fault),
        with_hapax: with.struck(fault),
    };
    Fault::ALL.into_iter().map(both).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_tells_once_from_twice_from_never() {
        let mut count = Count::default();
        count.add(1, 100, false, true);
        count.add(3, 100, false, true);
        count.add(0, 100, false, false);
        count.add(0, 100, true, false);
        assert_eq!(
            count,
            Count {
                orders: 3,
                charges: 4,
                charged_once: 1,
                charged_more: 1,
                not_charged: 1,
                overcharged_cents: 200,
                ..Count::default()
            }
        );
    }

    #[test]
    fn a_second_charge_a_receipt_without_one_and_a_charge_after_a_refusal_each_break_the_promise() {
        for (times, declined, confirmed) in [(2, false, true), (0, false, true), (1, true, false)] {
            let mut count = Count::default();
            count.add(times, 100, declined, confirmed);
            assert!(!count.at_most_once(), "{times} {declined} {confirmed}");
        }
    }

    #[test]
    fn what_was_never_charged_and_never_confirmed_keeps_at_most_once_and_breaks_exactly_once() {
        let mut count = Count::default();
        count.add(0, 100, false, false);
        assert!(count.at_most_once() && !count.exactly_once());
    }
}
