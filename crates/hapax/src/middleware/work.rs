//! The work of an operation: calls the inner service once, and reads its answer as an outcome.

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
use super::guard::Shared;
use super::probe::Probed;
use super::service::{NeverDispatched, TimedOut};
use super::{BoxError, fields, problem};
use crate::observe::{Event, Subject};
use crate::once::{Ended, Operation, because};

/// The work of an operation on a route that first asks the service what became of a lost attempt.
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
            // Handled like a response of the service, so that the same parts of it are kept.
            Probed::Done(answer) => {
                return kept(answer::stored(&answer), &policy, &operation).await;
            }
        }
    }
    let ended = run(inner, parts, body, operation, policy).await;
    say_why_not_kept(&ended, &shared);
    ended
}

/// Warns, once per layer, if its answers are of a kind that is not kept.
fn say_why_not_kept(ended: &Ended<Result<Response<Body>, Rejection>>, shared: &Shared) {
    let Ended {
        outcome: Outcome::Kept { answer: None, .. },
        live: Ok(response),
    } = ended
    else {
        return;
    };
    if !shared.policy.keep_answers || !answer::wants_keeping(response.headers()) {
        return;
    }
    if is_without_end(response.extensions(), &shared.policy) {
        shared.warn_close_delimited();
    } else if answer::is_stream(response.headers(), response.body()) {
        shared.say_stream(response.headers());
    }
}

/// Whether the end of an answer cannot be detected, and the policy does not accept that.
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
        // This response is meant for Hapax, so the caller does not get it, whatever its status.
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

/// The first caller's response where the status does not tell whether the service has acted: the
/// whole response, with retry advice.
fn unknown<RB>(response: Response<RB>, policy: &Policy) -> Response<Body>
where
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let mut response = response.map(Body::streamed);
    problem::advise(
        response.headers_mut(),
        Rejection::lost(policy, false).row().retry,
        policy.retry_dialects,
    );
    response
}

/// The class of a response: set by the handler, else stated by the service in its field, else given
/// by the status.
pub(super) fn class_of<B>(response: &Response<B>, policy: &Policy) -> Class {
    // The service has seen a higher fence, which this node does not know of. In `Fenced` mode the
    // service has done nothing for this attempt, and the next one has a higher fence: release. In
    // `Probe` mode the service is asked first: unknown.
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

/// Whether the service reports that it has seen a higher fence.
fn is_refused_for_fence<B>(response: &Response<B>) -> bool {
    response
        .headers()
        .get(fields::REFUSED)
        .is_some_and(|why| why == "fence")
}

/// The class that the service states in its own field, if that is valid for this status.
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

/// Ends an attempt whose service returned an error in place of a response.
fn failed(
    error: &BoxError,
    policy: &Policy,
    operation: &Operation,
) -> Ended<Result<Response<Body>, Rejection>> {
    operation.note_cause(because(&**error));
    // Only the error itself counts: one that has it as its cause may come from a second step, after
    // the first one had its effect.
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

/// A definitive response: read whole and kept, or passed on and recorded as not kept.
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
        || answer::is_stream(&parts.headers, &body)
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
