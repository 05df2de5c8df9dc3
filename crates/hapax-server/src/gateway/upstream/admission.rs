//! Limits how many connections to the upstream unguarded requests may use.
//!
//! An unguarded request keeps its connection for as long as its client likes: a slow upload, an
//! answer that is read slowly, a WebSocket. So unguarded requests together leave a part of the
//! connections to guarded ones, and those of one peer leave a part to other peers. Peers with
//! waiting requests take turns.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::Peer;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::BoxError;
use super::answer::Answer;
use super::exchange::Stopwatch;
use crate::config::{Upstream, unguarded_of};

/// The kind of request that a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// A guarded request, or a request that the gateway itself makes. It may use every connection.
    Guarded,
    /// An unguarded request of this peer.
    Unguarded(Option<Peer>),
}

/// How many connections, or streams of a shared connection, unguarded requests and one peer may
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) unguarded_max: usize,
    pub(super) per_peer_max: usize,
}

impl Shares {
    /// Leaves a quarter of the streams to guarded requests, and gives one peer at most half.
    pub(super) fn of_streams(streams_max: usize) -> Shares {
        let unguarded_max = unguarded_of(streams_max);
        Shares {
            unguarded_max,
            per_peer_max: streams_max.div_ceil(2).min(unguarded_max),
        }
    }
}

/// A limit of the gateway is reached; nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Busy {
    /// Unguarded requests use every connection that is not reserved for guarded ones.
    #[error(
        "unguarded requests use {0} connections to the upstream, and the rest of `upstream.connections_max` is for guarded ones"
    )]
    Unguarded(usize),
    /// Unguarded requests of one peer have reached the limit per peer.
    #[error(
        "unguarded requests of this client's address use {0} connections to the upstream: `upstream.unguarded_per_peer_max`"
    )]
    Peer(usize),
    /// Guarded requests of one peer have reached the limit per peer.
    #[error(
        "guarded requests of this client's address use three quarters of `upstream.connections_max`, and none of them has ended"
    )]
    GuardedPeer,
    /// The limit on tunnels is reached.
    #[error("there are {0} tunnels to the upstream: `upstream.tunnels_max`")]
    Tunnels(usize),
    /// One peer has reached its limit on tunnels.
    #[error(
        "this client's address has {0} tunnels to the upstream: half of `upstream.tunnels_max`"
    )]
    PeerTunnels(usize),
}

/// Grants connections to requests, up to a limit in total and per peer.
pub(super) struct Admission {
    shares: Shares,
    tunnels_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_use: usize,
    tunnels: usize,
    /// Peers that use a connection or wait for one.
    peers: HashMap<Option<Peer>, Uses>,
    /// Peers that are below their limit and have a waiting request, each once.
    turns: VecDeque<Option<Peer>>,
}

#[derive(Default)]
struct Uses {
    in_use: usize,
    tunnels: usize,
    waiting: VecDeque<oneshot::Sender<Permit>>,
    has_turn: bool,
}

/// The right of a request to use a connection. Given back when dropped.
pub(super) struct Permit {
    admission: Arc<Admission>,
    peer: Option<Peer>,
}

/// The right to have a tunnel, in addition to the right to use its connection. Given back when
/// dropped.
pub(super) struct TunnelPermit {
    admission: Arc<Admission>,
    peer: Option<Peer>,
}

impl Admission {
    /// The admission of unguarded requests.
    pub(super) fn new(upstream: &Upstream) -> Arc<Admission> {
        let shares = Shares {
            unguarded_max: upstream.unguarded_max(),
            per_peer_max: upstream.unguarded_per_peer(),
        };
        Arc::new(Admission {
            shares,
            tunnels_max: upstream.tunnels(),
            state: Mutex::default(),
        })
    }

    /// The admission of guarded requests. Together they may use every connection; those of one peer
    /// leave a quarter to other peers.
    pub(super) fn of_guarded(upstream: &Upstream) -> Arc<Admission> {
        let connections_max = upstream.connections_max;
        let shares = Shares {
            unguarded_max: connections_max,
            per_peer_max: connections_max - connections_max / 4,
        };
        Arc::new(Admission {
            shares,
            tunnels_max: 0,
            state: Mutex::default(),
        })
    }

    /// Waits for the right to use a connection. Dropping the future leaves the queue.
    pub(super) async fn admit(self: &Arc<Self>, peer: Option<Peer>) -> Permit {
        let waiting = {
            let mut state = self.state.lock();
            let is_free = state.in_use < self.shares.unguarded_max;
            let uses = state.peers.entry(peer).or_default();
            if is_free && uses.in_use < self.shares.per_peer_max {
                uses.in_use += 1;
                state.in_use += 1;
                return Permit {
                    admission: self.clone(),
                    peer,
                };
            }
            let (sender, receiver) = oneshot::channel();
            uses.waiting.push_back(sender);
            state.give_turn(peer, self.shares.per_peer_max);
            receiver
        };
        // Dropped after the receiver, so that `Leaving` finds its sender closed.
        let _leaving = Leaving {
            admission: self,
            peer,
        };
        waiting
            .await
            .expect("a waiter is only dropped after it has left")
    }

    /// Grants a tunnel immediately or refuses it: waiting makes no sense, since open tunnels may
    /// last for hours.
    pub(super) fn admit_tunnel(self: &Arc<Self>, peer: Option<Peer>) -> Result<TunnelPermit, Busy> {
        let mut state = self.state.lock();
        if state.tunnels >= self.tunnels_max {
            return Err(Busy::Tunnels(state.tunnels));
        }
        let uses = state.peers.entry(peer).or_default();
        if uses.tunnels >= self.tunnels_max.div_ceil(2) {
            return Err(Busy::PeerTunnels(uses.tunnels));
        }
        uses.tunnels += 1;
        state.tunnels += 1;
        Ok(TunnelPermit {
            admission: self.clone(),
            peer,
        })
    }

    /// The limit that keeps a peer waiting.
    pub(super) fn why_busy(&self, peer: Option<Peer>) -> Busy {
        let state = self.state.lock();
        match state.peers.get(&peer).map_or(0, |uses| uses.in_use) {
            in_use if in_use >= self.shares.per_peer_max => Busy::Peer(in_use),
            _ => Busy::Unguarded(state.in_use),
        }
    }

    /// Grants permits to waiting requests, as far as there is room.
    fn serve(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            let Some((peer, waiter)) = state.next_waiter(&self.shares) else {
                return;
            };
            drop(state);
            // Sent without the lock: if the waiter is gone, the permit is dropped here, which takes
            // the lock.
            drop(waiter.send(Permit {
                admission: self.clone(),
                peer,
            }));
        }
    }
}

impl State {
    /// Queues a peer for its turn if it has a waiting request and is below its limit.
    fn give_turn(&mut self, peer: Option<Peer>, per_peer_max: usize) {
        let Some(uses) = self.peers.get_mut(&peer) else {
            return;
        };
        if !uses.has_turn && uses.in_use < per_peer_max && !uses.waiting.is_empty() {
            uses.has_turn = true;
            self.turns.push_back(peer);
        }
    }

    /// Takes the next waiter to be admitted, and counts it as admitted.
    fn next_waiter(&mut self, shares: &Shares) -> Option<(Option<Peer>, oneshot::Sender<Permit>)> {
        while self.in_use < shares.unguarded_max {
            let peer = self.turns.pop_front()?;
            let Some(uses) = self.peers.get_mut(&peer) else {
                continue;
            };
            uses.has_turn = false;
            uses.drop_closed();
            let waiter = uses.waiting.pop_front();
            if waiter.is_some() {
                uses.in_use += 1;
                self.in_use += 1;
            }
            self.give_turn(peer, shares.per_peer_max);
            self.forget_if_unused(peer);
            if let Some(waiter) = waiter {
                return Some((peer, waiter));
            }
        }
        None
    }

    fn forget_if_unused(&mut self, peer: Option<Peer>) {
        let is_unused =
            |uses: &Uses| uses.in_use == 0 && uses.tunnels == 0 && uses.waiting.is_empty();
        if self.peers.get(&peer).is_some_and(is_unused)
            && self.peers.remove(&peer).is_some_and(|uses| uses.has_turn)
        {
            self.turns.retain(|turn| *turn != peer);
        }
    }
}

impl Uses {
    /// Looks at the front only: all requests wait for the same time, so they leave in queue order.
    fn drop_closed(&mut self) {
        while self
            .waiting
            .pop_front_if(|waiter| waiter.is_closed())
            .is_some()
        {}
    }
}

/// Guards a waiting request: when dropped, it removes what the request left in the queue.
struct Leaving<'a> {
    admission: &'a Admission,
    peer: Option<Peer>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        if let Some(uses) = state.peers.get_mut(&self.peer) {
            uses.drop_closed();
        }
        state.forget_if_unused(self.peer);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        state.in_use -= 1;
        if let Some(uses) = state.peers.get_mut(&self.peer) {
            uses.in_use -= 1;
        }
        state.give_turn(self.peer, self.admission.shares.per_peer_max);
        state.forget_if_unused(self.peer);
        drop(state);
        self.admission.serve();
    }
}

impl Drop for TunnelPermit {
    fn drop(&mut self) {
        let mut state = self.admission.state.lock();
        state.tunnels -= 1;
        if let Some(uses) = state.peers.get_mut(&self.peer) {
            uses.tunnels -= 1;
        }
        state.forget_if_unused(self.peer);
    }
}

/// The body of an answer. It holds the right to its connection until it has been read.
pub(crate) struct Admitted {
    answer: Answer,
    permit: Option<Permit>,
    stopwatch: Option<Stopwatch>,
}

impl Admitted {
    pub(super) fn new(
        answer: Answer,
        permit: Option<Permit>,
        stopwatch: Option<Stopwatch>,
    ) -> Admitted {
        let is_over = answer.is_end_stream();
        Admitted {
            answer,
            permit: permit.filter(|_| !is_over),
            stopwatch: stopwatch.filter(|_| !is_over),
        }
    }
}

impl Body for Admitted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.answer).poll_frame(cx);
        let is_over = matches!(frame, Poll::Ready(None | Some(Err(_))))
            || frame.is_ready() && this.answer.is_end_stream();
        if is_over {
            this.permit = None;
            this.stopwatch = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn peer(last: u8) -> Option<Peer> {
        Some(Peer::new([10, 0, 0, last].into()))
    }

    fn admission(connections_max: usize) -> Arc<Admission> {
        let url = "http://127.0.0.1:3000".parse().unwrap();
        Admission::new(&Upstream {
            connections_max,
            ..Upstream::new(url)
        })
    }

    type Waiting = Pin<Box<dyn Future<Output = Permit>>>;

    fn ask(admission: &Arc<Admission>, peer: Option<Peer>) -> Result<Permit, Waiting> {
        let admission = admission.clone();
        let mut waiting: Waiting = Box::pin(async move { admission.admit(peer).await });
        match poll(&mut waiting) {
            Some(permit) => Ok(permit),
            None => Err(waiting),
        }
    }

    fn poll(waiting: &mut Waiting) -> Option<Permit> {
        match waiting
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_quarter_is_left_to_guarded_requests_and_half_is_the_most_for_one_peer() {
        for (connections_max, unguarded_max, per_peer_max) in [
            (1, 1, 1),
            (2, 1, 1),
            (3, 2, 2),
            (8, 6, 4),
            (1_024, 768, 512),
        ] {
            assert_eq!(
                Shares::of_streams(connections_max),
                Shares {
                    unguarded_max,
                    per_peer_max
                },
                "{connections_max}"
            );
        }
    }

    #[test]
    fn one_peer_gets_its_share_and_others_the_rest() {
        let admission = admission(8);
        let held: Vec<_> = (0..4)
            .map(|_| ask(&admission, peer(1)).ok().unwrap())
            .collect();
        assert!(ask(&admission, peer(1)).is_err());
        assert_eq!(admission.why_busy(peer(1)), Busy::Peer(4));
        let others: Vec<_> = (0..2)
            .map(|_| ask(&admission, peer(2)).ok().unwrap())
            .collect();
        assert!(ask(&admission, peer(3)).is_err());
        assert_eq!(admission.why_busy(peer(3)), Busy::Unguarded(6));
        drop((held, others));
        assert!(
            admission.state.lock().peers.is_empty(),
            "peers that use nothing are not remembered"
        );
    }

    #[test]
    fn peers_that_wait_have_their_turns() {
        let admission = admission(4);
        let mut held: Vec<_> = (0..2)
            .map(|_| ask(&admission, peer(1)).ok().unwrap())
            .collect();
        held.push(ask(&admission, peer(2)).ok().unwrap());
        // Unguarded requests may have three, and hold them all. A hundred requests of one peer
        // wait, then one request of another peer.
        let mut crowd: Vec<_> = (0..100)
            .map(|_| ask(&admission, peer(3)).err().unwrap())
            .collect();
        let mut late = ask(&admission, peer(4)).err().unwrap();
        held.pop();
        let first = poll(&mut crowd[0]).expect("the first in line");
        held.pop();
        let second = poll(&mut late).expect("one of another peer, before the crowd's second");
        assert!(poll(&mut crowd[1]).is_none());
        drop(second);
        let third = poll(&mut crowd[1]).expect("the crowd's turn again");
        // The crowd has its half now, and waits although there is room.
        held.clear();
        assert!(poll(&mut crowd[2]).is_none());
        drop((first, third, crowd));
        assert!(
            admission.state.lock().peers.is_empty(),
            "those who left the line are forgotten"
        );
        assert_eq!(admission.state.lock().in_use, 0);
    }

    #[test]
    fn one_peer_has_half_of_the_tunnels() {
        let admission = admission(8);
        let held: Vec<_> = (0..2)
            .map(|_| admission.admit_tunnel(peer(1)).ok().unwrap())
            .collect();
        assert_eq!(
            admission.admit_tunnel(peer(1)).err(),
            Some(Busy::PeerTunnels(2))
        );
        let others: Vec<_> = (2..4)
            .map(|last| admission.admit_tunnel(peer(last)).ok().unwrap())
            .collect();
        assert_eq!(
            admission.admit_tunnel(peer(9)).err(),
            Some(Busy::Tunnels(4))
        );
        drop((held, others));
        assert!(admission.admit_tunnel(peer(1)).is_ok());
    }
}
