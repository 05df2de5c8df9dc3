//! The storm before it breaks: who orders what and when, how patiently, and with how many clicks.
//! All by the seed.

use std::time::Duration;

use super::dice::Dice;
use super::fault::{self, Fault};

/// Everything that the seed decides about the customers.
pub(super) struct Plan {
    pub(super) seed: u64,
    /// How long orders keep coming.
    pub(super) span: Duration,
    pub(super) customers: Vec<Customer>,
}

/// Somebody who buys one thing after the other.
pub(super) struct Customer {
    pub(super) name: String,
    /// Whether a load balancer stands between.
    pub(super) balanced: bool,
    /// How long an answer may take before the customer sends the request again.
    pub(super) patience: Duration,
    pub(super) orders: Vec<Order>,
}

/// One thing to pay for.
pub(super) struct Order {
    pub(super) id: String,
    /// Made once, and sent with every request for this order.
    pub(super) key: String,
    pub(super) amount_cents: u64,
    /// The bank refuses the card: there is nothing to charge.
    pub(super) declined: bool,
    /// When it is ordered, from the beginning of the storm.
    pub(super) at: Duration,
    /// How long after the first click the second comes.
    pub(super) second_click: Option<Duration>,
}

/// At the most; fewer where there are fewer orders.
const CUSTOMERS_MAX: usize = 40;

impl Plan {
    pub(super) fn new(seed: u64, orders: usize, span: Duration) -> Plan {
        let faults = fault::deal(seed, orders);
        let customers_count = CUSTOMERS_MAX.min(orders / 3);
        let mut dice = Dice::new(seed, "customers");
        let mut customers: Vec<_> = (0..customers_count)
            .map(|number| Customer::new(number, &mut dice))
            .collect();
        let mut dice = Dice::new(seed, "orders");
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

    pub(super) fn orders(&self) -> impl Iterator<Item = &Order> {
        self.customers.iter().flat_map(|customer| &customer.orders)
    }

    /// Every order, with who placed it.
    pub(super) fn placed(&self) -> impl Iterator<Item = (&Customer, &Order)> {
        self.customers
            .iter()
            .flat_map(|customer| customer.orders.iter().map(move |order| (customer, order)))
    }
}

impl Customer {
    fn new(number: usize, dice: &mut Dice) -> Customer {
        Customer {
            name: format!("customer-{number:02}"),
            balanced: number.is_multiple_of(3),
            patience: dice.millis(600, 1_100),
            orders: Vec::new(),
        }
    }
}

impl Order {
    fn new(number: usize, fault: Option<Fault>, span: Duration, dice: &mut Dice) -> Order {
        let span_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (suffix, declined, clicks_twice) = (dice.throw(), dice.one_in(8), dice.one_in(4));
        Order {
            id: id(number),
            key: format!("{}-{suffix:016x}", id(number)),
            amount_cents: dice.between(499, 9_999),
            // An order that meets a fault is one that would be charged: else the fault would show
            // nothing.
            declined: declined && fault.is_none(),
            at: dice.millis(0, span_ms),
            second_click: clicks_twice.then(|| dice.millis(5, 120)),
        }
    }
}

fn id(number: usize) -> String {
    format!("order-{number:03}")
}

/// The number of an order, if its id is one of a plan's.
pub(super) fn number(id: &str) -> Option<usize> {
    id.strip_prefix("order-")?.parse().ok()
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
}
