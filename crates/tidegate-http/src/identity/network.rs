//! Networks of addresses, as text and as sets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network: an address and how many of its leading bits count. A single address is one with all of them.
///
/// IPv6 forms of IPv4 addresses (`::ffff:192.0.2.1`) are the IPv4 addresses.
///
/// ```
/// use tidegate_http::identity::Network;
///
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse()?) && network.contains("::ffff:10.1.2.3".parse()?));
/// assert_eq!(
///     "10.0.0.1/8".parse::<Network>().unwrap_err().to_string(),
///     "`10.0.0.1/8` has bits behind the first 8; write 10.0.0.0/8 for the network or 10.0.0.1 for the address",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// There is no address in it.
    #[error(
        "`{text}` is not an address or a network; write for example 10.0.0.0/8, 192.0.2.1 or 2001:db8::/32"
    )]
    Address {
        /// The text.
        text: Box<str>,
    },
    /// What follows the slash is no number of bits of that address.
    #[error(
        "`{text}` does not end in a number of bits from 0 to {bits}; write for example 10.0.0.0/8 or 2001:db8::/32"
    )]
    Prefix {
        /// The text.
        text: Box<str>,
        /// How many bits such an address has.
        bits: u8,
    },
    /// It is the address of a machine and not of a network.
    #[error(
        "`{text}` has bits behind the first {prefix}; write {network} for the network or {address} for the address"
    )]
    HostBits {
        /// The text.
        text: Box<str>,
        /// The number of bits that it says.
        prefix: u8,
        /// The network that the address is in.
        network: Network,
        /// The address.
        address: IpAddr,
    },
}

impl Network {
    /// The network of the first `prefix` bits of `address`, the rest zero. More bits than there are count as all.
    #[must_use]
    pub fn of(address: IpAddr, prefix: u8) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Self { address: Ipv4Addr::from_bits(address.to_bits() & mask).into(), prefix }
            }
            IpAddr::V6(address) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                // The address stays an IPv6 one even where what is left of it looks like an IPv4 one: the top is zero.
                Self { address: Ipv6Addr::from_bits(address.to_bits() & mask).into(), prefix }
            }
        }
    }

    /// Whether `address` is in it.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && Self::of(address, self.prefix) == *self
    }

    const fn bits(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }
}

impl fmt::Display for Network {
    /// `10.0.0.0/8`, or the address alone if it is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.prefix == Self::bits(self.address) {
            self.address.fmt(f)
        } else {
            write!(f, "{}/{}", self.address, self.prefix)
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.trim().split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::Address { text: text.into() })?;
        let bits = Self::bits(address);
        let prefix = match prefix {
            None => bits,
            Some(digits) => digits
                .parse()
                .ok()
                .filter(|prefix| *prefix <= bits && digits.bytes().all(|digit| digit.is_ascii_digit()))
                .ok_or_else(|| NetworkError::Prefix { text: text.into(), bits })?,
        };
        // `::ffff:10.0.0.0/104` is 10.0.0.0/8; a shorter prefix of it is a network of IPv6.
        let canonical = address.to_canonical();
        let (address, prefix) = match (address.is_ipv6() && canonical.is_ipv4(), prefix.checked_sub(96)) {
            (true, Some(prefix)) => (canonical, prefix),
            (true, None) => return Err(NetworkError::Address { text: text.into() }),
            (false, _) => (address, prefix),
        };
        let network = Self::of(address, prefix);
        if network.address != address {
            return Err(NetworkError::HostBits { text: text.into(), prefix, network, address });
        }
        Ok(network)
    }
}

/// The proxies whose word about the client counts; none by default.
///
/// ```
/// use tidegate_http::identity::TrustedProxies;
///
/// let proxies: TrustedProxies = "10.0.0.0/8, 2001:db8::1".parse()?;
/// assert!(proxies.contain("10.1.2.3".parse()?));
/// assert!(!proxies.contain("203.0.113.9".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustedProxies(Vec<Network>);

impl TrustedProxies {
    /// Whether `address` is one of them.
    #[must_use]
    pub fn contain(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl FromIterator<Network> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = Network>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

impl FromStr for TrustedProxies {
    type Err = NetworkError;

    /// Reads networks with commas or spaces between them. The empty text is no proxy.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        text.split([',', ' ']).map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect()
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.0.iter().enumerate() {
            write!(f, "{}{network}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn networks_are_read_as_they_are_printed() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.1", "2001:db8::/32", "::/0", "::1"] {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), text);
        }
        for (text, canonical) in
            [("192.0.2.1/32", "192.0.2.1"), ("::ffff:10.0.0.0/104", "10.0.0.0/8"), (" ::1/128 ", "::1")]
        {
            assert_eq!(text.parse::<Network>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn wrong_networks_say_what_to_write() {
        for (text, error) in [
            (
                "",
                "`` is not an address or a network; write for example 10.0.0.0/8, 192.0.2.1 or 2001:db8::/32",
            ),
            (
                "10.0.0.0/33",
                "`10.0.0.0/33` does not end in a number of bits from 0 to 32; write for example 10.0.0.0/8 or 2001:db8::/32",
            ),
            (
                "::1/64",
                "`::1/64` has bits behind the first 64; write ::/64 for the network or ::1 for the address",
            ),
        ] {
            assert_eq!(text.parse::<Network>().unwrap_err().to_string(), error);
        }
        for text in
            ["10.0.0.0/+8", "10.0.0.0/", "10.0.0.0/8/8", "10/8", "::/129", "::ffff:10.0.0.0/90", "a.example"]
        {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        assert_eq!("10.0.0.0/8,,::1 ".parse::<TrustedProxies>().unwrap().to_string(), "10.0.0.0/8, ::1");
        assert!("10.0.0.0/8, proxy".parse::<TrustedProxies>().is_err());
        assert_eq!("".parse::<TrustedProxies>().unwrap(), TrustedProxies::default());
    }

    #[test]
    fn a_network_of_ipv6_holds_no_ipv4_address() {
        let (all, four) = ("::/0".parse::<Network>().unwrap(), "192.0.2.1".parse().unwrap());
        assert!(!all.contains(four));
        assert!(all.contains("::1".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn a_network_holds_the_addresses_it_is_of(address: IpAddr, prefix: u8) {
            let network = Network::of(address, prefix);
            prop_assert!(network.contains(address));
            prop_assert_eq!(network.to_string().parse::<Network>(), Ok(network));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9a-f.:/, ]{0,30}|.{0,12}") {
            let _ = (text.parse::<Network>(), text.parse::<TrustedProxies>());
        }
    }
}
