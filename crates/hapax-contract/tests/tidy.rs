//! After a run on a store that others use, `Tidy` can remove what the contract made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use hapax_contract::{Bench, CASES, NAMESPACE, Tidy};
use hapax_core::store::ListQuery;
use hapax_core::{Clock, Memory, Secret, State, Store, Timestamp};

/// A clock in real time that can be advanced after the cases are over.
struct Ahead {
    start: (Timestamp, Instant),
    by_secs: AtomicU64,
}

static CLOCK: LazyLock<Ahead> = LazyLock::new(|| Ahead {
    start: (
        Timestamp::from_system_time(SystemTime::now()),
        Instant::now(),
    ),
    by_secs: AtomicU64::new(0),
});

struct Shared;

impl Clock for Shared {
    fn now(&self) -> Timestamp {
        let (start, since) = CLOCK.start;
        start
            .after(since.elapsed())
            .after(Duration::from_secs(CLOCK.by_secs.load(Ordering::SeqCst)))
    }
}

const ALL: ListQuery = ListQuery {
    state: None,
    after: None,
    limit: usize::MAX,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_cases_only_tombstones_and_entries_are_left() {
    let store: Arc<dyn Store> =
        Arc::new(Memory::new(Arc::new(Shared), Secret::from_bytes([7; 32])));
    let tidy = Arc::new(Tidy::new(store.clone()));
    let cases = CASES
        .iter()
        .map(|case| tokio::spawn((case.run)(Bench::in_real_time(tidy.clone()).shared())));
    for case in cases.collect::<Vec<_>>() {
        case.await.unwrap();
    }
    let left = tidy.clear().await.unwrap();
    let heads = store.list(ALL).await.unwrap();
    assert_eq!(heads.len(), left.tombstones + left.for_good);
    assert!(
        heads
            .iter()
            .all(|head| head.scope.namespace.starts_with(NAMESPACE))
    );
    assert!(
        heads
            .iter()
            .all(|head| matches!(head.state, State::Expired(_)) && !head.kept),
        "{heads:?}"
    );
    assert!(
        heads.iter().all(|head| !head.is_unresolved(head.state)),
        "somebody would have to settle it"
    );
    assert!(
        (1..10).contains(&left.for_good) && left.entries > 1_000,
        "{left:?}"
    );

    let now = store.info().await.unwrap().now;
    let rest = left.until.since(now);
    assert!(
        rest > Duration::ZERO && rest < Duration::from_secs(3 * 60 * 60),
        "{left:?}"
    );
    CLOCK.by_secs.store(rest.as_secs() + 1, Ordering::SeqCst);
    while store.sweep(1_000).await.unwrap().total() > 0 {}
    assert_eq!(store.list(ALL).await.unwrap().len(), left.for_good);
}
