//! From response to answer and back: what is kept, and what a replay sends.

use bytes::{Bytes, BytesMut};
use hapax_core::answer::Answer;
use hapax_core::policy::Policy;
use hapax_core::record::Head;
use hapax_core::request_id::RequestId;
use http::header::{AGE, CONNECTION, CONTENT_LENGTH, DATE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;

use super::BoxError;
use super::body::Body;
use super::fields::{
    ANSWER_VERSION, EXPIRES, KEEP, REPLAYED, TRACE, is_hop_by_hop, is_ours_in_answer,
};
use super::request_id::REQUEST_ID;
use crate::observe::Source;

/// The trace in which a replayed answer was made: what the inner service said of it in the field
/// `Hapax-Trace` when it made the answer. In the extensions of a replay, and nowhere else: the
/// field itself is kept with the answer and sent to nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(pub HeaderValue);

/// The id of the request that a replayed answer was made for. In the extensions of a replay, whose
/// own id is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginalRequestId(pub RequestId);

/// What an inner service that proxies puts into the extensions of a response whose body has no
/// other end than that of its connection: whether a byte is missing cannot be told, so that it is
/// not kept unless the policy [says so](Policy::keep_close_delimited).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseDelimited;

/// A response body, read as far as it may be kept.
pub(super) enum Collected {
    /// All of it.
    Whole {
        body: Bytes,
        trailers: Option<HeaderMap>,
    },
    /// Too large to keep: what was read, and the rest.
    Over(Body),
}

/// Reads a body up to `bytes_max`. An error means that the answer is not complete, and never will
/// be.
pub(super) async fn collect<B>(mut body: B, bytes_max: usize) -> Result<Collected, BoxError>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    // A copy, not a view: a view would keep the whole buffer it was read into alive for as long as
    // the answer is kept.
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

/// Whether a field is never kept with an answer, whatever the policy: it concerns one connection or
/// one moment, or only Hapax says it.
pub fn is_never_kept(name: &HeaderName) -> bool {
    matches!(*name, DATE | AGE)
        || *name == REQUEST_ID
        || is_hop_by_hop(name.as_str())
        || is_ours_in_answer(name)
}

/// What of a response is kept. `docs/http.md` publishes the list of what is not.
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
        // One that does not tell the truth would break the replay.
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
    // Ours, and so not among the fields that are kept by the rule; only `replay` reads it.
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

/// What of a whole response is kept, if anything is.
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

/// Takes off a length that is not the body's: whoever reads by it would take the next answer for a
/// part of this one. Without a body it may be that of one which was not asked for.
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

/// The stored answer, sent again. `body` is its body, with whatever it holds on to. Where it came
/// from is left in the extensions.
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

/// Left in the extensions of a response that its work had stored in the transaction of its effect:
/// the first caller's, whatever the work returned after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromTransaction;

/// The stored answer, sent to the first caller because it was stored with the effect. Cookies that
/// came with the same answer are still for them.
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

/// The response that an answer was.
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

/// The first caller's answer: what the inner service said, without words that are ours to say, and
/// with ours.
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
        // What was a header when it was stored is one now.
        if let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name.as_str()),
            HeaderValue::from_bytes(value),
        ) {
            map.append(name, value);
        }
    }
    map
}
