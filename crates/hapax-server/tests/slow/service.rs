//! The service behind the gateway: it answers at once, and signals when an endless answer was given
//! up.

use std::io;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt;

use crate::harness::{Serving, Upstream, whole};

pub struct Service {
    pub upstream: Upstream,
    /// Receives a message when an endless answer was given up.
    pub given_up: Receiver<()>,
}

impl Service {
    pub fn start() -> Service {
        let (sender, given_up) = channel();
        let upstream = Upstream::start(Serving::default(), move |arrived| {
            let sender = sender.clone();
            async move {
                let asked = arrived.read().await?;
                if asked.uri.path() == "/endless" {
                    return Ok(Response::new(Endless(sender).boxed()));
                }
                Ok(whole(200, format!("saw {} {}\n", asked.method, asked.uri)))
            }
        });
        Service { upstream, given_up }
    }
}

struct Endless(Sender<()>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
