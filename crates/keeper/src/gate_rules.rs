//! Which hosts a sandbox may reach, and which addresses nothing opens.
//!
//! Owns: the meaning of a NETWORK line. Never: sockets, names that have to be resolved.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name of a host.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// A word of a list that opens one port of the host's own loopback.
const LOOPBACK_WORD: &str = "loopback:";

/// Addresses of cloud metadata services, beside the link-local ranges. No rule opens these.
const METADATA: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
];

const METADATA_RANGE: AddressRange =
    AddressRange { first: IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0)), bits: 32 };

/// Whom a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TargetHost {
    /// In small letters, without a dot at its end.
    Name(String),
    Address(IpAddr),
}

impl TargetHost {
    /// From a request or a list. An address in a form that only old libraries read is rejected.
    pub(crate) fn read(word: &str) -> Option<TargetHost> {
        if let Some(inner) = word.strip_prefix('[') {
            let address = inner.strip_suffix(']')?.parse::<Ipv6Addr>().ok()?;
            return Some(TargetHost::Address(IpAddr::V6(address)));
        }
        if let Ok(address) = word.parse::<Ipv4Addr>() {
            return Some(TargetHost::Address(IpAddr::V4(address)));
        }
        let name = word.strip_suffix('.').unwrap_or(word);
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= LABEL_MAX
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        };
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
        let is_name = name.len() <= NAME_MAX && name.split('.').all(is_label) && !is_number;
        is_name.then(|| TargetHost::Name(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for TargetHost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetHost::Name(name) => out.write_str(name),
            TargetHost::Address(IpAddr::V4(address)) => write!(out, "{address}"),
            TargetHost::Address(IpAddr::V6(address)) => write!(out, "[{address}]"),
        }
    }
}

/// A network, by its first address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressRange {
    first: IpAddr,
    bits: u32,
}

impl AddressRange {
    fn one(address: IpAddr) -> AddressRange {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        AddressRange { first: address, bits }
    }

    fn has(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let differ = first.to_bits() ^ address.to_bits();
                differ.checked_shr(32 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differ = first.to_bits() ^ address.to_bits();
                differ.checked_shr(128 - self.bits).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Named(String),
    /// What ends with this, which begins with a dot.
    Beneath(String),
    Range(AddressRange),
}

impl HostPattern {
    /// Whether this is a name, and matches.
    fn names(&self, name: &str) -> bool {
        match self {
            HostPattern::Named(named) => named == name,
            HostPattern::Beneath(end) => name.len() > end.len() && name.ends_with(end.as_str()),
            HostPattern::Range(_) => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowRule {
    hosts: HostPattern,
    /// None: every port.
    port: Option<u16>,
}

/// What is open beside what a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultReach {
    /// Every address that is routed in public.
    Public,
    /// The same, and private ranges.
    Lan,
    /// Nothing.
    Listed,
}

impl DefaultReach {
    const ALL: [DefaultReach; 3] = [DefaultReach::Public, DefaultReach::Lan, DefaultReach::Listed];

    pub(crate) fn word(self) -> &'static str {
        match self {
            DefaultReach::Public => "public",
            DefaultReach::Lan => "lan",
            DefaultReach::Listed => "list",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<DefaultReach> {
        DefaultReach::ALL.into_iter().find(|reach| reach.word() == word)
    }
}

/// What a sandbox may reach, and the words as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkRules {
    reach: DefaultReach,
    list: Vec<AllowRule>,
    /// Ports of the host's loopback that are open.
    loopback: Vec<u16>,
    words: String,
}

/// Where an address lies, seen from the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressOwner {
    /// One of the host's own addresses.
    Own,
    Elsewhere,
}

/// Why an address is not connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClosedAddress {
    /// Nothing opens it.
    Always,
    /// A list opens it by naming the address or its range.
    UnlessListed,
}

impl NetworkRules {
    /// Reads a list, or says which of its words has no meaning.
    pub(crate) fn read(reach: DefaultReach, words: &[String]) -> Result<NetworkRules, String> {
        let (mut list, mut loopback) = (Vec::new(), Vec::new());
        for word in words {
            match word.strip_prefix(LOOPBACK_WORD) {
                Some(port) => loopback.push(port_of(port).ok_or_else(|| word.clone())?),
                None => list.push(rule(word).ok_or_else(|| word.clone())?),
            }
        }
        Ok(NetworkRules { reach, list, loopback, words: words.join(" ") })
    }

    pub(crate) fn reach(&self) -> DefaultReach {
        self.reach
    }

    /// The words of a list.
    pub(crate) fn list(&self) -> &str {
        &self.words
    }

    /// The line as people wrote it.
    pub(crate) fn words(&self) -> &str {
        match self.reach {
            DefaultReach::Public | DefaultReach::Lan => self.reach.word(),
            DefaultReach::Listed => &self.words,
        }
    }

    /// Whether this host is named. For an address that is not all: see [`NetworkRules::check`].
    pub(crate) fn name(&self, host: &TargetHost, port: u16) -> bool {
        match (self.reach, host) {
            (DefaultReach::Public | DefaultReach::Lan, _) => true,
            (DefaultReach::Listed, TargetHost::Name(name)) => {
                self.matching(port).any(|hosts| hosts.names(name))
            }
            (DefaultReach::Listed, TargetHost::Address(address)) => self.lists(canonical(*address), port),
        }
    }

    /// The ports at which a name is open: none, some, or by a zero all of them.
    pub(crate) fn ports_of(&self, name: &str) -> Vec<u16> {
        let rules = self.list.iter().filter(|rule| rule.hosts.names(name));
        rules.map(|rule| rule.port.unwrap_or(0)).collect()
    }

    /// Whether this port of the host's loopback is open.
    pub(crate) fn opens_loopback(&self, port: u16) -> bool {
        self.loopback.contains(&port)
    }

    /// The ports of the host's loopback that are open.
    pub(crate) fn loopback_ports(&self) -> &[u16] {
        &self.loopback
    }

    /// Whether an address of a host that is named may be connected to.
    pub(crate) fn check(&self, address: IpAddr, port: u16, place: AddressOwner) -> Result<(), ClosedAddress> {
        let address = canonical(address);
        if is_never(address) {
            return Err(ClosedAddress::Always);
        }
        match (self.reach, place) {
            // One of the host's own is meant only where it is written as it is.
            (DefaultReach::Listed, AddressOwner::Own) if self.lists_alone(address, port) => Ok(()),
            (DefaultReach::Listed, AddressOwner::Own) => Err(ClosedAddress::UnlessListed),
            (DefaultReach::Public | DefaultReach::Lan, AddressOwner::Own) => Err(ClosedAddress::Always),
            (DefaultReach::Lan, AddressOwner::Elsewhere) => Ok(()),
            (DefaultReach::Public, AddressOwner::Elsewhere) if is_private(address) => {
                Err(ClosedAddress::Always)
            }
            (DefaultReach::Public, AddressOwner::Elsewhere) => Ok(()),
            (DefaultReach::Listed, AddressOwner::Elsewhere)
                if is_private(address) && !self.lists(address, port) =>
            {
                Err(ClosedAddress::UnlessListed)
            }
            (DefaultReach::Listed, AddressOwner::Elsewhere) => Ok(()),
        }
    }

    /// Whether an address may be connected to that a program names by itself. `answered`: it was the answer for a
    /// name that is open at this port.
    pub(crate) fn opens(&self, address: IpAddr, port: u16, place: AddressOwner, answered: bool) -> bool {
        let is_named = answered || self.name(&TargetHost::Address(address), port);
        is_named && self.check(address, port, place).is_ok()
    }

    fn lists_alone(&self, address: IpAddr, port: u16) -> bool {
        self.matching(port).any(|hosts| match hosts {
            HostPattern::Range(range) => *range == AddressRange::one(address),
            HostPattern::Named(_) | HostPattern::Beneath(_) => false,
        })
    }

    fn lists(&self, address: IpAddr, port: u16) -> bool {
        self.matching(port).any(|hosts| match hosts {
            HostPattern::Range(range) => range.has(address),
            HostPattern::Named(_) | HostPattern::Beneath(_) => false,
        })
    }

    fn matching(&self, port: u16) -> impl Iterator<Item = &HostPattern> {
        let rules = self.list.iter().filter(move |rule| rule.port.is_none_or(|only| only == port));
        rules.map(|rule| &rule.hosts)
    }
}

fn port_of(word: &str) -> Option<u16> {
    word.parse().ok().filter(|port| *port > 0)
}

fn rule(word: &str) -> Option<AllowRule> {
    if let Some((address, bits)) = word.split_once('/') {
        let (first, bits): (IpAddr, u32) = (address.parse().ok()?, bits.parse().ok()?);
        let bits_max = if first.is_ipv4() { 32 } else { 128 };
        return (bits <= bits_max)
            .then_some(AllowRule { hosts: HostPattern::Range(AddressRange { first, bits }), port: None });
    }
    if let Ok(address) = word.parse::<IpAddr>() {
        return Some(AllowRule {
            hosts: HostPattern::Range(AddressRange::one(canonical(address))),
            port: None,
        });
    }
    let (host, port) = match word.rsplit_once(':') {
        Some((host, port)) => (host, Some(port_of(port)?)),
        None => (word, None),
    };
    let hosts = match host.strip_prefix("*.") {
        Some(name) => match TargetHost::read(name)? {
            TargetHost::Name(name) => HostPattern::Beneath(format!(".{name}")),
            TargetHost::Address(_) => return None,
        },
        None => match TargetHost::read(host)? {
            TargetHost::Name(name) => HostPattern::Named(name),
            TargetHost::Address(address) => HostPattern::Range(AddressRange::one(canonical(address))),
        },
    };
    Some(AllowRule { hosts, port })
}

/// The address that a packet really goes to: the older one, where a newer form only wraps it.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(wrapped) = address else { return address };
    let segments = wrapped.segments();
    let [.., a, b, c, d] = wrapped.octets();
    let inner = Ipv4Addr::new(a, b, c, d);
    match segments {
        [0, 0, 0, 0, 0, 0xffff, _, _] | [0, 0, 0, 0, 0xffff, 0, _, _] | [0x64, 0xff9b, 0, 0, 0, 0, _, _] => {
            IpAddr::V4(inner)
        }
        // The same without a mark, apart from the unspecified address and the loopback.
        [0, 0, 0, 0, 0, 0, _, low] if low > 1 || segments[6] > 0 => IpAddr::V4(inner),
        [0x2002, high, low, ..] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        [..] => address,
    }
}

/// Addresses that nothing opens.
fn is_never(address: IpAddr) -> bool {
    let is_closed = match address {
        IpAddr::V4(v4) => {
            v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified() || v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast()
        }
    };
    is_closed || METADATA.contains(&address) || METADATA_RANGE.has(address)
}

/// Addresses of private networks, which a name opens only if the list has the address as well.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            v4.is_private()
                || (a == 100 && b & 0xc0 == 64)
                || (a == 198 && b & 0xfe == 18)
                || (a == 192 && b == 0 && c == 0)
                || a >= 240
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            // The last is for translators of one's own network, which hide where they lead.
            let translated = matches!(v6.segments(), [0x64, 0xff9b, 1, ..]);
            first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 || translated
        }
    }
}

#[cfg(test)]
mod tests;
