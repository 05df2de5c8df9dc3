//! The child: a process that runs keys as ordered, and can be made to stop at a step.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax::{Done, Hapax, Once, Operation, Rejection, RunError};
use hapax_testkit::crash::{Child, announce, hear, role};
use tokio::runtime::Builder;
use tokio::sync::{Notify, mpsc};

use crate::drivers::{
    DieselAsync, Rusqlite, RusqliteAtOnce, SeaOrm, SqlxPostgres, SqlxPostgresAtOnce, SqlxSqlite,
    TokioPostgres, TokioPostgresEffect,
};
use crate::place::open;
use crate::script::{Driver, End, Failed, Point, Script};
use crate::world::once;

/// The steps at which a service can stop, in order. At `committing` it only announces the step,
/// because a commit on its way cannot be held.
pub const STEPS: [&str; 8] = [
    "claimed",
    "begun",
    "written",
    "emitted",
    "joined",
    "committing",
    "committed",
    "answering",
];

/// Short, so that successors wait briefly, but long enough to be renewed on a slow machine.
pub const LEASE: Duration = Duration::from_millis(150);

/// Starts a service on the database at `at`.
pub fn start<D: Driver>(test: &str, at: &str) -> Child {
    Child::spawn(test, D::NAME, &[("HAPAX_TEST_AT", at)])
}

/// Runs as the child if this process is one. False if it is not.
pub fn served() -> bool {
    let Some(role) = role() else { return false };
    match role.as_str() {
        DieselAsync::NAME => serve::<DieselAsync>(),
        Rusqlite::NAME => serve::<Rusqlite>(),
        RusqliteAtOnce::NAME => serve::<RusqliteAtOnce>(),
        SeaOrm::NAME => serve::<SeaOrm>(),
        SqlxPostgres::NAME => serve::<SqlxPostgres>(),
        SqlxPostgresAtOnce::NAME => serve::<SqlxPostgresAtOnce>(),
        SqlxSqlite::NAME => serve::<SqlxSqlite>(),
        TokioPostgres::NAME => serve::<TokioPostgres>(),
        TokioPostgresEffect::NAME => serve::<TokioPostgresEffect>(),
        role => panic!("nobody plays {role:?}"),
    }
    true
}

struct Service<D> {
    driver: D,
    once: Once,
    go: Notify,
}

fn serve<D: Driver>() {
    let (orders, mut received) = mpsc::unbounded_channel();
    // On its own thread, because a blocking read from a pipe cannot be interrupted.
    std::thread::spawn(move || while hear().is_some_and(|order| orders.send(order).is_ok()) {});
    // A single-threaded runtime starts fastest.
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let at = std::env::var("HAPAX_TEST_AT").expect("a place");
        let hapax = Hapax::builder_shared(open(&at).await).sweep(None).build();
        let service = Arc::new(Service {
            driver: D::new(&at),
            once: once(hapax, LEASE),
            go: Notify::new(),
        });
        // The loop ends when the parent exits.
        while let Some(order) = received.recv().await {
            let service = service.clone();
            match order.split(' ').collect::<Vec<_>>()[..] {
                ["hold", key, step] => {
                    drop(tokio::spawn(service.hold(key.to_owned(), step.to_owned())));
                }
                ["drive", key] => drop(tokio::spawn(service.drive(key.to_owned()))),
                ["go"] => service.go.notify_one(),
                _ => panic!("no such order: {order:?}"),
            }
        }
    });
}

impl<D: Driver> Service<D> {
    /// Runs a key once, stops at `step`, and continues when it is ordered to.
    async fn hold(self: Arc<Self>, key: String, step: String) {
        let ran = self.run(&key, Some(step.clone())).await;
        if step == "answering" {
            self.stand(&key, &step).await;
        }
        tell(&key, ran);
    }

    /// Runs a key until it has an answer.
    async fn drive(self: Arc<Self>, key: String) {
        let ran = loop {
            match self.run(&key, None).await {
                Err(
                    RunError::Lost { .. }
                    | RunError::NotDone(_)
                    | RunError::Rejected(Rejection::InFlight { .. } | Rejection::StoreUnavailable),
                ) => {
                    // As callers do when they are told to retry.
                    tokio::time::sleep(Duration::from_millis(15)).await;
                }
                ran => break ran,
            }
        };
        tell(&key, ran);
    }

    async fn run(
        self: &Arc<Self>,
        key: &str,
        step: Option<String>,
    ) -> Result<Done<Bytes>, RunError> {
        if D::AT_ONCE {
            let (service, name) = (self.clone(), key.to_owned());
            let script = Script::new(End::JoinAndCommit).passing(move |point| {
                let (service, name, step) = (service.clone(), name.clone(), step.clone());
                async move { service.pass(&name, called(point), &step).await }
            });
            return self.driver.run_at_once(&self.once, key, &script).await;
        }
        let (service, name) = (self.clone(), key.to_owned());
        let work = async move |operation: Operation| {
            service.clone().pass(&name, "claimed", &step).await;
            // Every other attempt joins instead of finishing, so that both ways are killed at every
            // step.
            let joins =
                step.as_deref() == Some("joined") || operation.fence().as_u64().is_multiple_of(2);
            let (passing, named) = (service.clone(), name.clone());
            let script = Script::new(if joins {
                End::JoinAndCommit
            } else {
                End::Finish
            })
            .passing(move |point| {
                let (service, name, step) = (passing.clone(), named.clone(), step.clone());
                async move { service.pass(&name, called(point), &step).await }
            });
            let performed = service.driver.perform(&operation, &script).await;
            if let Err(failed) = &performed {
                announce(format!("failed {name} {failed:?}"));
            }
            Ok::<_, Failed>(performed?.into_response().into_body())
        };
        self.once.run(key, "order", work).await
    }

    async fn pass(&self, key: &str, here: &str, step: &Option<String>) {
        if step.as_deref() == Some(here) {
            self.stand(key, here).await;
        }
    }

    async fn stand(&self, key: &str, step: &str) {
        announce(format!("at {key} {step}"));
        if step != "committing" {
            self.go.notified().await;
        }
    }
}

fn called(point: Point) -> &'static str {
    match point {
        Point::Claimed => "claimed",
        Point::Begun => "begun",
        Point::Written => "written",
        Point::Emitted => "emitted",
        Point::Joined => "joined",
        Point::Committing => "committing",
        Point::Committed => "committed",
    }
}

fn tell(key: &str, ran: Result<Done<Bytes>, RunError>) {
    match ran {
        Ok(ran) => announce(format!(
            "done {key} {}",
            String::from_utf8_lossy(&ran.value)
        )),
        Err(error) => announce(format!("refused {key} {error:?}")),
    }
}
