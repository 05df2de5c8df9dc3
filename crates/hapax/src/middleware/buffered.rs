//! Request bodies of guarded requests: read whole, in memory or into a file, with everything that has to be known of them.

use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hapax_core::fingerprint::{Finder, Fingerprint, FingerprintPolicy, Fingerprinter, Found, Pointer, RequestHead};
use hapax_core::planted::{self, Bug};
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::scope::Scope;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;

use super::BoxError;
use super::body::Body;
use crate::once::{Fingerprinting, Request};

/// A request body that has been read whole, and can be read again.
pub(super) struct Buffered {
    scope: Arc<Scope>,
    target: String,
    headers: HeaderMap,
    content: Content,
    trailers: Option<HeaderMap>,
    fingerprint: Fingerprint,
    found: Option<Found>,
}

enum Content {
    Memory(Bytes),
    File { file: Arc<File>, len: u64 },
}

/// A body that could not be read whole.
pub(super) struct Stopped {
    pub(super) rejection: Rejection,
    basin: Basin,
    /// What was read and found no place.
    last: Bytes,
    /// What it broke off with.
    error: Option<BoxError>,
}

impl Stopped {
    /// The body as it came: what was read of it, then the rest, or where it broke off.
    pub(super) fn resume<B>(self, rest: B) -> Body
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let rest = match self.error {
            Some(error) => Body::broken(error),
            None => Body::streamed(rest),
        };
        self.basin.pour_out().then(Body::from(self.last)).then(rest)
    }
}

impl Buffered {
    /// Reads a body within the policy's limits. It is fingerprinted on the way, and the values at `pointers` are found.
    pub(super) async fn read<B>(
        parts: &Parts,
        scope: Arc<Scope>,
        target: &str,
        body: &mut B,
        policy: &Policy,
        pointers: &[Pointer],
    ) -> Result<Buffered, Box<Stopped>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let mut basin = Basin::new(policy.body_memory_bytes_max);
        let stop = |rejection, basin, last, error| Err(Box::new(Stopped { rejection, basin, last, error }));
        let too_large = Rejection::BodyTooLarge { bytes_max: policy.body_bytes_max };
        // What is announced as too large need not be read to be refused.
        if body.size_hint().lower() > policy.body_bytes_max {
            return stop(too_large, basin, Bytes::new(), None);
        }
        let mut fingerprinter = Fingerprinter::new(&policy.fingerprint, &request_head(&scope, target, &parts.headers));
        let mut finder = (!pointers.is_empty()).then(|| Finder::new(pointers.to_vec()));
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let data = match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => data,
                Ok(Err(frame)) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
                Err(error) => return stop(Rejection::BodyUnreadable, basin, Bytes::new(), Some(error.into())),
            };
            if basin.len() + data.len() as u64 > policy.body_bytes_max {
                return stop(too_large, basin, data, None);
            }
            fingerprinter.update(&data);
            if let Some(finder) = &mut finder {
                finder.update(&data);
            }
            if let Err(error) = basin.pour(&data).await {
                return stop(spill_failed(&error), basin, Bytes::new(), None);
            }
        }
        // HTTP libraries may end a body that broke off as if it were whole; its declared length tells.
        let is_cut_off = declared_length(&parts.headers).is_some_and(|length| length != basin.len());
        if is_cut_off && !planted::is(Bug::CutOffBodyIsWhole) {
            return stop(Rejection::BodyUnreadable, basin, Bytes::new(), Some("the body is not as long as was declared".into()));
        }
        let content = match basin.settle().await {
            Ok(content) => content,
            Err((error, basin)) => return stop(spill_failed(&error), basin, Bytes::new(), None),
        };
        Ok(Buffered {
            content,
            scope,
            target: target.to_owned(),
            headers: parts.headers.clone(),
            trailers,
            fingerprint: fingerprinter.finish(),
            found: finder.map(Finder::finish),
        })
    }

    /// The body from its beginning.
    pub(super) fn body(&self) -> Body {
        match &self.content {
            Content::Memory(data) => Body::whole(data.clone(), self.trailers.clone()),
            Content::File { file, len } => Body::spilled(file.clone(), *len, self.trailers.clone()),
        }
    }

    /// What was found in it; `None` if nothing was looked for.
    pub(super) fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }
}

impl Request for Buffered {
    fn fingerprint<'a>(&'a self, policy: &'a Arc<FingerprintPolicy>) -> Fingerprinting<'a> {
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

/// How long the body is, as the head says. One that says it twice was judged by the HTTP library.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
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
        // Before it is let go of in memory: what could not be written must still be somewhere.
        file.flush().await?;
        self.spilled += self.memory.len() as u64;
        self.memory.clear();
        Ok(())
    }

    async fn settle(mut self) -> Result<Content, (io::Error, Basin)> {
        if self.file.is_none() {
            return Ok(Content::Memory(self.memory.freeze()));
        }
        if let Err(error) = self.spill().await {
            return Err((error, self));
        }
        let file = self.file.take().expect("a spilled body has a file");
        Ok(Content::File { file: Arc::new(file.into_std().await), len: self.spilled })
    }

    /// What was collected so far.
    fn pour_out(self) -> Body {
        let memory = Body::from(self.memory.freeze());
        // Nothing is on its way to the file: each piece was flushed, or is still in memory.
        match self.file.map(tokio::fs::File::try_into_std) {
            Some(Ok(file)) => Body::spilled(Arc::new(file), self.spilled, None).then(memory),
            Some(Err(_)) if self.spilled > 0 => Body::broken("a spilled body cannot be read back".into()),
            _ => memory,
        }
    }
}
