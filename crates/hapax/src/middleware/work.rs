//! The work of an operation: the inner service, called once, and how its answer is read.

use bytes::Bytes;
use hapax_core::outcome::{Class, Loss, Outcome, Said, classify};
use hapax_core::policy::{Mode, Policy};
use hapax_core::rejection::Rejection;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use std::sync::Arc;
use tower_service::Service;

use super::answer::{self, CloseDelimited, Collected};
use super::body::Body;
use super::layer::Shared;
use super::probe::Probed;
use super::service::{NeverDispatched, TimedOut};
use super::{BoxError, fields, problem};
use crate::observe::{Event, Subject};
use crate::once::{Ended, Operation, because};

/// The work of an operation, where the route asks first what became of a lost attempt.
pub(super) async fn run_probed<S, RB>(
    shared: Arc<Shared>,
    inner: S,
    parts: Parts,
    body: Body,
    operation: Operation,
) -> Ended<Result<Response<Body>, Rejection>>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    S::Error: Into<BoxError>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let policy = shared.policy.clone();
    if let Some(probe) = shared.probe.as_ref().filter(|_| operation.follows_lost()) {
        let probed = probe.probe(&operation).await;
        let subject = Subject {
            scope: operation.scope(),
            id: operation.record(),
        };
        shared.hapax.observe(&Event::Probed {
            subject,
            found: probed.word(),
        });
        match probed {
            Probed::Barred => {}
            Probed::Unknown => {
                operation.note_cause(
                    "the service was asked, and does not know what became of the attempt before",
                );
                return Ended {
                    outcome: Outcome::Lost(Loss::ProbeUnknown),
                    live: Err(Rejection::OutcomeUnknown),
                };
            }
            // Read as any answer is, so that the same of it is kept.
            Probed::Done(answer) => {
                return kept(answer::stored(&answer), &policy, &operation).await;
            }
        }
    }
    let ended = run(inner, parts, body, operation, policy).await;
    if ended
        .live
        .as_ref()
        .is_ok_and(|response| is_without_end(response.extensions(), &shared.policy))
    {
        shared.say_close_delimited();
    }
    ended
}

/// Whether nobody can tell that an answer is whole, and the policy does not accept that.
fn is_without_end(extensions: &http::Extensions, policy: &Policy) -> bool {
    extensions.get::<CloseDelimited>().is_some() && !policy.keep_close_delimited
}

/// The work of an operation: calls the inner service and reads its answer as an outcome.
pub(super) async fn run<S, RB>(
    mut inner: S,
    mut parts: Parts,
    body: Body,
    operation: Operation,
    policy: Arc<Policy>,
) -> Ended<Result<Response<Body>, Rejection>>
where
    S: Service<Request<Body>, Response = Response<RB>>,
    S::Error: Into<BoxError>,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    parts
        .headers
        .insert(fields::FENCE, HeaderValue::from(operation.fence().as_u64()));
    parts.headers.insert(
        fields::OPERATION,
        HeaderValue::try_from(operation.id().as_str()).expect("an operation id is a header value"),
    );
    parts.extensions.insert(operation.clone());

    let response = match inner.call(Request::from_parts(parts, body)).await {
        Ok(response) => response,
        Err(error) => return failed(&error.into(), &policy, &operation),
    };
    let class = class_of(&response, &policy);
    let status = response.status().as_u16();
    match class {
        Class::Keep => kept(response, &policy, &operation).await,
        Class::Release => Ended {
            outcome: Outcome::Released {
                status: Some(status),
            },
            live: Ok(response.map(Body::streamed)),
        },
        // No answer to the caller, whatever its status: it is for us.
        Class::Unknown if is_refused_for_fence(&response) => {
            operation.note_cause("the service refused the attempt's fence");
            Ended {
                outcome: Outcome::Lost(Loss::Answered(status)),
                live: Err(Rejection::lost(&policy, false)),
            }
        }
        Class::Unknown => {
            operation.note_cause(format!("the service answered {status}"));
            Ended {
                outcome: Outcome::Lost(Loss::Answered(status)),
                live: Ok(unknown(response, &policy)),
            }
        }
    }
}

/// What the first caller gets of a response that does not tell whether its service has acted: all
/// of it, and whether to try again.
fn unknown<RB>(response: Response<RB>, policy: &Policy) -> Response<Body>
where
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let mut response = response.map(Body::streamed);
    problem::advise(
        response.headers_mut(),
        Rejection::lost(policy, false).row().retry,
    );
    response
}

/// How a response is read: as its handler says, as the service says in its field, else by its
/// status.
pub(super) fn class_of<B>(response: &Response<B>, policy: &Policy) -> Class {
    // A higher fence was there, which nobody here knows of. A service that keeps what it has
    // applied has done nothing for this one, and the next has a higher fence still; of one that can
    // only be asked, it is asked.
    if is_refused_for_fence(response) {
        match policy.mode {
            Mode::Fenced => return Class::Release,
            Mode::Probe => return Class::Unknown,
            _ => {}
        }
    }
    let status = response.status().as_u16();
    let of_handler = response.extensions().get::<Class>().copied();
    of_handler
        .or_else(|| said(response.headers(), status))
        .unwrap_or_else(|| classify(status, policy))
}

/// Whether the service says that it has seen a higher fence.
fn is_refused_for_fence<B>(response: &Response<B>) -> bool {
    response
        .headers()
        .get(fields::REFUSED)
        .is_some_and(|why| why == "fence")
}

/// What the service says of the effect in its own field, if that means anything beside this status.
fn said(headers: &HeaderMap, status: u16) -> Option<Class> {
    let mut lines = headers.get_all(fields::OUTCOME).iter();
    let (line, more) = (lines.next()?, lines.next());
    let class = Said::read(line.as_bytes())
        .filter(|_| more.is_none())
        .and_then(|said| said.class(status));
    if class.is_none() {
        tracing::warn!(
            status,
            said = ?line,
            "the service sent a Hapax-Outcome that does not count: `none` counts with 4xx and 5xx, `done` with 5xx, and each only once"
        );
    }
    class
}

/// The service returned no response at all.
fn failed(
    error: &BoxError,
    policy: &Policy,
    operation: &Operation,
) -> Ended<Result<Response<Body>, Rejection>> {
    operation.note_cause(because(&**error));
    // Only if it is the error itself: one that caused it may come from a second step, after a first
    // one had its effect.
    if error.is::<NeverDispatched>() {
        return Ended {
            outcome: Outcome::Released { status: None },
            live: Err(Rejection::UpstreamUnreachable),
        };
    }
    let is_late = error.is::<TimedOut>();
    let loss = if is_late {
        Loss::TimedOut
    } else {
        Loss::NoAnswer
    };
    Ended {
        outcome: Outcome::Lost(loss),
        live: Err(Rejection::lost(policy, is_late)),
    }
}

/// A definitive response: read whole and kept, or passed on with a mark that it was not.
async fn kept<RB>(
    response: Response<RB>,
    policy: &Policy,
    operation: &Operation,
) -> Ended<Result<Response<Body>, Rejection>>
where
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let (mut parts, body) = response.into_parts();
    let status = parts.status.as_u16();
    let ended = |parts, answer, body| Ended {
        outcome: Outcome::Kept { status, answer },
        live: Ok(Response::from_parts(parts, body)),
    };
    if !policy.keep_answers
        || !answer::wants_keeping(&parts.headers)
        || is_without_end(&parts.extensions, policy)
    {
        return ended(parts, None, Body::streamed(body));
    }
    match answer::collect(Box::pin(body), policy.answer_bytes_max).await {
        Ok(Collected::Whole { body, trailers }) => {
            answer::mend_length(&mut parts.headers, &body);
            let answer = answer::keep(
                parts.status,
                &parts.headers,
                &body,
                trailers.as_ref(),
                policy,
            );
            ended(parts, Some(Arc::new(answer)), Body::whole(body, trailers))
        }
        Ok(Collected::Over(body)) => ended(parts, None, body),
        Err(error) => {
            operation.note_cause(format!("the answer broke off: {}", because(&*error)));
            let loss = if error.is::<TimedOut>() {
                Loss::TimedOut
            } else {
                Loss::BrokeOff
            };
            Ended {
                outcome: Outcome::Lost(loss),
                live: Err(Rejection::lost(policy, false)),
            }
        }
    }
}
