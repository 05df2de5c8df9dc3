//! The current operation as an axum extractor.

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;

use crate::once::Operation;

/// The handler asked for an operation, but the request is not guarded: it carries no key, or the
/// layer is missing.
#[derive(Clone, Copy, Debug)]
pub struct NotGuarded;

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        let detail = "this handler needs an operation: require a key on its route, or extract Option<Operation>";
        tracing::error!(detail);
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Operation {
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
        parts.extensions.get().cloned().ok_or(NotGuarded)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}
