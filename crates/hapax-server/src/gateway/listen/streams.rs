//! Timeouts for the streams of an HTTP/2 connection: a client that does not read an answer loses
//! it, and a connection without streams is closed after a while.
//!
//! The protocol lets a client keep a window of zero and still answer every ping. The library
//! regards that connection as healthy, while each answer that the client does not read holds a
//! connection to the upstream.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hapax::Body;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::Timeouts;
use crate::gateway::BoxError;

/// Limit on the bytes handed to the library at once. The library asks for more when the client has
/// read these, and does not report partial progress. So a client must read this much, or the
/// remainder, within each `timeouts.stall`.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// The streams of one connection. Clones share them.
#[derive(Clone)]
pub(super) struct Streams(Arc<Mutex<Inside>>);

struct Inside {
    next: u64,
    open: BTreeMap<u64, Arc<Mutex<State>>>,
    /// Since when no stream is open; before the first stream, since the connection began.
    idle_since: Instant,
    is_used: bool,
}

/// The state of one stream.
enum State {
    /// The request has no answer yet.
    Asked,
    Answering(Answering),
    /// The client did not read the answer in time.
    GivenUp,
}

struct Answering {
    body: Body,
    /// The remainder of a frame that was too large to hand over at once.
    rest: Bytes,
    /// Since when there are bytes for the client to read.
    offered: Option<Instant>,
}

/// A stream, from its request to the end of its answer.
pub(super) struct Stream {
    streams: Streams,
    number: u64,
    state: Arc<Mutex<State>>,
}

/// The body of an answer, dropped if the client does not read it in time.
pub(super) struct Paced(Stream);

impl Streams {
    pub(super) fn new() -> Streams {
        Streams(Arc::new(Mutex::new(Inside {
            next: 0,
            open: BTreeMap::new(),
            idle_since: Instant::now(),
            is_used: false,
        })))
    }

    /// Registers a new stream.
    pub(super) fn begin(&self) -> Stream {
        let state = Arc::new(Mutex::new(State::Asked));
        let mut inside = self.0.lock();
        let number = inside.next;
        inside.next += 1;
        inside.is_used = true;
        inside.open.insert(number, state.clone());
        Stream {
            streams: self.clone(),
            number,
            state,
        }
    }

    /// Drops the answers that clients do not read. Returns whether the connection has been without
    /// streams for too long.
    pub(super) fn look(&self, timeouts: &Timeouts) -> bool {
        let now = Instant::now();
        let inside = self.0.lock();
        for state in inside.open.values() {
            state.lock().look(now, timeouts);
        }
        let patience = if inside.is_used {
            timeouts.keep_alive
        } else {
            timeouts.header
        };
        inside.open.is_empty() && now.duration_since(inside.idle_since) >= patience
    }
}

impl State {
    fn look(&mut self, now: Instant, timeouts: &Timeouts) {
        if let State::Answering(Answering {
            offered: Some(since),
            ..
        }) = self
            && now.duration_since(*since) >= timeouts.stall
        {
            // Dropping the body also drops the upstream connection that it comes from.
            *self = State::GivenUp;
        }
    }
}

impl Stream {
    /// Wraps the answer to the stream's request.
    pub(super) fn answer(self, response: Response<Body>) -> Response<Paced> {
        response.map(|body| {
            *self.state.lock() = State::Answering(Answering {
                body,
                rest: Bytes::new(),
                offered: Some(Instant::now()),
            });
            Paced(self)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut inside = self.streams.0.lock();
        inside.open.remove(&self.number);
        if inside.open.is_empty() {
            inside.idle_since = Instant::now();
        }
    }
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self.0.state.lock() {
            State::Answering(answering) => answering.poll_piece(cx),
            State::Asked | State::GivenUp => Poll::Ready(Some(Err(
                "the client did not take its answer in time".into(),
            ))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(&*self.0.state.lock(), State::Answering(answering) if answering.rest.is_empty() && answering.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match &*self.0.state.lock() {
            State::Answering(answering) if answering.rest.is_empty() => answering.body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl Answering {
    /// The library calls this when the client has room for more.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.rest.is_empty() {
            let frame = match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => frame,
                other => {
                    self.offered = None;
                    return other;
                }
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(frame) => return Poll::Ready(Some(Ok(frame))),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES_MAX));
        self.offered = Some(Instant::now());
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

#[cfg(test)]
mod tests {
    use http_body::Body as _;
    use http_body_util::BodyExt;

    use super::*;

    fn timeouts() -> Timeouts {
        Timeouts::default()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_given_up_and_one_that_is_waited_for_is_not() {
        let streams = Streams::new();
        let (sender, waiting) = tokio::sync::mpsc::channel::<Bytes>(1);
        let mut waited_for = streams
            .begin()
            .answer(Response::new(Body::streamed(Channel(waiting))));
        let mut not_taken = streams
            .begin()
            .answer(Response::new(Body::from("an answer")));
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(
                Pin::new(waited_for.body_mut()).poll_frame(cx).is_pending()
            ))
            .await
        );

        tokio::time::advance(timeouts().stall).await;
        assert!(!streams.look(&timeouts()), "there are streams");
        assert!(not_taken.body_mut().frame().await.unwrap().is_err());
        sender.send(Bytes::from_static(b"late")).await.unwrap();
        assert_eq!(
            waited_for
                .body_mut()
                .frame()
                .await
                .unwrap()
                .unwrap()
                .into_data()
                .unwrap(),
            "late"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_between_its_streams_only() {
        let streams = Streams::new();
        tokio::time::advance(timeouts().header).await;
        assert!(streams.look(&timeouts()), "it never asked for anything");

        let stream = streams.begin();
        tokio::time::advance(timeouts().keep_alive).await;
        assert!(!streams.look(&timeouts()), "it waits for its answer");
        drop(stream);
        tokio::time::advance(timeouts().keep_alive / 2).await;
        assert!(!streams.look(&timeouts()));
        tokio::time::advance(timeouts().keep_alive / 2).await;
        assert!(streams.look(&timeouts()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_is_taken_in_pieces_each_of_which_has_its_time() {
        let streams = Streams::new();
        let mut answer = streams
            .begin()
            .answer(Response::new(Body::from(vec![b'x'; PIECE_BYTES_MAX + 1])));
        let mut sizes = Vec::new();
        while let Some(frame) = answer.body_mut().frame().await {
            sizes.push(frame.unwrap().into_data().unwrap().len());
            tokio::time::advance(timeouts().stall * 3 / 4).await;
            streams.look(&timeouts());
        }
        assert_eq!(sizes, [PIECE_BYTES_MAX, 1]);
    }

    /// A body that yields the received bytes as frames.
    struct Channel(tokio::sync::mpsc::Receiver<Bytes>);

    impl http_body::Body for Channel {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            self.0
                .poll_recv(cx)
                .map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }
}
