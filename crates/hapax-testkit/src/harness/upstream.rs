//! A service on a real socket, on a thread of its own, so that nothing that is killed or blocked in
//! a test reaches it.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use http_body::{Body, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::in_time;

/// What a service answers.
pub type Reply = Response<BoxBody<Bytes, io::Error>>;

/// A connection: this service's end of it, and the caller's.
pub type Ends = (SocketAddr, SocketAddr);

/// How a service speaks: in HTTP/1.1, unless told otherwise.
#[derive(Clone, Default)]
pub struct Serving {
    pub http2: bool,
    /// Over TLS the caller chooses the protocol.
    pub tls: Option<Arc<ServerConfig>>,
    /// Resets its connections in the end, of which there will be thousands: the system need not
    /// remember them.
    pub resets: bool,
}

/// A service at work, until it is dropped.
pub struct Upstream {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Upstream {
    /// A service that does this with each request. An error breaks the connection off.
    pub fn start<F, R>(serving: Serving, serve: F) -> Upstream
    where
        F: Fn(Arrived) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Reply>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        Upstream::on(listener, serving, serve)
    }

    /// The same where somebody has listened already.
    pub fn on<F, R>(listener: std::net::TcpListener, serving: Serving, serve: F) -> Upstream
    where
        F: Fn(Arrived) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Reply>> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a socket");
        let accept = async move {
            let listener = TcpListener::from_std(listener).expect("a socket");
            while let Ok((socket, peer)) = listener.accept().await {
                socket.set_nodelay(true).expect("a socket");
                if serving.resets {
                    socket.set_zero_linger().expect("a socket");
                }
                tokio::spawn(attend(
                    socket,
                    (address, peer),
                    serving.clone(),
                    serve.clone(),
                ));
            }
        };
        runtime.spawn(accept);
        Upstream {
            address,
            runtime: Some(runtime),
        }
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // On a thread where it may block: afterwards nobody listens any more.
        let runtime = self.runtime.take();
        let _ = std::thread::spawn(move || drop(runtime)).join();
    }
}

async fn attend<F, R>(socket: TcpStream, ends: Ends, serving: Serving, serve: F)
where
    F: Fn(Arrived) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = io::Result<Reply>> + Send + 'static,
{
    let Some(tls) = serving.tls else {
        return speak(socket, ends, serving.http2, serve).await;
    };
    // A caller that does not trust us leaves here.
    if let Ok(stream) = TlsAcceptor::from(tls).accept(socket).await {
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        speak(stream, ends, is_http2, serve).await;
    }
}

async fn speak<F, R>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ends: Ends,
    is_http2: bool,
    serve: F,
) where
    F: Fn(Arrived) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = io::Result<Reply>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        serve(Arrived { head, body, ends })
    });
    let io = TokioIo::new(stream);
    // How a connection ends is seen at its other end.
    let _ = if is_http2 {
        let executor = TokioExecutor::new();
        http2::Builder::new(executor)
            .serve_connection(io, service)
            .await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

/// A request of which the head has arrived.
pub struct Arrived {
    pub head: Parts,
    body: Incoming,
    ends: Ends,
}

impl Arrived {
    /// A field of its head; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        field(&self.head.headers, name)
    }

    /// Reads the rest; an error if it breaks off.
    pub async fn read(self) -> io::Result<Asked> {
        let body = self.body.collect().await.map_err(io::Error::other)?;
        Ok(Asked {
            version: self.head.version,
            method: self.head.method,
            uri: self.head.uri,
            headers: self.head.headers,
            trailers: body.trailers().cloned().unwrap_or_default(),
            body: body.to_bytes(),
            ends: self.ends,
        })
    }
}

/// A request as it arrived whole.
#[derive(Clone, Debug)]
pub struct Asked {
    pub version: Version,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
    pub ends: Ends,
}

impl Asked {
    /// A field of its head; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        field(&self.headers, name)
    }

    /// Its key; empty if it has none.
    pub fn key(&self) -> &str {
        self.field("idempotency-key")
    }

    /// Its operation, as the gateway names it; empty if it does not.
    pub fn operation(&self) -> &str {
        self.field("hapax-operation")
    }

    /// The fence that the gateway sent.
    pub fn fence(&self) -> u64 {
        let fence = self.field("hapax-fence").parse();
        fence.expect("a gateway sends the fence")
    }
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().expect("a field that is text"))
}

/// A service that keeps what it was asked, and answers as it is told at the time.
pub struct Service {
    pub address: SocketAddr,
    asked: Arc<watch::Sender<Vec<Asked>>>,
    answers: Arc<Mutex<Arc<Answers>>>,
    _upstream: Upstream,
}

type Answers = dyn Fn(&Asked) -> io::Result<Reply> + Send + Sync;

impl Service {
    pub fn start<R: IntoReply>(
        serving: Serving,
        answers: impl Fn(&Asked) -> R + Send + Sync + 'static,
    ) -> Service {
        let asked = Arc::new(watch::Sender::new(Vec::new()));
        let answers = Arc::new(Mutex::new(boxed(answers)));
        let (kept, current) = (asked.clone(), answers.clone());
        let upstream = Upstream::start(serving, move |arrived| {
            let (kept, current) = (kept.clone(), current.clone());
            async move {
                let asked = arrived.read().await?;
                let answers = current.lock().expect("no panic").clone();
                kept.send_modify(|kept: &mut Vec<Asked>| kept.push(asked.clone()));
                answers(&asked)
            }
        });
        Service {
            address: upstream.address,
            asked,
            answers,
            _upstream: upstream,
        }
    }

    /// Answers so from now on.
    pub fn answer<R: IntoReply>(&self, answers: impl Fn(&Asked) -> R + Send + Sync + 'static) {
        *self.answers.lock().expect("no panic") = boxed(answers);
    }

    /// All that it was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// Waits until it was asked so often.
    pub async fn wait_asked(&self, count: usize) {
        let mut asked = self.asked.subscribe();
        let waited = in_time("it is asked", asked.wait_for(|asked| asked.len() >= count)).await;
        drop(waited.expect("the service is there"));
    }

    /// The last of it.
    pub fn last(&self) -> Asked {
        self.asked().pop().expect("something has arrived")
    }

    pub fn url(&self, path: &str) -> Uri {
        let url = format!("http://{}{path}", self.address);
        url.parse().expect("a URL")
    }
}

fn boxed<R: IntoReply>(answers: impl Fn(&Asked) -> R + Send + Sync + 'static) -> Arc<Answers> {
    Arc::new(move |asked| answers(asked).into_reply())
}

/// What a service may answer with. An error breaks the connection off.
pub trait IntoReply {
    fn into_reply(self) -> io::Result<Reply>;
}

impl IntoReply for io::Result<Reply> {
    fn into_reply(self) -> io::Result<Reply> {
        self
    }
}

impl IntoReply for Reply {
    fn into_reply(self) -> io::Result<Reply> {
        Ok(self)
    }
}

impl IntoReply for Response<String> {
    fn into_reply(self) -> io::Result<Reply> {
        let (head, text) = self.into_parts();
        Ok(Response::from_parts(head, whole(200, text).into_body()))
    }
}

/// An answer in one piece.
pub fn whole(status: u16, body: impl Into<Bytes>) -> Reply {
    let body = Full::new(body.into()).map_err(|never| match never {});
    reply(status, body.boxed())
}

/// An answer in parts, whose length is not known before.
pub fn in_parts(status: u16, parts: impl IntoIterator<Item = Part>) -> Reply {
    let parts = InParts {
        parts: parts.into_iter().collect(),
        has_waited: false,
    };
    reply(status, parts.boxed())
}

fn reply(status: u16, body: BoxBody<Bytes, io::Error>) -> Reply {
    let reply = Response::builder().status(status).body(body);
    reply.expect("a status")
}

/// An answer with a field more.
pub fn with(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    let value = value.parse().expect("a field's value");
    reply.headers_mut().append(name, value);
    reply
}

/// A part of an answer's body, or what happens there instead.
pub enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
    /// The connection breaks off.
    BreaksOff,
    /// Nothing more ever comes.
    Stalls,
    /// The same; and this is done as soon as the system has what was before it.
    StallsAfter(Box<dyn FnOnce() + Send + Sync>),
}

/// What a service fails with that breaks off.
pub fn broken_off() -> io::Error {
    io::Error::other("as told")
}

struct InParts {
    parts: VecDeque<Part>,
    has_waited: bool,
}

impl Body for InParts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.parts.pop_front() {
            None => Poll::Ready(None),
            Some(Part::Data(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Some(Part::Trailers(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Some(Part::BreaksOff) => Poll::Ready(Some(Err(broken_off()))),
            Some(Part::Stalls) => {
                self.parts.push_front(Part::Stalls);
                Poll::Pending
            }
            // hyper writes out what it has whenever it has to wait: by the time it asks again that
            // is on its way.
            Some(part @ Part::StallsAfter(_)) if !self.has_waited => {
                self.has_waited = true;
                self.parts.push_front(part);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Part::StallsAfter(then)) => {
                then();
                self.parts.push_front(Part::Stalls);
                Poll::Pending
            }
        }
    }
}

/// A place where requests say that they have come, and wait until they may go on.
pub struct Gate {
    /// How many have come, and how many of them are still here.
    counts: watch::Sender<(usize, usize)>,
    through: Semaphore,
    done: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            counts: watch::Sender::new((0, 0)),
            through: Semaphore::new(0),
            done: watch::Sender::new(0),
        }
    }
}

impl Gate {
    /// Says that a request has come here, and waits until it may go on.
    pub async fn pass(&self) {
        self.counts.send_modify(|(arrived, held)| {
            *arrived += 1;
            *held += 1;
        });
        let _held = Held(self);
        self.through.acquire().await.expect("never closed").forget();
    }

    /// How many have come here so far.
    pub fn arrived(&self) -> usize {
        self.counts.borrow().0
    }

    /// Waits until so many have come here.
    pub async fn wait_arrived(&self, count: usize) {
        self.wait(|(arrived, _)| *arrived >= count).await;
    }

    /// How many are here now: neither gone on nor lost with their connections.
    pub fn held(&self) -> usize {
        self.counts.borrow().1
    }

    /// Waits until so many are here.
    pub async fn wait_held(&self, count: usize) {
        self.wait(|(_, held)| *held >= count).await;
    }

    async fn wait(&self, is_so: impl FnMut(&(usize, usize)) -> bool) {
        let mut counts = self.counts.subscribe();
        let waited = in_time("requests reach the gate", counts.wait_for(is_so)).await;
        drop(waited.expect("the gate is there"));
    }

    /// Lets so many go on.
    pub fn open(&self, count: usize) {
        self.through.add_permits(count);
    }

    /// Says that what passed here has done all it had to.
    pub fn done(&self) {
        self.done.send_modify(|done| *done += 1);
    }

    /// Lets one go on, and waits until it has done all it had to.
    pub async fn let_through(&self) {
        let mut done = self.done.subscribe();
        let before = *done.borrow_and_update();
        self.open(1);
        let waited = in_time(
            "work goes on to its end",
            done.wait_for(|now| *now > before),
        )
        .await;
        drop(waited.expect("the gate is there"));
    }
}

struct Held<'a>(&'a Gate);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.counts.send_modify(|(_, held)| *held -= 1);
    }
}
