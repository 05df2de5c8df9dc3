//! The header fields of the contract.

use http::HeaderName;

pub(crate) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
pub(crate) const EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");
pub(crate) const IDEMPOTENCY_STATUS: HeaderName = HeaderName::from_static("idempotency-status");
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("idempotency-deadline");
pub(crate) const FENCE: HeaderName = HeaderName::from_static("hapax-fence");
pub(crate) const OPERATION: HeaderName = HeaderName::from_static("hapax-operation");
pub(crate) const KEEP: HeaderName = HeaderName::from_static("hapax-keep");
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("hapax-outcome");
pub(crate) const PROBE: HeaderName = HeaderName::from_static("hapax-probe");
pub(crate) const STATUS: HeaderName = HeaderName::from_static("hapax-status");
pub(crate) const REFUSED: HeaderName = HeaderName::from_static("hapax-refused");
pub(crate) const TRACE: HeaderName = HeaderName::from_static("hapax-trace");
pub(crate) const ANSWER_VERSION: HeaderName =
    HeaderName::from_static(hapax_core::answer::VERSION_FIELD);
pub(crate) const PREFER: HeaderName = HeaderName::from_static("prefer");
pub(crate) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
pub(crate) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
pub(crate) const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");

/// What only Hapax says in an answer: copies from the inner service are not sent on.
pub(crate) const OURS: [HeaderName; 12] = [
    REPLAYED,
    EXPIRES,
    IDEMPOTENCY_STATUS,
    FENCE,
    OPERATION,
    KEEP,
    OUTCOME,
    REFUSED,
    PROBE,
    STATUS,
    TRACE,
    ANSWER_VERSION,
];

/// What concerns one connection only (RFC 9110 section 7.6.1), besides whatever `Connection` names.
pub(crate) const HOP_BY_HOP: [HeaderName; 8] = [
    http::header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    http::header::PROXY_AUTHENTICATE,
    http::header::PROXY_AUTHORIZATION,
    http::header::TE,
    http::header::TRAILER,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
];
