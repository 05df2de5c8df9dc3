//! A customer who wants to pay once, and asks until there is a definite answer.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use tokio::time::Instant;

use super::dice::Dice;
use super::plan::{Customer, Order};
use super::service;
use super::tally::Tally;
use super::wire;

/// What a customer knows in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Has a receipt.
    Paid,
    /// The bank declined the card.
    Refused,
    /// Was told that the outcome is not known, and not to try again.
    Held,
    /// Got no definite answer in time.
    GaveUp,
}

/// What one request ended in.
enum Said {
    Definite(End),
    Again(Duration),
}

/// Where to buy, and until when.
#[derive(Clone, Copy)]
pub(super) struct Shop<'a> {
    pub(super) address: SocketAddr,
    pub(super) until: Instant,
    pub(super) tally: &'a Tally,
}

impl Shop<'_> {
    /// Sends the order, and again under the same key, until there is a definite answer.
    pub(super) async fn buy(&self, customer: &Customer, order: &Order, dice: &mut Dice) -> End {
        while Instant::now() < self.until {
            self.tally.sent.add();
            let sending = wire::send(self.address, request(self.address, customer, order));
            let said = match tokio::time::timeout(customer.patience, sending).await {
                Ok(Ok(answer)) => self.read(&answer, dice),
                // No answer, half of one, or none in time: the customer cannot know, and tries
                // again.
                Ok(Err(_)) | Err(_) => Said::Again(dice.millis(50, 250)),
            };
            match said {
                Said::Definite(end) => return end,
                Said::Again(after) => tokio::time::sleep(after).await,
            }
        }
        End::GaveUp
    }

    fn read(&self, answer: &Response<Bytes>, dice: &mut Dice) -> Said {
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

/// The short name of a problem, where the answer is one.
fn code(answer: &Response<Bytes>) -> Option<String> {
    let kind = answer.headers().get("content-type")?;
    if kind != "application/problem+json" {
        return None;
    }
    let problem: serde_json::Value = serde_json::from_slice(answer.body()).ok()?;
    Some(problem.get("code")?.as_str()?.to_owned())
}

/// As long as the answer says, and a little more, so that those who were told the same do not come
/// back at the same moment.
fn advice(headers: &HeaderMap, dice: &mut Dice) -> Duration {
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
        shop.read(answer, &mut Dice::new(1, "test"))
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
