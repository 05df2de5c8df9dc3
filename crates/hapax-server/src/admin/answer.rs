//! What all answers have in common, and the answers to unknown paths and methods.

use std::time::Duration;

use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;

/// The time limit of a request, including its body. A `forget` takes a second, and longer on a slow
/// disk.
const LONGEST: Duration = Duration::from_secs(30);

/// Aborts requests that take too long, and forbids clients to guess the type of an answer or to
/// cache it: answers contain text from callers.
pub(super) async fn limit_and_harden(request: Request, next: Next) -> Response {
    let mut response = match tokio::time::timeout(LONGEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => too_slow().into_response(),
    };
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn too_slow() -> Problem {
    let detail = format!(
        "this took longer than {} s. A change may have happened all the same: look before trying again",
        LONGEST.as_secs()
    );
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-slow", detail)
}

pub(super) async fn no_such_path(uri: Uri) -> Problem {
    let detail = format!(
        "there is nothing at {}: see /openapi.json for what there is",
        uri.path()
    );
    Problem::new(StatusCode::NOT_FOUND, "path-not-found", detail)
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let detail = format!(
        "{} takes no {method}: see /openapi.json for what it takes",
        uri.path()
    );
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}
