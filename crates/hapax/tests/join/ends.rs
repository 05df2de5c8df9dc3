//! How an attempt can end, with every driver.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use hapax::{Operation, Rejection, RunError};
use tokio::sync::Notify;

use crate::drivers::{DieselAsync, Rusqlite, SeaOrm, SqlxPostgres, SqlxSqlite, TokioPostgres};
use crate::script::{Driver, End, Failed, Point, Script, body};
use crate::world::{Work, World};

macro_rules! suite {
    ($name:ident, $driver:ident, $($case:ident),* $(,)?) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case::<super::$driver>().await;
                }
            )*
        }
    };
}

macro_rules! suites {
    ($($name:ident: $driver:ident),* $(,)?) => {
        $(suite!(
            $name, $driver,
            what_has_finished_is_there_and_replays,
            what_returns_without_finishing_is_not_joined,
            what_finishes_twice_has_one_effect,
            what_finishes_and_then_fails_has_its_answer,
            what_joins_and_rolls_back_has_not_joined,
            what_panics_before_it_finishes_runs_again,
            what_is_dropped_anywhere_has_one_effect_in_the_end,
            what_was_taken_over_cannot_commit,
        );)*
    };
}

suites!(
    diesel_async: DieselAsync,
    rusqlite: Rusqlite,
    sea_orm: SeaOrm,
    sqlx_postgres: SqlxPostgres,
    sqlx_sqlite: SqlxSqlite,
    tokio_postgres: TokioPostgres,
);

async fn what_has_finished_is_there_and_replays<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    for (key, end) in [("finished", End::Finish), ("joined", End::JoinAndCommit)] {
        let ran = world.run(key, Script::new(end)).await.expect("it ran");
        let done = body(world.last().fence().as_u64());
        assert_eq!(
            (
                String::from_utf8_lossy(&ran.value).into_owned(),
                ran.replayed
            ),
            (done, false),
            "{end:?}"
        );
        assert_eq!(world.effects().await, 1, "{end:?}");
        let another = world.another().await;
        for node in [&world.once, &another] {
            let again = world
                .run_on(node, key, Script::new(end))
                .await
                .expect("it has run");
            assert_eq!(
                (&again.value, again.replayed),
                (&ran.value, true),
                "{end:?}"
            );
        }
        assert_eq!(world.effects().await, 1, "{end:?}");
    }
    assert_eq!(world.attempts(), 2);
}

async fn what_returns_without_finishing_is_not_joined<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    // An answer of another operation that has finished, which a handler might return by mistake.
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let finishes = async move |driver: Arc<D>, operation| {
        let finished: Work = driver.perform(&operation, &Script::new(End::Finish)).await;
        *keep.lock().unwrap() = finished.clone().ok();
        finished
    };
    world
        .work(&world.once, "other", finishes)
        .await
        .expect("it ran");
    let kept = kept.lock().unwrap().clone().expect("it has finished");

    for (key, rolls_back) in [("nothing", false), ("rolled back", true)] {
        let kept = kept.clone();
        let returns = async move |driver: Arc<D>, operation| {
            if rolls_back {
                let failed = driver
                    .perform(&operation, &Script::new(End::JoinAndRollBack))
                    .await
                    .expect_err("it was rolled back");
                assert_eq!(failed, Failed::OnPurpose);
            }
            Ok(kept)
        };
        let first = world.work(&world.once, key, returns).await;
        assert!(
            matches!(first, Err(RunError::Rejected(Rejection::NotJoined))),
            "{key}: {first:?}"
        );
        // The work reported success, so no later attempt runs it again.
        let again = world.run(key, Script::new(End::Finish)).await;
        assert!(
            matches!(again, Err(RunError::Rejected(Rejection::OutcomeUnknown))),
            "{key}: {again:?}"
        );
        assert_eq!(world.effects().await, 0, "{key}");
    }
    assert_eq!(world.attempts(), 3);
}

async fn what_finishes_twice_has_one_effect<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    for (key, second) in [("finish", End::Finish), ("join", End::JoinAndCommit)] {
        let twice = async move |driver: Arc<D>, operation| {
            let first = driver.perform(&operation, &Script::new(End::Finish)).await;
            let again = driver.perform(&operation, &Script::new(second)).await;
            assert_eq!(again.map(|_| ()), Err(Failed::FinishedAlready));
            first
        };
        let ran = world.work(&world.once, key, twice).await.expect("it ran");
        assert_eq!(
            String::from_utf8_lossy(&ran.value),
            body(world.last().fence().as_u64())
        );
        assert_eq!(world.effects().await, 1);
        // After a refusal, the driver's next transaction works normally.
        world
            .run(&format!("after {key}"), Script::new(End::Finish))
            .await
            .expect("it ran");
    }
}

async fn what_finishes_and_then_fails_has_its_answer<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    for end in [End::Finish, End::JoinAndCommit] {
        for panics in [false, true] {
            let fails = async move |driver: Arc<D>, operation| {
                driver.perform(&operation, &Script::new(end)).await?;
                assert!(!panics, "on purpose");
                Err(Failed::OnPurpose)
            };
            let key = format!("{end:?} {panics}");
            let ran = world
                .work(&world.once, &key, fails)
                .await
                .expect("what is stored counts");
            assert_eq!(
                String::from_utf8_lossy(&ran.value),
                body(world.last().fence().as_u64()),
                "{key}"
            );
            let again = world.run(&key, Script::new(end)).await.expect("it has run");
            assert_eq!((again.value, again.replayed), (ran.value, true), "{key}");
            assert_eq!(world.effects().await, 1, "{key}");
        }
    }
    assert_eq!(world.attempts(), 4);
}

async fn what_joins_and_rolls_back_has_not_joined<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    for end in [End::JoinAndRollBack, End::RollBack] {
        let key = format!("{end:?}");
        let first = world.run(&key, Script::new(end)).await;
        let Err(RunError::Lost {
            error,
            repeat: true,
        }) = first
        else {
            panic!("{end:?}: {first:?}")
        };
        assert_eq!(
            error.downcast_ref::<Failed>(),
            Some(&Failed::OnPurpose),
            "{end:?}"
        );
        assert_eq!(world.effects().await, 0, "{end:?}");
        let again = world
            .run(&key, Script::new(End::Finish))
            .await
            .expect("it runs again");
        assert!(!again.replayed, "{end:?}");
        assert_eq!(world.effects().await, 1, "{end:?}");
    }
}

async fn what_panics_before_it_finishes_runs_again<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    for (end, at) in [
        (End::Finish, Point::Begun),
        (End::Finish, Point::Written),
        (End::JoinAndCommit, Point::Joined),
    ] {
        let key = format!("{at:?}");
        let script = Script::new(end)
            .passing(move |point| async move { assert_ne!(point, at, "on purpose") });
        let first = world.run(&key, script).await;
        let Err(RunError::Lost {
            error,
            repeat: true,
        }) = first
        else {
            panic!("{at:?}: {first:?}")
        };
        assert!(error.to_string().contains("on purpose"), "{error}");
        assert_eq!(world.effects().await, 0, "{at:?}");
        // The driver may still be rolling back.
        let again = world
            .drive(&world.once, &key, &Script::new(End::Finish))
            .await;
        assert!(!again.replayed, "{at:?}");
        assert_eq!(world.effects().await, 1, "{at:?}");
    }
}

async fn what_is_dropped_anywhere_has_one_effect_in_the_end<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    let (mut dropped, mut joined) = (0, 0);
    for end in [End::Finish, End::JoinAndCommit] {
        for polls in 1.. {
            let key = format!("{end:?} {polls}");
            let is_whole = Arc::new(Mutex::new(false));
            let whole = is_whole.clone();
            let drops = async move |driver: Arc<D>, operation| {
                let ended = polled(polls, driver.perform(&operation, &Script::new(end))).await;
                *whole.lock().unwrap() = ended.is_some();
                ended.unwrap_or(Err(Failed::OnPurpose))
            };
            let first = world.work(&world.once, &key, drops).await;
            // At any moment the effect and its record are both visible or both absent.
            world.effects().await;
            let again = world
                .drive(&world.once, &key, &Script::new(End::Finish))
                .await;
            assert_eq!(world.effects().await, 1, "{key}");
            if let Ok(first) = first {
                assert_eq!((again.value, again.replayed), (first.value, true), "{key}");
                joined += 1;
            }
            if *is_whole.lock().unwrap() {
                break;
            }
            dropped += 1;
        }
    }
    hapax_testkit::report!(
        "{}: dropped at {dropped} points, of which and of two whole ones {joined} had joined",
        D::NAME
    );
    assert!(dropped > 0, "void: nothing was dropped");
}

/// The future's output, if it is ready within `polls` polls; otherwise the future is dropped.
async fn polled<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (Box::pin(future), polls);
    poll_fn(move |context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// In a file, a transaction that has begun to write excludes all others: only an attempt that has
/// not begun can be taken over.
async fn what_was_taken_over_cannot_commit<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    let world = Arc::new(world);
    let points: &[Option<Point>] = if D::IS_FILE {
        &[None]
    } else {
        &[None, Some(Point::Begun), Some(Point::Written)]
    };
    for point in points {
        for end in [End::Finish, End::JoinAndCommit] {
            for is_done in [true, false] {
                taken_over(&world, *point, end, is_done).await;
            }
        }
    }
}

/// Takes an attempt over at `point`, or before all points. When the attempt continues, its
/// successor has finished or is still running.
async fn taken_over<D: Driver>(
    world: &Arc<World<D>>,
    point: Option<Point>,
    end: End,
    is_done: bool,
) {
    let key = format!("{point:?} {end:?} {is_done}");
    let (first, second) = (Arc::new(Stand::default()), Arc::new(Stand::default()));
    let zombie = tokio::spawn({
        let (world, key, stand) = (world.clone(), key.clone(), first.clone());
        async move {
            world
                .work(&world.unrenewed(), &key, move |driver, operation| {
                    zombie(driver, operation, end, point, stand)
                })
                .await
        }
    });
    first.arrived.notified().await;

    let successor = tokio::spawn({
        let (world, key, stand) = (world.clone(), key.clone(), second.clone());
        async move {
            let script = Script::new(end).passing(move |at| {
                let stand = (at == Point::Begun).then(|| stand.clone());
                async move { stand_at(stand).await }
            });
            world.drive(&world.another().await, &key, &script).await
        }
    });
    second.arrived.notified().await;
    // In a file only the transaction that has begun can continue.
    let is_done = is_done || D::IS_FILE;
    let successor = if is_done {
        second.go.notify_one();
        let successor = successor.await.expect("it ran");
        first.go.notify_one();
        let zombie = zombie
            .await
            .expect("it ran")
            .expect("the successor's answer");
        assert_eq!(
            (&zombie.value, zombie.replayed),
            (&successor.value, true),
            "{key}"
        );
        successor
    } else {
        first.go.notify_one();
        zombie
            .await
            .expect("it ran")
            .expect_err("nobody has an answer yet");
        assert_eq!(world.effects().await, 0, "{key}");
        second.go.notify_one();
        successor.await.expect("it ran")
    };
    assert!(!successor.replayed, "{key}");
    assert_eq!(world.effects().await, 1, "{key}");
}

async fn zombie<D: Driver>(
    driver: Arc<D>,
    operation: Operation,
    end: End,
    point: Option<Point>,
    stand: Arc<Stand>,
) -> Work {
    stand_at(point.is_none().then(|| stand.clone())).await;
    let script = Script::new(end).passing(move |at| {
        let stand = (Some(at) == point).then(|| stand.clone());
        async move { stand_at(stand).await }
    });
    let performed = driver.perform(&operation, &script).await;
    assert_eq!(performed.clone().map(|_| ()), Err(Failed::FencedOut));
    performed
}

/// Where a task waits until the test lets it continue.
#[derive(Default)]
struct Stand {
    arrived: Notify,
    go: Notify,
}

async fn stand_at(stand: Option<Arc<Stand>>) {
    if let Some(stand) = stand {
        stand.arrived.notify_one();
        stand.go.notified().await;
    }
}
