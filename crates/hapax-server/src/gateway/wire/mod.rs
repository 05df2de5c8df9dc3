//! A strict scanner between a client's connection and the HTTP library: only well-formed requests,
//! one after another, pass.
//!
//! HTTP libraries are lenient, and two that are lenient in different ways see different requests in
//! the same bytes. So a [`Scanner`] reads every byte of an HTTP/1 connection first and follows the
//! framing strictly by RFC 9112; [`Wire`] holds a head back until all of it is good. A refused
//! request never reaches the library: in its place the service gets a request that its [`Handle`]
//! knows to be refused, answers it, and the connection closes. HTTP/2 has its own framing;
//! [`check_http2`] checks the rest.
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
