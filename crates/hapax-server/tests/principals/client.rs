//! The requests of these tests.

use crate::harness::{self, Answer, ClientRequest, With};

/// A guarded request.
pub fn post(key: &str) -> ClientRequest {
    unguarded().key(key)
}

/// The same without a key.
pub fn unguarded() -> ClientRequest {
    harness::post("/charges?a=1", "{\"amount\":5}")
}

/// Searches for canaries.
pub trait Tells {
    /// Whether this answer contains anything of another one.
    fn tells(&self, other: &Answer) -> bool;
}

impl Tells for Answer {
    fn tells(&self, other: &Answer) -> bool {
        let canary = other.field("x-canary");
        let canary = canary.expect("the upstream's own answers have one");
        let mut fields = self.headers.values();
        self.text().contains(canary) || fields.any(|value| value.as_bytes() == canary.as_bytes())
    }
}
