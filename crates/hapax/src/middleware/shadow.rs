//! The shadow: a layer that only watches. It counts what it would have replayed or refused, and
//! lets every request through.
//!
//! The inner service is called on the request's own future, with the request as it came (an
//! extractor that says who is asking may change its head): no second task, no rewritten key, no content coding removed. A caller that hangs up ends the work as it
//! would without this layer, and the record lapses. As for every request that passes, fields
//! reserved for Hapax are removed from the request; the response is not changed.
//!
//! The shadow needs records to compare with. It makes them in a separate namespace and without
//! answers, so that nothing of them remains in effect when the shadow is turned off. The body is
//! read before it is passed on, because the fingerprint covers it.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::outcome::{Class, Loss, Outcome};
use hapax_core::rejection::Rejection;
use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::body::Body;
use super::guard::Shared;
use super::request::Ask;
use super::service::{Asked, NeverDispatched, TimedOut, Unfound, forward_request, is_in_hand};
use super::{BoxError, answer, work};
use crate::observe::{Event, Subject, Would};
use crate::once::{Call, Prediction};

impl Shared {
    /// Lets a request through, whatever a guarding layer would have done.
    pub(super) async fn watch<S, B, RB>(
        self: Arc<Self>,
        inner: S,
        mut parts: Parts,
        body: B,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<RB>>,
        S::Error: 'static,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        RB: http_body::Body<Data = Bytes> + Send + 'static,
        RB::Error: Into<BoxError>,
    {
        let (body, seen) = self.look(&mut parts, body).await;
        answer::strip_ours(&mut parts.headers);
        self.mark_passed(&mut parts);
        let prediction = match seen {
            Seen::Nothing => return forward_request(inner, parts, body).await,
            Seen::Rejection(rejection) => {
                let would = Would::Reject(rejection);
                self.hapax.observe(&Event::Shadowed {
                    subject: None,
                    would: &would,
                });
                return marked(forward_request(inner, parts, body).await, would);
            }
            Seen::Call(call) => {
                let prediction = self.hapax.engine().predict(&call).await;
                let subject = Some(Subject {
                    scope: &call.scope,
                    id: call.id,
                });
                self.hapax.observe(&Event::Shadowed {
                    subject,
                    would: &prediction.would,
                });
                prediction
            }
        };
        self.run(inner, parts, body, prediction).await
    }

    /// Reads the request, and returns the body to pass on and the call for the engine.
    async fn look<B>(&self, parts: &mut Parts, body: B) -> (Body, Seen)
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let asked = match self.ask(parts).await {
            Ok(Some(asked)) => asked,
            Ok(None) => return (Body::streamed(body), Seen::Nothing),
            Err(rejection) => return (Body::streamed(body), Seen::Rejection(rejection)),
        };
        let token_until = match self.check_head(parts, &asked).await {
            Ok(token_until) => token_until,
            Err(rejection) => return (Body::streamed(body), Seen::Rejection(rejection)),
        };
        let mut body = Box::pin(body);
        let buffered = match self.read_body(parts, &asked, &mut body).await {
            Ok(buffered) => buffered,
            Err(stopped) => {
                let rejection = stopped.rejection.clone();
                return (stopped.resume(body), Seen::Rejection(rejection));
            }
        };
        let seen = match self.call(parts, asked, &buffered, token_until) {
            Ok(Some(call)) if is_in_hand(parts, call.id) => Seen::Nothing,
            Ok(Some(call)) => Seen::Call(Box::new(call)),
            Ok(None) => Seen::Nothing,
            Err(rejection) => Seen::Rejection(rejection),
        };
        (buffered.body(), seen)
    }

    /// What the head of a guarded request asks for; `None` if it is not guarded.
    async fn ask(&self, parts: &mut Parts) -> Result<Option<Asked>, Rejection> {
        let ask = match self.read_key(parts)? {
            Ask::No => return Ok(None),
            ask => ask,
        };
        let principal = self.find_principal(parts).await.map_err(|why| match why {
            Unfound::Rejection(rejection) => rejection,
            #[cfg(feature = "axum")]
            Unfound::Refusal(_) => super::service::MISSING,
        });
        self.ask_as(principal, parts, ask).map(Some)
    }

    /// Calls the inner service, and writes the outcome if a guarding layer would have run an
    /// attempt.
    async fn run<S, RB>(
        &self,
        inner: S,
        parts: Parts,
        body: Body,
        prediction: Prediction,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<RB>>,
        S::Error: 'static,
        RB: http_body::Body<Data = Bytes> + Send + 'static,
        RB::Error: Into<BoxError>,
    {
        let Prediction { would, attempt } = prediction;
        let called = forward_request(inner, parts, body);
        let Some(mut attempt) = attempt else {
            return marked(called.await, would);
        };
        match attempt.run(called).await {
            Ok(response) => {
                let status = response.status().as_u16();
                attempt
                    .end(match work::class_of(&response, &self.policy) {
                        Class::Keep => Outcome::Kept {
                            status,
                            answer: None,
                        },
                        Class::Release => Outcome::Released {
                            status: Some(status),
                        },
                        Class::Unknown => Outcome::Lost(Loss::Answered(status)),
                    })
                    .await;
                marked(Ok(response), would)
            }
            Err(error) => {
                attempt.end(ended_by(&error)).await;
                Err(error)
            }
        }
    }
}

/// The outcome that an error means for the attempt. The error is only inspected, because it is
/// passed on as it is; it may be one of our error types, or a box of one.
fn ended_by<E: 'static>(error: &E) -> Outcome {
    let error = error as &dyn std::any::Any;
    let boxed = error.downcast_ref::<BoxError>();
    if error.is::<NeverDispatched>() || boxed.is_some_and(|error| error.is::<NeverDispatched>()) {
        return Outcome::Released { status: None };
    }
    let timed_out = error.is::<TimedOut>() || boxed.is_some_and(|error| error.is::<TimedOut>());
    Outcome::Lost(if timed_out {
        Loss::TimedOut
    } else {
        Loss::NoAnswer
    })
}

/// The result of reading a request.
enum Seen {
    /// The request would not have been guarded.
    Nothing,
    /// The request would have been refused before the store was asked.
    Rejection(Rejection),
    Call(Box<Call>),
}

fn marked<E>(response: Result<Response<Body>, E>, would: Would) -> Result<Response<Body>, E> {
    response.map(|mut response| {
        response.extensions_mut().insert(would);
        response
    })
}
