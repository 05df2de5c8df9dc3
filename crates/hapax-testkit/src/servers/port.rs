//! Ports that stay one's own while nobody listens on them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the system gives to outgoing connections. One of those could be taken while its
/// server is down; worse, a client that tries again and again to connect there would one day be
/// given that very port for its own end, and be connected with itself.
const FIRST: u16 = 12_000;
const COUNT: u32 = 20_000;

/// Somebody else was faster so many times in a row: that is no coincidence any more.
pub(super) const PORTS_MAX: usize = 20;

/// What a server says when somebody was faster.
pub(super) const IN_USE: &str = "in use";

/// A port of the loopback interface, for as long as this lives.
pub struct Port {
    number: u16,
    /// Nothing is ever sent there. It keeps other test processes off the number, also between the
    /// death of a server and its return, and the system lets go of it in whatever way this process
    /// ends.
    _claim: UdpSocket,
}

impl Port {
    /// One on which nobody listens. Somebody who does not ask here may still be faster.
    pub fn free() -> Port {
        // Begins somewhere else in each process, so that they seldom meet.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let first = std::process::id().wrapping_mul(7919);
        let mut candidates =
            (0..COUNT).map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT);
        candidates
            .find_map(|offset| claimed(FIRST + offset as u16))
            .expect("one of twenty thousand ports is free")
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// It on the loopback interface.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

fn claimed(number: u16) -> Option<Port> {
    let claim = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    TcpListener::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
    Some(Port {
        number,
        _claim: claim,
    })
}
