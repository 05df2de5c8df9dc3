//! The header fields that need care: those of the contract, those of one connection, and those that
//! a client must not be able to add, remove or imitate.
//!
//! The layer, the gateway and the gateway's configuration all use these lists.

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, EXPECT, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};

pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
pub(crate) const IDEMPOTENCY_STATUS: HeaderName = HeaderName::from_static("idempotency-status");
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("idempotency-deadline");
pub(crate) const FENCE: HeaderName = HeaderName::from_static("hapax-fence");
pub(crate) const OPERATION: HeaderName = HeaderName::from_static("hapax-operation");
pub(crate) const KEEP: HeaderName = HeaderName::from_static("hapax-keep");
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("hapax-outcome");
pub(crate) const REFUSED: HeaderName = HeaderName::from_static("hapax-refused");
pub(crate) const TRACE: HeaderName = HeaderName::from_static("hapax-trace");
pub(crate) const ANSWER_VERSION: HeaderName =
    HeaderName::from_static(hapax_core::answer::VERSION_FIELD);
pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
pub(crate) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
pub(crate) const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// The credentials of HTTP itself.
pub const CREDENTIALS: [HeaderName; 2] = [AUTHORIZATION, COOKIE];

/// The fields of one connection (RFC 9110 section 7.6.1), besides those that `Connection` names.
pub const HOP_BY_HOP: [HeaderName; 11] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    EXPECT,
    HeaderName::from_static("http2-settings"),
];

/// Fields that identify callers, frame or encode a body, or state where a request comes from.
const PROTECTED: [&str; 9] = [
    "authorization",
    "cookie",
    "forwarded",
    "host",
    "traceparent",
    "transfer-encoding",
    "via",
    "x-real-ip",
    "x-request-id",
];
const PROTECTED_PREFIXES: [&str; 5] = [
    "content-",
    "hapax-",
    "idempotency-",
    "idempotent-",
    "x-forwarded-",
];

/// Whether a field belongs to one connection, so that a proxy does not forward it.
pub fn is_hop_by_hop(name: &str) -> bool {
    HOP_BY_HOP.iter().any(|known| known == name)
}

/// Whether a field must come from the head of a request and reach the service. If a client could
/// have it removed on the way, or add it after the head was checked, the gateway and the service
/// would act on different requests. `name` is in lower case.
pub fn is_protected(name: &str) -> bool {
    PROTECTED.contains(&name) || starts_with_one(name, &PROTECTED_PREFIXES)
}

/// Whether a field carries keys, or information about them.
pub fn is_keys(name: &HeaderName) -> bool {
    starts_with_one(name.as_str(), &["idempotency-", "idempotent-"])
}

/// Whether the gateway itself sets or removes this request field. Neither a principal nor a key can
/// be read from such a field.
pub fn is_ours(name: &HeaderName) -> bool {
    let text = name.as_str();
    let is_callers = CREDENTIALS.contains(name) || is_keys(name);
    // A name with other characters counts as an imitation of a plain one.
    is_hop_by_hop(text) || (is_protected(text) && !is_callers) || !is_plain(text)
}

/// Whether only Hapax may set this response field: a copy from the inner service is removed.
pub fn is_ours_in_answer(name: &HeaderName) -> bool {
    name.as_str().starts_with("hapax-") || [REPLAYED, EXPIRES, IDEMPOTENCY_STATUS].contains(name)
}

/// Whether a name has only one spelling, apart from case.
pub fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The name as the most lenient servers read it. WSGI, Rack and PHP take `Hapax_Fence` for
/// `Hapax-Fence`, and some servers treat every character that is not a letter or digit alike.
pub fn plain(name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    name.chars().map(plain).collect()
}

fn starts_with_one(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str) -> HeaderName {
        name.parse().unwrap()
    }

    #[test]
    fn what_the_gateway_sets_or_removes_is_ours_and_what_callers_say_is_not() {
        for name in [
            "connection",
            "proxy-connection",
            "expect",
            "via",
            "x-real-ip",
            "host",
        ] {
            assert!(is_ours(&field(name)), "{name}");
        }
        for name in ["content-type", "x-forwarded-user", "hapax-fence", "x_user"] {
            assert!(is_ours(&field(name)), "{name}");
        }
        for name in [
            "authorization",
            "cookie",
            "idempotency-key",
            "x-user",
            "transfer-id",
        ] {
            assert!(!is_ours(&field(name)), "{name}");
        }
    }

    #[test]
    fn of_an_answer_only_hapax_says_its_own_fields() {
        for name in [
            "hapax-anything",
            "idempotent-replayed",
            "idempotency-status",
        ] {
            assert!(is_ours_in_answer(&field(name)), "{name}");
        }
        for name in ["idempotency-key", "content-type", "hapax"] {
            assert!(!is_ours_in_answer(&field(name)), "{name}");
        }
    }

    #[test]
    fn a_name_is_plain_or_read_as_the_plain_one() {
        assert!(is_plain("X-User-1") && !is_plain("x_user") && !is_plain("x.user"));
        assert_eq!(plain("Hapax_Fence"), "hapax-fence");
        assert!(is_protected(&plain("X.Forwarded~For")));
        assert!(is_hop_by_hop(&plain("Transfer_Encoding")));
    }
}
