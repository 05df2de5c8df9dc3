//! The pool of connections to the upstream: those in use, those idle, and the requests waiting for
//! one.
//!
//! A connection belongs to one request at a time, and that request's task drives it. No task drives
//! an idle connection; the kernel is asked whether it is still open when it is wanted again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::link::{Link, News};
use super::trust::{QUIET, Reuse, Trust};
use crate::telemetry::Metrics;

/// The connections to one upstream, at most `connections_max`. Further requests wait in a queue.
pub(super) struct Pool {
    inside: Mutex<Inside>,
    trust: Trust,
    metrics: Metrics,
    connections_max: usize,
    idle_max: Duration,
}

#[derive(Default)]
struct Inside {
    /// Idle connections, the most recently used last.
    idle: VecDeque<Link>,
    open: usize,
    line: Line,
}

/// The requests waiting for a connection. Guarded ones go first: unguarded ones may hold a
/// connection for as long as they like.
#[derive(Default)]
struct Line {
    guarded: VecDeque<oneshot::Sender<Turn>>,
    unguarded: VecDeque<oneshot::Sender<Turn>>,
}

impl Line {
    fn join(&mut self, is_guarded: bool) -> oneshot::Receiver<Turn> {
        let line = if is_guarded {
            &mut self.guarded
        } else {
            &mut self.unguarded
        };
        let (sender, receiver) = oneshot::channel();
        // Removes waiters that have gone, at a small amortized cost.
        if line.len().is_power_of_two() {
            line.retain(|waiter| !waiter.is_closed());
        }
        line.push_back(sender);
        receiver
    }

    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        self.guarded
            .pop_front()
            .or_else(|| self.unguarded.pop_front())
    }
}

/// What a request gets from the pool.
pub(super) enum Turn {
    /// A connection that has served a request before.
    Used(Link),
    /// The right to open a connection.
    Dial(Slot),
}

/// Either a turn at once, or a place in the queue.
pub(super) enum Place {
    Now(Turn),
    Line(oneshot::Receiver<Turn>),
}

/// The right to have one connection open. Given back when dropped.
pub(super) struct Slot {
    pool: Arc<Pool>,
}

impl Pool {
    pub(super) fn new(connections_max: usize, idle_max: Duration, metrics: Metrics) -> Arc<Pool> {
        Arc::new(Pool {
            inside: Mutex::default(),
            trust: Trust::default(),
            metrics,
            connections_max,
            idle_max,
        })
    }

    /// Returns a connection that was used within `age_max`, or the right to open one, or a place in
    /// the queue.
    pub(super) fn take(self: &Arc<Self>, age_max: Duration, is_guarded: bool) -> Place {
        let mut inside = self.inside.lock();
        // The last connection is the most recently used: if it has been idle for too long, all
        // have. The caller checks whether it is still open.
        if let Some(link) = inside.idle.pop_back_if(|link| link.is_fresh(age_max)) {
            return Place::Now(Turn::Used(link));
        }
        let spare = (inside.open >= self.connections_max)
            .then(|| inside.idle.pop_front())
            .flatten();
        drop(inside);
        // Dropping the connection returns its slot, which takes the lock.
        drop(spare);

        let mut inside = self.inside.lock();
        if inside.open < self.connections_max {
            inside.open += 1;
            return Place::Now(Turn::Dial(Slot { pool: self.clone() }));
        }
        Place::Line(inside.line.join(is_guarded))
    }

    /// Takes back a connection that can serve another request: at once, or after it has been quiet
    /// for a while.
    pub(super) fn put(self: &Arc<Self>, mut link: Link) {
        link.rested_at = Instant::now();
        match self.trust.reuse(link.ends_with_head()) {
            Reuse::AtOnce => self.lend(link),
            Reuse::Never => drop(link),
            Reuse::WhenQuiet => {
                let pool = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(QUIET).await;
                    match link.listen().await {
                        News::None => {
                            pool.trust.was_quiet();
                            pool.lend(link);
                        }
                        News::Surplus => pool.distrust(),
                        News::Closed => {}
                    }
                });
            }
        }
    }

    /// Records that the upstream sent surplus bytes: from now on, every connection serves one
    /// request.
    pub(super) fn distrust(&self) {
        self.metrics.upstream_surplus();
        if self.trust.lose() {
            tracing::error!(
                "ALARM: the upstream sent bytes behind an answer. Such bytes can be taken for the answer to somebody else's request, so that its \
                 connections are not used again from now on. Find out which of its answers have a wrong Content-Length, or a body with 204, 304 or HEAD"
            );
        }
    }

    /// Gives a connection to the first waiting request, or keeps it as idle.
    fn lend(&self, mut link: Link) {
        let mut inside = self.inside.lock();
        while let Some(waiter) = inside.line.next() {
            match waiter.send(Turn::Used(link)) {
                Ok(()) => return,
                Err(Turn::Used(back)) => link = back,
                Err(Turn::Dial(_)) => unreachable!("what was sent comes back"),
            }
        }
        inside.idle.push_back(link);
    }

    /// Closes connections that have been idle for too long or that the upstream has closed.
    pub(super) fn sweep(&self) {
        let mut inside = self.inside.lock();
        let (kept, dead): (VecDeque<_>, VecDeque<_>) = inside.idle.drain(..).partition(|link| {
            link.rested_at.elapsed() < self.idle_max && link.news() == News::None
        });
        inside.idle = kept;
        drop(inside);
        drop(dead);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inside = self.pool.inside.lock();
        while let Some(waiter) = inside.line.next() {
            if waiter.is_closed() {
                continue;
            }
            // Sent without the lock: if the waiter has gone, the slot is dropped, which runs this
            // function again.
            drop(inside);
            drop(waiter.send(Turn::Dial(Slot {
                pool: self.pool.clone(),
            })));
            return;
        }
        inside.open -= 1;
    }
}
