//! Bodies: streamed through for unguarded requests, held in memory or in a file for guarded ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::task::JoinHandle;

use super::BoxError;
use crate::budget::Reservation;

/// How much of a spilled body is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// A request or response body: in memory, in a file, or on its way.
pub struct Body(Kind);

enum Kind {
    Whole {
        data: Option<Bytes>,
        trailers: Option<HeaderMap>,
    },
    Spilled(Spilled),
    Streamed {
        first: Option<Bytes>,
        rest: UnsyncBoxBody<Bytes, BoxError>,
    },
    /// Two bodies in sequence. The first must have no trailers.
    Joined(Box<[Body; 2]>),
    /// Ends with this error.
    Broken(Option<BoxError>),
}

impl Body {
    /// A body that has no bytes.
    pub fn empty() -> Self {
        Body::whole(Bytes::new(), None)
    }

    /// A body that is passed on as it comes.
    pub fn streamed<B>(body: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body(Kind::Streamed {
            first: None,
            rest: UnsyncBoxBody::new(body.map_err(Into::into)),
        })
    }

    /// Whether the whole body is in memory, so that reading it cannot fail.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.0, Kind::Whole { .. })
    }

    pub(super) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Body(Kind::Whole {
            data: (!data.is_empty()).then_some(data),
            trailers,
        })
    }

    /// A body that was written to a file, read from its beginning.
    pub(super) fn spilled(file: Arc<SpillFile>, len: u64, trailers: Option<HeaderMap>) -> Self {
        Body(Kind::Spilled(Spilled {
            file,
            at: 0,
            left: len,
            reading: None,
            trailers,
        }))
    }

    /// A body that ends with an error.
    pub(super) fn broken(error: BoxError) -> Self {
        Body(Kind::Broken(Some(error)))
    }

    /// This body, which must have no trailers, followed by `next`.
    pub(super) fn then(self, next: Body) -> Self {
        if http_body::Body::is_end_stream(&self) {
            next
        } else {
            Body(Kind::Joined(Box::new([self, next])))
        }
    }

    /// Bytes that were already read, followed by the rest of the stream.
    pub(super) fn chained<B>(first: Bytes, rest: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body(Kind::Streamed {
            first: Some(first),
            rest: UnsyncBoxBody::new(rest.map_err(Into::into)),
        })
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(data: T) -> Self {
        Body::whole(data.into(), None)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Kind::Whole { data, trailers } => Poll::Ready(
                data.take()
                    .map(Frame::data)
                    .or_else(|| trailers.take().map(Frame::trailers))
                    .map(Ok),
            ),
            Kind::Spilled(spilled) => spilled.poll_frame(cx),
            Kind::Streamed { first, rest } => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(rest).poll_frame(cx),
            },
            Kind::Joined(bodies) => match ready!(Pin::new(&mut bodies[0]).poll_frame(cx)) {
                None => Pin::new(&mut bodies[1]).poll_frame(cx),
                frame => Poll::Ready(frame),
            },
            Kind::Broken(error) => Poll::Ready(error.take().map(Err)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Kind::Spilled(spilled) => spilled.left == 0 && spilled.trailers.is_none(),
            Kind::Streamed { first, rest } => first.is_none() && rest.is_end_stream(),
            Kind::Joined(bodies) => bodies.iter().all(http_body::Body::is_end_stream),
            Kind::Broken(error) => error.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole { data, .. } => {
                SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64))
            }
            Kind::Spilled(spilled) => SizeHint::with_exact(spilled.left),
            Kind::Streamed { first, rest } => {
                let before = first.as_ref().map_or(0, |first| first.len() as u64);
                sum(&SizeHint::with_exact(before), &rest.size_hint())
            }
            Kind::Joined(bodies) => sum(&bodies[0].size_hint(), &bodies[1].size_hint()),
            Kind::Broken(_) => SizeHint::default(),
        }
    }
}

fn sum(one: &SizeHint, other: &SizeHint) -> SizeHint {
    let mut hint = SizeHint::new();
    // Set the upper bound first: the lower bound must never exceed it.
    if let (Some(one), Some(other)) = (one.upper(), other.upper()) {
        hint.set_upper(one + other);
    }
    hint.set_lower(one.lower() + other.lower());
    hint
}

/// A file that holds a request body, and the room that was reserved for it.
pub(super) struct SpillFile {
    pub(super) file: File,
    pub(super) _reservation: Arc<Reservation>,
}

/// A body that is read back from its file, chunk by chunk, off the runtime's threads.
struct Spilled {
    file: Arc<SpillFile>,
    at: u64,
    left: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    trailers: Option<HeaderMap>,
}

impl Spilled {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.left == 0 {
            return Poll::Ready(self.trailers.take().map(Frame::trailers).map(Ok));
        }
        let (file, at, left) = (&self.file, self.at, self.left);
        let reading = self.reading.get_or_insert_with(|| {
            let file = file.clone();
            tokio::task::spawn_blocking(move || read_chunk(&file.file, at, left))
        });
        let read = ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        match read.map_err(io::Error::other).flatten() {
            Ok(chunk) => {
                self.at += chunk.len() as u64;
                self.left -= chunk.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(chunk))))
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }
}

fn read_chunk(file: &File, at: u64, left: u64) -> io::Result<Bytes> {
    let mut chunk = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES)];
    file.read_exact_at(&mut chunk, at)?;
    Ok(chunk.into())
}
