//! Request bodies of guarded requests: read whole, into memory or a file, with their fingerprint
//! and the values the policy looks for.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hapax_core::fingerprint::{
    Finder, Fingerprint, FingerprintPolicy, Fingerprinter, Found, Pointer, RequestHead,
};
use hapax_core::policy::Policy;
use hapax_core::rejection::Rejection;
use hapax_core::scope::Scope;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body_util::BodyExt;

use super::BoxError;
use super::body::{Body, SpillFile};
use crate::Peer;
use crate::budget::{BodyBudget, Full, Place, Reservation, Reserved};
use crate::once::{Fingerprinting, Request};

/// The bytes of a spilled body that are in memory at a time: while it is written, and while it is
/// read back.
const SPILL_PIECE_BYTES: usize = 64 << 10;

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
    File { file: Arc<SpillFile>, len: u64 },
}

/// A body that could not be read whole.
pub(super) struct Stopped {
    pub(super) rejection: Rejection,
    buffer: BodyBuffer,
    /// Data that was read but could not be buffered.
    last: Bytes,
    /// The error of the request body, if that is why reading stopped.
    error: Option<BoxError>,
}

impl Stopped {
    /// The body as the client sent it: the buffered part, then the rest or the error.
    pub(super) fn resume<B>(self, rest: B) -> Body
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let rest = match self.error {
            Some(error) => Body::broken(error),
            None => Body::streamed(rest),
        };
        self.buffer
            .into_body()
            .then(Body::from(self.last))
            .then(rest)
    }
}

impl Buffered {
    /// Reads a body within the policy's limits and the budget. Computes its fingerprint and finds
    /// the values at `pointers` on the way.
    pub(super) async fn read<B>(
        parts: &Parts,
        scope: Arc<Scope>,
        target: &str,
        body: &mut B,
        policy: &Policy,
        pointers: &[Pointer],
        budget: &Arc<BodyBudget>,
    ) -> Result<Buffered, Box<Stopped>>
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let mut buffer = BodyBuffer::new(budget, parts.extensions.get().copied(), policy);
        let stop = |rejection, buffer, last, error| {
            Err(Box::new(Stopped {
                rejection,
                buffer,
                last,
                error,
            }))
        };
        let bytes_max = buffer.bytes_max;
        let too_large = Rejection::BodyTooLarge { bytes_max };
        // A body whose declared length is over a limit is refused without being read.
        let declared = body.size_hint().lower();
        if declared > bytes_max {
            return stop(too_large, buffer, Bytes::new(), None);
        }
        if let Err(full) = buffer.reserve(declared) {
            return stop(no_room(&full.into()), buffer, Bytes::new(), None);
        }
        let mut fingerprinter = Fingerprinter::new(
            &policy.fingerprint,
            &request_head(&scope, target, &parts.headers),
        );
        let mut finder = (!pointers.is_empty()).then(|| Finder::new(pointers.to_vec()));
        let mut trailers = None;
        while let Some(frame) = body.frame().await {
            let data = match frame.map(http_body::Frame::into_data) {
                Ok(Ok(data)) => data,
                Ok(Err(frame)) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
                Err(error) => {
                    return stop(
                        Rejection::BodyUnreadable,
                        buffer,
                        Bytes::new(),
                        Some(error.into()),
                    );
                }
            };
            if buffer.len() + data.len() as u64 > bytes_max {
                return stop(too_large, buffer, data, None);
            }
            fingerprinter.update(&data);
            if let Some(finder) = &mut finder {
                finder.update(&data);
            }
            if let Err(error) = buffer.add(&data).await {
                return stop(no_room(&error), buffer, data, None);
            }
        }
        // HTTP libraries may end a truncated body as if it were complete; the declared length
        // reveals it.
        let is_cut_off =
            declared_length(&parts.headers).is_some_and(|length| length != buffer.len());
        if is_cut_off {
            return stop(
                Rejection::BodyUnreadable,
                buffer,
                Bytes::new(),
                Some("the body is not as long as was declared".into()),
            );
        }
        let content = match buffer.finish().await {
            Ok(content) => content,
            Err((error, buffer)) => return stop(no_room(&error), buffer, Bytes::new(), None),
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
        self.body_with(self.trailers.clone())
    }

    /// The body of a guarded request, without its trailers: they are not part of the fingerprint
    /// and do not identify the caller, so two requests that differ only in trailers are the same.
    pub(super) fn guarded_body(&self) -> Body {
        self.body_with(None)
    }

    fn body_with(&self, trailers: Option<HeaderMap>) -> Body {
        match &self.content {
            Content::Memory(data) => Body::whole(data.clone(), trailers),
            Content::File { file, len } => Body::spilled(file.clone(), *len, trailers),
        }
    }

    /// The values found in the body; `None` if the policy looks for none.
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
            // The record was made under another fingerprint policy: read the body again.
            let mut fingerprinter = Fingerprinter::new(
                policy,
                &request_head(&self.scope, &self.target, &self.headers),
            );
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
    let headers = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    RequestHead {
        scope,
        target,
        headers,
    }
}

/// The declared `Content-Length`. The HTTP library has already judged requests with several.
fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Why a part of a body found no room.
#[derive(Debug, thiserror::Error)]
enum NoRoom {
    #[error(transparent)]
    Full(#[from] Full),
    /// The spill directory is full or missing.
    #[error("{0}")]
    Spill(#[from] io::Error),
}

fn no_room(error: &NoRoom) -> Rejection {
    match error {
        // Not logged as a warning, so that a flood of requests cannot fill the log: rejections are
        // counted.
        NoRoom::Full(full) => tracing::debug!(%full, "a request body was refused"),
        NoRoom::Spill(error) => {
            tracing::error!(%error, "a request body could not be written to the spill directory");
        }
    }
    Rejection::BufferFull
}

/// Collects a body: in memory while it is small, else in an unnamed file that disappears when it is
/// closed.
struct BodyBuffer {
    memory: BytesMut,
    /// The largest body that stays in memory.
    memory_max: usize,
    /// The largest body that can be held: the policy's limit, or the budget's if that is lower.
    bytes_max: u64,
    /// The bytes of a spilled body that may be in memory.
    piece_max: usize,
    file: Option<Arc<SpillFile>>,
    /// The number of bytes in the file.
    spilled: u64,
    reservation: Arc<Reservation>,
}

impl BodyBuffer {
    fn new(budget: &Arc<BodyBudget>, peer: Option<Peer>, policy: &Policy) -> Self {
        let memory_share = usize::try_from(budget.share(peer, Place::Memory)).unwrap_or(usize::MAX);
        let memory_max = policy.body_memory_bytes_max.min(memory_share);
        let bytes_max = policy
            .body_bytes_max
            .min(budget.share(peer, Place::Disk).max(memory_max as u64));
        let piece_max = SPILL_PIECE_BYTES.min(memory_share);
        let reservation = budget.reservation(peer);
        BodyBuffer {
            memory: BytesMut::new(),
            memory_max,
            bytes_max,
            piece_max,
            file: None,
            spilled: 0,
            reservation,
        }
    }

    fn len(&self) -> u64 {
        self.spilled + self.memory.len() as u64
    }

    /// Reserves room for a body of at least this length.
    fn reserve(&self, len: u64) -> Result<(), Full> {
        if !self.is_on_disk(len) {
            return self.reservation.grow_to(Place::Memory, len);
        }
        self.reservation
            .grow_to(Place::Memory, self.piece_max as u64)?;
        self.reservation.grow_to(Place::Disk, len)
    }

    fn is_on_disk(&self, len: u64) -> bool {
        self.file.is_some()
            || len > self.memory_max as u64
            || self.reservation.reserved(Place::Disk) > 0
    }

    /// Takes the next part of the body. On an error that part is not held, but everything before it
    /// is.
    async fn add(&mut self, data: &Bytes) -> Result<(), NoRoom> {
        let len = self.len() + data.len() as u64;
        if !self.is_on_disk(len) {
            return Ok(self.add_in_memory(data)?);
        }
        self.reserve(len)?;
        if self.file.is_none() || self.memory.len() + data.len() > self.piece_max {
            self.flush().await?;
        }
        if data.len() > self.piece_max {
            self.write(data.clone()).await?;
        } else {
            self.memory.extend_from_slice(data);
        }
        Ok(())
    }

    /// Reserves what is allocated. Without a declared length, the allocation doubles each time.
    fn add_in_memory(&mut self, data: &Bytes) -> Result<(), Full> {
        let needed = self.memory.len() + data.len();
        let reserved =
            usize::try_from(self.reservation.reserved(Place::Memory)).unwrap_or(usize::MAX);
        let room = if needed <= reserved {
            reserved
        } else {
            needed.max((2 * reserved).min(self.memory_max))
        };
        self.reservation.grow_to(Place::Memory, room as u64)?;
        if self.memory.capacity() < room {
            self.memory.reserve(room - self.memory.len());
        }
        self.memory.extend_from_slice(data);
        Ok(())
    }

    /// Writes the buffered bytes to the file. On an error they stay in memory.
    async fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.memory).freeze();
        if let Err(error) = self.write(piece.clone()).await {
            self.memory = BytesMut::from(piece);
            return Err(error);
        }
        drop(piece);
        self.reservation.shrink_memory_to(self.piece_max as u64);
        self.memory.reserve(self.piece_max);
        Ok(())
    }

    async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        let file = self.file.clone();
        let (at, len) = (self.spilled, piece.len() as u64);
        // If the client hangs up, this write continues, and holds the reservation until it is done.
        let reservation = self.reservation.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(SpillFile {
                    file: reservation.budget().create_file()?,
                    _reservation: reservation.clone(),
                }),
            };
            file.file.write_all_at(&piece, at)?;
            drop((piece, reservation));
            Ok::<_, io::Error>(file)
        });
        self.file = Some(writing.await.map_err(io::Error::other)??);
        self.spilled += len;
        Ok(())
    }

    async fn finish(mut self) -> Result<Content, (NoRoom, BodyBuffer)> {
        if !self.is_on_disk(self.len()) {
            return Ok(Content::Memory(self.into_bytes()));
        }
        if !self.memory.is_empty()
            && let Err(error) = self.flush().await
        {
            return Err((error.into(), self));
        }
        match self.file {
            Some(file) => Ok(Content::File {
                file,
                len: self.spilled,
            }),
            // A long body was declared, but no data came.
            None => Ok(Content::Memory(Bytes::new())),
        }
    }

    /// The part of the body collected so far.
    fn into_body(self) -> Body {
        let spilled = self
            .file
            .clone()
            .map(|file| Body::spilled(file, self.spilled, None));
        let memory = Body::from(self.into_bytes());
        match spilled {
            Some(spilled) => spilled.then(memory),
            None => memory,
        }
    }

    /// The bytes in memory. They hold the reservation until their last copy is dropped.
    fn into_bytes(self) -> Bytes {
        if self.memory.is_empty() {
            return Bytes::new();
        }
        let bytes = self.memory.freeze();
        Bytes::from_owner(Reserved {
            bytes,
            _reservation: self.reservation,
        })
    }
}
