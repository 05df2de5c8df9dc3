//! A service on a real socket, on its own thread, so that nothing that a test kills or blocks
//! affects it.

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

/// The answer of a service.
pub type Reply = Response<BoxBody<Bytes, io::Error>>;

/// The addresses of a connection: the service's and the caller's.
pub type Ends = (SocketAddr, SocketAddr);

/// The protocol of a service: HTTP/1.1 by default.
#[derive(Clone, Default)]
pub struct Serving {
    pub http2: bool,
    /// Over TLS, the caller chooses the protocol.
    pub tls: Option<Arc<ServerConfig>>,
    /// Resets its connections at the end. With thousands of them, the system then need not remember
    /// them.
    pub resets: bool,
}

/// A running service; stops when dropped.
pub struct Upstream {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Upstream {
    /// Starts a service that calls `serve` for each request. An error breaks off the connection.
    pub fn start<F, R>(serving: Serving, serve: F) -> Upstream
    where
        F: Fn(Arrived) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = io::Result<Reply>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        Upstream::on(listener, serving, serve)
    }

    /// The same with an existing listener.
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

    /// The address as a URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        // Dropped on a thread that may block. Afterwards the socket is closed.
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
    // A caller that does not trust the certificate leaves here.
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
    // The result is ignored: the caller observes how its connection ends.
    let _ = if is_http2 {
        let executor = TokioExecutor::new();
        http2::Builder::new(executor)
            .serve_connection(io, service)
            .await
    } else {
        http1::Builder::new().serve_connection(io, service).await
    };
}

/// A request whose head has arrived.
pub struct Arrived {
    pub head: Parts,
    body: Incoming,
    ends: Ends,
}

impl Arrived {
    /// A header field; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        field(&self.head.headers, name)
    }

    /// Reads the rest of the request. An error if it breaks off.
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

/// A complete request.
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
    /// A header field; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        field(&self.headers, name)
    }

    /// The key; empty if there is none.
    pub fn key(&self) -> &str {
        self.field("idempotency-key")
    }

    /// The operation id that the gateway sent; empty if it sent none.
    pub fn operation(&self) -> &str {
        self.field("hapax-operation")
    }

    /// The fence that the gateway sent. Panics if it sent none.
    pub fn fence(&self) -> u64 {
        let fence = self.field("hapax-fence").parse();
        fence.expect("a gateway sends the fence")
    }
}

fn field<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name);
    value.map_or("", |value| value.to_str().expect("a field that is text"))
}

/// A service that keeps the requests it received. Its answers can be changed at any time.
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

    /// Answers requests with this function from now on.
    pub fn answer<R: IntoReply>(&self, answers: impl Fn(&Asked) -> R + Send + Sync + 'static) {
        *self.answers.lock().expect("no panic") = boxed(answers);
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// Waits until there were `count` requests.
    pub async fn wait_asked(&self, count: usize) {
        let mut asked = self.asked.subscribe();
        let waited = in_time("it is asked", asked.wait_for(|asked| asked.len() >= count)).await;
        drop(waited.expect("the service is there"));
    }

    /// The last request.
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

/// A possible answer of a service. An error breaks off the connection.
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

/// An answer in parts, without a known length.
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

/// Adds a header field to an answer.
pub fn with(mut reply: Reply, name: &'static str, value: &str) -> Reply {
    let value = value.parse().expect("a field's value");
    reply.headers_mut().append(name, value);
    reply
}

/// A part of an answer's body, or an event in its place.
pub enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
    /// The connection breaks off.
    BreaksOff,
    /// Nothing more is ever sent.
    Stalls,
    /// The same, and the function is called once the system has the parts before it.
    StallsAfter(Box<dyn FnOnce() + Send + Sync>),
}

/// The error of a service that breaks off.
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
            // hyper flushes its buffer whenever the body is pending, so at the second poll the
            // earlier parts have been sent.
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

/// A place where requests register and wait until they may continue.
pub struct Gate {
    /// How many requests have arrived in total, and how many are waiting now.
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
    /// Registers a request and waits until it may continue.
    pub async fn pass(&self) {
        self.counts.send_modify(|(arrived, held)| {
            *arrived += 1;
            *held += 1;
        });
        let _held = Held(self);
        self.through.acquire().await.expect("never closed").forget();
    }

    /// How many requests have arrived so far.
    pub fn arrived(&self) -> usize {
        self.counts.borrow().0
    }

    /// Waits until `count` requests have arrived.
    pub async fn wait_arrived(&self, count: usize) {
        self.wait(|(arrived, _)| *arrived >= count).await;
    }

    /// How many requests are waiting now: they neither continued nor were lost with their
    /// connection.
    pub fn held(&self) -> usize {
        self.counts.borrow().1
    }

    /// Waits until `count` requests are waiting.
    pub async fn wait_held(&self, count: usize) {
        self.wait(|(_, held)| *held >= count).await;
    }

    async fn wait(&self, is_so: impl FnMut(&(usize, usize)) -> bool) {
        let mut counts = self.counts.subscribe();
        let waited = in_time("requests reach the gate", counts.wait_for(is_so)).await;
        drop(waited.expect("the gate is there"));
    }

    /// Lets `count` requests continue.
    pub fn open(&self, count: usize) {
        self.through.add_permits(count);
    }

    /// Reports that a request that passed the gate has finished its work.
    pub fn done(&self) {
        self.done.send_modify(|done| *done += 1);
    }

    /// Lets one request continue and waits until it has finished its work.
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
