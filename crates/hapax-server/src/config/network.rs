//! Ranges of IP addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address, or all addresses with a common prefix: `10.0.0.7`, `10.0.0.0/8`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u32,
}

impl Network {
    /// Whether an address is in the range; an IPv4 address may be given as IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => same_start(
                ours.to_bits().into(),
                theirs.to_bits().into(),
                self.prefix,
                32,
            ),
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                same_start(ours.to_bits(), theirs.to_bits(), self.prefix, 128)
            }
            _ => false,
        }
    }
}

fn same_start(ours: u128, theirs: u128, prefix: u32, bits: u32) -> bool {
    (ours ^ theirs)
        .checked_shr(bits - prefix)
        .unwrap_or_default()
        == 0
}

const fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == bits(self.address) {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let Ok(written) = address.parse::<IpAddr>() else {
            return Err(format!(
                "`{text}` is no address: write numbers without a port, as in \"10.0.0.1\", \"10.0.0.0/8\" or \"fd00::/8\""
            ));
        };
        let prefix = match prefix.map(str::parse::<u32>) {
            None => bits(written),
            Some(Ok(prefix)) if (1..=bits(written)).contains(&prefix) => prefix,
            Some(Ok(0)) => {
                return Err(format!(
                    "`{text}` is everybody, and nobody is a proxy to everybody: name the range of the proxies"
                ));
            }
            Some(_) => {
                return Err(format!(
                    "`{text}` is no range: after the `/` stands a number from 1 to {}",
                    bits(written)
                ));
            }
        };
        let start = first(written, prefix);
        if start != written {
            return Err(format!(
                "`{text}` names one address and a range: write \"{start}/{prefix}\", or \"{address}\" alone"
            ));
        }
        // An IPv4 address written as IPv6 is the same address.
        match (written, written.to_canonical()) {
            (IpAddr::V6(_), address @ IpAddr::V4(_)) if prefix >= 96 => Ok(Network {
                address,
                prefix: prefix - 96,
            }),
            _ => Ok(Network {
                address: written,
                prefix,
            }),
        }
    }
}

/// The first address of a range.
fn first(address: IpAddr, prefix: u32) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            IpAddr::V4((address.to_bits() & u32::MAX.unbounded_shl(32 - prefix)).into())
        }
        IpAddr::V6(address) => {
            IpAddr::V6((address.to_bits() & u128::MAX.unbounded_shl(128 - prefix)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_what_begins_alike() {
        for (network, address, holds) in [
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.8", false),
            ("10.0.0.7", "::ffff:10.0.0.7", true),
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "::ffff:10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/31", "10.0.0.1", true),
            ("10.0.0.0/31", "10.0.0.2", false),
            ("128.0.0.0/1", "200.0.0.1", true),
            ("128.0.0.0/1", "127.0.0.1", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
            ("::1", "::1", true),
            ("::1", "127.0.0.1", false),
            ("::/1", "10.0.0.1", false),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
            ("::ffff:10.0.0.7", "10.0.0.7", true),
        ] {
            assert_eq!(
                network
                    .parse::<Network>()
                    .unwrap()
                    .contains(address.parse().unwrap()),
                holds,
                "{network} {address}"
            );
        }
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for text in [
            "",
            "a",
            "10.0.0.1:80",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "0.0.0.0/0",
            "::/0",
            "fd00::1/8",
            "fd00::/129",
            "10/8",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        for text in ["10.0.0.0/8", "10.0.0.7", "fd00::/8"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
    }
}
