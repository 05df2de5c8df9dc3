//! Errors as problem details (RFC 9457).

use axum::response::{IntoResponse, Response};
use hapax::OperatorError;
use hapax::core::store::{StoreError, StoreErrorKind};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::keys::operate::OperateError;

/// The content type of a problem.
pub(crate) const CONTENT: &str = "application/problem+json";

/// An answer that says what is wrong.
#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    slug: &'static str,
    detail: String,
    field: Option<(HeaderName, HeaderValue)>,
}

/// What is wrong, and what to do about it (RFC 9457).
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Problem)]
pub(crate) struct Document {
    /// `about:blank`: the status says what kind of problem it is, the code which one.
    r#type: String,
    title: String,
    status: u16,
    /// For a person.
    detail: String,
    /// For a program.
    code: String,
}

impl Problem {
    pub(crate) fn new(
        status: StatusCode,
        slug: &'static str,
        detail: impl Into<String>,
    ) -> Problem {
        Problem {
            status,
            slug,
            detail: detail.into(),
            field: None,
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad-request", detail)
    }

    pub(crate) fn conflict(slug: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, slug, detail)
    }

    /// Adds a header field.
    pub(crate) fn with(self, name: HeaderName, value: HeaderValue) -> Problem {
        Problem {
            field: Some((name, value)),
            ..self
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = Document {
            r#type: "about:blank".to_owned(),
            title: self
                .status
                .canonical_reason()
                .unwrap_or_default()
                .to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
            code: self.slug.to_owned(),
        };
        let document = serde_json::to_string(&document).expect("it has no maps with odd keys");
        let mut response = (self.status, format!("{document}\n")).into_response();
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(CONTENT));
        if let Some((name, value)) = self.field {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<OperateError> for Problem {
    fn from(error: OperateError) -> Problem {
        match error {
            OperateError::BadRequest(detail) => Problem::bad_request(detail),
            OperateError::OtherFence(detail) => Problem::conflict("other-fence", detail),
            OperateError::Refused(error) => error.into(),
        }
    }
}

impl From<OperatorError> for Problem {
    fn from(error: OperatorError) -> Problem {
        let (status, slug) = match &error {
            OperatorError::Unsigned(_) => (StatusCode::BAD_REQUEST, "unsigned"),
            OperatorError::NotFound(_) => (StatusCode::NOT_FOUND, "key-not-found"),
            OperatorError::NotNow { .. } | OperatorError::Forgotten(_) => {
                (StatusCode::CONFLICT, "not-now")
            }
            OperatorError::Changed(_) => (StatusCode::CONFLICT, "changed-meanwhile"),
            OperatorError::Unerased { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not-erased"),
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
            format!(
                "the store could not do this: {error}. A change may have happened all the same: look before trying again"
            ),
        )
    }
}
