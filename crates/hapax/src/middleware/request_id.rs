//! The request id: taken from its field, or generated.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use hapax_core::request_id::RequestId;
use http::request::Parts;
use http::{HeaderName, HeaderValue};

/// The field that carries the request id, in requests and in responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Generates an id: random digits of this process, followed by a counter.
pub fn new_request_id() -> RequestId {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| uuid::Uuid::new_v4().as_u64_pair().0);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = format!(
        "{:016x}-{:x}",
        *PROCESS,
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    RequestId::new(&id).expect("hexadecimal digits are plain")
}

/// The id of a request: the one in its extensions, else the one in its field, else a new one.
/// Afterwards the extensions and the field both hold it.
pub fn request_id(parts: &mut Parts) -> RequestId {
    if let Some(id) = parts.extensions.get::<RequestId>() {
        return id.clone();
    }
    let told = parts
        .headers
        .get(REQUEST_ID)
        .and_then(|id| RequestId::new(id.to_str().ok()?));
    let id = told.unwrap_or_else(new_request_id);
    parts.headers.insert(REQUEST_ID, value(&id));
    parts.extensions.insert(id.clone());
    id
}

/// The id as the value of a field.
pub fn value(id: &RequestId) -> HeaderValue {
    HeaderValue::try_from(id.as_str()).expect("plain text is a header value")
}
