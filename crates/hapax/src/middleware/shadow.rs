//! The shadow: a layer that only watches. What would have been replayed or refused is counted, and
//! everything is let through.
//!
//! The inner service is called on the request's own future, with the request as it came: no second
//! task, no key rewritten, no coding asked for. A caller that hangs up ends the work as it would
//! without this layer, and the record lapses. Of what only Hapax may say the request is rid, as any
//! request that passes; the answer is nobody's business but the service's.
//!
//! To know what would have been there must be records. They are made in a namespace of their own,
//! so that nothing of this is left when the shadow is turned off, and without answers. The body is
//! read before it is passed on, since the fingerprint covers it.

use std::sync::Arc;

use bytes::Bytes;
use hapax_core::outcome::{Class, Loss, Outcome};
use hapax_core::rejection::Rejection;
use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use super::body::Body;
use super::layer::Shared;
use super::service::{NeverDispatched, TimedOut, hand_on, is_in_hand};
use super::{BoxError, answer, work};
use crate::observe::{Event, Subject, Would};
use crate::once::{Call, Foreseen};

impl Shared {
    /// Lets a request through, whatever would have become of it.
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
        let (body, seen) = self.look(&parts, body).await;
        answer::strip_ours(&mut parts.headers);
        let foreseen = match seen {
            Seen::Nothing => return hand_on(inner, parts, body).await,
            Seen::Rejection(rejection) => {
                let would = Would::Reject(rejection);
                self.hapax.observe(&Event::Shadowed {
                    subject: None,
                    would: &would,
                });
                return marked(hand_on(inner, parts, body).await, would);
            }
            Seen::Call(call) => {
                let foreseen = self.hapax.engine().foresee(&call).await;
                let subject = Some(Subject {
                    scope: &call.scope,
                    id: call.id,
                });
                self.hapax.observe(&Event::Shadowed {
                    subject,
                    would: &foreseen.would,
                });
                foreseen
            }
        };
        self.run(inner, parts, body, foreseen).await
    }

    /// What the request says, and its body to pass on.
    async fn look<B>(&self, parts: &Parts, body: B) -> (Body, Seen)
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let asked = match self.read_head(parts) {
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

    /// Calls the inner service, and writes down what it would have ended in if this would have been
    /// an attempt.
    async fn run<S, RB>(
        &self,
        inner: S,
        parts: Parts,
        body: Body,
        foreseen: Foreseen,
    ) -> Result<Response<Body>, S::Error>
    where
        S: Service<Request<Body>, Response = Response<RB>>,
        S::Error: 'static,
        RB: http_body::Body<Data = Bytes> + Send + 'static,
        RB::Error: Into<BoxError>,
    {
        let Foreseen { would, attempt } = foreseen;
        let called = hand_on(inner, parts, body);
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

/// What an error says of the attempt. Looked at from outside, since the error goes on as it is: the
/// word itself, or the word in a box.
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

/// What a request turned out to be.
enum Seen {
    /// Nothing that would have been guarded.
    Nothing,
    /// Refused before anything was asked of the store.
    Rejection(Rejection),
    Call(Box<Call>),
}

fn marked<E>(response: Result<Response<Body>, E>, would: Would) -> Result<Response<Body>, E> {
    response.map(|mut response| {
        response.extensions_mut().insert(would);
        response
    })
}
