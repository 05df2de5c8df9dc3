//! Kills one node repeatedly, each time at a point, and restarts it at once.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::crash::Child;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::caller::{Told, insist};
use super::harness::charges::{self, Charge, Halt, Upstream, Version, send};
use super::harness::node::{self, NodeSettings};
use super::harness::{Answer, in_time, sockets};
use super::point::{Point, Way};
use super::sluice::{Commit, CommitGates};
use hapax_testkit::random::Random;

/// Requests that are sent to the node to reach the point: the first of them stops there, and the
/// others may be anywhere.
const RUNNERS: usize = 3;
/// The name of a gate that is never opened.
const NEVER: &str = "never";

/// A point, and the caller whose request was running there.
pub type PendingCaller = (Point, JoinHandle<Told>);

pub struct Killer<'a> {
    pub birth: NodeSettings,
    pub number: usize,
    pub upstream: &'a Upstream,
    pub sluices: CommitGates,
    pub balancer: SocketAddr,
    /// The addresses of the other nodes.
    pub others: Vec<SocketAddr>,
    pub runtime: Handle,
    pub random: Random,
    /// How long its last start took.
    pub start_took: Duration,
    pub prey: Vec<PendingCaller>,
}

impl Killer<'_> {
    /// Starts the node, kills it at this point, and does not restart it.
    pub fn kill_at(&mut self, point: Point) {
        if point == Point::Starting {
            return self.kill_while_it_starts();
        }
        let begun = Instant::now();
        let (mut child, _) = self.birth.complete();
        self.start_took = begun.elapsed();
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            self.go_on_to(point, &mut child).await;
            child.kill();
            if let Way::Database(commit) = point.way() {
                self.sluices.open(commit).await;
            }
        });
    }

    /// Kills the node at a random moment of its start. Tries again if the start was faster.
    fn kill_while_it_starts(&mut self) {
        loop {
            let mut child = self.birth.begin();
            thread::sleep(self.start_took * self.random.below(100) as u32 / 100);
            let has_started = child.line(Duration::ZERO).is_some();
            child.kill();
            if !has_started {
                return;
            }
        }
    }

    /// Sends the requests that bring one of them to the point. Returns when one has stopped there.
    async fn go_on_to(&mut self, point: Point, child: &mut Child) {
        match (point, point.way()) {
            (Point::BodyHalfRead, _) => self.send_half_a_body(point).await,
            (Point::AfterAnswer, _) => self.send_and_hear(point).await,
            (Point::WaitingForAnother, _) => self.wait_for_another(point, child).await,
            (_, Way::OfItself) => {}
            (_, Way::Armed) => {
                node::arm(child, point.name(), 0);
                self.send_runners(point, None);
                child.wait_for(&format!("at {}", point.name()));
            }
            (_, Way::Upstream(halt)) => {
                let landed = self.upstream.halt(self.number, halt);
                self.send_runners(point, None);
                let (own, reader) = in_time("a request stands still in the upstream", landed)
                    .await
                    .unwrap();
                if halt == Halt::HalfSent {
                    sockets::wait_read(own, reader).await;
                }
            }
            (_, Way::Database(commit)) => {
                self.sluices.close(commit).await;
                // Only long attempts are renewed.
                self.send_runners(point, (commit == Commit::Renewal).then_some(NEVER));
                self.sluices.wait_held(commit).await;
            }
        }
    }

    fn key(&self, point: Point) -> String {
        format!(
            "{}-{}-{}",
            self.number,
            point.name().replace(' ', "-"),
            self.prey.len()
        )
    }

    /// Sends a key, first directly to the node and in this way.
    fn send<F>(&mut self, point: Point, way: impl FnOnce(Charge) -> F)
    where
        F: Future<Output = Option<Answer>> + Send + 'static,
    {
        let (key, balancer) = (self.key(point), self.balancer);
        let first = way(Charge::new(&key));
        let caller = self
            .runtime
            .spawn(async move { insist(key, first.await, balancer).await });
        self.prey.push((point, caller));
    }

    fn send_runners(&mut self, point: Point, gate: Option<&str>) {
        let node = self.birth.listen;
        for _ in 0..RUNNERS {
            self.send(point, |charge| {
                let charge = gate.into_iter().fold(charge, Charge::held_at);
                async move { send(node, Version::Http1, &charge).await }
            });
        }
    }

    async fn send_half_a_body(&mut self, point: Point) {
        let (node, (landed, has_landed)) = (self.birth.listen, oneshot::channel());
        self.send_runners(point, None);
        self.send(point, |charge| {
            charges::send_half_a_body(node, charge, landed)
        });
        in_time("the node reads half a body", has_landed)
            .await
            .expect("it gets as far as it should");
    }

    async fn send_and_hear(&mut self, point: Point) {
        let (node, (landed, has_landed)) = (self.birth.listen, oneshot::channel());
        self.send_runners(point, Some(NEVER));
        self.send(point, |charge| async move {
            let answer = send(node, Version::Http1, &charge).await;
            let _ = landed.send(());
            answer
        });
        in_time("the node answers", has_landed)
            .await
            .expect("it gets an answer");
    }

    /// Another node runs an attempt, and a request with the same key waits at this node. If the
    /// other node is killed before that, the loop tries another one.
    async fn wait_for_another(&mut self, point: Point, child: &mut Child) {
        let node = self.birth.listen;
        let (key, other) = loop {
            let (key, other) = (
                self.key(point),
                self.others[self.random.below(self.others.len())],
            );
            let gate = self.upstream.gate(&key);
            let (gone, is_gone) = oneshot::channel::<()>();
            let held = key.clone();
            self.send(point, |charge| async move {
                let answer = send(other, Version::Http1, &charge.held_at(&held)).await;
                drop(gone);
                answer
            });
            tokio::select! {
                () = gate.wait_held(1) => break (key, gate),
                _ = is_gone => {}
            }
        };
        node::arm(child, point.name(), 0);
        let (balancer, waiter) = (self.balancer, Charge::new(&key).waiting(5));
        let caller = self.runtime.spawn(async move {
            insist(key, send(node, Version::Http1, &waiter).await, balancer).await
        });
        self.prey.push((point, caller));
        child.wait_for(&format!("at {}", point.name()));
        other.open(1);
    }
}
