//! Random histories: the same steps against two stores, which must never differ.
//!
//! The seed alone determines a history: claims, ends, late ends, renewals, takeovers, settlements,
//! `forget`s, sweeps and advances of the clock over a handful of records, with conditions that are
//! right, stale or wrong. Every reply and, after every step, every record is compared. A failure
//! names the seed, the step and the last steps; the same seed fails in the same way.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::sync::Arc;
//!
//! use hapax_core::{Memory, Secret};
//! use hapax_testkit::{ManualClock, history};
//!
//! let clock = ManualClock::new();
//! let memory = || Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]));
//! let tally = history::run(42, 200, &memory(), &memory(), &clock).await;
//! assert!(tally.count("claim", "won") > 0, "{tally}");
//! # }
//! ```

mod plan;
mod tally;

use std::collections::VecDeque;
use std::fmt::{Debug, Write};

use hapax_core::store::{Reading, Swept, Written};
use hapax_core::{Head, Record, Store, StoreError};

use crate::ManualClock;
use plan::{Act, Planner, Step};

pub use tally::Tally;

/// Generates a history of `steps` steps from `seed`, runs it on both stores, and counts the
/// results.
///
/// Both stores must be empty and take their time from `clock`. Steps are planned by the records in
/// `a`, so `a` should be the store that is trusted.
///
/// # Panics
///
/// If the stores differ or one of them fails.
pub async fn run(
    seed: u64,
    steps: usize,
    a: &dyn Store,
    b: &dyn Store,
    clock: &ManualClock,
) -> Tally {
    live(History::new(seed, a, b, clock), steps).await
}

/// The same for a store `b` that drops expired answers in bulk, at times of its choice: the number
/// of answers dropped by a sweep is not compared.
pub async fn run_dropping_in_bulk(
    seed: u64,
    steps: usize,
    a: &dyn Store,
    b: &dyn Store,
    clock: &ManualClock,
) -> Tally {
    live(
        History {
            drops_in_bulk: true,
            ..History::new(seed, a, b, clock)
        },
        steps,
    )
    .await
}

async fn live(mut history: History<'_>, steps: usize) -> Tally {
    let (seed, clock) = (history.seed, history.clock);
    let mut planner = Planner::new(seed);
    let mut heads = history.compare_records(&planner).await;
    for number in 1..=steps {
        history.number = number;
        let step = planner.next(&heads, clock.now());
        history.remember(&step);
        history.take(step).await;
        heads = history.compare_records(&planner).await;
        planner.observe(&heads);
        if planner.replaces_a_record() {
            heads = history.compare_records(&planner).await;
        }
    }
    history.tally
}

/// The number of steps that a failure prints.
const TRAIL: usize = 20;

struct History<'a> {
    seed: u64,
    a: &'a dyn Store,
    b: &'a dyn Store,
    clock: &'a ManualClock,
    drops_in_bulk: bool,
    number: usize,
    /// Descriptions of the latest steps.
    trail: VecDeque<String>,
    tally: Tally,
}

impl<'a> History<'a> {
    fn new(seed: u64, a: &'a dyn Store, b: &'a dyn Store, clock: &'a ManualClock) -> Self {
        History {
            seed,
            a,
            b,
            clock,
            drops_in_bulk: false,
            number: 0,
            trail: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    async fn take(&mut self, step: Step) {
        let Step { kind, act } = step;
        match act {
            Act::Put(put) => {
                let written =
                    self.agree(self.a.put_if(put.clone()).await, self.b.put_if(put).await);
                self.note(
                    kind,
                    if matches!(written, Written::Won(_)) {
                        "won"
                    } else {
                        "lost"
                    },
                    1,
                );
            }
            Act::Renew(renewals) => {
                let renewed = self.agree(
                    self.a.renew(renewals.clone()).await,
                    self.b.renew(renewals).await,
                );
                let won = renewed.iter().filter(|renewed| **renewed).count();
                self.note(kind, "won", won);
                self.note(kind, "lost", renewed.len() - won);
            }
            Act::Sweep(limit) => {
                let (a, b) = (
                    sweep_all(self.a, limit).await,
                    sweep_all(self.b, limit).await,
                );
                let swept = self.agree(a.map(|swept| self.counted(swept)), b);
                self.count_swept(kind, swept);
            }
            Act::Get(ids) => {
                let reading = self.agree(self.a.get(ids.clone()).await, self.b.get(ids).await);
                self.count_found(kind, &reading);
            }
            Act::List(query) => {
                let heads = self.agree(self.a.list(query.clone()).await, self.b.list(query).await);
                self.note(kind, if heads.is_empty() { "empty" } else { "some" }, 1);
            }
            Act::Log(query) => {
                let log = self.agree(self.a.log(query).await, self.b.log(query).await);
                self.note(kind, if log.is_empty() { "empty" } else { "some" }, 1);
            }
            Act::Advance(duration) => {
                self.clock.advance(duration);
                self.note(kind, "moved", 1);
            }
        }
    }

    /// Reads every record and the epoch, and checks that both stores agree. Secrets may differ.
    async fn compare_records(&mut self, planner: &Planner) -> Vec<Option<Head>> {
        let reading = self.agree(
            self.a.get(planner.ids()).await,
            self.b.get(planner.ids()).await,
        );
        let (a, b) = (self.a.info().await, self.b.info().await);
        self.agree(
            a.map(|info| (info.now, info.epoch)),
            b.map(|info| (info.now, info.epoch)),
        );
        let head = |record: Option<Record>| {
            record.map(|record| {
                assert_eq!(
                    record.head.kept,
                    record.answer.is_some(),
                    "seed {}, step {}",
                    self.seed,
                    self.number
                );
                record.head
            })
        };
        reading.records.into_iter().map(head).collect()
    }

    /// The reply, which must be the same from both stores.
    fn agree<T: PartialEq + Debug>(&self, a: Result<T, StoreError>, b: Result<T, StoreError>) -> T {
        match (a, b) {
            (Ok(a), Ok(b)) if a == b => a,
            (a, b) => self.fail(&format!("the stores differ\n  a: {a:?}\n  b: {b:?}")),
        }
    }

    fn fail(&self, what: &str) -> ! {
        let trail: Vec<_> = self.trail.iter().map(String::as_str).collect();
        panic!(
            "seed {}, step {}: {what}\nthe last steps:\n{}",
            self.seed,
            self.number,
            trail.join("\n")
        );
    }

    fn remember(&mut self, step: &Step) {
        if self.trail.len() == TRAIL {
            self.trail.pop_front();
        }
        self.trail.push_back(format!(
            "  {:>5} at {:?}: {}: {:?}",
            self.number,
            self.clock.now(),
            step.kind,
            step.act
        ));
    }

    /// Records the result of a step: in the tally and, for the message of a failure, in the trail.
    fn note(&mut self, kind: &'static str, result: &'static str, count: usize) {
        self.tally.add(kind, result, count);
        if let Some(told) = self.trail.back_mut().filter(|_| count > 0) {
            write!(told, " -> {count} {result}").expect("a string takes any text");
        }
    }

    /// The part of a sweep's counts that is compared.
    fn counted(&self, swept: Swept) -> Swept {
        Swept {
            buried: if self.drops_in_bulk { 0 } else { swept.buried },
            ..swept
        }
    }

    fn count_swept(&mut self, kind: &'static str, swept: Swept) {
        self.note(kind, "lost", swept.lost);
        self.note(kind, "buried", swept.buried);
        self.note(kind, "removed", swept.removed);
        self.note(kind, "nothing", usize::from(swept.total() == 0));
    }

    fn count_found(&mut self, kind: &'static str, reading: &Reading) {
        let found = reading.records.iter().flatten().count();
        self.note(kind, "found", found);
        self.note(kind, "missing", reading.records.len() - found);
    }
}

/// Sweeps until nothing is due, and returns the sum. A store may remove an answer and its head in
/// one round or in two.
async fn sweep_all(store: &dyn Store, limit: usize) -> Result<Swept, StoreError> {
    let mut sum = Swept::default();
    loop {
        let swept = store.sweep(limit).await?;
        if swept.total() == 0 {
            return Ok(sum);
        }
        sum += swept;
    }
}
