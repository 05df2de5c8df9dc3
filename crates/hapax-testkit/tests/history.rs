//! Tests random histories with the reference store, and with a store that differs slightly.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use hapax_core::store::{Reading, Reply};
use hapax_core::{Memory, RecordId, Secret, Store};
use hapax_testkit::history::{self, Tally};
use hapax_testkit::{Fault, Faulty, ManualClock, Verb};

#[tokio::test]
async fn two_memories_never_differ_and_everything_happens() {
    let mut sum = Tally::default();
    for seed in 0..300 {
        sum += run(seed, 200).await;
    }
    println!("{sum}");
    for kind in WRITES {
        for result in ["won", "lost"] {
            assert!(
                sum.count(kind, result) >= 100,
                "{kind} {result} hardly ever:\n{sum}"
            );
        }
    }
    for (kind, result, count) in sum.iter() {
        assert!(count >= 50, "{kind} {result} hardly ever:\n{sum}");
    }
    assert_eq!(sum.iter().count(), 2 * WRITES.len() + 11);
}

#[tokio::test]
async fn one_long_history_holds_too() {
    run(2030, 20_000).await;
}

#[tokio::test]
async fn a_seed_is_its_history() {
    assert_eq!(run(7, 500).await, run(7, 500).await);
    assert_ne!(run(7, 500).await, run(8, 500).await);
}

#[tokio::test]
async fn a_store_that_differs_is_convicted_with_seed_step_and_trail() {
    let clock = ManualClock::new();
    let (a, b) = (memory(&clock), Forgetful(memory(&clock)));
    let story = convict(&clock, &a, &b).await;
    for word in [
        "seed 11, step ",
        "the stores differ",
        "the last steps:",
        " at 189",
    ] {
        assert!(story.contains(word), "{word:?} is missing from {story}");
    }
}

#[tokio::test]
async fn a_store_that_fails_is_convicted() {
    let clock = ManualClock::new();
    let b = Faulty::new(Arc::new(memory(&clock)));
    b.let_through(Verb::Sweep, 2);
    b.fail_next(Verb::Sweep, Fault::ErrorAfter, 1);
    let story = convict(&clock, &memory(&clock), &b).await;
    assert!(story.contains("scripted fault: Sweep"), "{story}");
}

const WRITES: [&str; 11] = [
    "claim",
    "takeover",
    "completion",
    "late completion",
    "release",
    "giving up",
    "loss",
    "settlement",
    "forgetting",
    "stray write",
    "renewal",
];

async fn run(seed: u64, steps: usize) -> Tally {
    let clock = ManualClock::new();
    history::run(seed, steps, &memory(&clock), &memory(&clock), &clock).await
}

fn memory(clock: &ManualClock) -> Memory {
    Memory::new(Arc::new(clock.clone()), Secret::from_bytes([7; 32]))
}

/// The panic message of the history.
async fn convict(clock: &ManualClock, a: &dyn Store, b: &dyn Store) -> String {
    let mut history = Box::pin(AssertUnwindSafe(history::run(11, 2_000, a, b, clock)));
    let panicked = std::future::poll_fn(|cx| {
        let history = history.as_mut();
        match std::panic::catch_unwind(AssertUnwindSafe(|| history.poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => std::task::Poll::Ready(Err(panic)),
        }
    });
    let panic = panicked.await.expect_err("the history should not hold");
    *panic.downcast().expect("a panic with words")
}

/// A store that loses the status of an answer that is not kept.
struct Forgetful(Memory);

impl Store for Forgetful {
    fn get(&self, ids: Vec<RecordId>) -> Reply<'_, Reading> {
        Box::pin(async move {
            let mut reading = self.0.get(ids).await?;
            for head in reading
                .records
                .iter_mut()
                .flatten()
                .map(|record| &mut record.head)
            {
                head.status = head.status.filter(|_| head.kept);
            }
            Ok(reading)
        })
    }

    hapax_core::forward_store!(
        self => self.0;
        put_if, renew, list, sweep, info, remember, knows, log, note
    );
}
