//! The client's address, by which limits per client count.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// The origin of a request: the client's address, or its whole /64 network over IPv6, because one
/// client can use any address of its network.
///
/// A service puts it into the extensions of a request. Limits per peer count by it. Requests
/// without it share one count, and only the total limits their buffered bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(IpAddr);

impl Peer {
    /// The peer at an address.
    pub fn new(address: IpAddr) -> Peer {
        Peer(match address.to_canonical() {
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
            }
            address => address,
        })
    }

    /// Sixteen bytes that identify this peer.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        match self.0 {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(network) => network.octets(),
        }
    }
}

/// Marks a request whose principal is claimed but not verified.
///
/// A service puts it into the extensions of such a request. New keys of the principal are then
/// counted by [`Peer`], until one of its operations has been answered with 2xx. Without this mark,
/// the layer considers the principal verified, because it stands inside the authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unverified;

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(f, "{address}"),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str) -> Peer {
        Peer::new(address.parse().unwrap())
    }

    #[test]
    fn an_ipv6_client_is_its_network_and_an_ipv4_client_its_address() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:0:1"));
        assert_ne!(peer("2001:db8:0:1::1"), peer("2001:db8:0:2::1"));
        assert_eq!(peer("::ffff:10.0.0.7"), peer("10.0.0.7"));
        assert_ne!(peer("10.0.0.7"), peer("10.0.0.8"));
        assert_eq!(peer("2001:db8::1").to_string(), "2001:db8::/64");
    }
}
