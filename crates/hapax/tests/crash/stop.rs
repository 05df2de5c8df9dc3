//! SIGSTOP past the lease, then SIGCONT: a zombie that does not know its lease is over.

use std::net::SocketAddr;
use std::time::Duration;

use hapax_testkit::crash::{self, Child, Ledger};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::client::{Answer, send};
use super::service;

/// A process that was stopped in the middle of an attempt and continued after the lease was over.
struct Zombie {
    child: Child,
    /// The node that runs the attempt.
    own: SocketAddr,
    /// Another node on the same store.
    other: SocketAddr,
    first: JoinHandle<Option<Answer>>,
    directory: TempDir,
}

impl Zombie {
    async fn wake(test: &str, mode: &str) -> Zombie {
        let directory = tempfile::tempdir().unwrap();
        let (mut child, [own, other]) = service::start(test, directory.path(), mode);
        // Otherwise the node would renew its lease as soon as it wakes, before another node could
        // act on the lapse.
        service::order(&mut child, "fail renewals");
        let first = tokio::spawn(send(own, "/slow", "k", false));
        child.wait_for("began 1");
        child.stop();
        // The lease runs by the machine's clock, which a test cannot advance.
        tokio::time::sleep(Duration::from_millis(110)).await;
        child.cont();
        Zombie {
            child,
            own,
            other,
            first,
            directory,
        }
    }

    async fn finish(&mut self) -> Answer {
        service::order(&mut self.child, "let 1");
        (&mut self.first).await.unwrap().unwrap()
    }

    fn effects(&self) -> usize {
        Ledger::open(self.directory.path().join("ledger")).counts()["k"]
    }
}

fn run(test: impl Future<Output = ()>) {
    if crash::role().is_some() {
        return service::serve();
    }
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn in_hold_mode_the_late_completion_resolves_the_record() {
    run(async {
        let mut zombie = Zombie::wake(
            "stop::in_hold_mode_the_late_completion_resolves_the_record",
            "hold",
        )
        .await;
        let held = send(zombie.other, "/slow", "k", false).await.unwrap();
        assert!(held.is_unknown(), "{held:?}");

        let first = zombie.finish().await;
        assert_eq!((first.status, first.is_replay), (201, false));
        for node in [zombie.own, zombie.other] {
            let again = send(node, "/slow", "k", false).await.unwrap();
            assert_eq!(
                (again.status, &again.body, again.is_replay),
                (201, &first.body, true)
            );
        }
        assert_eq!(zombie.effects(), 1);
    });
}

#[test]
fn after_a_takeover_the_zombies_completion_changes_nothing() {
    run(async {
        let mut zombie = Zombie::wake(
            "stop::after_a_takeover_the_zombies_completion_changes_nothing",
            "rerun",
        )
        .await;
        let successor = send(zombie.other, "/slow", "k", false).await.unwrap();
        assert_eq!(
            (
                successor.status,
                successor.body.as_str(),
                successor.is_replay
            ),
            (201, "charged by attempt 2", false)
        );

        // The zombie's result is discarded and the record read again: the zombie's caller gets the
        // successor's answer.
        let first = zombie.finish().await;
        assert_eq!((&first.body, first.is_replay), (&successor.body, true));
        for node in [zombie.own, zombie.other] {
            assert_eq!(
                send(node, "/slow", "k", false).await.unwrap().body,
                successor.body
            );
        }
        assert_eq!(zombie.effects(), 2, "what rerun allows, and no more");
    });
}

#[test]
fn after_a_settlement_the_zombies_completion_changes_nothing() {
    run(async {
        let mut zombie = Zombie::wake(
            "stop::after_a_settlement_the_zombies_completion_changes_nothing",
            "hold",
        )
        .await;
        let settled = send(zombie.other, "/settle", "any", false).await.unwrap();
        assert_eq!(settled.body, "1", "so many were settled");

        let first = zombie.finish().await;
        assert_eq!((first.body.as_str(), first.is_replay), ("settled", true));
        for node in [zombie.own, zombie.other] {
            assert_eq!(
                send(node, "/slow", "k", false).await.unwrap().body,
                "settled"
            );
        }
        assert_eq!(zombie.effects(), 1);
    });
}
