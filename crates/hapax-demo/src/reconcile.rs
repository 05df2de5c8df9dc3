//! Reconciliation: for each key that Hapax holds as unknown, looks into the ledger and settles what
//! became of it. In production this is a job of the service's owner, or of an operator with `hapax
//! keys settle`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::core::record::{Head, StateFilter};
use hapax::core::store::ListQuery;
use hapax::{Answer, Audit, Hapax, Settlement};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::customers::{End, Ends, Shop};
use crate::ledger::{Charge, Ledger};
use crate::plan::{Plan, Random};
use crate::requests::Tally;
use crate::service;

/// A retry may meet its own fault, be held again, and need another round.
const ROUNDS_MAX: u32 = 5;

/// How long one customer retries.
const PATIENCE: Duration = Duration::from_secs(8);

/// The page size for held keys: larger than the orders of any plan.
const PAGE: usize = 10_000;

/// The results of reconciliation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Reconciled {
    /// Keys that were held when the storm was over.
    pub(crate) held: u64,
    /// Keys that were held when they were retried: a retry can be lost too.
    pub(crate) held_again: u64,
    /// How many of these have a charge in the ledger.
    pub(crate) found: u64,
    /// How many have none.
    pub(crate) not_there: u64,
}

/// The inputs of reconciliation.
pub(crate) struct Books<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) hapax: &'a Hapax,
    pub(crate) gateway: SocketAddr,
    pub(crate) ledger: &'a Path,
    pub(crate) tally: &'a Arc<Tally>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Settles all held keys and lets their customers retry, until none is held.
pub(crate) async fn run(books: &Books<'_>, ends: &mut Ends) -> Result<Reconciled, Failure> {
    let ledger = Ledger::read(books.ledger)?;
    let mut reconciled = Reconciled::default();
    for round in 0..ROUNDS_MAX {
        let held = held(books.hapax).await?;
        let counted = if round == 0 {
            &mut reconciled.held
        } else {
            &mut reconciled.held_again
        };
        *counted += held.len() as u64;
        for head in &held {
            match settle(books.hapax, &ledger, head).await? {
                Some(_) => reconciled.found += 1,
                None => reconciled.not_there += 1,
            }
        }
        if ask_again(books, ends).await == 0 && held.is_empty() {
            break;
        }
    }
    Ok(reconciled)
}

async fn held(hapax: &Hapax) -> Result<Vec<Head>, Failure> {
    Ok(hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: PAGE,
        })
        .await?)
}

/// The service is idle by now, so a charge that is not in its ledger will not appear later.
async fn settle(hapax: &Hapax, ledger: &Ledger, head: &Head) -> Result<Option<Charge>, Failure> {
    let charge = ledger.find(head.key.as_str())?;
    let (settlement, reason) = match &charge {
        Some(charge) => (
            Settlement::Done(answer(charge)),
            "the charge is in the ledger",
        ),
        None => (Settlement::NotDone, "the charge is not in the ledger"),
    };
    hapax
        .settle(
            head.id,
            settlement,
            Audit {
                by: "hapax demo",
                reason,
            },
        )
        .await?;
    Ok(charge)
}

/// The answer that the service would have sent.
fn answer(charge: &Charge) -> Answer {
    let mut answer = Answer::new(
        201,
        service::receipt(charge.id, &charge.order, charge.amount_cents),
    );
    answer.headers.push((
        "content-type".to_owned(),
        Bytes::from_static(b"application/json"),
    ));
    answer
}

/// Customers without a definite answer retry under the same key, directly at the gateway. Returns
/// how many did.
async fn ask_again(books: &Books<'_>, ends: &mut Ends) -> usize {
    let mut asking = JoinSet::new();
    for (number, (_, order)) in books.plan.placed().enumerate() {
        if is_open(ends.get(&order.id)) {
            asking.spawn(ask(
                books.plan.clone(),
                number,
                books.gateway,
                books.tally.clone(),
            ));
        }
    }
    let answered = asking.join_all().await;
    let asked = answered.len();
    ends.extend(answered);
    asked
}

async fn ask(
    plan: Arc<Plan>,
    number: usize,
    gateway: SocketAddr,
    tally: Arc<Tally>,
) -> (String, End) {
    let (customer, order) = plan.placed().nth(number).expect("counted above");
    let shop = Shop {
        address: gateway,
        until: Instant::now() + PATIENCE,
        tally: &tally,
    };
    let end = shop
        .buy(customer, order, &mut Random::new(plan.seed, &order.key))
        .await;
    (order.id.clone(), end)
}

fn is_open(end: Option<&End>) -> bool {
    !matches!(end, Some(End::Paid | End::Refused))
}
