//! A client's connection as the HTTP library reads and writes it.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::alarm::Alarm;
use super::linger::Linger;
use super::meter::{Meter, TooSlow};
use super::{Handle, Refusal, Scanner, Settings};

/// Given to the service in place of a refused request. Its answer is the last on the connection.
const REPLACEMENT: &[u8] = b"GET / HTTP/1.1\r\nhost: refused\r\nconnection: close\r\n\r\n";

/// The limit on the bytes of one read.
const SCRATCH_BYTES: usize = 64 << 10;

thread_local! {
    // One per thread and not per connection: ten thousand idle connections must not hold ten
    // thousand buffers.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A client's connection, from which the HTTP library reads only well-formed requests.
///
/// The HTTP library must be set to allow half-closed connections. It then reads nothing between a
/// request and its answer, so the bytes after an upgrade request wait for that answer.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    scanner: Scanner,
    handle: Handle,
    settings: Settings,
    /// Bytes that were read and not yet passed on. The first `cleared` of them are good.
    held: BytesMut,
    cleared: usize,
    refused: Option<Refusal>,
    /// Nothing more is read: the client closed its side, or was idle for too long.
    ended: bool,
    closed: bool,
    head_since: Option<Instant>,
    idle_since: Option<Instant>,
    reading: Meter,
    writing: Meter,
    alarm: Alarm,
    linger: Linger,
}

/// What the connection is waiting for from the client.
enum Awaited {
    Request,
    Head,
    Body,
    AnotherProtocol,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    /// Wraps a connection. `sniffed` holds the bytes already read to detect the protocol.
    pub(crate) fn new(stream: S, sniffed: BytesMut, settings: Settings) -> (Wire<S>, Handle) {
        let handle = Handle::default();
        let mut wire = Wire {
            stream,
            scanner: Scanner::new(settings.limits.clone()),
            handle: handle.clone(),
            settings,
            held: sniffed,
            cleared: 0,
            refused: None,
            ended: false,
            closed: false,
            head_since: None,
            idle_since: None,
            reading: Meter::default(),
            writing: Meter::default(),
            alarm: Alarm::default(),
            linger: Linger::default(),
        };
        wire.scan_held();
        (wire, handle)
    }

    /// Passes on bytes that are known to be good. Returns false if there are none.
    fn hand_over(&mut self, cursor: &mut ReadBufCursor<'_>) -> bool {
        let length = self.cleared.min(cursor.remaining());
        if length == 0 {
            return false;
        }
        cursor.put_slice(&self.held[..length]);
        self.held.advance(length);
        self.cleared -= length;
        if self.held.is_empty() {
            // Frees the buffer: most heads arrive whole, so it is seldom needed again.
            self.held = BytesMut::new();
        }
        true
    }

    fn scan_held(&mut self) {
        let before = self.scanner.requests();
        let scan = self.scanner.scan(&self.held);
        self.scanned(before);
        self.cleared = scan.good;
        if let Some(refusal) = scan.refused {
            self.refuse(refusal);
        }
    }

    /// Scans the bytes just read: good ones go straight into the library's buffer, and undecided
    /// ones are held back.
    fn take(&mut self, read: &[u8], cursor: &mut ReadBufCursor<'_>) {
        if !self.held.is_empty() {
            self.held.extend_from_slice(read);
            return self.scan_held();
        }
        let before = self.scanner.requests();
        let scan = self.scanner.scan(read);
        self.scanned(before);
        cursor.put_slice(&read[..scan.good]);
        match scan.refused {
            Some(refusal) => self.refuse(refusal),
            None => self.held.extend_from_slice(&read[scan.good..]),
        }
    }

    fn scanned(&mut self, requests_before: u64) {
        // Recorded before the library gets the last bytes of a body, so that the service never sees
        // the end of a body before this handle knows it.
        self.handle.note_ended(self.scanner.ended());
        if self.scanner.requests() != requests_before {
            self.head_since = None;
            self.reading.rest();
        }
    }

    /// Stops passing on bytes of the client, except those that were already found good.
    fn refuse(&mut self, refusal: Refusal) {
        self.refused = Some(refusal);
        self.held.truncate(self.cleared);
        if self.scanner.in_head() {
            self.handle.refuse(self.scanner.requests(), refusal);
            self.held.extend_from_slice(REPLACEMENT);
        }
        self.cleared = self.held.len();
    }

    /// Resolves an upgrade request. The library reads again after it, so the service has answered
    /// it by now.
    fn settle_upgrade(&mut self) {
        if self.handle.is_open() {
            self.scanner.open();
        } else {
            self.scanner.resume();
        }
        self.scan_held();
    }

    /// The result of a read after a refusal.
    fn poll_refused(&self, refusal: Refusal) -> Poll<io::Result<()>> {
        if self.scanner.in_head() {
            // The service is answering, and then the connection closes; no wake-up is needed.
            Poll::Pending
        } else {
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refusal)))
        }
    }

    /// Checks how long the client has sent nothing, and sets the alarm or ends the connection.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (now, pace) = (Instant::now(), self.settings.pace);
        let deadline = match self.awaited() {
            Awaited::AnotherProtocol => return Poll::Pending,
            // The client is still reading the previous answer, which has its own limit.
            Awaited::Request if self.writing.is_waiting() => {
                *self.idle_since.insert(now) + pace.keep_alive
            }
            Awaited::Request => *self.idle_since.get_or_insert(now) + pace.keep_alive,
            Awaited::Head => *self.head_since.get_or_insert(now) + pace.header,
            Awaited::Body => self
                .reading
                .wait(now, &pace)
                .map_err(|TooSlow| too_slow("send the body of its request"))?,
        };
        if now < deadline {
            self.alarm.set(deadline, cx);
            return Poll::Pending;
        }
        if let Awaited::Head = self.awaited() {
            self.refuse(Refusal::HeadTooSlow);
        } else {
            // As if the client had closed: an unused connection is closed cleanly.
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }

    fn awaited(&self) -> Awaited {
        if self.scanner.is_open() {
            Awaited::AnotherProtocol
        } else if !self.scanner.in_head() {
            Awaited::Body
        } else if matches!(&self.held[..], b"" | b"\r" | b"\r\n") {
            // An empty line does not begin a request: some clients send one after a body.
            Awaited::Request
        } else {
            Awaited::Head
        }
    }

    /// Reads at most as much as fits into the library's buffer.
    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        cursor: &mut ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut scratch = SCRATCH.take();
        scratch.resize(SCRATCH_BYTES, 0);
        let mut buffer = ReadBuf::new(&mut scratch[..cursor.remaining().min(SCRATCH_BYTES)]);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        if let Poll::Ready(Ok(())) = polled {
            self.filled(buffer.filled(), cursor);
        }
        SCRATCH.set(scratch);
        polled
    }

    fn filled(&mut self, read: &[u8], cursor: &mut ReadBufCursor<'_>) {
        if read.is_empty() {
            (self.ended, self.closed) = (true, true);
            // An unfinished request is discarded.
            self.held.truncate(self.cleared);
        } else {
            self.idle_since = None;
            self.reading.progress(read.len());
            self.take(read, cursor);
        }
    }

    fn written(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Ready(Ok(bytes)) => {
                self.writing.progress(bytes);
                // The library asks for the next request before it has written the end of an answer,
                // so the idle time starts again.
                if self.idle_since.is_some() {
                    self.idle_since = Some(Instant::now());
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_taken(cx).map(Err),
        }
    }

    /// Checks how long the client has read nothing, and sets the alarm or fails.
    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self.writing.wait(Instant::now(), &self.settings.pace) {
            Ok(deadline) => {
                self.alarm.set(deadline, cx);
                Poll::Pending
            }
            Err(TooSlow) => Poll::Ready(too_slow("take its answer")),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Read for Wire<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        let room = cursor.remaining();
        loop {
            if wire.hand_over(&mut cursor) || cursor.remaining() < room || room == 0 {
                return Poll::Ready(Ok(()));
            }
            if let Some(refusal) = wire.refused {
                return wire.poll_refused(refusal);
            }
            if wire.scanner.is_paused() {
                wire.settle_upgrade();
                continue;
            }
            if wire.ended {
                return Poll::Ready(Ok(()));
            }
            match wire.poll_fill(cx, &mut cursor) {
                Poll::Ready(filled) => filled?,
                Poll::Pending => ready!(wire.poll_patience(cx))?,
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Wire<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        let polled = Pin::new(&mut wire.stream).poll_write(cx, bytes);
        wire.written(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = self.get_mut();
        let polled = Pin::new(&mut wire.stream).poll_write_vectored(cx, slices);
        wire.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        match Pin::new(&mut wire.stream).poll_flush(cx) {
            Poll::Ready(flushed) => {
                wire.writing.rest();
                Poll::Ready(flushed)
            }
            Poll::Pending => wire.poll_taken(cx).map(Err),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        if wire.scanner.is_open() {
            // The other protocol may continue in the other direction, so its bytes must not be
            // discarded.
            return Pin::new(&mut wire.stream).poll_shutdown(cx);
        }
        match wire
            .linger
            .poll(cx, &mut wire.stream, wire.closed, &mut wire.alarm)
        {
            Poll::Pending if wire.linger.is_open() => wire.poll_taken(cx).map(Err),
            polled => polled,
        }
    }
}

fn too_slow(to: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the client took too long to {to}"),
    )
}
