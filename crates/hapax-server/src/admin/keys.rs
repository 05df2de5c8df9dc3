//! Keys as JSON: what `hapax keys` asks of a running gateway. Changes are accepted only as
//! `application/json`: a form on a web page cannot send that.

pub(crate) mod logged;
pub(crate) mod operate;
pub(crate) mod principal;
pub(crate) mod scan;
pub(crate) mod settlement;
pub(crate) mod time;
pub(crate) mod wire;

use std::time::SystemTime;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query as QueryString, State};
use axum::{Extension, Json};
use bytes::Bytes;
use hapax::core::time::Timestamp;
use hapax::{Hapax, RecordId};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::operate::{Operate, record_id};
use self::wire::{Entry, Forget, Page, Query, Settle, Shown};
use super::Admin;
use super::caller::Caller;
use super::problem::{self, Problem};

/// The routes under `/v1/keys`.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(settle))
        .routes(routes!(forget))
}

/// A page of keys, in the order of their ids
///
/// One call looks at up to 10,000 keys, or, for `running` and `unknown`, at those whose end is not
/// known: a page may be empty and still have a `next`, to be sent as `after`. With `newest` it has
/// the newest of those that it looked at, newest first; whoever wants the newest of all asks until
/// there is no `next`, and keeps the newest of all pages.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(Query), responses((status = 200, body = Page, description = "The keys that were found.")))]
async fn list(
    State(admin): State<Admin>,
    query: Result<QueryString<Query>, QueryRejection>,
) -> Result<Json<Page>, Problem> {
    let QueryString(query) = query.map_err(unreadable_query)?;
    Ok(Json(admin.operate().list(&query).await?))
}

/// What a look at one key may ask for.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Look {
    /// The answer too, which may hold what is nobody's business.
    #[serde(default)]
    answer: bool,
}

/// One key, with its answer if that is asked for
#[utoipa::path(
    get,
    path = "/v1/keys/{id}",
    tag = "keys",
    params(("id" = String, Path, description = "The record's id.", pattern = "^[0-9a-f]{64}$"), Look),
    responses(
        (status = 200, body = Shown, description = "The key."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`key-not-found`: there is no such record."),
    )
)]
async fn show(
    State(admin): State<Admin>,
    id: Result<Path<String>, PathRejection>,
    look: Result<QueryString<Look>, QueryRejection>,
) -> Result<Json<Shown>, Problem> {
    let QueryString(look) = look.map_err(unreadable_query)?;
    Ok(Json(admin.operate().show(named(id)?, look.answer).await?))
}

/// States what became of an unknown
///
/// The attempt that was lost can no longer complete after this. With `not-done` the next repeat
/// RUNS it. Give the `fence` that the key was shown with: meanwhile it may have been settled,
/// retried and lost again.
#[utoipa::path(
    post,
    path = "/v1/keys/{id}/settle",
    tag = "keys",
    params(("id" = String, Path, description = "The record's id.", pattern = "^[0-9a-f]{64}$")),
    request_body = Settle,
    responses(
        (status = 200, body = Entry, description = "Settled."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`key-not-found`: there is no such record."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: its outcome is not unknown, or it was forgotten. `other-fence`: another attempt was lost since. `changed-meanwhile`: look again."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn settle(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Entry>, Problem> {
    let id = named(id)?;
    let settle: Settle = read(&headers, body)?;
    let signed = settle
        .signed()
        .signed_by(caller)
        .map_err(Problem::bad_request)?;
    Ok(Json(admin.operate().settle(id, &settle, &signed).await?))
}

/// Erases an answer and what its request looked like
///
/// A tombstone stays, so that the key does not run again. What is unknown must be settled first.
/// Answers when no gateway on this store can serve the answer any more.
#[utoipa::path(
    post,
    path = "/v1/keys/{id}/forget",
    tag = "keys",
    params(("id" = String, Path, description = "The record's id.", pattern = "^[0-9a-f]{64}$")),
    request_body = Forget,
    responses(
        (status = 200, body = Entry, description = "Forgotten."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`key-not-found`: there is no such record."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: it is running, or unknown: settle it first. `changed-meanwhile`: it is not of this `version` any more: look again."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn forget(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Entry>, Problem> {
    let id = named(id)?;
    let forget: Forget = read(&headers, body)?;
    let signed = forget
        .signed()
        .signed_by(caller)
        .map_err(Problem::bad_request)?;
    Ok(Json(admin.operate().forget(id, &forget, &signed).await?))
}

impl Admin {
    pub(super) fn operate(&self) -> Operate<'_, Hapax> {
        Operate {
            records: &self.hapax,
            operation_ids: &self.operation_ids,
            rules: Some(self.rules.load_full()),
        }
    }
}

fn named(id: Result<Path<String>, PathRejection>) -> Result<RecordId, Problem> {
    let Path(id) = id.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    Ok(record_id(&id)?)
}

#[expect(clippy::needless_pass_by_value, reason = "as `map_err` gives it")]
pub(super) fn unreadable_query(rejection: QueryRejection) -> Problem {
    Problem::bad_request(rejection.body_text())
}

/// Parses a JSON body. It must be declared as JSON, which a form on another site's page cannot do.
pub(super) fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let detail = "changes are taken only with `Content-Type: application/json`";
        return Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported-media-type",
            detail,
        ));
    }
    let body = body.map_err(|rejection| {
        Problem::new(rejection.status(), "body-unreadable", rejection.body_text())
    })?;
    serde_json::from_slice(&body)
        .map_err(|error| Problem::bad_request(format!("the body is not what this takes: {error}")))
}

/// The time of the system clock. The store's clock started from it, and ages are only shown to
/// people.
pub(super) fn now() -> Timestamp {
    Timestamp::from_system_time(SystemTime::now())
}
