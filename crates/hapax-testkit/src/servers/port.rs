//! Ports that stay reserved while no server listens on them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range for outgoing connections. A port in that range could be taken while its server
/// is down. Worse, a client that retries to connect to it could be assigned that very port as its
/// own and be connected to itself.
const FIRST: u16 = 12_000;
const COUNT: u32 = 20_000;

/// After this many ports in use in a row, the cause is not chance.
pub(super) const PORTS_MAX: usize = 20;

/// The message of a server whose port is in use.
pub(super) const IN_USE: &str = "in use";

/// A port of the loopback interface, reserved for as long as this value lives.
pub struct Port {
    number: u16,
    /// Never used for data. It keeps other test processes off the number, also between the death of
    /// a server and its restart. The system frees it in whatever way this process ends.
    _claim: UdpSocket,
}

impl Port {
    /// A port on which no server listens. A process that does not use this function may still take
    /// it.
    pub fn free() -> Port {
        // Each process starts at another port, so that they rarely collide.
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

    /// The port on the loopback interface.
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
