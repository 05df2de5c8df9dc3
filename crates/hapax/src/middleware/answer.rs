//! From response to answer and back: what is kept, and what a replay sends.

use bytes::{Bytes, BytesMut};
use hapax_core::answer::Answer;
use hapax_core::policy::Policy;
use hapax_core::record::Head;
use hapax_core::request_id::RequestId;
use http::header::{AGE, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

use super::BoxError;
use super::body::Body;
use super::fields::{
    ANSWER_VERSION, EXPIRES, KEEP, REPLAYED, TRACE, is_hop_by_hop, is_ours_in_answer,
};
use super::request_id::REQUEST_ID;
use crate::observe::Source;

/// The trace in which a replayed answer was made: the value of the field `Hapax-Trace` that the
/// inner service sent with the answer. Present only in the extensions of a replay. The field is
/// kept with the answer and sent to no caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(pub HeaderValue);

/// The id of the request for which a replayed answer was made. In the extensions of a replay, whose
/// request has another id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalRequestId(pub RequestId);

/// Marks a response whose body ends only with its connection. An inner service that proxies puts it
/// into the response's extensions. Missing bytes cannot be detected in such a body, so it is not
/// kept unless the policy [allows it](Policy::keep_close_delimited).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseDelimited;

/// A response body, read up to the largest size that may be kept.
pub(super) enum Collected {
    /// The whole body.
    Whole {
        body: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// Too large to keep: the part that was read, followed by the rest.
    Over(Body),
}

/// Reads a body up to `bytes_max`. An error means that the answer is incomplete for good.
pub(super) async fn collect<B>(mut body: B, bytes_max: usize) -> Result<Collected, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    // Copy the data: a view would keep alive the whole buffer it was read into, for as long as the
    // answer is kept.
    let (mut read, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.map_err(Into::into)?.into_data() {
            Ok(data) if read.len() + data.len() > bytes_max => {
                read.extend_from_slice(&data);
                return Ok(Collected::Over(Body::chained(read.freeze(), body)));
            }
            Ok(data) => read.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    Ok(Collected::Whole {
        body: read.freeze(),
        trailers,
    })
}

/// Whether the inner service wants its answer kept.
pub(super) fn wants_keeping(headers: &HeaderMap) -> bool {
    !headers
        .get(KEEP)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"no"))
}

/// Media types of answers that are read while they are written, and may never end.
const STREAMS: [&str; 8] = [
    "text/event-stream",
    "application/x-ndjson",
    "application/ndjson",
    "application/x-jsonlines",
    "application/jsonlines",
    "application/jsonl",
    "application/json-seq",
    "multipart/x-mixed-replace",
];

/// Whether an answer is a stream, which is to be sent as it comes: it says so by its media type,
/// and not how long it is.
pub(super) fn is_stream(headers: &HeaderMap, body: &impl http_body::Body) -> bool {
    let Some(media_type) = headers
        .get(CONTENT_TYPE)
        .and_then(|line| line.to_str().ok())
    else {
        return false;
    };
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    body.size_hint().exact().is_none()
        && STREAMS
            .iter()
            .any(|stream| stream.eq_ignore_ascii_case(essence))
}

/// Whether a field is never kept with an answer, whatever the policy: it concerns one connection or
/// one moment, or is reserved for Hapax.
pub fn is_never_kept(name: &HeaderName) -> bool {
    matches!(*name, DATE | AGE)
        || *name == REQUEST_ID
        || is_hop_by_hop(name.as_str())
        || is_ours_in_answer(name)
}

/// The parts of a response that are kept. `docs/http.md` lists the fields that are not.
pub(super) fn keep(
    status: StatusCode,
    headers: &HeaderMap,
    body: &Bytes,
    trailers: Option<&HeaderMap>,
    policy: &Policy,
) -> Answer {
    let named_by_connection = connection_options(headers);
    let is_kept = |name: &HeaderName, value: &HeaderValue| match *name {
        SET_COOKIE => policy.replay_cookies,
        // A wrong length would break the replay.
        CONTENT_LENGTH => {
            value.to_str().ok().and_then(|length| length.parse().ok()) == Some(body.len())
        }
        _ => !is_never_kept(name) && !named_by_connection.contains(name),
    };
    let fields = |map: &HeaderMap| -> Vec<_> {
        let kept = map.iter().filter(|(name, value)| is_kept(name, value));
        kept.map(|(name, value)| {
            (
                name.as_str().to_owned(),
                Bytes::copy_from_slice(value.as_bytes()),
            )
        })
        .collect()
    };
    let mut kept = fields(headers);
    // The loop above skips fields of Hapax. This one is kept for `replay`, which alone reads it.
    if let Some(trace) = headers.get(TRACE) {
        kept.push((
            TRACE.as_str().to_owned(),
            Bytes::copy_from_slice(trace.as_bytes()),
        ));
    }
    Answer {
        status: status.as_u16(),
        headers: kept,
        body: body.clone(),
        trailers: trailers.map(fields).unwrap_or_default(),
    }
}

/// The parts of a whole response that are kept, or `None` if the response is not kept.
pub(crate) fn kept(response: &Response<Bytes>, policy: &Policy) -> Option<Answer> {
    let is_kept = policy.keep_answers
        && wants_keeping(response.headers())
        && response.body().len() <= policy.answer_bytes_max;
    is_kept.then(|| {
        keep(
            response.status(),
            response.headers(),
            response.body(),
            None,
            policy,
        )
    })
}

/// Removes a `Content-Length` that differs from the body: a client would read part of the next
/// answer as part of this one. Without a body the length is left, as it may describe a body that
/// was not asked for.
pub(super) fn mend_length(headers: &mut HeaderMap, body: &Bytes) {
    let is_true = |length: &HeaderValue| {
        length.to_str().ok().and_then(|length| length.parse().ok()) == Some(body.len())
    };
    if !body.is_empty() && !headers.get_all(CONTENT_LENGTH).iter().all(is_true) {
        headers.remove(CONTENT_LENGTH);
    }
}

fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let lines = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|line| line.to_str().ok());
    lines
        .flat_map(|line| line.split(','))
        .filter_map(|option| option.trim().parse().ok())
        .collect()
}

/// The stored answer as the response of a replay. `body` is the answer's body, which may hold a
/// reservation. The source of the replay is put into the extensions.
pub(super) fn replay(head: &Head, answer: &Answer, body: Bytes, source: Source) -> Response<Body> {
    let mut response = stored_with(answer, body);
    response.extensions_mut().insert(source);
    response
        .headers_mut()
        .insert(REPLAYED, HeaderValue::from_static("true"));
    note_expiry(response.headers_mut(), head);
    if let Some(id) = &head.request_id {
        response
            .extensions_mut()
            .insert(OriginalRequestId(id.clone()));
    }
    response
}

/// In the extensions of the first caller's response if it is the answer that the work stored in the
/// transaction of its effect, whatever the work returned afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromTransaction;

/// The answer stored with the effect, for the first caller. Cookies of the live response are added
/// if that response has the same status.
pub(super) fn first(head: &Head, answer: &Answer, live: Option<Response<Body>>) -> Response<Body> {
    let mut response = stored(answer);
    let is_same = |live: &Response<Body>| live.status() == response.status();
    if !response.headers().contains_key(SET_COOKIE)
        && let Some(live) = live.filter(is_same)
    {
        let cookies: Vec<_> = live.headers().get_all(SET_COOKIE).iter().cloned().collect();
        response
            .headers_mut()
            .extend(cookies.into_iter().map(|cookie| (SET_COOKIE, cookie)));
    }
    note_expiry(response.headers_mut(), head);
    response.extensions_mut().insert(FromTransaction);
    response
}

/// The response that an answer was made from.
pub(super) fn stored(answer: &Answer) -> Response<Body> {
    stored_with(answer, answer.body.clone())
}

fn stored_with(answer: &Answer, body: Bytes) -> Response<Body> {
    let trailers = (!answer.trailers.is_empty()).then(|| fields(&answer.trailers));
    let mut response = Response::new(Body::whole(body, trailers));
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *response.headers_mut() = fields(&answer.headers);
    response.headers_mut().remove(ANSWER_VERSION);
    if let Some(trace) = response.headers_mut().remove(TRACE) {
        response.extensions_mut().insert(Origin(trace));
    }
    response
}

/// Prepares the first caller's headers: removes fields that only Hapax may set, and sets Hapax's
/// own.
pub(super) fn mark_first(headers: &mut HeaderMap, head: &Head) {
    strip_ours(headers);
    if head.kept {
        note_expiry(headers, head);
    }
}

pub(super) fn strip_ours(headers: &mut HeaderMap) {
    let ours: Vec<_> = headers
        .keys()
        .filter(|name| is_ours_in_answer(name))
        .cloned()
        .collect();
    for name in ours {
        headers.remove(name);
    }
}

fn note_expiry(headers: &mut HeaderMap, head: &Head) {
    let date = httpdate::fmt_http_date(head.expires_at.to_system_time());
    headers.insert(
        EXPIRES,
        HeaderValue::try_from(date).expect("a date is a header value"),
    );
}

fn fields(stored: &[(String, Bytes)]) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(stored.len());
    for (name, value) in stored {
        // These were valid header fields when they were stored.
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::from_bytes(value),
        ) {
            map.append(name, value);
        }
    }
    map
}
