//! SIGSTOP past the lease and back: a process that does not know that it was taken over cannot commit.

use hapax_testkit::crash::Child;

use crate::drivers::{DieselAsync, Rusqlite, SeaOrm, SqlxPostgres, SqlxSqlite, TokioPostgres};
use crate::script::{Driver, End, Script};
use crate::service::{served, start};
use crate::world::World;

const TEST: &str = "zombie::a_process_that_was_stopped_past_its_lease_cannot_commit";

#[test]
fn a_process_that_was_stopped_past_its_lease_cannot_commit() {
    if served() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::join!(
            wakes::<DieselAsync>(),
            wakes::<Rusqlite>(),
            wakes::<SeaOrm>(),
            wakes::<SqlxPostgres>(),
            wakes::<SqlxSqlite>(),
            wakes::<TokioPostgres>()
        );
    });
}

async fn wakes<D: Driver>() {
    let Some(world) = World::<D>::new().await else { return };
    // In a file nobody could take over from one that has begun to write.
    let steps: &[&str] = if D::IS_FILE { &["claimed"] } else { &["claimed", "begun", "written"] };
    let mut child = start::<D>(TEST, world.place.at());
    for (number, step) in steps.iter().enumerate() {
        // Both ways to end: which one is taken depends on the fence.
        for again in 0..2 {
            let key = format!("{number}-{again}");
            child.say(&format!("hold {key} {step}"));
            said(&mut child, &format!("at {key} "));
            child.stop();
            let successor = world.drive(&world.once, &key, &Script::new(End::Finish)).await;
            assert!(!successor.replayed, "{}: {key}", D::NAME);
            child.cont();
            child.say("go");
            assert_eq!(said(&mut child, &format!("failed {key} ")), "FencedOut", "{}: {key}", D::NAME);
            let answer = String::from_utf8_lossy(&successor.body).into_owned();
            assert_eq!(said(&mut child, &format!("done {key} ")), answer, "its caller gets the successor's answer");
            assert_eq!(world.effects().await, 1, "{}: {key}", D::NAME);
        }
    }
}

/// What the child says next of this, without keeping the other tests' tasks from running.
fn said(child: &mut Child, prefix: &str) -> String {
    tokio::task::block_in_place(|| child.wait_for(prefix))
}
