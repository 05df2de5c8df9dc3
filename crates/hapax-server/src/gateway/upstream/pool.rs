//! The connections to the upstream: who has one, who waits for one, which are at rest.
//!
//! A connection belongs to one request at a time, which drives it on its own task; at rest nobody
//! drives it, and whether it still lives is asked of the system when it is wanted again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::link::{Link, News};
use super::trust::{QUIET, Reuse, Trust};
use crate::telemetry::Metrics;

/// The connections to one upstream. At most so many; whoever finds none waits in line.
pub(super) struct Pool {
    inside: Mutex<Inside>,
    trust: Trust,
    metrics: Metrics,
    connections_max: usize,
    idle_max: Duration,
}

#[derive(Default)]
struct Inside {
    /// At rest, the latest used last.
    idle: VecDeque<Link>,
    open: usize,
    line: Line,
}

/// Who waits for a connection. Guarded requests go first: unguarded ones may take as long as they
/// like, and hold what they get.
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
        // Now and then, so that those who have left the line cost nothing for long.
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
    /// A connection that was used before.
    Used(Link),
    /// The right to make one.
    Dial(Slot),
}

/// A request's place: now, or in line.
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

    /// A connection that was used within `age_max`, or the right to make one, or a place in line.
    pub(super) fn take(self: &Arc<Self>, age_max: Duration, is_guarded: bool) -> Place {
        let mut inside = self.inside.lock();
        // The latest used is the last: if it has rested for too long, all have. Whether it is open
        // is for whoever takes it to ask.
        if let Some(link) = inside.idle.pop_back_if(|link| link.is_fresh(age_max)) {
            return Place::Now(Turn::Used(link));
        }
        let spare = (inside.open >= self.connections_max)
            .then(|| inside.idle.pop_front())
            .flatten();
        drop(inside);
        // Its slot comes back when it is dropped, which takes the lock.
        drop(spare);

        let mut inside = self.inside.lock();
        if inside.open < self.connections_max {
            inside.open += 1;
            return Place::Now(Turn::Dial(Slot { pool: self.clone() }));
        }
        Place::Line(inside.line.join(is_guarded))
    }

    /// A connection that can take another request: at once, or when it has been quiet for a while.
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

    /// Bytes came that nobody had asked for: from now on every connection serves one request.
    pub(super) fn distrust(&self) {
        self.metrics.upstream_surplus();
        if self.trust.lose() {
            tracing::error!(
                "ALARM: the upstream sent bytes behind an answer. Such bytes can be taken for the answer to somebody else's request, so that its \
                 connections are not used again from now on. Find out which of its answers have a wrong Content-Length, or a body with 204, 304 or HEAD"
            );
        }
    }

    /// Gives a connection to the first request that waits for one, or keeps it.
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

    /// Closes what has rested for too long or was closed by the upstream.
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
            // Sent without the lock: if the waiter has just gone, the slot comes straight back
            // here.
            drop(inside);
            drop(waiter.send(Turn::Dial(Slot {
                pool: self.pool.clone(),
            })));
            return;
        }
        inside.open -= 1;
    }
}
