//! Detects the protocol of a connection: HTTP/2 begins with a preface that is not a valid HTTP/1.1
//! request.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::gateway::stream::Stream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) enum Spoken {
    Http1,
    Http2,
}

/// Reads as many bytes as needed to decide, and returns them.
pub(super) async fn sniff(stream: &mut Stream) -> io::Result<(Spoken, BytesMut)> {
    let (mut read, mut len) = ([0; PREFACE.len()], 0);
    while len < PREFACE.len() && read[..len] == PREFACE[..len] {
        match stream.read(&mut read[len..]).await? {
            0 if len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => break,
            count => len += count,
        }
    }
    let spoken = if read[..len] == *PREFACE {
        Spoken::Http2
    } else {
        Spoken::Http1
    };
    Ok((spoken, BytesMut::from(&read[..len])))
}

/// A stream whose first bytes were already read; it yields them again.
pub(super) struct Rewound {
    read: BytesMut,
    stream: Stream,
}

impl Rewound {
    pub(super) fn new(read: BytesMut, stream: Stream) -> Self {
        Rewound { read, stream }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let len = self.read.len().min(buffer.remaining());
        buffer.put_slice(&self.read[..len]);
        self.read.advance(len);
        // More bytes may be available: a head that arrived in one piece should be read in one
        // piece.
        match Pin::new(&mut self.stream).poll_read(cx, buffer) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
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
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
