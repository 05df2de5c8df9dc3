//! Closes a connection such that the last answer arrives.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::alarm::Alarm;

/// How many bytes that the client still sends are read and discarded.
const BYTES_MAX: usize = 256 << 10;
/// How long the client has to close its side.
const TIME_MAX: Duration = Duration::from_secs(1);

/// A close that first ends the gateway's side and then reads what the client is still sending.
/// Closing with unread bytes makes the kernel reset the connection, and a reset can overtake the
/// answer.
#[derive(Debug, Default)]
pub(super) enum Linger {
    #[default]
    Open,
    Draining {
        left: usize,
        until: Instant,
    },
    Done,
}

impl Linger {
    /// Whether the gateway's side is still open.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Linger::Open)
    }

    /// Ends the gateway's side. It is done when the client has closed its side, or has used up its
    /// time or its bytes. `closed` says that the client has closed already.
    pub(super) fn poll<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        closed: bool,
        alarm: &mut Alarm,
    ) -> Poll<io::Result<()>> {
        loop {
            *self = match self {
                Linger::Open => {
                    ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                    if closed {
                        Linger::Done
                    } else {
                        Linger::Draining {
                            left: BYTES_MAX,
                            until: Instant::now() + TIME_MAX,
                        }
                    }
                }
                Linger::Draining { left, until } => match discard(cx, stream, *left) {
                    Poll::Ready(0) => Linger::Done,
                    Poll::Ready(read) => Linger::Draining {
                        left: *left - read,
                        until: *until,
                    },
                    Poll::Pending if Instant::now() >= *until => Linger::Done,
                    Poll::Pending => {
                        alarm.set(*until, cx);
                        return Poll::Pending;
                    }
                },
                Linger::Done => return Poll::Ready(Ok(())),
            };
        }
    }
}

/// Reads and discards. Returns zero when nothing more will come, for whatever reason.
fn discard<S: AsyncRead + Unpin>(cx: &mut Context<'_>, stream: &mut S, left: usize) -> Poll<usize> {
    let mut bytes = [0; 4 << 10];
    let mut buffer = ReadBuf::new(&mut bytes[..left.min(4 << 10)]);
    Pin::new(stream)
        .poll_read(cx, &mut buffer)
        .map(|read| read.map_or(0, |()| buffer.filled().len()))
}
