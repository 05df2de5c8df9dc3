//! Compares the SDK's reports with the API's ledger.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hapax::core::StateFilter;
use hapax::core::store::ListQuery;
use hapax::{Event, Hapax, Observer, Rejection};

use super::api::Charge;
use super::run::Report;

#[derive(Debug, Default)]
pub struct Verdict {
    /// Orders that the SDK reports as paid.
    pub charged: usize,
    /// Orders whose outcome the SDK was told is unknown.
    pub held: usize,
    /// Orders that are in the ledger more than once.
    pub charged_again: Vec<String>,
    /// Reports that contradict the ledger, and unexpected ends.
    pub wrong: Vec<String>,
}

impl Verdict {
    pub fn of(reports: &[Report], ledger: &[Charge]) -> Verdict {
        let mut charges: HashMap<&str, Vec<&Charge>> = HashMap::new();
        for charge in ledger {
            charges.entry(&charge.order).or_default().push(charge);
        }
        let mut verdict = Verdict::default();
        for report in reports {
            verdict.judge(
                report,
                charges
                    .remove(report.order.as_str())
                    .unwrap_or_default()
                    .as_slice(),
            );
        }
        verdict.wrong.extend(
            charges
                .values()
                .flatten()
                .map(|charge| format!("nobody ordered {charge:?}")),
        );
        verdict
    }

    fn judge(&mut self, report: &Report, charges: &[&Charge]) {
        if charges.len() > 1 {
            self.charged_again
                .push(format!("{}: {charges:?}", report.order));
        }
        // Otherwise the run would prove nothing about keys: each retry would be a separate request.
        if charges.windows(2).any(|pair| pair[0].key != pair[1].key) {
            self.wrong
                .push(format!("the SDK made more than one key: {charges:?}"));
        }
        match (&report.id, report.code.as_deref()) {
            (Some(id), _) if charges.iter().any(|charge| charge.id == *id) => self.charged += 1,
            (None, Some("outcome-unknown")) => self.held += 1,
            _ => self
                .wrong
                .push(format!("{report:?}, but the ledger has {charges:?}")),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            charged,
            held,
            charged_again,
            ..
        } = self;
        write!(
            f,
            "{charged} orders charged, {held} held, {} charged more than once",
            charged_again.len()
        )
    }
}

/// Counts the events that the gateway reports.
#[derive(Clone, Default)]
pub struct Events(Arc<Counts>);

#[derive(Default)]
struct Counts {
    replayed: AtomicUsize,
    in_flight: AtomicUsize,
}

impl Events {
    pub fn observer(&self) -> impl Observer + use<> {
        let counts = self.0.clone();
        move |event: &Event<'_>| {
            let count = match event {
                Event::Replayed { .. } => &counts.replayed,
                Event::Rejected {
                    rejection: Rejection::InFlight { .. },
                    ..
                } => &counts.in_flight,
                _ => return,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn replayed(&self) -> usize {
        self.0.replayed.load(Ordering::Relaxed)
    }
}

impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answers replayed, {} told to come again",
            self.replayed(),
            self.0.in_flight.load(Ordering::Relaxed)
        )
    }
}

/// The number of records with an unknown outcome.
pub async fn unknown_records(hapax: &Hapax) -> usize {
    hapax
        .list(ListQuery {
            state: Some(StateFilter::Unknown),
            after: None,
            limit: 10_000,
        })
        .await
        .unwrap()
        .len()
}
