//! What goes wrong, and for which order: dealt by the seed, so that the storm with Hapax and the
//! one without meet the same faults.

use super::dice::Dice;

/// A way in which the service fails its caller. Each strikes an order once, when it first gets
/// there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Charges, then closes the connection without an answer.
    AnswerLost,
    /// Charges, then says 500, as a service does whose exception nobody caught.
    Crashed,
    /// Closes the connection before it charges. From outside it looks the same.
    RequestLost,
    /// Charges, then answers later than anybody waits.
    Stalled,
    /// Charges, then breaks off in the middle of its answer.
    Truncated,
    /// Says 503 and does not charge.
    Busy,
    /// Charges, then the process is gone, and with it whatever else it was doing.
    Died,
}

impl Fault {
    pub(super) const ALL: [Fault; 7] = [
        Fault::AnswerLost,
        Fault::Crashed,
        Fault::RequestLost,
        Fault::Stalled,
        Fault::Truncated,
        Fault::Busy,
        Fault::Died,
    ];

    /// What the service tells the demo, and the demo its reader.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Fault::AnswerLost => "answer lost",
            Fault::Crashed => "charged, then 500",
            Fault::RequestLost => "request lost",
            Fault::Stalled => "stalled",
            Fault::Truncated => "truncated",
            Fault::Busy => "busy",
            Fault::Died => "died",
        }
    }

    pub(super) fn from_word(word: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.word() == word)
    }

    /// How many of so many orders it strikes: never fewer than two, so that one swept away by the
    /// death of the service leaves another.
    const fn share(self, orders: usize) -> usize {
        match self {
            Fault::AnswerLost | Fault::Crashed | Fault::Stalled | Fault::Busy => {
                max(orders / 12, 2)
            }
            Fault::RequestLost | Fault::Truncated => max(orders / 20, 2),
            Fault::Died => max(orders / 60, 2),
        }
    }
}

const fn max(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

/// The fewest orders for which every fault finds two, with as many again left alone.
pub(super) const ORDERS_MIN: usize = 28;

/// The fault of each order, by its number.
pub(super) fn deal(seed: u64, orders: usize) -> Vec<Option<Fault>> {
    let mut dealt: Vec<_> = Fault::ALL
        .into_iter()
        .flat_map(|fault| std::iter::repeat_n(Some(fault), fault.share(orders)))
        .collect();
    dealt.resize(orders, None);
    Dice::new(seed, "faults").shuffle(&mut dealt);
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_dealt_to_two_orders_at_least_and_most_orders_to_none() {
        for orders in [ORDERS_MIN, 48, 160, 2_000] {
            let dealt = deal(7, orders);
            assert_eq!(dealt.len(), orders);
            for fault in Fault::ALL {
                assert!(
                    dealt.iter().filter(|dealt| **dealt == Some(fault)).count() >= 2,
                    "{fault:?} of {orders}"
                );
            }
            assert!(
                dealt.iter().filter(|dealt| dealt.is_none()).count() * 2 >= orders,
                "{orders}"
            );
        }
    }

    #[test]
    fn the_same_seed_deals_the_same_and_another_does_not() {
        assert_eq!(deal(1, 160), deal(1, 160));
        assert_ne!(deal(1, 160), deal(2, 160));
    }

    #[test]
    fn words_name_their_fault() {
        assert!(
            Fault::ALL
                .into_iter()
                .all(|fault| Fault::from_word(fault.word()) == Some(fault))
        );
    }
}
