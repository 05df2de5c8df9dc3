//! Runs the cases of the contract one after another.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::Store;
use hapax::core::store::StoreError;
use hapax_contract::{Bench, CASES, Case, Left, Tidy};
use tokio_util::task::AbortOnDropHandle;

/// The time limit of one case: many times what the slowest needs on a store that answers within its
/// timeout.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a case is tried if another process's sweep may interfere.
const TRIES_MAX: usize = 3;

/// A run of the contract on one store.
pub(super) struct Run {
    store: Arc<Tidy>,
    /// Whether other processes may be using the store.
    is_live: bool,
}

/// The results of a run.
pub(super) struct Judged {
    pub(super) cases: Vec<(&'static str, Verdict)>,
    pub(super) took: Duration,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Kept,
    /// It passed only when it was tried again; this is the reason of the first failure.
    KeptLater(String),
    Broken(String),
    Skipped(&'static str),
}

impl Run {
    pub(super) fn on(store: Arc<dyn Store>, is_live: bool) -> Run {
        Run {
            store: Arc::new(Tidy::new(store)),
            is_live,
        }
    }

    /// Runs all cases. `begins` is called before each one with its number.
    pub(super) async fn all(&self, mut begins: impl FnMut(usize)) -> Judged {
        let (start, mut cases) = (Instant::now(), Vec::new());
        for (number, case) in CASES.iter().enumerate() {
            begins(number);
            cases.push((case.name, self.judge(case).await));
        }
        Judged {
            cases,
            took: start.elapsed(),
        }
    }

    /// Removes the records that the cases made.
    pub(super) async fn clear(&self) -> Result<Left, StoreError> {
        self.store.clear().await
    }

    async fn judge(&self, case: &Case) -> Verdict {
        let mut first = None;
        for _ in 0..if self.is_live && may_be_disturbed(case) {
            TRIES_MAX
        } else {
            1
        } {
            match (self.once(case).await, first.take()) {
                (Verdict::Kept, Some(why)) => return Verdict::KeptLater(why),
                (Verdict::Broken(why), earlier) => first = Some(earlier.unwrap_or(why)),
                (verdict, _) => return verdict,
            }
        }
        Verdict::Broken(first.unwrap_or_default())
    }

    async fn once(&self, case: &Case) -> Verdict {
        let bench = Bench::in_real_time(self.store.clone());
        // A store that other processes use is a Postgres or a Redis, and both drop answers in bulk.
        let bench = if self.is_live {
            bench.live().dropping_in_bulk()
        } else {
            bench.shared()
        };
        // On a separate task, so that a panic ends only this case.
        let case = AbortOnDropHandle::new(tokio::spawn((case.run)(bench.clone())));
        match tokio::time::timeout(PATIENCE, case).await {
            Ok(Ok(())) => bench.skipped().map_or(Verdict::Kept, Verdict::Skipped),
            Ok(Err(error)) => Verdict::Broken(match error.try_into_panic() {
                Ok(panic) => said(&*panic),
                Err(error) => error.to_string(),
            }),
            Err(_) => Verdict::Broken(format!("it did not end within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Whether another process's sweep may change what the case looks at. A race is never repeated: if
/// it fails once, the promise is broken.
fn may_be_disturbed(case: &Case) -> bool {
    !matches!(case.part, "race" | "claim" | "storage") && !case.name.starts_with("of_64")
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it panicked")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use hapax::core::StateFilter;
    use hapax::core::store::ListQuery;
    use hapax_testkit::{Fault, Faulty, Verb};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_sound_store_keeps_every_promise_and_is_left_tidy() {
        let store: Arc<dyn Store> = Arc::new(hapax::store::memory());
        for is_live in [false, true] {
            let run = Run::on(store.clone(), is_live);
            let judged = run.all(|_| {}).await;
            assert_eq!(judged.cases.len(), CASES.len());
            for (case, verdict) in judged.cases {
                assert!(
                    matches!(verdict, Verdict::Kept | Verdict::Skipped(_)),
                    "{case}: {verdict:?}"
                );
            }
            let left = run.clear().await.unwrap();
            assert!(left.entries > 0);
        }
        let open = store
            .list(ListQuery {
                state: Some(StateFilter::Unknown),
                after: None,
                limit: 1,
            })
            .await
            .unwrap();
        assert!(open.is_empty(), "{open:?}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_store_that_fails_once_is_found_out_and_the_rest_goes_on() {
        let store = Faulty::new(Arc::new(hapax::store::memory()));
        store.fail_next(Verb::PutIf, Fault::ErrorBefore, 1);
        let judged = Run::on(Arc::new(store), false).all(|_| {}).await;
        let broken: Vec<_> = judged
            .cases
            .iter()
            .filter(|(_, verdict)| matches!(verdict, Verdict::Broken(_)))
            .collect();
        assert_eq!(broken.len(), 1, "{broken:?}");
        assert!(
            matches!(&broken[0].1, Verdict::Broken(why) if why.contains("put_if")),
            "{broken:?}"
        );
    }
}
