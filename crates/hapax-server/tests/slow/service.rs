//! The service behind the gateway: it answers at once, and tells when an answer that has no end is
//! no longer wanted.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Method, Uri};
use http_body::Frame;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    /// An answer without end was given up.
    pub(crate) given_up: Receiver<()>,
    _runtime: Runtime,
}

impl Service {
    pub(crate) fn start() -> Service {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let socket = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = socket.local_addr().unwrap();
        let (sender, given_up) = channel();
        let endless = get(move || async move { Body::new(Endless(sender)) });
        let router = Router::new().route("/endless", endless).fallback(echo);
        runtime.spawn(async move { axum::serve(socket, router).await });
        Service {
            address,
            given_up,
            _runtime: runtime,
        }
    }
}

async fn echo(method: Method, uri: Uri, _: Bytes) -> String {
    format!("saw {method} {uri}\n")
}

struct Endless(Sender<()>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
