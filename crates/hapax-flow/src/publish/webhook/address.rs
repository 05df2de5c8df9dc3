//! Which addresses a webhook may be sent to.
//!
//! Whoever sets the URL of a webhook must not reach what only this machine can reach. So an address
//! must be one of the open internet, or in a network that the operator allows.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::LazyLock;

/// Networks that are not the open internet, and what they are. Some addresses of cloud metadata are
/// in other networks of the list already; they are named because they are asked for most.
const CLOSED: [(&str, &str); 36] = [
    ("169.254.169.254", "cloud metadata"),
    ("100.100.100.200", "cloud metadata"),
    ("168.63.129.16", "cloud metadata"),
    ("192.0.0.192", "cloud metadata"),
    ("fd00:ec2::254", "cloud metadata"),
    ("0.0.0.0/8", "unspecified"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by the customers of a carrier"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved for protocols"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "a relay of tunnels"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    // Holds IPv4 addresses by a rule that was given up. Nothing on the internet has one.
    ("::/96", "obsolete"),
    ("64:ff9b:1::/48", "a local translation to IPv4"),
    ("100::/63", "discarded"),
    ("2001:2::/48", "benchmarking"),
    ("2001:db8::/32", "documentation"),
    ("2001:10::/28", "no address but an identifier"),
    ("2001:20::/28", "no address but an identifier"),
    ("2001:30::/28", "no address but an identifier"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "a route"),
    ("fc00::/7", "unique-local"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
];

static CLOSED_NETWORKS: LazyLock<Vec<(Network, &str)>> = LazyLock::new(|| {
    let parse = |text: &str| text.parse().expect("the list has networks");
    CLOSED.map(|(text, what)| (parse(text), what)).to_vec()
});

/// Addresses with a common beginning: `10.0.0.0/8`, `fd00::/8`, `192.0.2.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// The text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network: write its first address and a number of bits, such as 10.1.0.0/16")]
pub struct NetworkError(String);

impl FromStr for Network {
    type Err = NetworkError;

    /// Refuses `10.1.2.3/8`, whose last bits would mean nothing: that is a mistake.
    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let network = Network::parse(text).filter(|network| !network.has_host_bits());
        network.ok_or_else(|| NetworkError(text.to_owned()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// Whether the address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        let head = |address| {
            let rest = 128 - u32::from(self.bits);
            number(address).checked_shr(rest).unwrap_or(0)
        };
        self.address.is_ipv4() == address.is_ipv4() && head(self.address) == head(address)
    }

    fn parse(text: &str) -> Option<Network> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => bits_max,
            Some(bits) => bits.parse().ok().filter(|bits| *bits <= bits_max)?,
        };
        Some(Network { address, bits })
    }

    fn has_host_bits(&self) -> bool {
        let host = number(self.address).checked_shl(u32::from(self.bits));
        host.unwrap_or(0) != 0
    }
}

/// The address as a number, whose first bits are those of the address.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Says which addresses may be reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    allowed: Vec<Network>,
}

/// An address that must not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    address: IpAddr,
    what: &'static str,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Closed { address, what } = self;
        write!(
            f,
            "the address {address} is not reached ({what}): if it should be, add its network to \
             allow_networks"
        )
    }
}

impl Guard {
    pub(super) fn new(allowed: Vec<Network>) -> Guard {
        Guard { allowed }
    }

    /// Checks all addresses of a name. One that is closed is enough to refuse the name: somebody
    /// has control over it and hopes that the other address is tried first.
    pub(super) fn check_all(
        &self,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), Closed> {
        addresses
            .into_iter()
            .try_for_each(|address| self.check(address))
    }

    fn check(&self, address: IpAddr) -> Result<(), Closed> {
        let address = address.to_canonical();
        if self.allowed.iter().any(|network| network.contains(address)) {
            return Ok(());
        }
        let closed = CLOSED_NETWORKS
            .iter()
            .find(|(network, _)| network.contains(address));
        if let Some((_, what)) = closed {
            return Err(Closed { address, what });
        }
        match address {
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(address) => self.check_all(embedded(address)),
        }
    }
}

/// The IPv4 addresses that a gateway between the protocols may deliver to instead.
fn embedded(address: Ipv6Addr) -> impl Iterator<Item = IpAddr> {
    let words = address.segments();
    let at = |place: usize| {
        let [high, low] = [words[place], words[place + 1]].map(u32::from);
        Ipv4Addr::from_bits(high << 16 | low)
    };
    let found = match words {
        // NAT64, and its forerunner.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => [Some(at(6)), None],
        // Teredo: the server, and the client with its bits turned over.
        [0x2001, 0, ..] => [Some(at(2)), Some(Ipv4Addr::from_bits(!at(6).to_bits()))],
        // 6to4.
        [0x2002, ..] => [Some(at(1)), None],
        // ISATAP.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => [Some(at(6)), None],
        _ => [None, None],
    };
    found.into_iter().flatten().map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn what(address: &str) -> Option<&'static str> {
        let address = address.parse().unwrap();
        let checked = Guard::default().check(address);
        checked.err().map(|closed| closed.what)
    }

    #[test]
    fn addresses_of_the_internet_are_reached() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2001:4860:4860::8888",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
            // Teredo: server 8.8.8.8, client 9.9.9.9.
            "2001:0:808:808:0:0:f6f6:f6f6",
        ] {
            assert_eq!(what(address), None, "{address}");
        }
    }

    #[test]
    fn each_closed_family_is_refused_from_its_first_address_to_its_last() {
        for (address, family) in [
            ("0.0.0.0", "unspecified"),
            ("0.255.255.255", "unspecified"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("100.64.0.0", "shared by the customers of a carrier"),
            ("100.127.255.255", "shared by the customers of a carrier"),
            ("100.100.100.200", "cloud metadata"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.255", "loopback"),
            ("168.63.129.16", "cloud metadata"),
            ("169.254.0.1", "link-local"),
            ("169.254.169.254", "cloud metadata"),
            ("172.16.0.0", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.8", "reserved for protocols"),
            ("192.0.0.192", "cloud metadata"),
            ("192.0.2.1", "documentation"),
            ("192.88.99.1", "a relay of tunnels"),
            ("192.168.0.0", "private"),
            ("192.168.255.255", "private"),
            ("198.18.0.0", "benchmarking"),
            ("198.19.255.255", "benchmarking"),
            ("198.51.100.7", "documentation"),
            ("203.0.113.7", "documentation"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::8.8.8.8", "obsolete"),
            ("64:ff9b:1::8.8.8.8", "a local translation to IPv4"),
            ("100::1", "discarded"),
            ("100:0:0:1::1", "discarded"),
            ("2001:2::1", "benchmarking"),
            ("2001:db8::1", "documentation"),
            ("2001:1f::1", "no address but an identifier"),
            ("2001:2f::1", "no address but an identifier"),
            ("3fff:fff::1", "documentation"),
            ("5f00::1", "a route"),
            ("fc00::1", "unique-local"),
            ("fd00:ec2::254", "cloud metadata"),
            ("fdff::1", "unique-local"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
        ] {
            assert_eq!(what(address), Some(family), "{address}");
        }
    }

    #[test]
    fn a_closed_address_in_another_is_found() {
        for (address, family) in [
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:a9fe:a9fe", "cloud metadata"),
            ("::ffff:0:10.0.0.1", "private"),
            ("::127.0.0.1", "obsolete"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "cloud metadata"),
            ("2002:a00:1::1", "private"),
            ("2002:7f00:1::", "loopback"),
            // Teredo: the server is 10.0.0.1, then the client is 127.0.0.1.
            ("2001:0:a00:1:0:0:f6f6:f6f6", "private"),
            ("2001:0:808:808:0:0:80ff:fffe", "loopback"),
            ("2a00:1450::5efe:192.168.0.1", "private"),
            ("2a00:1450::200:5efe:10.0.0.1", "private"),
        ] {
            assert_eq!(what(address), Some(family), "{address}");
        }
    }

    #[test]
    fn one_closed_address_among_several_is_enough() {
        let addresses = ["8.8.8.8", "10.0.0.1"].map(|address| address.parse().unwrap());
        let closed = Guard::default().check_all(addresses).unwrap_err();
        let reason = closed.to_string();
        assert!(reason.contains("10.0.0.1") && reason.contains("allow_networks"));
    }

    #[test]
    fn an_allowed_network_is_reached_in_each_spelling_and_nothing_beside_it() {
        let allowed = ["10.1.0.0/16", "fd00:1::/32"].map(|network| network.parse().unwrap());
        let guard = Guard::new(allowed.to_vec());
        let is_reached = |address: &str| guard.check(address.parse().unwrap()).is_ok();
        for address in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "fd00:1::1",
        ] {
            assert!(is_reached(address), "{address}");
        }
        for address in ["10.2.0.0", "10.0.255.255", "127.0.0.1", "fd00:2::1"] {
            assert!(!is_reached(address), "{address}");
        }
    }

    #[test]
    fn networks_are_read_and_mistakes_refused() {
        for (text, shown) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("192.168.1.1", "192.168.1.1/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
        ] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10/8",
            "::1/129",
            "fd00::1/8",
            "localhost",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_network_of_no_bits_has_all_addresses_of_its_protocol() {
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.1.2.3".parse().unwrap()));
        assert!(!all.contains("::1".parse().unwrap()));
    }
}
