//! What goes wrong, as problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use hapax::OperatorError;
use hapax::core::store::{StoreError, StoreErrorKind};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

/// An answer that says what is wrong.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    slug: &'static str,
    detail: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, slug: &'static str, detail: impl Into<String>) -> Problem {
        Problem { status, slug, detail: detail.into() }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = serde_json::json!({
            "type": format!("urn:hapax:problem:{}", self.slug),
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "detail": self.detail,
            "code": self.slug,
        });
        let content_type = HeaderValue::from_static("application/problem+json");
        (self.status, [(CONTENT_TYPE, content_type)], format!("{document}\n")).into_response()
    }
}

impl From<OperatorError> for Problem {
    fn from(error: OperatorError) -> Problem {
        let (status, slug) = match &error {
            OperatorError::Unsigned(_) => (StatusCode::BAD_REQUEST, "unsigned"),
            OperatorError::NotFound(_) => (StatusCode::NOT_FOUND, "key-not-found"),
            OperatorError::NotNow { .. } => (StatusCode::CONFLICT, "not-now"),
            OperatorError::Changed(_) => (StatusCode::CONFLICT, "changed-meanwhile"),
            OperatorError::Store(error) => return error.clone().into(),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "not-done"),
        };
        Problem::new(status, slug, error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let (status, slug) = match error.kind() {
            StoreErrorKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "store-damaged"),
        };
        Problem::new(
            status,
            slug,
            format!("the store could not do this: {error}. A change may have happened all the same: look before trying again"),
        )
    }
}
