//! Pipelines: what is sent in one batch, what waits for which lock, and what is refused.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hapax::Postgres;
use hapax::store::postgres::Options;
use hapax_core::fingerprint::FingerprintPolicy;
use hapax_core::store::{Change, Claim, Finish, Lifetime, Renewal, StoreErrorKind, Written};
use hapax_core::{
    Answer, AttemptToken, Condition, Fence, Fingerprint, Head, Key, Principal, Put, RecordId,
    Scope, State, Store,
};

use crate::place;

const CALLERS: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_share_statements_and_a_single_one_waits_for_nobody() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = Arc::new(place::open(&url).await);
    let head = won(store.put_if(claim("alone")).await);
    won(store.put_if(finish(&head, "paid")).await);
    assert_eq!((store.stats().batches, store.stats().batch_largest), (2, 1));

    let before = store.stats();
    let all = (0..CALLERS).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let head = won(store.put_if(claim(&format!("shared {number}"))).await);
            won(store.put_if(finish(&head, &number.to_string())).await);
            let found = store
                .get(vec![head.id])
                .await
                .expect("read")
                .records
                .pop()
                .flatten()
                .and_then(|record| record.answer);
            assert_eq!(found, Some(Arc::new(Answer::new(201, number.to_string()))));
        })
    });
    for one in all.collect::<Vec<_>>() {
        one.await.expect("served");
    }
    let stats = store.stats();
    assert_eq!(stats.batched - before.batched, 3 * CALLERS as u64);
    assert!(stats.batches - before.batches < CALLERS as u64, "{stats:?}");
    assert_eq!((stats.queue_bytes, stats.refused), (0, 0));
}

/// A user's transaction that has locked one record delays calls for that record, and no other call
/// in the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_record_that_somebody_has_locked_holds_up_nobody_else() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = Arc::new(place::open(&url).await);
    let mut heads = Vec::new();
    for number in 0..CALLERS {
        heads.push(won(store.put_if(claim(&format!("locked {number}"))).await));
    }
    let mut session = place::session(&url).await;
    let open = session.transaction().await.expect("a transaction");
    let touched = open
        .execute(
            "UPDATE hapax.heads SET attempts = attempts WHERE id = $1",
            &[&&heads[0].id.as_bytes()[..]],
        )
        .await;
    assert_eq!(touched.expect("touched"), 1);

    let mut finishes = Vec::new();
    for head in heads {
        let store = store.clone();
        finishes.push(tokio::spawn(async move {
            store.put_if(finish(&head, "paid")).await
        }));
    }
    let mut finishes = finishes.into_iter();
    let locked = finishes.next().expect("the first");
    for other in finishes {
        won(other.await.expect("served"));
    }
    let error = locked.await.expect("answered").expect_err("it is locked");
    assert_eq!(error.kind(), StoreErrorKind::Locked, "{error}");
    // No call of that batch was sent alone: the batch was halved.
    let alone = store.stats().alone;
    assert!(
        alone > 0 && alone < CALLERS as u64 / 2,
        "{alone} were sent alone"
    );
    open.rollback().await.expect("let go");
}

/// The lock is most likely held by the attempt's own transaction: its lease must not be reported as
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lease_whose_record_somebody_has_locked_is_not_lost() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let heads = [
        won(store.put_if(claim("touched")).await),
        won(store.put_if(claim("free")).await),
    ];
    let mut session = place::session(&url).await;
    let open = session.transaction().await.expect("a transaction");
    let touched = open
        .execute(
            "UPDATE hapax.heads SET attempts = attempts WHERE id = $1",
            &[&&heads[0].id.as_bytes()[..]],
        )
        .await;
    assert_eq!(touched.expect("touched"), 1);
    let renewals = heads
        .map(|head| Renewal {
            id: head.id,
            fence: head.fence,
            lease: Duration::from_secs(60),
        })
        .to_vec();
    assert_eq!(
        store.renew(renewals.clone()).await.expect("renewed"),
        [true, true]
    );
    open.rollback().await.expect("let go");
    assert_eq!(store.renew(renewals).await.expect("renewed"), [true, true]);
}

/// The answers go into different tables, in one statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_that_end_together_are_each_found_however_long_they_are_kept() {
    const HOUR: Duration = Duration::from_secs(60 * 60);
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = Arc::new(place::open(&url).await);
    let callers = (0..CALLERS).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            let head = won(store.put_if(claim(&format!("kept {number}"))).await);
            let Put {
                id,
                condition,
                change: Change::Finish(finish),
            } = finish(&head, &number.to_string())
            else {
                unreachable!()
            };
            let retention = HOUR * [1, 24, 10 * 24, 60 * 24][number % 4];
            let lifetime = Lifetime {
                retention,
                tombstone: HOUR,
            };
            let answer = if number % 5 == 0 { None } else { finish.answer };
            let change = Change::Finish(Finish {
                lifetime,
                answer: answer.clone(),
                ..finish
            });
            won(store
                .put_if(Put {
                    id,
                    condition,
                    change,
                })
                .await);
            (head.id, answer)
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        let (id, answer) = caller.await.expect("served");
        let record = store
            .get(vec![id])
            .await
            .expect("read")
            .records
            .pop()
            .flatten()
            .expect("a record");
        assert_eq!(record.answer, answer);
    }
}

/// The inserted record is not visible to others yet, and may never be.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_claim_that_is_not_committed_holds_up_only_its_own_key() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = Arc::new(place::open(&url).await);
    let Change::Claim(first) = claim("held").change else {
        unreachable!()
    };
    let held = claim("held").id;
    // This claim stores the fingerprint's policy in the database before the others are sent.
    won(store.put_if(claim("before")).await);
    let mut session = place::session(&url).await;
    let open = session.transaction().await.expect("a transaction");
    let insert =
        "INSERT INTO hapax.heads (fence, version, lease_until, created_at, claimed_at, finished_at, expires_at, tombstone_until,
                      token, attempts, state, lost, id, namespace, method, path, key)
                  VALUES (1, 1, 1, 1, 1, 0, 0, 0, gen_random_uuid(), 1, 1, false, $1, '', '', '', 'k')";
    open.execute(insert, &[&&held.as_bytes()[..]])
        .await
        .expect("inserted");

    let same = Put {
        id: held,
        condition: Condition::Absent,
        change: Change::Claim(first),
    };
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.put_if(same).await }
    });
    let others = (0..CALLERS).map(|number| {
        let store = store.clone();
        tokio::spawn(async move { won(store.put_if(claim(&format!("fresh {number}"))).await) })
    });
    for other in others.collect::<Vec<_>>() {
        other.await.expect("served");
    }
    open.rollback().await.expect("it comes to nothing");
    // The claim succeeds within its lock timeout.
    won(waiting.await.expect("answered"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn more_than_may_wait_is_refused_at_once() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let options = Options {
        queue_bytes_max: 4096,
        ..Options::new(&url).expect("a URL")
    };
    let store = Arc::new(Postgres::open_with(options).await.expect("opened"));
    won(store.put_if(claim("before")).await);
    let callers = (0..500).map(|number| {
        let store = store.clone();
        tokio::spawn(async move {
            store
                .put_if(claim(&format!("many {number}")))
                .await
                .map_err(|error| error.to_string())
        })
    });
    let (mut won, mut refused) = (0, 0);
    for caller in callers.collect::<Vec<_>>() {
        match caller.await.expect("answered") {
            Ok(_) => won += 1,
            Err(error) => {
                assert!(error.contains("too many requests wait"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(won > 0 && refused > 0, "{won} won, {refused} refused");
    assert_eq!(
        (store.stats().refused, store.stats().queue_bytes),
        (refused, 0)
    );
}

/// Callers see at most an error in between, and nothing has to be restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_connections_come_back_by_themselves() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let database = url.rsplit('/').next().expect("a database");
    for round in 0..5 {
        let head = until_served(&store, claim(&format!("round {round}"))).await;
        assert!(server.terminate_backends(database) > 0);
        let begun = Instant::now();
        until_served(&store, finish(&head, "paid")).await;
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "back after {:?}",
            begun.elapsed()
        );
    }
    let stats = store.stats();
    assert!(
        stats.connections_lost > 0 && stats.failing.is_none(),
        "{stats:?}"
    );
    assert_eq!((stats.failovers, stats.commits_lost), (0, 0));
}

/// Only consecutive connections that served no call make a pipeline pause: connections lost after
/// they had served do not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_served_and_were_lost_do_not_add_up() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let database = url.rsplit('/').next().expect("a database");
    for round in 0..8 {
        until_served(&store, claim(&format!("lost and found {round}"))).await;
        assert!(server.terminate_backends(database) > 0);
    }
    let begun = Instant::now();
    until_served(&store, claim("the last")).await;
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "back after {:?}",
        begun.elapsed()
    );
}

/// An older copy replaces the database on the same server: neither the system identifier nor the
/// timeline shows it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restore_on_the_same_server_is_noticed() {
    let Some((server, url)) = place::prepared().await else {
        return;
    };
    let database = url.rsplit('/').next().expect("a database");
    server.psql(
        "postgres",
        &format!("CREATE DATABASE {database}_copy TEMPLATE {database}"),
    );
    let store = place::open(&url).await;
    let lost = until_served(&store, claim("lost")).await;
    server.psql(
        "postgres",
        &format!("DROP DATABASE {database} WITH (FORCE)"),
    );
    server.psql(
        "postgres",
        &format!("ALTER DATABASE {database}_copy RENAME TO {database}"),
    );

    let after = until_served(&store, claim("after")).await;
    let stats = store.stats();
    assert_eq!((stats.commits_lost, stats.failovers), (1, 0), "{stats:?}");
    assert!(
        after.fence > lost.fence,
        "{:?} after {:?}",
        after.fence,
        lost.fence
    );
    // The store has written the fingerprint's policy to the restored copy again.
    let read = place::open(&url)
        .await
        .get(vec![after.id])
        .await
        .expect("read");
    assert_eq!(
        read.records[0].as_ref().map(|record| record.head.fence),
        Some(after.fence)
    );
}

/// A fence of 2^53 or more, which is not exact in every language, is never issued; existing records
/// are still found.
#[tokio::test]
async fn no_fence_reaches_two_to_the_fifty_third() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let head = won(store.put_if(claim("before")).await);
    let session = place::session(&url).await;
    session
        .batch_execute("UPDATE hapax.pace SET floor = 9007199254740991")
        .await
        .expect("a floor");
    // The first is sent alone, the others in one statement.
    let tried = tokio::join!(
        store.put_if(claim("one")),
        store.put_if(claim("another")),
        store.put_if(claim("a third"))
    );
    for tried in [tried.0, tried.1, tried.2] {
        tried.expect_err("there is no fence left");
    }
    assert!(
        matches!(store.put_if(claim("before")).await, Ok(Written::Lost(seen)) if seen.record.is_some())
    );
    won(store.put_if(finish(&head, "paid")).await);
    let given: i64 = session
        .query_one("SELECT max(fence) FROM hapax.heads", &[])
        .await
        .expect("asked")
        .get(0);
    assert_eq!(given.unsigned_abs(), head.fence.as_u64());
}

/// People who may read logs may not be allowed to read the stored data.
#[tokio::test]
async fn an_error_shows_nothing_of_the_row_it_is_about() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let session = place::session(&url).await;
    session
        .batch_execute("ALTER TABLE hapax.heads ADD CONSTRAINT odd CHECK (attempts > 1)")
        .await
        .expect("a constraint");
    let error = store
        .put_if(claim("a key of somebody"))
        .await
        .expect_err("no row is taken");
    let shown = format!("{error} {error:?}");
    assert!(
        shown.contains("odd") && !shown.contains("Failing row"),
        "{shown}"
    );
}

/// A lock on the whole table simulates a server that does not answer: reads wait for it until the
/// statement timeout. A write gives up earlier, at its lock timeout, and cannot tell this lock from
/// that of a record.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_statement_without_an_answer_is_an_error_in_time() {
    let Some((_, url)) = place::prepared().await else {
        return;
    };
    let store = place::open(&url).await;
    let head = won(store.put_if(claim("before")).await);
    let mut session = place::session(&url).await;
    let open = session.transaction().await.expect("a transaction");
    open.batch_execute("LOCK TABLE hapax.heads IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("locked");
    for _ in 0..2 {
        let begun = Instant::now();
        let error = store
            .get(vec![head.id])
            .await
            .expect_err("nobody can read it");
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        let error = store
            .put_if(finish(&head, "paid"))
            .await
            .expect_err("nobody can write it");
        assert!(
            matches!(
                error.kind(),
                StoreErrorKind::Locked | StoreErrorKind::Unavailable
            ),
            "{error}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(6),
            "after {:?}",
            begun.elapsed()
        );
    }
    open.rollback().await.expect("let go");
    until_served(&store, finish(&head, "paid")).await;
}

/// Sends the write until it is answered. If an earlier send had landed after all, returns the
/// record it finds.
pub(crate) async fn until_served(store: &Postgres, put: Put) -> Head {
    for _ in 0..1_000 {
        match store.put_if(put.clone()).await {
            Ok(Written::Won(won)) => return won.head,
            Ok(Written::Lost(seen)) => return seen.record.expect("there is a record").head,
            Err(error) => {
                assert!(
                    matches!(
                        error.kind(),
                        StoreErrorKind::Locked | StoreErrorKind::Unavailable
                    ),
                    "{error}"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    panic!("never served");
}

pub(crate) fn won(written: Result<Written, hapax_core::StoreError>) -> Head {
    match written {
        Ok(Written::Won(won)) => won.head,
        other => panic!("it should win: {other:?}"),
    }
}

pub(crate) fn claim(key: &str) -> Put {
    let scope = Scope {
        namespace: "lanes".into(),
        principal: Principal::named("somebody"),
        method: "POST".into(),
        path: "/v1/charges".into(),
    };
    let key = Key::new(key).expect("a key");
    let id = RecordId::of(&scope, &key);
    let claim = Claim {
        scope: Arc::new(scope),
        key,
        fingerprint: Fingerprint {
            digest: [1; 32],
            policy: Arc::new(FingerprintPolicy::default()),
        },
        token: AttemptToken::from_bytes([1; 16]),
        lease: Duration::from_secs(60),
        terms: None,
        request_id: None,
    };
    Put {
        id,
        condition: Condition::Absent,
        change: Change::Claim(claim),
    }
}

pub(crate) fn finish(head: &Head, body: &str) -> Put {
    let Head { id, fence, .. } = *head;
    debug_assert!(fence > Fence::ZERO);
    let answer = Some(Arc::new(Answer::new(201, body.to_owned())));
    let finish = Finish {
        state: State::Completed,
        status: Some(201),
        answer,
        lifetime: Lifetime::default(),
    };
    Put {
        id,
        condition: Condition::Held { fence },
        change: Change::Finish(finish),
    }
}
