//! Requests and values in JSON.

use std::collections::HashMap;
use std::error::Error;

use hapax::{Answer, Audit, BoxError, Done, Policy, Rejection, RunError, Settlement};
use hapax_core::store::ListQuery;
use serde::{Deserialize, Serialize, Serializer};

use crate::common::Ledger;
use crate::join::{Shop, order};
use crate::memory;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Invoice {
    number: u32,
    cents: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Receipt {
    id: String,
}

const INVOICE: Invoice = Invoice {
    number: 17,
    cents: 500,
};

fn receipt() -> Receipt {
    Receipt { id: "r-17".into() }
}

#[tokio::test]
async fn typed_work_runs_once_and_its_value_is_replayed() {
    let hapax = memory();
    let once = hapax.once("pay").json();
    let ledger = Ledger::default();
    let run = async |invoice: &Invoice| {
        let ledger = ledger.clone();
        let work = async move |_| {
            ledger.add("paid");
            Ok::<_, BoxError>(receipt())
        };
        once.run("k", invoice, work).await
    };
    let first: Done<Receipt> = run(&INVOICE).await.unwrap();
    let again = run(&INVOICE).await.unwrap();
    assert_eq!((first.value, first.replayed), (receipt(), false));
    assert_eq!((again.value, again.replayed), (receipt(), true));
    let other = Invoice {
        cents: 600,
        ..INVOICE
    };
    assert!(matches!(
        run(&other).await,
        Err(RunError::Rejected(Rejection::KeyReused))
    ));
    assert_eq!(ledger.len(), 1);
}

#[tokio::test]
async fn a_refusal_is_a_value_and_is_replayed() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Declined(String);

    let once = memory().once("pay").json();
    let ledger = Ledger::default();
    for replayed in [false, true] {
        let ledger = ledger.clone();
        let work = async move |_| {
            ledger.add("asked");
            Ok::<Result<Receipt, Declined>, BoxError>(Err(Declined("no money".into())))
        };
        let done = once.run("k", INVOICE, work).await.unwrap();
        assert_eq!(done.value, Err(Declined("no money".into())));
        assert_eq!(done.replayed, replayed);
    }
    assert_eq!(ledger.len(), 1);
}

/// A map that is written in this order.
struct Members([(&'static str, u32); 2]);

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0)
    }
}

/// A `HashMap` is written in another order by every process.
#[tokio::test]
async fn the_order_of_members_does_not_count() {
    let once = memory().once("pay").json();
    let run = async |request: Members| {
        let work = async |_| Ok::<_, BoxError>(1);
        once.run("k", request, work).await.unwrap().replayed
    };
    assert!(!run(Members([("a", 1), ("b", 2)])).await);
    assert!(run(Members([("b", 2), ("a", 1)])).await);
}

#[tokio::test]
async fn a_kept_value_of_another_type_is_an_error_and_the_work_does_not_run() {
    let hapax = memory();
    let once = hapax.once("pay").json();
    let work = async |_| Ok::<_, BoxError>(17);
    once.run("k", INVOICE, work).await.unwrap();
    let ledger = Ledger::default();
    let ran = ledger.clone();
    let work = async move |_| {
        ran.add("paid");
        Ok::<_, BoxError>(receipt())
    };
    let error = once.run("k", INVOICE, work).await.unwrap_err();
    assert!(matches!(error, RunError::Value(_)), "{error:?}");
    assert!(
        error
            .source()
            .is_some_and(|source| source.is::<serde_json::Error>())
    );
    assert_eq!((error.retry(), ledger.len()), (None, 0));

    // An operator's word is a value too, if it is of the type.
    let lost = async |_| Err::<Receipt, _>("reset");
    assert!(once.run("lost", INVOICE, lost).await.is_err());
    let unknown = ListQuery {
        state: Some(hapax::core::record::StateFilter::Unknown),
        after: None,
        limit: 1,
    };
    let head = hapax.list(unknown).await.unwrap().remove(0);
    let audit = Audit {
        by: "ada",
        reason: "looked it up",
    };
    let answer = Answer::new(200, r#"{"id":"r-17"}"#);
    hapax
        .settle(head.id, Settlement::Done(answer), audit)
        .await
        .unwrap();
    let work = async |_| Err::<Receipt, _>("it ran");
    let done = once.run("lost", INVOICE, work).await.unwrap();
    assert_eq!((done.value, done.replayed), (receipt(), true));
}

/// What serde cannot write.
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("planned"))
    }
}

#[tokio::test]
async fn a_request_that_is_no_json_begins_nothing() {
    let hapax = memory();
    let once = hapax.once("pay").json();
    let work = async |_| Err::<Receipt, _>("it ran");
    let error = once.run("k", Unwritable, work).await.unwrap_err();
    assert!(matches!(error, RunError::Request(_)), "{error:?}");
    assert!(error.source().is_some());
    let all = ListQuery {
        state: None,
        after: None,
        limit: 1,
    };
    assert!(hapax.list(all).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_value_that_was_stored_in_a_transaction_is_the_value() {
    let shop = Shop::open().await;
    let once = shop.once(true).json();
    for replayed in [false, true] {
        let connection = shop.connect();
        let work = async move |operation| {
            order(operation, connection, r#"{"id":"r-17"}"#).await;
            // What was stored counts, whatever the work returns after it.
            Err::<Receipt, _>("late")
        };
        let done = once.run("k", INVOICE, work).await.unwrap();
        assert_eq!((done.value, done.replayed), (receipt(), replayed));
    }
    let connection = shop.connect();
    let work = async move |operation| {
        order(operation, connection, "no JSON").await;
        Ok::<_, BoxError>(receipt())
    };
    assert!(matches!(
        once.run("other", INVOICE, work).await,
        Err(RunError::Value(_))
    ));
    assert_eq!(shop.orders(), 2);
}

#[tokio::test]
async fn a_value_that_cannot_be_kept_is_returned_once() {
    fn is_not_kept<T>(ran: &Result<Done<T>, RunError>) -> bool {
        matches!(
            ran,
            Err(RunError::Rejected(Rejection::AnswerNotKept { .. }))
        )
    }
    let policy = Policy {
        answer_bytes_max: 3,
        ..Policy::default()
    };
    let once = memory().once("pay").policy(policy).unwrap().json();
    let run = async || {
        let work = async |_| Ok::<_, BoxError>(receipt());
        once.run("k", INVOICE, work).await
    };
    assert_eq!(run().await.unwrap().value, receipt());
    assert!(is_not_kept(&run().await));

    // The keys of a JSON object are text: such a map is returned, and cannot be written.
    let once = memory().once("count").json();
    let run = async || {
        let work = async |_| Ok::<_, BoxError>(HashMap::from([(vec![1], 2)]));
        once.run("k", INVOICE, work).await
    };
    assert_eq!(run().await.unwrap().value, HashMap::from([(vec![1], 2)]));
    assert!(is_not_kept(&run().await));
}
