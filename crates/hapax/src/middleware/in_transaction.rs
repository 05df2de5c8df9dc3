//! A guard that answers each request in one transaction: what the layer needs of it. How it is done
//! is in `join/guard.rs`, since it needs the drivers.

use std::pin::Pin;
use std::sync::Arc;

use hapax_core::rejection::Rejection;
use http::{Extensions, Response};

use super::body::Body;
use crate::once::{Call, Ended, Engine, Operation, Reply};

/// The result of answering a call.
pub(crate) type Driven = Result<Reply<Result<Response<Body>, Rejection>>, Rejection>;

pub(crate) type Driving = Pin<Box<dyn Future<Output = Driven> + Send>>;

/// Calls the inner service. The extensions are added to the request.
pub(crate) type Work = Box<dyn FnOnce(Operation, Extensions) -> Working + Send>;

pub(crate) type Working =
    Pin<Box<dyn Future<Output = Ended<Result<Response<Body>, Rejection>>> + Send>>;

/// Answers calls, each in one transaction.
pub(crate) trait InTransaction: Send + Sync {
    fn drive(&self, engine: Arc<Engine>, call: Call, work: Work) -> Driving;
}
