//! `get`, `list` and `info`: what a store returns without changing anything.

use std::collections::BTreeMap;

use hapax_core::store::{Change, Finish, ListQuery, Written};
use hapax_core::{Condition, Head, RecordId, State, StateFilter, Timestamp};

use super::Bench;
use super::subject::{
    KEPT, LONG, SHORT, Subject, answer, completed, completion, forgetting, released, unknown,
};

pub(super) async fn records_are_read_in_the_order_asked(bench: &Bench) {
    let (first, second, missing) = (bench.subject(), bench.subject(), bench.subject());
    first.ended(completed("first")).await;
    second.ended(completed("second")).await;

    let reading = bench
        .store
        .get(vec![second.id, missing.id, first.id, second.id])
        .await
        .expect("get");
    let answers: Vec<_> = reading
        .records
        .into_iter()
        .map(|record| record.and_then(|record| record.answer))
        .collect();
    assert_eq!(
        answers,
        [
            Some(answer("second")),
            None,
            Some(answer("first")),
            Some(answer("second"))
        ]
    );
    assert_eq!(bench.store.get(Vec::new()).await.expect("get").records, []);
}

pub(super) async fn many_records_are_read_at_once(bench: &Bench) {
    let subjects: Vec<_> = (0..300).map(|_| bench.subject()).collect();
    for subject in subjects.iter().step_by(30) {
        subject.running(LONG).await;
    }
    let reading = bench
        .store
        .get(subjects.iter().map(|subject| subject.id).collect())
        .await
        .expect("get");
    assert_eq!(reading.records.len(), subjects.len());
    for (number, (record, subject)) in reading.records.iter().zip(&subjects).enumerate() {
        let expected = (number % 30 == 0).then_some(subject.id);
        assert_eq!(
            record.as_ref().map(|record| record.head.id),
            expected,
            "record {number}"
        );
    }
}

pub(super) async fn heads_are_listed_by_id_in_pages(bench: &Bench) {
    let mut heads = BTreeMap::new();
    for subject in one_of_each_state(bench).await {
        heads.insert(subject.id, subject.record().await.head);
    }
    assert_eq!(listed(bench, None, &heads).await, heads);
}

/// An attempt whose lease is over is listed as running until a sweep writes the loss.
pub(super) async fn heads_are_listed_by_state(bench: &Bench) {
    let mut heads = BTreeMap::new();
    for subject in one_of_each_state(bench).await {
        heads.insert(subject.id, subject.record().await.head);
    }
    bench.pass(SHORT).await;
    for filter in StateFilter::ALL {
        let mut expected = heads.clone();
        expected.retain(|_, head| match filter {
            StateFilter::Open => head.state.is_open(),
            _ => head.state.word() == filter.word(),
        });
        assert_eq!(
            listed(bench, Some(filter), &heads).await,
            expected,
            "{filter:?}"
        );
    }
}

pub(super) async fn a_list_has_as_many_heads_as_asked_for(bench: &Bench) {
    let subjects = one_of_each_state(bench).await;
    for limit in 0..=subjects.len() {
        let page = bench
            .store
            .list(ListQuery {
                state: None,
                after: None,
                limit,
            })
            .await
            .expect("list");
        assert_eq!(page.len(), limit, "there are at least {}", subjects.len());
    }
}

/// All operations return the same store time.
pub(super) async fn the_stores_time_never_runs_back(bench: &Bench) {
    let mut times = vec![bench.info().await.now];
    for _ in 0..4 {
        let subject = bench.subject();
        for _ in 0..2 {
            times.push(
                match subject
                    .put(Condition::Absent, Change::Claim(subject.claim(LONG)))
                    .await
                {
                    Written::Won(won) => won.now,
                    Written::Lost(seen) => seen.now,
                },
            );
        }
        times.push(bench.store.get(vec![subject.id]).await.expect("get").now);
        times.push(bench.info().await.now);
        bench.pass(SHORT / 4).await;
    }
    assert!(times.is_sorted(), "{times:?}");
    assert!(
        times[times.len() - 1] > times[0],
        "time stands still: {times:?}"
    );
    assert!(times[0] > Timestamp::ZERO);
}

/// Operation ids and issued tokens depend on it.
pub(super) async fn the_secret_stays_the_same(bench: &Bench) {
    let first = bench.info().await.secret;
    bench.subject().running(LONG).await;
    assert!(
        bench.info().await.secret == first,
        "every operation would have a new name"
    );
}

async fn one_of_each_state(bench: &Bench) -> Vec<Subject> {
    let (running, forgotten) = (bench.subject(), bench.subject());
    // Where others sweep, they may mark a lapsed attempt as lost at any moment.
    running
        .running(if bench.is_live { LONG } else { SHORT })
        .await;
    let version = forgotten.ended(completed("forgotten")).await.version;
    forgotten
        .wins(Condition::Version { version }, forgetting(KEPT))
        .await;

    let mut subjects = vec![running, forgotten];
    let failed = Finish {
        state: State::Failed,
        ..completion("no", KEPT)
    };
    for change in [
        completed("paid"),
        Change::Finish(failed),
        released(KEPT),
        unknown(KEPT),
    ] {
        let subject = bench.subject();
        subject.ended(change).await;
        subjects.push(subject);
    }
    subjects
}

/// The records of `known` that all pages together contain, which must be in order. In a store that
/// is in use, only the pages around each record are read.
pub(super) async fn listed(
    bench: &Bench,
    state: Option<StateFilter>,
    known: &BTreeMap<RecordId, Head>,
) -> BTreeMap<RecordId, Head> {
    let (mut found, mut starts) = (BTreeMap::new(), vec![None]);
    if bench.is_live {
        starts = known.keys().map(before).collect();
    }
    for start in starts {
        let mut after = start;
        loop {
            let page = bench
                .store
                .list(ListQuery {
                    state,
                    after,
                    limit: PAGE,
                })
                .await
                .expect("list");
            assert!(page.len() <= PAGE, "a page of {}", page.len());
            let Some(last) = page.last() else { break };
            let ids: Vec<_> = after
                .into_iter()
                .chain(page.iter().map(|head| head.id))
                .collect();
            assert!(
                ids.is_sorted_by(|earlier, later| earlier < later),
                "not in the order of ids: {ids:?}"
            );
            assert!(
                state.is_none_or(|filter| page.iter().all(|head| filter.matches(head.state))),
                "not all {state:?}"
            );
            after = Some(last.id);
            found.extend(
                page.into_iter()
                    .filter(|head| known.contains_key(&head.id))
                    .map(|head| (head.id, head)),
            );
            if bench.is_live {
                break;
            }
        }
    }
    found
}

/// The id before this one. A page that begins after it contains this id.
fn before(id: &RecordId) -> Option<RecordId> {
    let mut bytes = *id.as_bytes();
    let last = bytes.iter().rposition(|&byte| byte != 0)?;
    bytes[last] -= 1;
    bytes[last + 1..].fill(0xff);
    Some(RecordId::from_bytes(bytes))
}

/// Smaller than the number of records in a case, so that there is a second page even in a store
/// that is not shared.
const PAGE: usize = 4;
