//! Detects one request under two principals.

use std::hash::{BuildHasher, DefaultHasher, Hash, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};

use quick_cache::sync::Cache;

/// How many requests are remembered: enough for minutes of retries, in about three megabytes.
const REQUESTS_MAX: usize = 64 << 10;

/// Remembers under which principal a request was last seen, to notice the same request under
/// another one.
///
/// That happens when a client's credential changes between two tries: each then has its own effect,
/// unnoticed. It may also be two clients that chose the same key. So it is counted, and nothing is
/// refused.
///
/// It stores digests only, under a seed that this process alone has.
pub struct PrincipalChanges {
    seen: Cache<u64, u64>,
    seed: RandomState,
    is_said: AtomicBool,
}

impl Default for PrincipalChanges {
    fn default() -> Self {
        PrincipalChanges {
            seen: Cache::new(REQUESTS_MAX),
            seed: RandomState::new(),
            is_said: AtomicBool::new(false),
        }
    }
}

impl PrincipalChanges {
    /// Logs once what such a change means.
    pub fn say_once(&self) {
        if !self.is_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a request came again under another credential, with the same key and body: it ran again, because to Hapax that is another caller. \
                 Where clients refresh their tokens, use principal = \"jwt:sub\". hapax_suspected_principals_total counts such requests"
            );
        }
    }

    /// A hasher with this process's seed.
    pub fn hasher(&self) -> DefaultHasher {
        self.seed.build_hasher()
    }

    /// A digest for [`seen`](PrincipalChanges::seen): of method, path, key and body digest, or of a
    /// principal.
    pub fn digest(&self, what: impl Hash) -> u64 {
        self.seed.hash_one(what)
    }

    /// Remembers a request and its principal. Returns true if the same request was last seen under
    /// another principal.
    pub fn seen(&self, request: u64, principal: u64) -> bool {
        match self.seen.get(&request) {
            Some(before) if before == principal => false,
            before => {
                self.seen.insert(request, principal);
                before.is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_request_under_another_principal_is_noticed_once_per_change() {
        let changes = PrincipalChanges::default();
        let request = |body: &str| changes.digest(("POST", "/charges", "k", body));
        let (ada, bob) = (changes.digest("ada"), changes.digest("bob"));
        for (body, principal, suspected) in [
            ("5", ada, false),
            ("5", ada, false),
            ("6", bob, false),
            ("5", bob, true),
            ("5", bob, false),
            ("5", ada, true),
        ] {
            assert_eq!(changes.seen(request(body), principal), suspected, "{body}");
        }
    }

    #[test]
    fn memory_is_bounded_and_digests_are_of_this_process() {
        let changes = PrincipalChanges::default();
        for request in 0..REQUESTS_MAX as u64 * 3 {
            changes.seen(request, 1);
        }
        assert!(changes.seen.len() <= REQUESTS_MAX);
        assert_ne!(
            changes.digest("ada"),
            PrincipalChanges::default().digest("ada")
        );
    }
}
