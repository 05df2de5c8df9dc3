//! Bodies: streamed through where nothing is guarded, held in memory or in a file where something is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hapax_core::fingerprint::{Fingerprint, FingerprintPolicy, Fingerprinter, RequestHead};
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::scope::Scope;
use http::HeaderMap;
use http::request::Parts;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;

use super::BoxError;
use crate::once::Request;

/// How much of a spilled body is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// A request or response body: in memory, in a file, or on its way.
pub struct Body(Kind);

enum Kind {
    Whole { data: Option<Bytes>, trailers: Option<HeaderMap> },
    Spilled(Spilled),
    Streamed { first: Option<Bytes>, rest: UnsyncBoxBody<Bytes, BoxError> },
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
        Body(Kind::Streamed { first: None, rest: UnsyncBoxBody::new(body.map_err(Into::into)) })
    }

    pub(super) fn whole(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Body(Kind::Whole { data: (!data.is_empty()).then_some(data), trailers })
    }

    /// Bytes that were read already, then the rest as it comes.
    pub(super) fn chained<B>(first: Bytes, rest: B) -> Self
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body(Kind::Streamed { first: Some(first), rest: UnsyncBoxBody::new(rest.map_err(Into::into)) })
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

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.get_mut().0 {
            Kind::Whole { data, trailers } => {
                Poll::Ready(data.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers)).map(Ok))
            }
            Kind::Spilled(spilled) => spilled.poll_frame(cx),
            Kind::Streamed { first, rest } => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole { data, trailers } => data.is_none() && trailers.is_none(),
            Kind::Spilled(spilled) => spilled.left == 0 && spilled.trailers.is_none(),
            Kind::Streamed { first, rest } => first.is_none() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole { data, .. } => SizeHint::with_exact(data.as_ref().map_or(0, |data| data.len() as u64)),
            Kind::Spilled(spilled) => SizeHint::with_exact(spilled.left),
            Kind::Streamed { first, rest } => {
                let before = first.as_ref().map_or(0, |first| first.len() as u64);
                let after = rest.size_hint();
                let mut hint = SizeHint::new();
                // The upper bound first: the lower may not pass it, not even for a moment.
                if let Some(upper) = after.upper() {
                    hint.set_upper(upper + before);
                }
                hint.set_lower(after.lower() + before);
                hint
            }
        }
    }
}

/// A body that is read back from its file, chunk by chunk, off the runtime's threads.
struct Spilled {
    file: Arc<File>,
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
            tokio::task::spawn_blocking(move || read_chunk(&file, at, left))
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

/// A request body that has been read whole, and can be read again.
pub(super) struct Buffered {
    scope: Arc<Scope>,
    target: String,
    headers: HeaderMap,
    content: Content,
    trailers: Option<HeaderMap>,
    fingerprint: Fingerprint,
}

enum Content {
    Memory(Bytes),
    File { file: Arc<File>, len: u64 },
}

impl Buffered {
    /// Reads a body within the policy's limits, fingerprinting it on the way.
    pub(super) async fn read<B>(
        parts: &Parts,
        scope: Arc<Scope>,
        target: &str,
        body: B,
        policy: &Policy,
    ) -> Result<Buffered, Rejection>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Send,
    {
        let too_large = Rejection::BodyTooLarge { bytes_max: policy.body_bytes_max };
        // What is announced as too large need not be read to be refused.
        if body.size_hint().lower() > policy.body_bytes_max {
            return Err(too_large);
        }
        let mut body = std::pin::pin!(body);
        let mut fingerprinter = Fingerprinter::new(&policy.fingerprint, &request_head(&scope, target, &parts.headers));
        let (mut basin, mut trailers) = (Basin::new(policy.body_memory_bytes_max), None);
        while let Some(frame) = body.frame().await {
            match frame.map_err(|_| Rejection::BodyUnreadable)?.into_data() {
                Ok(data) => {
                    if basin.len() + data.len() as u64 > policy.body_bytes_max {
                        return Err(too_large);
                    }
                    fingerprinter.update(&data);
                    basin.pour(&data).await.map_err(|error| spill_failed(&error))?;
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        Ok(Buffered {
            content: basin.settle().await.map_err(|error| spill_failed(&error))?,
            scope,
            target: target.to_owned(),
            headers: parts.headers.clone(),
            trailers,
            fingerprint: fingerprinter.finish(),
        })
    }

    /// The body from its beginning.
    pub(super) fn body(&self) -> Body {
        match &self.content {
            Content::Memory(data) => Body::whole(data.clone(), self.trailers.clone()),
            Content::File { file, len } => Body(Kind::Spilled(Spilled {
                file: file.clone(),
                at: 0,
                left: *len,
                reading: None,
                trailers: self.trailers.clone(),
            })),
        }
    }
}

impl Request for Buffered {
    fn fingerprint<'a>(
        &'a self,
        policy: &'a Arc<FingerprintPolicy>,
    ) -> Pin<Box<dyn Future<Output = io::Result<Fingerprint>> + Send + 'a>> {
        Box::pin(async move {
            if *policy == self.fingerprint.policy {
                return Ok(self.fingerprint.clone());
            }
            // The record was made under another policy: read the body again.
            let mut fingerprinter = Fingerprinter::new(policy, &request_head(&self.scope, &self.target, &self.headers));
            let mut body = self.body();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(io::Error::other)?.into_data() {
                    fingerprinter.update(&data);
                }
            }
            Ok(fingerprinter.finish())
        })
    }
}

fn request_head<'a>(scope: &'a Scope, target: &'a str, headers: &'a HeaderMap) -> RequestHead<'a> {
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    RequestHead { scope, target, headers }
}

fn spill_failed(error: &io::Error) -> Rejection {
    tracing::error!(%error, "a request body could not be spilled to a file");
    Rejection::StoreUnavailable
}

/// Collects a body: in memory first, then in a file that has no name and goes when it is closed.
struct Basin {
    memory: BytesMut,
    memory_max: usize,
    file: Option<tokio::fs::File>,
    spilled: u64,
}

impl Basin {
    fn new(memory_max: usize) -> Self {
        Basin { memory: BytesMut::new(), memory_max, file: None, spilled: 0 }
    }

    fn len(&self) -> u64 {
        self.spilled + self.memory.len() as u64
    }

    async fn pour(&mut self, data: &[u8]) -> io::Result<()> {
        self.memory.extend_from_slice(data);
        if self.memory.len() > self.memory_max {
            self.spill().await?;
        }
        Ok(())
    }

    async fn spill(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            empty => {
                let file = tokio::task::spawn_blocking(tempfile::tempfile).await.map_err(io::Error::other)??;
                empty.insert(tokio::fs::File::from_std(file))
            }
        };
        file.write_all(&self.memory).await?;
        self.spilled += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }

    async fn settle(mut self) -> io::Result<Content> {
        if self.file.is_none() {
            return Ok(Content::Memory(self.memory.freeze()));
        }
        self.spill().await?;
        let mut file = self.file.take().expect("a spilled body has a file");
        file.flush().await?;
        Ok(Content::File { file: Arc::new(file.into_std().await), len: self.spilled })
    }
}
