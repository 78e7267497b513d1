//! The addresses of names at the time of the check whether they are in this network. A name that resolves differently
//! a moment later must not be followed because it was harmless before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// How long connections use the addresses that were checked. Names may move.
const KEPT: Duration = Duration::from_secs(600);
/// How long a name that led nowhere does.
const NOWHERE_KEPT: Duration = Duration::from_secs(10);
/// Names that are remembered. One more, and the one that was looked at first is forgotten.
const NAMES_MAX: usize = 256;

#[derive(Debug, Default)]
pub(super) struct LookupCache {
    names: Mutex<BTreeMap<String, LookupEntry>>,
}

#[derive(Debug)]
struct LookupEntry {
    to: Vec<SocketAddr>,
    at: Instant,
}

impl LookupEntry {
    fn is_kept(&self, now: Instant) -> bool {
        let kept = if self.to.is_empty() { NOWHERE_KEPT } else { KEPT };
        now.saturating_duration_since(self.at) < kept
    }
}

impl LookupCache {
    pub(super) fn keep(&self, host: &str, to: Vec<SocketAddr>, now: Instant) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|_, led| led.is_kept(now));
        names.insert(host.to_owned(), LookupEntry { to, at: now });
        if names.len() > NAMES_MAX {
            let first = names.iter().min_by_key(|(_, led)| led.at).map(|(host, _)| host.clone());
            first.and_then(|host| names.remove(&host));
        }
    }

    pub(super) fn of(&self, host: &str, now: Instant) -> Option<Vec<SocketAddr>> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let led = names.get(host).filter(|led| led.is_kept(now));
        led.map(|led| led.to.clone())
    }
}

/// Resolves names that are not cached.
#[derive(Debug)]
pub(super) struct CachingResolver {
    pub(super) lookups: Arc<LookupCache>,
}

impl Resolve for CachingResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.lookups.of(name.as_str(), Instant::now());
        Box::pin(async move {
            let found = match known {
                Some(known) => known,
                None => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_looked_at_is_forgotten_in_time_and_so_is_the_first_of_too_many() {
        let (looked, now) = (LookupCache::default(), Instant::now());
        let to: Vec<SocketAddr> = vec!["192.0.2.1:0".parse().unwrap()];
        looked.keep("first.example", to.clone(), now);
        assert_eq!(looked.of("first.example", now + KEPT / 2), Some(to.clone()));
        assert_eq!(looked.of("first.example", now + KEPT), None);
        looked.keep("nowhere.example", Vec::new(), now);
        assert_eq!(looked.of("nowhere.example", now + NOWHERE_KEPT / 2), Some(Vec::new()));
        assert_eq!(looked.of("nowhere.example", now + NOWHERE_KEPT), None);
        for number in 1..=NAMES_MAX {
            let later = now + Duration::from_millis(number as u64);
            looked.keep(&format!("{number}.example"), to.clone(), later);
        }
        assert_eq!(looked.of("first.example", now), None);
        assert!(looked.of("1.example", now).is_some());
        assert_eq!(looked.names.lock().unwrap().len(), NAMES_MAX);
        looked.keep("last.example", to, now + 2 * KEPT);
        assert_eq!(looked.names.lock().unwrap().len(), 1);
    }
}
