//! What stands between a client's connection and the HTTP library: only what is plainly one request
//! after another passes.
//!
//! HTTP libraries are lenient, and two that are lenient in different ways see different requests in
//! the same bytes. So every byte of an HTTP/1 connection is read by a [`Scanner`] first, which
//! follows the framing by the letter of RFC 9112; [`Wire`] holds a head back until all of it is
//! good. What is refused never reaches the library: in its place the service is given a request
//! that its [`Handle`] knows to be refused, answers it, and the connection closes. Over HTTP/2 the
//! framing is the protocol's own; [`check_http2`] looks at what is left.
//!
//! ```ignore
//! let (wire, handle) = Wire::new(socket, sniffed, settings.clone());
//! let service = service_fn(move |request| match handle.next_request() {
//!     (Some(refusal), _) => answer(refusal.status(), refusal.sentence()),
//!     (None, body_end) => serve(request, body_end),
//! });
//! http1::Builder::new().half_close(true).serve_connection(wire, service).with_upgrades().await
//! ```

mod alarm;
mod class;
mod handle;
mod head;
mod host;
mod http2;
mod io;
mod linger;
mod meter;
mod refusal;
mod scan;
mod settings;
#[cfg(test)]
mod tests;

pub(crate) use handle::{BodyEnd, Handle};
pub(crate) use http2::check_http2;
pub(crate) use io::Wire;
pub(crate) use refusal::Refusal;
pub(crate) use scan::Scanner;
pub(crate) use settings::{Limits, Pace, Settings};
