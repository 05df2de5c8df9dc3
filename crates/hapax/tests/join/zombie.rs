//! SIGSTOP past the lease, then SIGCONT: a process that was taken over without knowing it cannot
//! commit.

use std::pin::pin;
use std::sync::Arc;

use hapax_testkit::crash::Child;
use tokio::sync::Notify;

use crate::drivers::{
    DieselAsync, Rusqlite, SeaOrm, SqlxPostgres, SqlxSqlite, TokioPostgres, TokioPostgresEffect,
};
use crate::script::{Driver, End, Point, Script};
use crate::service::{served, start};
use crate::world::World;

const TEST: &str = "zombie::a_process_that_was_stopped_past_its_lease_cannot_commit";

#[test]
fn a_process_that_was_stopped_past_its_lease_cannot_commit() {
    if served() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::join!(
            wakes::<DieselAsync>(),
            wakes::<Rusqlite>(),
            wakes::<SeaOrm>(),
            wakes::<SqlxPostgres>(),
            wakes::<SqlxSqlite>(),
            wakes::<TokioPostgres>(),
            wakes::<TokioPostgresEffect>()
        );
    });
}

async fn wakes<D: Driver>() {
    let Some(world) = World::<D>::new().await else {
        return;
    };
    // In a file no attempt can take over from one that has begun to write.
    let steps: &[&str] = if D::IS_FILE {
        &["claimed"]
    } else {
        &["claimed", "begun", "written"]
    };
    let mut child = start::<D>(TEST, world.place.at());
    for (number, step) in steps.iter().enumerate() {
        // Covers both ways to end: the fence decides which one is used.
        for again in 0..2 {
            let key = format!("{number}-{again}");
            stop_at::<D>(&mut child, world.place.at(), &key, step);
            let successor = world
                .drive(&world.once, &key, &Script::new(End::Finish))
                .await;
            assert!(!successor.replayed, "{}: {key}", D::NAME);
            wakes_and_fails(&mut child, &key);
            let answer = String::from_utf8_lossy(&successor.value).into_owned();
            assert_eq!(
                said(&mut child, &format!("done {key} ")),
                answer,
                "its caller gets the successor's answer"
            );
            assert_eq!(world.effects().await, 1, "{}: {key}", D::NAME);
        }
        // In a file only one transaction can write at a time.
        if !D::IS_FILE {
            wakes_beside_its_successor(&world, &mut child, &format!("{number}-beside"), step).await;
        }
    }
}

/// Only the fence stops the zombie: its record is still open.
async fn wakes_beside_its_successor<D: Driver>(
    world: &World<D>,
    child: &mut Child,
    key: &str,
    step: &str,
) {
    stop_at::<D>(child, world.place.at(), key, step);
    let (committing, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (at, wait) = (committing.clone(), go.clone());
    let script = Script::new(End::Finish).passing(move |point| {
        let (at, wait) = (at.clone(), wait.clone());
        async move {
            if point == Point::Committing {
                at.notify_one();
                wait.notified().await;
            }
        }
    });
    let mut successor = pin!(world.drive(&world.once, key, &script));
    tokio::select! {
        () = committing.notified() => {}
        _ = &mut successor => panic!("{}: {key}: it did not stop before its commit", D::NAME),
    }
    wakes_and_fails(child, key);
    assert!(
        said(child, &format!("refused {key} ")).contains("InFlight"),
        "its caller is told that another one is at it"
    );
    assert_eq!(world.effects().await, 0, "{}: {key}", D::NAME);
    go.notify_one();
    assert!(!successor.await.replayed, "{}: {key}", D::NAME);
    assert_eq!(world.effects().await, 1, "{}: {key}", D::NAME);
}

fn stop_at<D: Driver>(child: &mut Child, at: &str, key: &str, step: &str) {
    child.say(&format!("hold {key} {step}"));
    said(child, &format!("at {key} "));
    child.stop();
    // A process stopped during a background write would lock everyone else out of the file.
    while D::IS_FILE && !is_writable(at) {
        child.cont();
        child.stop();
    }
}

fn is_writable(file: &str) -> bool {
    let connection = rusqlite::Connection::open(file).expect("the file is there");
    connection
        .busy_timeout(std::time::Duration::ZERO)
        .and_then(|()| connection.execute_batch("BEGIN IMMEDIATE; ROLLBACK"))
        .is_ok()
}

fn wakes_and_fails(child: &mut Child, key: &str) {
    child.cont();
    child.say("go");
    assert_eq!(said(child, &format!("failed {key} ")), "FencedOut", "{key}");
}

/// The child's next line with this prefix. Does not block the tasks of other tests.
fn said(child: &mut Child, prefix: &str) -> String {
    tokio::task::block_in_place(|| child.wait_for(prefix))
}
