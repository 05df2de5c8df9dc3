//! The plan of the storm: who orders what and when, how long customers wait, how often they click,
//! and which order meets which fault. The seed determines all of it, so both sides of the demo get
//! the same orders and faults.

use std::time::Duration;

/// Everything that the seed determines about the customers.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// For how long orders are placed.
    pub(crate) span: Duration,
    pub(crate) customers: Vec<Customer>,
}

/// A customer who places orders in sequence.
pub(crate) struct Customer {
    pub(crate) name: String,
    /// Whether requests go through the load balancer.
    pub(crate) balanced: bool,
    /// How long an answer may take before the customer sends the request again.
    pub(crate) patience: Duration,
    pub(crate) orders: Vec<Order>,
}

/// One order.
pub(crate) struct Order {
    pub(crate) id: String,
    /// Chosen once, and sent with every request for this order.
    pub(crate) key: String,
    pub(crate) amount_cents: u64,
    /// The bank refuses the card: there is nothing to charge.
    pub(crate) declined: bool,
    /// When it is placed, counted from the beginning of the storm.
    pub(crate) at: Duration,
    /// The delay from the first click to the second.
    pub(crate) second_click: Option<Duration>,
}

/// The most customers; there are fewer if there are fewer orders.
const CUSTOMERS_MAX: usize = 40;

impl Plan {
    pub(crate) fn new(seed: u64, orders: usize, span: Duration) -> Plan {
        let faults = deal_faults(seed, orders);
        let customers_count = CUSTOMERS_MAX.min(orders / 3);
        let mut dice = Random::new(seed, "customers");
        let mut customers: Vec<_> = (0..customers_count)
            .map(|number| Customer::new(number, &mut dice))
            .collect();
        let mut dice = Random::new(seed, "orders");
        for (number, fault) in faults.into_iter().enumerate() {
            customers[number % customers_count]
                .orders
                .push(Order::new(number, fault, span, &mut dice));
        }
        for customer in &mut customers {
            customer.orders.sort_by_key(|order| order.at);
        }
        Plan {
            seed,
            span,
            customers,
        }
    }

    pub(crate) fn orders(&self) -> impl Iterator<Item = &Order> {
        self.customers.iter().flat_map(|customer| &customer.orders)
    }

    /// Every order with its customer.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (&Customer, &Order)> {
        self.customers
            .iter()
            .flat_map(|customer| customer.orders.iter().map(move |order| (customer, order)))
    }
}

impl Customer {
    fn new(number: usize, dice: &mut Random) -> Customer {
        Customer {
            name: format!("customer-{number:02}"),
            balanced: number.is_multiple_of(3),
            patience: dice.millis(600, 1_100),
            orders: Vec::new(),
        }
    }
}

impl Order {
    fn new(number: usize, fault: Option<Fault>, span: Duration, dice: &mut Random) -> Order {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (suffix, declined, clicks_twice) = (dice.throw(), dice.one_in(8), dice.one_in(4));
        Order {
            id: id(number),
            key: format!("{}-{suffix:016x}", id(number)),
            amount_cents: dice.between(499, 9_999),
            // An order with a fault must be one that would be charged: otherwise the fault would
            // show nothing.
            declined: declined && fault.is_none(),
            at: dice.millis(0, span_ms),
            second_click: clicks_twice.then(|| dice.millis(5, 120)),
        }
    }
}

fn id(number: usize) -> String {
    format!("order-{number:03}")
}

/// The number of an order, if its id belongs to a plan.
pub(crate) fn number(id: &str) -> Option<usize> {
    id.strip_prefix("order-")?.parse().ok()
}

/// A way in which the service fails its caller. Each strikes an order once, when the service first
/// reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Charges, then closes the connection without an answer.
    AnswerLost,
    /// Charges, then answers 500, as a service with an uncaught exception does.
    Crashed,
    /// Closes the connection before it charges. The caller cannot tell this from a lost answer.
    RequestLost,
    /// Charges, then answers later than any customer waits.
    Stalled,
    /// Charges, then closes the connection in the middle of its answer.
    Truncated,
    /// Answers 503 and does not charge.
    Busy,
    /// Charges, then the process dies, together with all its other requests.
    Died,
}

impl Fault {
    pub(crate) const ALL: [Fault; 7] = [
        Fault::AnswerLost,
        Fault::Crashed,
        Fault::RequestLost,
        Fault::Stalled,
        Fault::Truncated,
        Fault::Busy,
        Fault::Died,
    ];

    /// The name of the fault, in the service's output and in the demo's.
    pub(crate) const fn word(self) -> &'static str {
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

    pub(crate) fn from_word(word: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.word() == word)
    }

    /// How many orders it strikes: at least two. If the death of the service prevents one, another
    /// is left.
    fn share(self, orders: usize) -> usize {
        match self {
            Fault::AnswerLost | Fault::Crashed | Fault::Stalled | Fault::Busy => {
                (orders / 12).max(2)
            }
            Fault::RequestLost | Fault::Truncated => (orders / 20).max(2),
            Fault::Died => (orders / 60).max(2),
        }
    }
}

/// The fewest orders with which every fault strikes two, and as many orders meet none.
pub(crate) const ORDERS_MIN: usize = 28;

/// The fault of each order, by its number.
pub(crate) fn deal_faults(seed: u64, orders: usize) -> Vec<Option<Fault>> {
    let mut dealt: Vec<_> = Fault::ALL
        .into_iter()
        .flat_map(|fault| std::iter::repeat_n(Some(fault), fault.share(orders)))
        .collect();
    dealt.resize(orders, None);
    Random::new(seed, "faults").shuffle(&mut dealt);
    dealt
}

/// A small random generator (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A separate generator for each purpose, so that additional draws for one do not change the
    /// others.
    pub(crate) fn new(seed: u64, purpose: &str) -> Random {
        let mixed = purpose
            .bytes()
            .fold(seed, |mixed, byte| Random(mixed ^ u64::from(byte)).throw());
        Random(mixed)
    }

    pub(crate) fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From `least` to `most`, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.throw() % (most - least + 1)
    }

    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(self.between(least, most))
    }

    pub(crate) fn one_in(&mut self, many: u64) -> bool {
        self.throw().is_multiple_of(many)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = (self.throw() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_plan_is_its_seeds() {
        let keys = |seed| {
            Plan::new(seed, 160, Duration::from_secs(10))
                .orders()
                .map(|order| order.key.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1), keys(2));
    }

    #[test]
    fn every_order_has_a_key_of_its_own_and_a_number() {
        let plan = Plan::new(3, 100, Duration::from_secs(10));
        let keys: BTreeSet<_> = plan.orders().map(|order| &order.key).collect();
        let numbers: BTreeSet<_> = plan
            .orders()
            .filter_map(|order| number(&order.id))
            .collect();
        assert_eq!((keys.len(), numbers), (100, (0..100).collect()));
    }

    #[test]
    fn some_click_twice_some_are_declined_and_a_third_are_balanced() {
        let plan = Plan::new(3, 160, Duration::from_secs(10));
        assert!(plan.orders().any(|order| order.second_click.is_some()));
        assert!(plan.orders().any(|order| order.declined));
        assert_eq!(
            plan.customers
                .iter()
                .filter(|customer| customer.balanced)
                .count(),
            14
        );
    }

    #[test]
    fn every_fault_is_dealt_to_two_orders_at_least_and_most_orders_to_none() {
        for orders in [ORDERS_MIN, 48, 160, 2_000] {
            let dealt = deal_faults(7, orders);
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
        assert_eq!(deal_faults(1, 160), deal_faults(1, 160));
        assert_ne!(deal_faults(1, 160), deal_faults(2, 160));
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
