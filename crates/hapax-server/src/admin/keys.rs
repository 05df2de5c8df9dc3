//! Keys as JSON: what `hapax keys` asks of a running gateway.
//!
//! | | |
//! |---|---|
//! | `GET /v1/keys` | a page of keys, by [`Query`] |
//! | `GET /v1/keys/{id}` | one of them, with `?answer=true` its answer too |
//! | `POST /v1/keys/{id}/settle` | states what became of an unknown: [`Settle`] |
//! | `POST /v1/keys/{id}/forget` | erases an answer: [`Signed`] |
//!
//! Who may ask is whoever reaches the listener, which is why it is on loopback. Changes are taken only as `application/json`: a form on
//! a page that the operator happens to have open cannot send that.

pub(crate) mod base64;
mod problem;
pub(crate) mod scan;
pub(crate) mod settlement;
pub(crate) mod time;
pub(crate) mod wire;

use std::time::SystemTime;

use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query as QueryString, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use hapax::RecordId;
use hapax::core::time::Timestamp;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use self::problem::Problem;
use self::scan::Filter;
use self::time::Time;
use self::wire::{Entry, Page, Query, Settle, Shown, Signed};
use super::Admin;

/// The largest body of a request: an answer of the largest size that is kept, as base64, and room for the rest.
const BODY_BYTES_MAX: usize = 2 << 20;
/// Keys in a page, unless asked for fewer, and at most.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// The routes of this page.
pub(super) fn routes() -> Router<Admin> {
    Router::new()
        .route("/v1/keys", get(list))
        .route("/v1/keys/{id}", get(show))
        .route("/v1/keys/{id}/settle", post(settle))
        .route("/v1/keys/{id}/forget", post(forget))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

async fn list(State(admin): State<Admin>, query: Result<QueryString<Query>, QueryRejection>) -> Result<Json<Page>, Problem> {
    let QueryString(query) = query.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let filter = Filter::of(&query).map_err(Problem::bad_request)?;
    let after = query.after.as_deref().map(record_id).transpose()?;
    let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    let now = now();
    let found = scan::page(&admin.hapax, &filter, after, limit, now).await?;
    let keys = found.heads.iter().map(|head| Entry::of(head, now)).collect();
    Ok(Json(Page { keys, next: found.next.map(|id| id.to_string()), now: Time(now) }))
}

/// What a look at one key may ask for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Look {
    #[serde(default)]
    answer: bool,
}

async fn show(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    look: Result<QueryString<Look>, QueryRejection>,
) -> Result<Json<Shown>, Problem> {
    let QueryString(look) = look.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    let (record, _) = admin.hapax.look(record_id(&id)?).await?;
    Ok(Json(Shown::of(&record, now(), look.answer)))
}

async fn settle(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Entry>, Problem> {
    let id = record_id(&id)?;
    let settle: Settle = read(&headers, body)?;
    let settlement = settlement::of(&settle).map_err(Problem::bad_request)?;
    let head = admin.hapax.settle(id, settlement, settle.signed().audit().map_err(Problem::bad_request)?).await?;
    Ok(Json(Entry::of(&head, now())))
}

async fn forget(
    State(admin): State<Admin>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Entry>, Problem> {
    let id = record_id(&id)?;
    let signed: Signed = read(&headers, body)?;
    admin.hapax.forget(id, signed.audit().map_err(Problem::bad_request)?).await?;
    let (record, _) = admin.hapax.look(id).await?;
    Ok(Json(Entry::of(&record.head, now())))
}

fn record_id(text: &str) -> Result<RecordId, Problem> {
    text.parse().map_err(|error| Problem::bad_request(format!("{error}: list the keys to find it")))
}

/// A JSON body, and nothing that a browser would send for a page of somebody else.
fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<T, Problem> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let detail = "changes are taken only with `Content-Type: application/json`";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail));
    }
    let body = body.map_err(|rejection| Problem::new(rejection.status(), "body-unreadable", rejection.body_text()))?;
    serde_json::from_slice(&body).map_err(|error| Problem::bad_request(format!("the body is not what this takes: {error}")))
}

/// The wall's time. The store's own clock began there, and ages are for people.
fn now() -> Timestamp {
    Timestamp::from_system_time(SystemTime::now())
}
