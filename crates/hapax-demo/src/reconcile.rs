//! Reconciling: for what Hapax holds as unknown, somebody looks into the ledger and states what
//! became of it. In real life this is a job of the service's owner, or an operator with `hapax keys
//! settle`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::core::record::Head;
use hapax::core::store::ListQuery;
use hapax::{Answer, Audit, Hapax, Settlement};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::customers::{End, Ends, Shop};
use crate::ledger::{Charge, Ledger};
use crate::plan::{Dice, Plan};
use crate::requests::Tally;
use crate::service;

/// A retry may meet a fault of its own, be held in turn, and need another look.
const ROUNDS_MAX: u32 = 5;

/// How long one customer asks again.
const PATIENCE: Duration = Duration::from_secs(8);

/// A page of what is held: more than any plan has orders.
const PAGE: usize = 10_000;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Reconciled {
    /// Keys that were held when the storm was over.
    pub(crate) held: u64,
    /// Keys that were held when they were retried: a retry can be lost too.
    pub(crate) held_again: u64,
    /// Of all these: the charge is in the ledger.
    pub(crate) found: u64,
    /// It is not.
    pub(crate) not_there: u64,
}

/// Everything that reconciling needs to see.
pub(crate) struct Books<'a> {
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) hapax: &'a Hapax,
    pub(crate) gateway: SocketAddr,
    pub(crate) ledger: &'a Path,
    pub(crate) tally: &'a Arc<Tally>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Settles all that is held, and lets its customers ask again, until nothing is held any more.
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
            state: Some("unknown"),
            after: None,
            limit: PAGE,
        })
        .await?)
}

/// The service is at rest by now, so that what is not in its ledger will not get there any more.
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

/// What the service would have said, had it been heard.
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

/// Whoever has no definite answer asks again under the same key, at the gateway itself. Says how
/// many asked.
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
        .buy(customer, order, &mut Dice::new(plan.seed, &order.key))
        .await;
    (order.id.clone(), end)
}

fn is_open(end: Option<&End>) -> bool {
    !matches!(end, Some(End::Paid | End::Refused))
}
