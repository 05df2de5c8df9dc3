//! Races: concurrent operations have the result of some sequential order.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::store::{Change, ListQuery, Renewal, Won, Written};
use hapax_core::{Condition, Fence, Put, State};
use tokio::sync::Barrier;

use super::Bench;
use super::subject::{
    KEPT, LONG, SHORT, Subject, answer, completed, completion, new_token, released, settlement,
    unknown,
};

const RACERS: usize = 64;
const ROUNDS: usize = 16;

pub(super) async fn of_64_claims_one_wins(bench: &Bench) {
    let subject = bench.subject();
    let writes = (0..RACERS)
        .map(|_| (Condition::Absent, Change::Claim(subject.claim(LONG))))
        .collect();
    let winner = one_winner(race(&subject, writes).await);
    assert_eq!(winner.head.attempts, 1);
}

pub(super) async fn of_64_takeovers_one_wins(bench: &Bench) {
    let subject = bench.subject();
    let fence = subject.ended(released(KEPT)).await.fence;
    let writes = (0..RACERS)
        .map(|_| {
            (
                Condition::Lapsed { fence },
                Change::Claim(subject.claim(LONG)),
            )
        })
        .collect();
    let winner = one_winner(race(&subject, writes).await);
    assert_eq!(winner.head.attempts, 2);
    assert!(winner.head.fence > fence);
}

pub(super) async fn of_64_completions_only_the_holders_wins(bench: &Bench) {
    let subject = bench.subject();
    let own = subject.running(LONG).await.fence;
    let fences = (0..RACERS as u64).map(|number| Fence::from_u64(own.as_u64() - 20 + number));
    let writes = fences
        .map(|fence| (Condition::Held { fence }, completed(&fence.to_string())))
        .collect();
    let results = race(&subject, writes).await;

    assert_eq!(
        results
            .iter()
            .filter(|written| matches!(written, Written::Won(_)))
            .count(),
        1
    );
    assert_eq!(
        subject.record().await.answer,
        Some(answer(&own.to_string()))
    );
}

/// The attempt's lease has lapsed but it still runs: either it completes and is replayed, or it is
/// fenced out for good.
pub(super) async fn a_completion_and_a_takeover_never_both_win(bench: &Bench) {
    let subjects: Vec<_> = (0..ROUNDS).map(|_| bench.subject()).collect();
    let mut fences = Vec::new();
    for subject in &subjects {
        fences.push(subject.running(SHORT).await.fence);
    }
    bench.pass(SHORT).await;
    for (subject, fence) in subjects.iter().zip(fences) {
        let takeover = (
            Condition::Lapsed { fence },
            Change::Claim(subject.claim(LONG)),
        );
        one_winner(
            race(
                subject,
                vec![(Condition::Held { fence }, completed("late")), takeover],
            )
            .await,
        );
    }
}

pub(super) async fn a_completion_and_a_settlement_never_both_win(bench: &Bench) {
    for _ in 0..ROUNDS {
        let subject = bench.subject();
        let lost = subject.ended(unknown(KEPT)).await;
        let settlement = (
            Condition::Version {
                version: lost.version,
            },
            settlement(completion("settled", KEPT)),
        );
        let completion = (Condition::Held { fence: lost.fence }, completed("late"));
        one_winner(race(&subject, vec![completion, settlement]).await);
    }
}

pub(super) async fn claims_of_different_records_all_win(bench: &Bench) {
    let start = Arc::new(Barrier::new(RACERS));
    let tasks: Vec<_> = (0..RACERS)
        .map(|_| tokio::spawn(claim_and_complete(start.clone(), bench.subject())))
        .collect();
    for task in tasks {
        task.await.expect("the task ends");
    }
}

/// A cancelled operation may or may not take place. The next caller is served, and finds all of it
/// or nothing.
pub(super) async fn a_dropped_future_leaves_the_store_usable(bench: &Bench) {
    for _ in 0..ROUNDS {
        let subject = bench.subject();
        let claim = subject.claim(LONG);
        let store = &bench.store;
        polled_once(store.put_if(Put {
            id: subject.id,
            condition: Condition::Absent,
            change: Change::Claim(claim.clone()),
        }))
        .await;
        polled_once(store.renew(vec![Renewal {
            id: subject.id,
            fence: Fence::ZERO,
            lease: LONG,
        }]))
        .await;
        polled_once(store.get(vec![subject.id])).await;
        polled_once(store.list(ListQuery {
            state: None,
            after: None,
            limit: 1,
        }))
        .await;
        polled_once(store.info()).await;

        let head = match subject
            .put(Condition::Absent, Change::Claim(claim.clone()))
            .await
        {
            Written::Won(won) => won.head,
            Written::Lost(seen) => seen.record.expect("there is a record").head,
        };
        assert_eq!(
            (head.token, head.state, head.attempts),
            (claim.token, State::Running, 1)
        );
        subject
            .wins(Condition::Held { fence: head.fence }, completed("paid"))
            .await;
    }
}

/// Sends all these writes concurrently.
async fn race(subject: &Subject, writes: Vec<(Condition, Change)>) -> Vec<Written> {
    let start = Arc::new(Barrier::new(writes.len()));
    let tasks: Vec<_> = writes
        .into_iter()
        .map(|(condition, change)| {
            let (start, subject) = (start.clone(), subject.clone());
            tokio::spawn(async move {
                start.wait().await;
                subject.put(condition, change).await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("the racer arrives"));
    }
    results
}

/// The write that won. All others must have seen its record, since a write judged before it would
/// have won itself.
fn one_winner(results: Vec<Written>) -> Won {
    let (mut winners, mut losers) = (Vec::new(), Vec::new());
    for written in results {
        match written {
            Written::Won(won) => winners.push(won),
            Written::Lost(seen) => losers.push(seen),
        }
    }
    assert_eq!(winners.len(), 1, "{winners:#?}");
    let winner = winners.remove(0);
    for seen in losers {
        let head = seen.record.expect("the loser sees a record").head;
        assert_eq!(
            (head.token, head.fence, head.version),
            (winner.head.token, winner.head.fence, winner.head.version)
        );
    }
    winner
}

async fn claim_and_complete(start: Arc<Barrier>, subject: Subject) {
    start.wait().await;
    let body = format!("{:?}", new_token());
    let fence = subject.running(LONG).await.fence;
    subject
        .wins(Condition::Held { fence }, completed(&body))
        .await;
}

async fn polled_once<T>(future: impl Future<Output = T>) {
    // The result does not matter: the test only cancels the operation.
    drop(tokio::time::timeout(Duration::ZERO, future).await);
}
