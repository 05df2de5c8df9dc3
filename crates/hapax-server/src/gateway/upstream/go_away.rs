//! Which streams of an HTTP/2 connection the upstream will not process.
//!
//! The upstream says so in a `GOAWAY` frame, but hyper does not pass that on: if the frame comes
//! before hyper has finished opening a request's stream, the request fails with an error that names
//! no stream. So this module reads the frames as they pass in and out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client writes this many bytes before its first frame (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;

/// Every frame begins with its length, kind, flags and stream (RFC 9113 section 4.1).
const FRAME_HEAD_BYTES: usize = 9;

/// The payload of a `GOAWAY` begins with the last stream, followed by an error code.
const LAST_STREAM_BYTES: usize = 4;
const GOAWAY_BYTES_MIN: usize = 8;

const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;

/// The newest stream that was opened, and the last one that the upstream processes.
pub(super) struct StreamIds {
    newest_opened: AtomicU32,
    last_processed: AtomicU32,
}

impl StreamIds {
    fn new() -> StreamIds {
        StreamIds {
            newest_opened: AtomicU32::new(0),
            last_processed: AtomicU32::new(u32::MAX),
        }
    }

    /// The newest stream that the gateway has opened; zero before the first.
    pub(super) fn newest_opened(&self) -> u32 {
        self.newest_opened.load(Ordering::Relaxed)
    }

    /// The last stream that the upstream may have processed, according to its latest `GOAWAY`.
    /// Before the first `GOAWAY`, greater than any stream.
    pub(super) fn last_processed(&self) -> u32 {
        self.last_processed.load(Ordering::Relaxed)
    }
}

/// A connection that inspects the frames passing through it.
pub(super) struct Watched<S> {
    stream: S,
    read: Frames,
    written: Frames,
    ids: Arc<StreamIds>,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S) -> Watched<S> {
        Watched {
            stream,
            read: Frames::default(),
            written: Frames::after(PREFACE_BYTES),
            ids: Arc::new(StreamIds::new()),
        }
    }

    pub(super) fn ids(&self) -> Arc<StreamIds> {
        self.ids.clone()
    }

    fn watch_written(&mut self, bytes: &[u8]) {
        self.written.walk(bytes, |kind, stream| {
            if kind == HEADERS {
                // `max`, because trailers of an older stream come in the same kind of frame.
                self.ids.newest_opened.fetch_max(stream, Ordering::Relaxed);
            }
        });
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
        this.read.walk(&buffer.filled()[before..], |kind, stream| {
            if kind == GOAWAY {
                this.ids.last_processed.store(stream, Ordering::Relaxed);
            }
        });
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.watch_written(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
        let mut left = count;
        for slice in slices {
            let written = &slice[..left.min(slice.len())];
            self.watch_written(written);
            left -= written.len();
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Finds the frames in the bytes of one direction, which arrive in pieces of any length.
#[derive(Default)]
struct Frames {
    /// Bytes to skip before the next frame.
    skip: usize,
    /// The part of the next frame's head that has arrived; for a `GOAWAY`, also the last stream.
    head: [u8; FRAME_HEAD_BYTES + LAST_STREAM_BYTES],
    filled: usize,
}

impl Frames {
    fn after(skip: usize) -> Frames {
        Frames {
            skip,
            ..Frames::default()
        }
    }

    /// Calls `found` for each frame with its kind and stream; for a `GOAWAY`, with the last stream
    /// that it names.
    fn walk(&mut self, mut bytes: &[u8], mut found: impl FnMut(u8, u32)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((byte, rest)) = bytes.split_first() else {
                return;
            };
            bytes = rest;
            self.head[self.filled] = *byte;
            self.filled += 1;
            if self.filled < FRAME_HEAD_BYTES {
                continue;
            }
            let [a, b, c, kind, ..] = self.head;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let is_go_away = kind == GOAWAY && length >= GOAWAY_BYTES_MIN;
            let payload = if is_go_away { LAST_STREAM_BYTES } else { 0 };
            if self.filled < FRAME_HEAD_BYTES + payload {
                continue;
            }
            // A `GOAWAY` that is too short names no stream.
            if (is_go_away || kind != GOAWAY)
                && let Some(stream) = self.head[..self.filled].last_chunk()
            {
                // The first bit is reserved.
                found(kind, u32::from_be_bytes(*stream) & (u32::MAX >> 1));
            }
            self.skip = length - payload;
            self.filled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, 0];
        [&head[..], &stream.to_be_bytes(), payload].concat()
    }

    fn go_away(last: u32) -> Vec<u8> {
        frame(
            GOAWAY,
            0,
            &[&last.to_be_bytes()[..], b"\0\0\0\0why"].concat(),
        )
    }

    #[test]
    fn frames_are_found_wherever_the_bytes_are_cut() {
        let data = frame(0, 5, &frame(HEADERS, 99, b""));
        let bytes = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(4, 0, b""),
            frame(HEADERS, 5, b"fields"),
            data,
            go_away(u32::MAX),
            frame(GOAWAY, 0, b"short"),
            frame(HEADERS, (1 << 31) | 7, b""),
            go_away(3),
        ]
        .concat();
        let expected = [
            (4, 0),
            (HEADERS, 5),
            (0, 5),
            (GOAWAY, u32::MAX >> 1),
            (HEADERS, 7),
            (GOAWAY, 3),
        ];
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut frames = Frames::after(PREFACE_BYTES);
                let mut found = Vec::new();
                for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    frames.walk(piece, |kind, stream| found.push((kind, stream)));
                }
                assert_eq!(found, expected, "cut at {first} and {second}");
            }
        }
    }
}
