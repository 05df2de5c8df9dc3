//! A service on a real socket, which does what each request tells it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::client::in_time;

pub(crate) type Answer = Response<BoxBody<Bytes, io::Error>>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
}

impl Asked {
    /// A field of it; empty if there is none.
    pub(crate) fn field(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn operation(&self) -> &str {
        self.field("hapax-operation")
    }

    pub(crate) fn fence(&self) -> u64 {
        self.field("hapax-fence")
            .parse()
            .expect("a gateway sends the fence")
    }

    /// The same with another fence.
    pub(crate) fn with_fence(&self, fence: u64) -> Asked {
        let mut other = self.clone();
        other.headers.insert("hapax-fence", fence.into());
        other
    }

    pub(crate) fn key(&self) -> &str {
        self.field("idempotency-key")
    }

    /// What its caller tells the service to do.
    pub(crate) fn told(&self) -> &str {
        self.field("x-do")
    }
}

/// What a service does. An error is a connection that breaks off.
pub(crate) trait Serve: Send + Sync + 'static {
    fn serve(self: Arc<Self>, asked: Asked) -> impl Future<Output = io::Result<Answer>> + Send;
}

/// A service at work, until it is dropped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    _accepting: AbortOnDropHandle<()>,
}

impl Service {
    pub(crate) async fn start(service: Arc<impl Serve>) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let service = service.clone();
                let answer = service_fn(move |request: Request<Incoming>| {
                    let service = service.clone();
                    async move {
                        let (parts, body) = request.into_parts();
                        body.collect().await.map_err(io::Error::other)?;
                        service
                            .serve(Asked {
                                path: parts.uri.path().to_owned(),
                                headers: parts.headers,
                            })
                            .await
                    }
                });
                // How it ends is seen at the other end.
                tokio::spawn(async move {
                    drop(
                        http1::Builder::new()
                            .serve_connection(TokioIo::new(socket), answer)
                            .await,
                    );
                });
            }
        });
        Service {
            address,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }
}

/// A place where work says that it has come here, and waits until it may go on.
pub(crate) struct Gate {
    held: watch::Sender<usize>,
    through: Semaphore,
    done: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Gate {
            held: watch::Sender::new(0),
            through: Semaphore::new(0),
            done: watch::Sender::new(0),
        }
    }
}

impl Gate {
    pub(crate) async fn pass(&self) {
        self.held.send_modify(|held| *held += 1);
        self.through.acquire().await.unwrap().forget();
    }

    /// What was held here has done what it had to.
    pub(crate) fn done(&self) {
        self.done.send_modify(|done| *done += 1);
    }

    /// How many have come here so far.
    pub(crate) fn held(&self) -> usize {
        *self.held.borrow()
    }

    /// Waits until so many have come here.
    pub(crate) async fn wait_held(&self, count: usize) {
        in_time(
            "work comes to the gate",
            self.held.subscribe().wait_for(|held| *held >= count),
        )
        .await
        .unwrap();
    }

    /// Lets one go on, and waits until it has done what it had to.
    pub(crate) async fn let_through(&self) {
        let mut done = self.done.subscribe();
        let before = *done.borrow_and_update();
        self.through.add_permits(1);
        in_time(
            "work goes on to its end",
            done.wait_for(|done| *done > before),
        )
        .await
        .unwrap();
    }
}

pub(crate) fn whole(status: u16, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into())
        .map_err(|never| match never {})
        .boxed();
    Response::builder().status(status).body(body).unwrap()
}

/// An answer with a field more.
pub(crate) fn with(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    answer.headers_mut().append(name, value.parse().unwrap());
    answer
}

/// An answer whose body begins, and then goes wrong.
pub(crate) fn begun(status: u16, body: impl Into<Bytes>, then: Then) -> Answer {
    Response::builder()
        .status(status)
        .body(
            Begun {
                first: Some(body.into()),
                then,
            }
            .boxed(),
        )
        .unwrap()
}

pub(crate) fn reset() -> io::Error {
    io::Error::other("as told")
}

/// How a body goes on that has begun.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    BreaksOff,
    Stalls,
}

struct Begun {
    first: Option<Bytes>,
    then: Then,
}

impl http_body::Body for Begun {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match (self.first.take(), self.then) {
            (Some(first), _) => Poll::Ready(Some(Ok(Frame::data(first)))),
            (None, Then::BreaksOff) => Poll::Ready(Some(Err(reset()))),
            (None, Then::Stalls) => Poll::Pending,
        }
    }
}
