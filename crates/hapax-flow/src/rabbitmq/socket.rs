//! The sockets of connections: plain or TLS, and ours to cut.
//!
//! The client has a thread for each connection, which goes on sending what it has queued as long as
//! its socket lives. A connection that is given up must not send anything any more: by then the same
//! messages go out again by another one, and later ones after them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use async_rs::Tokio;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// What the client runs on: the current runtime, with our sockets.
pub(super) type Kit = RuntimeParts<Tokio, Sockets>;

/// A socket as the client wants it.
pub(super) type Socket = Compat<Cuttable>;

pub(super) fn kit() -> Kit {
    RuntimeParts::new(Tokio::current(), Sockets(Tokio::current()))
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A stream that fails from the moment on at which it is cut.
pub(super) struct Cuttable {
    stream: Box<dyn Duplex>,
    cut: CancellationToken,
    /// Wakes whoever waits to read: the client always does.
    is_cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Cuttable {
    pub(super) fn new(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        cut: CancellationToken,
    ) -> Socket {
        let cuttable = Cuttable {
            stream: Box::new(stream),
            is_cut: Box::pin(cut.clone().cancelled_owned()),
            cut,
        };
        cuttable.compat()
    }

    fn check(&self) -> io::Result<()> {
        match self.cut.is_cancelled() {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }
}

impl AsyncRead for Cuttable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.is_cancelled() || self.is_cut.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Cuttable {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Tokio, with [`Socket`] as its sockets.
#[derive(Clone, Debug)]
pub(super) struct Sockets(Tokio);

impl Reactor for Sockets {
    type TcpStream = Socket;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: io::Read + io::Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures_util::AsyncRead + futures_util::AsyncWrite + Send + Unpin + 'static>
    {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    #[expect(
        clippy::manual_async_fn,
        reason = "the future of an async fn would borrow self"
    )]
    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Socket>> + Send + 'static {
        async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            Ok(Cuttable::new(stream, CancellationToken::new()))
        }
    }
}
