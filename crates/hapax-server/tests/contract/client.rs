//! The protocols of the clients, and the requests of these tests.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;

use crate::harness::{self, ClientRequest, With};

/// Which protocol a client uses with the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub is_http2: bool,
    pub is_tls: bool,
}

const fn way(is_http2: bool, is_tls: bool) -> Way {
    Way { is_http2, is_tls }
}

/// All protocols: the columns of the matrix.
pub const WAYS: [Way; 4] = [
    way(false, false),
    way(false, true),
    way(true, false),
    way(true, true),
];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_http2 { "HTTP/2" } else { "HTTP/1.1" })?;
        f.write_str(if self.is_tls { " TLS" } else { "" })
    }
}

/// A guarded request. Its body tells the upstream what to do.
pub fn post(key: &str, body: &'static str) -> ClientRequest {
    without_key("/do", body).key(key)
}

/// The same without a key.
pub fn without_key(target: &str, body: &'static str) -> ClientRequest {
    harness::post(target, body)
}

/// A body that stalls after its beginning.
pub struct Stalled(Option<Bytes>);

impl Stalled {
    pub fn after(beginning: &'static str) -> BoxBody<Bytes, Infallible> {
        Stalled(Some(Bytes::from_static(beginning.as_bytes()))).boxed()
    }
}

impl http_body::Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(beginning) => Poll::Ready(Some(Ok(Frame::data(beginning)))),
            None => Poll::Pending,
        }
    }
}
