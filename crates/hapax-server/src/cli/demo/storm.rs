//! The storm: every customer of the plan at once, against one address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::balancer::Balancer;
use super::customer::{End, Shop};
use super::dice::Dice;
use super::plan::{Customer, Order, Plan};
use super::tally::Tally;

/// How long customers go on asking after the last order was placed. Bounds the storm.
pub(super) const LAST_CALL: Duration = Duration::from_secs(10);

/// What the customers know in the end, by order.
pub(super) type Ends = BTreeMap<String, End>;

/// Lets the plan's customers loose.
pub(super) async fn run(
    plan: &Arc<Plan>,
    address: SocketAddr,
    tally: &Arc<Tally>,
) -> std::io::Result<Ends> {
    let balancer = Balancer::start(address, tally.clone()).await?;
    let begun = Instant::now();
    let mut customers = JoinSet::new();
    for number in 0..plan.customers.len() {
        let (plan, tally, balancer) = (plan.clone(), tally.clone(), balancer.address());
        customers.spawn(async move {
            let customer = &plan.customers[number];
            let shop = Shop {
                address: if customer.balanced { balancer } else { address },
                until: begun + plan.span + LAST_CALL,
                tally: &tally,
            };
            spend(
                customer,
                shop,
                begun,
                &mut Dice::new(plan.seed, &customer.name),
            )
            .await
        });
    }
    Ok(customers.join_all().await.into_iter().flatten().collect())
}

/// A customer's day: each order at its time, or as soon as the one before has ended.
async fn spend(customer: &Customer, shop: Shop<'_>, begun: Instant, dice: &mut Dice) -> Ends {
    let mut ends = Ends::new();
    for order in &customer.orders {
        tokio::time::sleep_until(begun + order.at).await;
        let end = click(customer, order, shop, dice).await;
        match end {
            End::Refused => shop.tally.refused.add(),
            End::Held => shop.tally.held.add(),
            End::Paid | End::GaveUp => {}
        }
        ends.insert(order.id.clone(), end);
    }
    ends
}

/// Once or twice: both clicks send the same key, and both ask until they know.
async fn click(customer: &Customer, order: &Order, shop: Shop<'_>, dice: &mut Dice) -> End {
    let mut other_dice = dice.clone();
    let first = shop.buy(customer, order, dice);
    let Some(later) = order.second_click else {
        return first.await;
    };
    let second = async {
        tokio::time::sleep(later).await;
        other_dice.throw();
        shop.buy(customer, order, &mut other_dice).await
    };
    let (first, second) = tokio::join!(first, second);
    better_known(first, second)
}

/// Of two clicks, what the customer goes by.
fn better_known(first: End, second: End) -> End {
    let known = |end| match end {
        End::Paid => 3,
        End::Refused => 2,
        End::Held => 1,
        End::GaveUp => 0,
    };
    if known(first) >= known(second) {
        first
    } else {
        second
    }
}
