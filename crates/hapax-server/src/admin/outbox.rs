//! The outbox as JSON: what `hapax outbox` shows and changes, over HTTP. Only a gateway whose store
//! is a Postgres has one: elsewhere no transaction of a service commits in the gateway's store.

pub(crate) mod wire;

use std::sync::Arc;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query as QueryString, State};
use axum::{Extension, Json};
use bytes::Bytes;
use hapax::core::audit;
use hapax::core::flow::MessageId;
use hapax_flow::outbox::OutboxError;
use hapax_flow::outbox::operate::{AsideQuery, AsideState, Operators};
use http::{HeaderMap, StatusCode};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::wire::{
    MessageChange, MessageChanged, OutboxMessage, OutboxMessages, OutboxPage, OutboxQuery,
    OutboxReaders, ReaderChange, ReaderChanged,
};
use super::Admin;
use super::caller::Caller;
use super::keys::wire::Signed;
use super::keys::{now, read, unreadable_query};
use super::problem::{self, Problem};

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;

/// The routes under `/v1/outbox`.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(readers))
        .routes(routes!(start))
        .routes(routes!(remove))
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(retry))
        .routes(routes!(skip))
}

/// Every reader of the outbox, and what holds it up
#[utoipa::path(
    get,
    path = "/v1/outbox/readers",
    tag = "outbox",
    responses(
        (status = 200, body = OutboxReaders, description = "The readers, by name."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`: the store of this gateway has none."),
    )
)]
async fn readers(State(admin): State<Admin>) -> Result<Json<OutboxReaders>, Problem> {
    let readers = admin.outbox()?.readers().await?;
    Ok(Json(OutboxReaders {
        readers: readers.iter().map(Into::into).collect(),
    }))
}

/// Starts a reader that was stopped, once its cause is gone
#[utoipa::path(
    post,
    path = "/v1/outbox/readers/{name}/start",
    tag = "outbox",
    params(("name" = String, Path, description = "The reader.")),
    request_body = ReaderChange,
    responses(
        (status = 200, body = ReaderChanged, description = "Started."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`, `reader-not-found`."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: it is not stopped."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn start(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ReaderChanged>, Problem> {
    let (outbox, reader) = (admin.outbox()?, in_path(name)?);
    let change: ReaderChange = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let is_done = outbox.start(&reader, &signed).await?;
    reader_changed(&**outbox, reader, "started", is_done, "it is not stopped").await
}

/// Removes a reader for good, with what is set aside for it
///
/// For a destination that is no more: its reader would keep messages in the database.
#[utoipa::path(
    post,
    path = "/v1/outbox/readers/{name}/remove",
    tag = "outbox",
    params(("name" = String, Path, description = "The reader.")),
    request_body = ReaderChange,
    responses(
        (status = 200, body = ReaderChanged, description = "Removed."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`, `reader-not-found`."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: a relay has it, which must be stopped first."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn remove(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ReaderChanged>, Problem> {
    let (outbox, reader) = (admin.outbox()?, in_path(name)?);
    let change: ReaderChange = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let is_done = outbox.remove(&reader, &signed).await?;
    let why_not = "a relay has it: stop that first";
    reader_changed(&**outbox, reader, "removed", is_done, why_not).await
}

/// Messages that are set aside, by reader and in their order
#[utoipa::path(
    get,
    path = "/v1/outbox/messages",
    tag = "outbox",
    params(OutboxQuery),
    responses(
        (status = 200, body = OutboxPage, description = "The messages, without their payloads."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`: the store of this gateway has none."),
    )
)]
async fn list(
    State(admin): State<Admin>,
    query: Result<QueryString<OutboxQuery>, QueryRejection>,
) -> Result<Json<OutboxPage>, Problem> {
    let QueryString(query) = query.map_err(unreadable_query)?;
    let outbox = admin.outbox()?;
    let query = aside_query(query).map_err(Problem::bad_request)?;
    let page = outbox.set_aside(&query).await?;
    let last = page
        .last()
        .filter(|_| page.len() >= usize::try_from(query.limit).unwrap_or(usize::MAX));
    let next = last.map(|last| place(&last.aside.reader, last.sequence));
    Ok(Json(OutboxPage {
        messages: page.iter().map(Into::into).collect(),
        next,
        now: wire::Time(now()),
    }))
}

/// One message with its payload: as it is set aside for each reader, and as it is in the outbox
#[utoipa::path(
    get,
    path = "/v1/outbox/messages/{id}",
    tag = "outbox",
    params(("id" = String, Path, description = "The message's id.", pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    responses(
        (status = 200, body = OutboxMessages, description = "The message, once for each reader that has set it aside, and once if it is in the outbox."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`; `message-not-found`: every reader has it and it was removed, or it never was."),
    )
)]
async fn show(
    State(admin): State<Admin>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<OutboxMessages>, Problem> {
    let (outbox, id) = (admin.outbox()?, message_id(id)?);
    let found = outbox.find(id).await?;
    if found.is_empty() {
        return Err(not_found(id));
    }
    let messages: Vec<OutboxMessage> = found.iter().map(Into::into).collect();
    Ok(Json(OutboxMessages { messages }))
}

/// Sends a message that is set aside again, at once and with all its attempts
#[utoipa::path(
    post,
    path = "/v1/outbox/messages/{id}/retry",
    tag = "outbox",
    params(("id" = String, Path, description = "The message's id.", pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    request_body = MessageChange,
    responses(
        (status = 200, body = MessageChanged, description = "It is sent again."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`, `message-not-found`."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: it is not set aside for this reader, or it waits behind an earlier one of its key."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn retry(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<MessageChanged>, Problem> {
    let (outbox, id) = (admin.outbox()?, message_id(id)?);
    let change: MessageChange = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let reader = meant(&**outbox, id, change.reader).await?;
    let is_done = outbox.retry(&reader, id, &signed).await?;
    message_changed(id, reader, "sent again", is_done)
}

/// Takes out a message that is set aside, for good: this reader never gets it
#[utoipa::path(
    post,
    path = "/v1/outbox/messages/{id}/skip",
    tag = "outbox",
    params(("id" = String, Path, description = "The message's id.", pattern = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")),
    request_body = MessageChange,
    responses(
        (status = 200, body = MessageChanged, description = "It is taken out, and the later ones of its key go on."),
        (status = 404, body = problem::Document, content_type = "application/problem+json", description = "`no-outbox`, `message-not-found`."),
        (status = 409, body = problem::Document, content_type = "application/problem+json", description = "`not-now`: it is not set aside for this reader."),
        (status = 413, body = problem::Document, content_type = "application/problem+json", description = "`body-unreadable`: over 2 MiB."),
        (status = 415, body = problem::Document, content_type = "application/problem+json", description = "`unsupported-media-type`: only JSON is taken."),
    )
)]
async fn skip(
    State(admin): State<Admin>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<MessageChanged>, Problem> {
    let (outbox, id) = (admin.outbox()?, message_id(id)?);
    let change: MessageChange = read(&headers, body)?;
    let signed = signed(change.by, change.reason, caller)?;
    let reader = meant(&**outbox, id, change.reader).await?;
    let is_done = outbox.skip(&reader, id, &signed).await?;
    message_changed(id, reader, "skipped", is_done)
}

impl Admin {
    fn outbox(&self) -> Result<&Arc<dyn Operators>, Problem> {
        let messages = self.messages.as_ref();
        messages.map(|messages| &messages.outbox).ok_or_else(|| {
            let detail = "the store of this gateway has no outbox, because no transaction of a service commits there: messages are in a Postgres, or in a service's own SQLite file (`hapax outbox --store sqlite:FILE`)";
            Problem::new(StatusCode::NOT_FOUND, "no-outbox", detail)
        })
    }
}

/// The readers for which a message is set aside.
pub(crate) async fn readers_of(
    outbox: &dyn Operators,
    id: MessageId,
) -> Result<Vec<String>, OutboxError> {
    let found = outbox.find(id).await?;
    let asides = found.into_iter().filter_map(|found| found.aside);
    Ok(asides.map(|aside| aside.reader).collect())
}

/// The reader that is meant: the only one for which the message is set aside, if none is named.
async fn meant(
    outbox: &dyn Operators,
    id: MessageId,
    named: Option<String>,
) -> Result<String, Problem> {
    let found = outbox.find(id).await?;
    if found.is_empty() {
        return Err(not_found(id));
    }
    if let Some(named) = named {
        return Ok(named);
    }
    let mut readers = readers_of(outbox, id).await?;
    match readers.len() {
        1 => Ok(readers.remove(0)),
        0 => Err(not_now(format!(
            "the message {id} is not set aside for any reader"
        ))),
        _ => Err(Problem::bad_request(format!(
            "the message {id} is set aside for {}: say for which, as `reader`",
            readers.join(", ")
        ))),
    }
}

fn message_changed(
    id: MessageId,
    reader: String,
    done: &'static str,
    is_done: bool,
) -> Result<Json<MessageChanged>, Problem> {
    if !is_done {
        return Err(not_now(format!(
            "not {done}: the message {id} is not set aside for {reader}, or it waits behind an earlier one of its key"
        )));
    }
    let id = id.to_string();
    Ok(Json(MessageChanged { done, id, reader }))
}

async fn reader_changed(
    outbox: &dyn Operators,
    reader: String,
    done: &'static str,
    is_done: bool,
    why_not: &str,
) -> Result<Json<ReaderChanged>, Problem> {
    if is_done {
        return Ok(Json(ReaderChanged { done, reader }));
    }
    let mut readers = outbox.readers().await?.into_iter();
    match readers.any(|known| known.name == reader) {
        true => Err(not_now(format!(
            "the reader {reader} was not {done}: {why_not}"
        ))),
        false => Err(Problem::new(
            StatusCode::NOT_FOUND,
            "reader-not-found",
            format!("there is no reader {reader}"),
        )),
    }
}

fn aside_query(query: OutboxQuery) -> Result<AsideQuery, String> {
    let state = match query.state.as_deref() {
        None => None,
        Some("waiting") => Some(AsideState::Waiting),
        Some("held") => Some(AsideState::Held),
        Some("dead") => Some(AsideState::Dead),
        Some(other) => {
            return Err(format!(
                "`state` is waiting, held or dead, and not `{other}`"
            ));
        }
    };
    let after = query.after.as_deref().map(at_place).transpose()?;
    let limit = query.limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
    Ok(AsideQuery {
        reader: query.reader,
        state,
        after,
        limit,
    })
}

/// A place in the list, as `next` has it.
fn place(reader: &str, sequence: i64) -> String {
    format!("{reader}:{sequence}")
}

fn at_place(text: &str) -> Result<(String, i64), String> {
    let found = text.rsplit_once(':').and_then(|(reader, sequence)| {
        let sequence = sequence.parse().ok()?;
        Some((reader.to_owned(), sequence))
    });
    found.ok_or_else(|| "`after` is `next` of the page before, as it came".to_owned())
}

pub(super) fn signed(by: String, reason: String, caller: Caller) -> Result<audit::Signed, Problem> {
    let signed = Signed { by, reason }.signed_by(caller);
    signed
        .and_then(|signed| signed.kept())
        .map_err(Problem::bad_request)
}

fn in_path(name: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let Path(name) = name.map_err(|rejection| Problem::bad_request(rejection.body_text()))?;
    Ok(name)
}

fn message_id(id: Result<Path<String>, PathRejection>) -> Result<MessageId, Problem> {
    let id = in_path(id)?;
    id.parse()
        .map_err(|error| Problem::bad_request(format!("`{id}`: {error}")))
}

fn not_found(id: MessageId) -> Problem {
    let detail = format!(
        "there is no message {id}: every reader has it and it was removed, or it never was"
    );
    Problem::new(StatusCode::NOT_FOUND, "message-not-found", detail)
}

fn not_now(detail: String) -> Problem {
    Problem::conflict("not-now", detail)
}

impl From<OutboxError> for Problem {
    fn from(error: OutboxError) -> Problem {
        let (status, code) = match &error {
            OutboxError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "store-unavailable"),
            OutboxError::Unusable(_) => (StatusCode::NOT_FOUND, "no-outbox"),
            OutboxError::Refused(_) => (StatusCode::BAD_REQUEST, "bad-request"),
            OutboxError::Corrupt(_) => (StatusCode::INTERNAL_SERVER_ERROR, "store-damaged"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "not-done"),
        };
        Problem::new(status, code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        for reader in ["to-nats", "a:b", ""] {
            let read = at_place(&place(reader, 17));
            assert_eq!(read, Ok((reader.to_owned(), 17)));
        }
        assert!(at_place("17").is_err());
    }
}
