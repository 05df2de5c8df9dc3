//! The current operation, and the transaction of a guard in one transaction, as axum extractors.

use std::fmt;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use hapax_core::policy::{KeyRule, Policy};
use http::StatusCode;
use http::request::Parts;

use crate::join::{OpenTransaction, Slot};
use crate::middleware::Passed;
use crate::once::Operation;

/// The handler asked for an operation, but the request is not guarded. Its text says why, and what
/// to change; the caller gets a bare 500, and the log the text.
#[derive(Clone, Debug)]
pub struct NotGuarded {
    request: String,
    why: String,
}

impl fmt::Display for NotGuarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the handler of {} needs an operation, and {}. Or extract Option<Operation>",
            self.request, self.why
        )
    }
}

impl std::error::Error for NotGuarded {}

impl NotGuarded {
    fn new(parts: &Parts) -> NotGuarded {
        let why = match parts.extensions.get() {
            Some(Passed(policy)) => why_passed(policy, parts),
            None => {
                "no layer of Hapax is around it: add one to its router, by `route_layer`".into()
            }
        };
        NotGuarded {
            request: format!("{} {}", parts.method, parts.uri.path()),
            why,
        }
    }
}

/// Why a layer with this policy has let the request pass unguarded.
fn why_passed(policy: &Policy, parts: &Parts) -> String {
    let method = parts.method.as_str();
    if policy.key == KeyRule::Off {
        return "its layer guards nothing (`KeyRule::Off`)".into();
    }
    if !policy.guards(method) {
        return format!(
            "its layer guards {}, not {method}: name the method in `Policy::methods`",
            policy.methods.join(", ")
        );
    }
    if policy.shadow {
        return "its layer only watches (`Policy::shadow`)".into();
    }
    if policy.fail_open && parts.headers.contains_key(&*policy.key_field) {
        return "its layer let the request pass while the store was away (`Policy::fail_open`)"
            .into();
    }
    "the request has no key: require one on its route (`guard().required()`)".into()
}

impl IntoResponse for NotGuarded {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Operation {
    type Rejection = NotGuarded;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NotGuarded> {
        let operation = parts.extensions.get().cloned();
        operation.ok_or_else(|| NotGuarded::new(parts))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Self::Rejection> {
        Ok(parts.extensions.get().cloned())
    }
}

/// The handler asked for an open transaction, and there is none to lend. Its text says why; the
/// caller gets a bare 500, and the log the text.
#[derive(Clone, Debug)]
pub struct NoOpenTransaction {
    request: String,
    why: &'static str,
}

impl fmt::Display for NoOpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the handler of {} needs an open transaction, and {}",
            self.request, self.why
        )
    }
}

impl std::error::Error for NoOpenTransaction {}

impl IntoResponse for NoOpenTransaction {
    fn into_response(self) -> Response {
        tracing::error!("{self}");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

impl<T: Send + 'static, S: Sync> FromRequestParts<S> for OpenTransaction<T> {
    type Rejection = NoOpenTransaction;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoOpenTransaction> {
        let why = match parts.extensions.get::<Slot<T>>().map(Slot::lend) {
            Some(Some(transaction)) => return Ok(transaction),
            Some(None) => "another extractor of this request has it",
            None if parts.extensions.get::<Operation>().is_some() => {
                "its guard has begun none of this type: give the guard a pool of the same driver (`in_transaction`)"
            }
            None => {
                "the request is not guarded: guard its route (`in_transaction`), and require a key (`required`)"
            }
        };
        let request = format!("{} {}", parts.method, parts.uri.path());
        Err(NoOpenTransaction { request, why })
    }
}
