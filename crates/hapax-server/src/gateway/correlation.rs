//! The correlation id: by which logs of the client, of the gateway and of the upstream find together.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// A new one: random digits of this process, and a count. It is no secret.
pub(super) fn new() -> HeaderValue {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().0);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!("{:016x}-{:x}", *PROCESS, NEXT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::try_from(id).expect("hexadecimal digits are a header value")
}

/// Whether a client's own id can be taken over: short, and nothing that a log would stumble over.
pub(super) fn is_plain(id: &HeaderValue) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=128).contains(&id.len()) && id.as_bytes().iter().all(is_plain)
}
