//! The inbox as JSON: what `hapax inbox` shows and changes, over HTTP. As with the outbox, only a
//! gateway whose store is a Postgres has one.

pub(crate) mod wire;

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query as QueryString, State};
use axum::{Extension, Json};
use bytes::Bytes;
use hapax_flow::inbox::{InboxError, Operators, ParkedQuery, ParkedState};
use http::{HeaderMap, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::wire::{
    InboxChanged, InboxConsumers, InboxMessage, InboxPage, InboxQuery, InboxRetry, InboxSkip, Time,
};
use super::Admin;
use super::caller::Caller;
use super::keys::{now, read, unreadable_query};
use super::outbox::signed;
use super::problem::{self, Problem};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;

/// The routes under `/v1/inbox`.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(consumers))
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(skip))
}

/// Every consumer, and what it has not applied
#[utoipa::path(
    get,
    path = "/v1/inbox/consumers",
    tag = "inbox",
    responses(
        (status = 200, body = InboxConsumers, description = "The consumers, by name."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-inbox`: the store of this gateway has none."),
    )
)]
async fn consumers(State(admin): State<Admin>) -> Result<Json<InboxConsumers>, Problem> {
    let consumers = admin.inbox()?.consumers().await?;
    Ok(Json(InboxConsumers {
        consumers: consumers.iter().map(Into::into).collect(),
    }))
}

/// Messages that were not applied, in the order in which they were parked
#[utoipa::path(
    get,
    path = "/v1/inbox/messages",
    tag = "inbox",
    params(InboxQuery),
    responses(
        (status = 200, body = InboxPage, description = "The messages, without their payloads."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-inbox`: the store of this gateway has none."),
    )
)]
async fn list(
    State(admin): State<Admin>,
    query: Result<QueryString<InboxQuery>, QueryRejection>,
) -> Result<Json<InboxPage>, Problem> {
    let QueryString(query) = query.map_err(unreadable_query)?;
    let inbox = admin.inbox()?;
    let query = parked_query(query).map_err(Problem::bad_request)?;
    let page = inbox.parked(&query).await?;
    let last = page
        .last()
        .filter(|_| page.len() >= usize::try_from(query.limit).unwrap_or(usize::MAX));
    Ok(Json(InboxPage {
        messages: page.iter().map(Into::into).collect(),
        next: last.map(|last| last.head.number),
        now: Time(now()),
    }))
}

/// One message with its payload
#[utoipa::path(
    get,
    path = "/v1/inbox/messages/{consumer}/{id}",
    tag = "inbox",
    params(("consumer" = String, Path, description = "The consumer."), ("id" = String, Path, description = "The id that the producer gave the message.")),
    responses(
        (status = 200, body = InboxMessage, description = "The message."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-inbox`; `message-not-found`: this consumer has parked no such message."),
    )
)]
async fn show(
    State(admin): State<Admin>,
    place: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<InboxMessage>, Problem> {
    let (inbox, (consumer, id)) = (admin.inbox()?, in_path(place)?);
    let found = inbox.find(&consumer, &id).await?;
    let found = found.ok_or_else(|| not_found(&consumer, &id))?;
    Ok(Json(InboxMessage::from(&found)))
}

/// Lets the consumer try a parked message again
///
/// The consumer applies it once. If it is older than the consumer's receipts, nobody can tell
/// whether it was applied: then `was_not_applied` must say that somebody has looked.
#[utoipa::path(
    post,
    path = "/v1/inbox/messages/{consumer}/{id}/retry",
    tag = "inbox",
    params(("consumer" = String, Path, description = "The consumer."), ("id" = String, Path, description = "The id that the producer gave the message.")),
    request_body = InboxRetry,
    responses(
        (status = 200, body = InboxChanged, description = "It is tried again."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-inbox`, `message-not-found`."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`too-old`: its receipt may be gone: look, then state `was_not_applied`. `not-now`: it is not parked; it is still tried, or tried again."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn retry(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    place: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<InboxChanged>, Problem> {
    let (inbox, (consumer, id)) = (admin.inbox()?, in_path(place)?);
    let change: InboxRetry = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let is_done = inbox
        .retry(&consumer, &id, change.was_not_applied, &signed)
        .await?;
    changed(&**inbox, consumer, id, "to be tried again", is_done).await
}

/// Takes a message out for good: it is never applied
#[utoipa::path(
    post,
    path = "/v1/inbox/messages/{consumer}/{id}/skip",
    tag = "inbox",
    params(("consumer" = String, Path, description = "The consumer."), ("id" = String, Path, description = "The id that the producer gave the message.")),
    request_body = InboxSkip,
    responses(
        (status = 200, body = InboxChanged, description = "It is taken out, and its receipt is written."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-inbox`, `message-not-found`."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn skip(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    place: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<InboxChanged>, Problem> {
    let (inbox, (consumer, id)) = (admin.inbox()?, in_path(place)?);
    let change: InboxSkip = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let is_done = inbox.skip(&consumer, &id, &signed).await?;
    changed(&**inbox, consumer, id, "skipped", is_done).await
}

impl Admin {
    fn inbox(&self) -> Result<&Arc<dyn Operators>, Problem> {
        let messages = self.messages.as_ref();
        messages.map(|messages| &messages.inbox).ok_or_else(|| {
            let detail = "the store of this gateway has no inbox, because no transaction of a service commits there: receipts are in a Postgres, or in a service's own SQLite file (`hapax inbox --store sqlite:FILE`)";
            Problem::new(StatusCode::NOT_FOUND, "no-inbox", detail)
        })
    }
}

async fn changed(
    inbox: &dyn Operators,
    consumer: String,
    id: String,
    done: &'static str,
    is_done: bool,
) -> Result<Json<InboxChanged>, Problem> {
    if is_done {
        return Ok(Json(InboxChanged { done, consumer, id }));
    }
    match inbox.find(&consumer, &id).await? {
        Some(found) => Err(Problem::conflict(
            "not-now",
            format!(
                "it is not parked but {}: the consumer tries it by itself",
                found.head.state.word()
            ),
        )),
        None => Err(not_found(&consumer, &id)),
    }
}

fn parked_query(query: InboxQuery) -> Result<ParkedQuery, String> {
    let state = match query.state.as_deref() {
        None | Some("parked") => ParkedState::Parked,
        Some("trying") => ParkedState::Trying,
        Some("again") => ParkedState::Again,
        Some(other) => {
            return Err(format!(
                "`state` is trying, parked or again, and not `{other}`"
            ));
        }
    };
    Ok(ParkedQuery {
        consumer: query.consumer,
        state: Some(state),
        after: query.after,
        limit: query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX),
    })
}

/// A consumer and an id. Postgres knows no text with a zero byte.
fn in_path(
    place: Result<Path<(String, String)>, PathRejection>,
) -> Result<(String, String), Problem> {
    let Path((consumer, id)) =
        place.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    if consumer.contains('\0') || id.contains('\0') {
        return Err(not_found(&consumer, &id));
    }
    Ok((consumer, id))
}

fn not_found(consumer: &str, id: &str) -> Problem {
    let detail = format!("the consumer {consumer} has parked no message {id}");
    Problem::new(StatusCode::NOT_FOUND, "message-not-found", detail)
}

impl From<InboxError> for Problem {
    fn from(error: InboxError) -> Problem {
        let (status, code) = match &error {
            InboxError::TooOld => {
                let detail = format!(
                    "{error}. Look whether its effect is there; if it is not, state `was_not_applied`, else skip it"
                );
                return Problem::conflict("too-old", detail);
            }
            InboxError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
            InboxError::Unusable(_) => (StatusCode::NOT_FOUND, "no-inbox"),
            InboxError::Refused(_) => (StatusCode::BAD_REQUEST, "bad-request"),
            InboxError::Corrupt(_) => (StatusCode::INTERNAL_SERVER_ERROR, "store-damaged"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "not-done"),
        };
        Problem::new(status, code, error.to_string())
    }
}
