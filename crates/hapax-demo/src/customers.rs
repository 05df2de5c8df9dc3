//! Customers who want to pay once and retry until they get a definite answer. All run concurrently,
//! against one address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::balancer::Balancer;
use crate::plan::{Customer, Order, Plan, Random};
use crate::requests::{Tally, send};
use crate::service;

/// How long customers keep retrying after the last order was placed. This limits the length of the
/// storm.
pub(crate) const LAST_CALL: Duration = Duration::from_secs(10);

/// What each customer knows in the end, by order.
pub(crate) type Ends = BTreeMap<String, End>;

/// Runs all customers of the plan.
pub(crate) async fn run(
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
                &mut Random::new(plan.seed, &customer.name),
            )
            .await
        });
    }
    Ok(customers.join_all().await.into_iter().flatten().collect())
}

/// Runs one customer: each order at its time, or as soon as the previous one has ended.
async fn spend(customer: &Customer, shop: Shop<'_>, begun: Instant, dice: &mut Random) -> Ends {
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

/// Places an order with one or two clicks. Both clicks send the same key, and both retry until they
/// get a definite answer.
async fn click(customer: &Customer, order: &Order, shop: Shop<'_>, dice: &mut Random) -> End {
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

/// The more definite result of two clicks.
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

/// What a customer knows in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The customer has a receipt.
    Paid,
    /// The bank declined the card.
    Refused,
    /// The customer was told that the outcome is unknown and not to retry.
    Held,
    /// The customer got no definite answer in time.
    GaveUp,
}

/// The result of one request.
enum Said {
    Definite(End),
    Again(Duration),
}

/// The address of the shop, and when customers give up.
#[derive(Clone, Copy)]
pub(crate) struct Shop<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) until: Instant,
    pub(crate) tally: &'a Tally,
}

impl Shop<'_> {
    /// Sends the order repeatedly under the same key, until there is a definite answer.
    pub(crate) async fn buy(&self, customer: &Customer, order: &Order, dice: &mut Random) -> End {
        while Instant::now() < self.until {
            self.tally.sent.add();
            let sending = send(self.address, request(self.address, customer, order));
            let said = match tokio::time::timeout(customer.patience, sending).await {
                Ok(Ok(answer)) => self.read(&answer, dice),
                // No answer, a truncated one, or none in time: the customer cannot know the outcome
                // and retries.
                Ok(Err(_)) | Err(_) => Said::Again(dice.millis(50, 250)),
            };
            match said {
                Said::Definite(end) => return end,
                Said::Again(after) => tokio::time::sleep(after).await,
            }
        }
        End::GaveUp
    }

    fn read(&self, answer: &Response<Bytes>, dice: &mut Random) -> Said {
        if answer.headers().contains_key("idempotent-replayed") {
            self.tally.replayed.add();
        }
        match (answer.status().as_u16(), code(answer).as_deref()) {
            (201, _) => Said::Definite(End::Paid),
            (402, _) => Said::Definite(End::Refused),
            (_, Some("outcome-unknown")) => Said::Definite(End::Held),
            (_, Some("in-flight")) => {
                self.tally.told_to_wait.add();
                Said::Again(advice(answer.headers(), dice))
            }
            _ => Said::Again(advice(answer.headers(), dice)),
        }
    }
}

fn request(address: SocketAddr, customer: &Customer, order: &Order) -> Request<Full<Bytes>> {
    let card = if order.declined { "declined" } else { "good" };
    let body =
        serde_json::json!({ "order": order.id, "amount_cents": order.amount_cents, "card": card });
    let request = Request::post(service::PATH)
        .header("host", address.to_string())
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", customer.name))
        .header("idempotency-key", &order.key);
    request
        .body(Full::from(body.to_string()))
        .expect("a plan's names are header values")
}

/// The short name of the problem, if the answer is a problem document.
fn code(answer: &Response<Bytes>) -> Option<String> {
    let kind = answer.headers().get("content-type")?;
    if kind != "application/problem+json" {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(answer.body()).ok()?;
    Some(problem.get("code")?.as_str()?.to_owned())
}

/// The delay that the answer advises, plus a random addition, so that customers do not all return
/// at the same moment.
fn advice(headers: &HeaderMap, dice: &mut Random) -> Duration {
    let told = headers
        .get("retry-after-ms")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    told.map_or(Duration::from_millis(100), Duration::from_millis) + dice.millis(0, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, code: &str, retry_after_ms: Option<&str>) -> Response<Bytes> {
        let mut answer = Response::builder()
            .status(status)
            .header("content-type", "application/problem+json");
        if let Some(millis) = retry_after_ms {
            answer = answer.header("retry-after-ms", millis);
        }
        answer
            .body(Bytes::from(serde_json::json!({ "code": code }).to_string()))
            .unwrap()
    }

    fn read(answer: &Response<Bytes>) -> Said {
        let tally = Tally::default();
        let shop = Shop {
            address: ([127, 0, 0, 1], 1).into(),
            until: Instant::now(),
            tally: &tally,
        };
        shop.read(answer, &mut Random::new(1, "test"))
    }

    #[test]
    fn an_unknown_outcome_is_not_tried_again_whatever_its_status() {
        for status in [409, 502, 504] {
            assert!(
                matches!(
                    read(&problem(status, "outcome-unknown", None)),
                    Said::Definite(End::Held)
                ),
                "{status}"
            );
        }
    }

    #[test]
    fn what_is_in_flight_is_asked_for_after_the_time_it_says() {
        let Said::Again(after) = read(&problem(409, "in-flight", Some("700"))) else {
            panic!("definite")
        };
        assert!((700..=800).contains(&after.as_millis()), "{after:?}");
    }

    #[test]
    fn a_plain_bad_gateway_is_tried_again() {
        let answer = Response::builder().status(502).body(Bytes::new()).unwrap();
        assert!(matches!(read(&answer), Said::Again(_)));
    }
}
