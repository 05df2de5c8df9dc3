//! Sends requests to one URL, and knows nothing of messages.
//!
//! # Connections
//!
//! HTTP/1.1, and a connection is kept for the next request. A server may close a kept connection at
//! the moment when the next request is on its way. Then nobody knows whether the server has seen
//! the request. If it sent not one byte of an answer, the request is sent a second time, on a fresh
//! connection: receivers recognise a repeat by `webhook-id`, and without the second try each server
//! with short keep-alives would make some sends unclear. A request that fails on a fresh connection
//! is not sent again here.
//!
//! # Addresses
//!
//! The name is resolved for each connection, all its addresses are checked, and the connection goes
//! to one of those that were checked: a name that changes in between changes nothing. Redirects are
//! not followed, and proxies of the environment are ignored.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use super::address::{Guard, Network};
use super::harmless::{self, harmless};
use crate::tls::{self, TlsError};

/// The bytes of an answer that are read: of its head, and again of its body.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Header fields of an answer. hyper's default is 100, and an answer with more would be lost.
const ANSWER_FIELDS_MAX: usize = 256;
/// How long a connection is kept without a request. Most servers close sooner.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long a kept connection may take until it can be used. The end of the last answer has arrived,
/// so it is ready at once, unless the server answered before it had read the whole request.
const READY_MAX: Duration = Duration::from_millis(50);
/// What our requests say of their sender, unless they say something else.
const USER_AGENT: &str = concat!("hapax/", env!("CARGO_PKG_VERSION"));

/// Where requests go, and what is allowed on the way.
#[derive(Clone)]
pub struct Endpoint {
    /// `https`, or `http` to this machine.
    pub url: String,
    /// For each request: the time to resolve the name, to connect, to send, and to read the answer.
    pub timeout: Duration,
    /// Allows `http` to other machines.
    pub allow_http: bool,
    /// Networks that are reached although they are not of the open internet.
    pub allow_networks: Vec<Network>,
    /// Certificates in PEM that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
}

impl Endpoint {
    /// This URL, with ten seconds for each request.
    pub fn new(url: impl Into<String>) -> Endpoint {
        Endpoint {
            url: url.into(),
            timeout: Duration::from_secs(10),
            allow_http: false,
            allow_networks: Vec::new(),
            ca_file: None,
        }
    }

    /// Checks the URL, without reading any file.
    ///
    /// # Errors
    ///
    /// [`EndpointError`] if nothing could ever be sent there.
    pub fn check(&self) -> Result<(), EndpointError> {
        let target = Target::new(self)?;
        match target.is_tls {
            true => target.name().map(drop),
            false => Ok(()),
        }
    }
}

/// Without the URL, which may have a secret in it.
impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("timeout", &self.timeout)
            .field("allow_http", &self.allow_http)
            .field("allow_networks", &self.allow_networks)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

/// Why nothing can be sent to an endpoint. No error repeats the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The URL cannot be read.
    #[error("the URL of a webhook is https://HOST/PATH, without a user, a password or a fragment")]
    Url,
    /// The URL is `http` to another machine.
    #[error(
        "the URL of a webhook is http, and {0} is not this machine: use https, or set allow_http"
    )]
    Http(String),
    /// No certificate can have the name of the host.
    #[error("{0} is no name that a certificate can have")]
    Name(String),
    /// The file of certificates cannot be used.
    #[error("the file of certificates {path}: {reason}")]
    CaFile {
        /// Which file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(String),
}

impl From<TlsError> for EndpointError {
    fn from(error: TlsError) -> EndpointError {
        match error {
            TlsError::CaFile { path, reason } => EndpointError::CaFile { path, reason },
            TlsError::Setup(reason) => EndpointError::Tls(reason),
        }
    }
}

/// Sends requests to one endpoint.
pub(crate) struct Sender {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    guard: Guard,
    timeout: Duration,
    /// The one that was used last is the last.
    idle: Mutex<Vec<Link>>,
}

/// A URL in parts.
struct Target {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    authority: HeaderValue,
    path: PathAndQuery,
    is_tls: bool,
    must_be_loopback: bool,
}

/// What the server answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The beginning of the body, fit for a log.
    pub(crate) text: String,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The server cannot be reached: nothing of the request was sent.
    Unreachable(String),
    /// The request was sent, wholly or in part.
    Unclear(String),
}

impl Sender {
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Sender, EndpointError> {
        let target = Target::new(endpoint)?;
        let tls = match target.is_tls {
            true => Some((connector(endpoint.ca_file.as_deref())?, target.name()?)),
            false => None,
        };
        Ok(Sender {
            target,
            tls,
            guard: Guard::new(endpoint.allow_networks.clone()),
            timeout: endpoint.timeout,
            idle: Mutex::default(),
        })
    }

    /// The host and port, for logs.
    pub(crate) fn authority(&self) -> &str {
        self.target.authority.to_str().unwrap_or_default()
    }

    /// Posts a request. Ends within the time limit.
    pub(crate) async fn post(&self, headers: HeaderMap, body: Bytes) -> Result<Answer, Lost> {
        let deadline = Instant::now() + self.timeout;
        let request = self.request(headers, body);
        if let Some(link) = self.take_idle().await {
            match self.exchange(link, request.clone(), deadline).await {
                Ok(answer) => return Ok(answer),
                Err(broken) if broken.has_answer_bytes || broken.is_late => {
                    return Err(Lost::Unclear(broken.reason));
                }
                // Sent again, see the head of this file.
                Err(_) => {}
            }
        }
        let link = match timeout_at(deadline, self.dial(deadline)).await {
            Ok(dialed) => dialed.map_err(Lost::Unreachable)?,
            Err(_) => {
                let reason = format!("there is no connection within {:?}", self.timeout);
                return Err(Lost::Unreachable(reason));
            }
        };
        let sent = self.exchange(link, request, deadline).await;
        sent.map_err(|broken| match broken.is_unsent {
            true => Lost::Unreachable(broken.reason),
            false => Lost::Unclear(broken.reason),
        })
    }

    fn request(&self, headers: HeaderMap, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from(self.target.path.clone());
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.target.authority.clone());
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(USER_AGENT));
        request
    }

    /// A kept connection that is open, as far as this process knows.
    async fn take_idle(&self) -> Option<Link> {
        loop {
            let mut link = self.idle().pop()?;
            if link.rested_at.elapsed() > IDLE_MAX {
                continue;
            }
            if let Ok(Ok(())) = timeout(READY_MAX, link.sender.ready()).await {
                return Some(link);
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn exchange(
        &self,
        mut link: Link,
        request: Request<Full<Bytes>>,
        deadline: Instant,
    ) -> Result<Answer, Broken> {
        link.has_read.store(false, Ordering::SeqCst);
        match timeout_at(deadline, link.sender.try_send_request(request)).await {
            Ok(Ok(response)) => Ok(self.read(link, response, deadline).await),
            Ok(Err(error)) => Err(Broken {
                is_unsent: error.message().is_some(),
                is_late: false,
                has_answer_bytes: link.has_read.load(Ordering::SeqCst),
                reason: format!("the connection was lost: {}", chain(error.error())),
            }),
            Err(_) => Err(Broken {
                is_unsent: false,
                is_late: true,
                has_answer_bytes: link.has_read.load(Ordering::SeqCst),
                reason: format!("there is no answer within {:?}", self.timeout),
            }),
        }
    }

    /// Reads the body of an answer, as far as it is read. The status is the answer: whatever
    /// becomes of the body does not change it.
    async fn read(&self, link: Link, response: Response<Incoming>, deadline: Instant) -> Answer {
        let (head, mut body) = response.into_parts();
        let (mut beginning, mut length) = (Vec::new(), 0);
        let is_whole = loop {
            let frame = match timeout_at(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => break true,
                Ok(Some(Err(_))) | Err(_) => break false,
            };
            let data = frame.into_data().unwrap_or_default();
            length += data.len();
            if length > ANSWER_BYTES_MAX {
                break false;
            }
            let wanted = harmless::BYTES_MAX.saturating_sub(beginning.len());
            beginning.extend_from_slice(&data[..data.len().min(wanted)]);
        };
        if is_whole {
            self.idle().push(Link {
                rested_at: Instant::now(),
                ..link
            });
        }
        Answer {
            status: head.status,
            headers: head.headers,
            text: harmless(&beginning),
        }
    }

    async fn dial(&self, deadline: Instant) -> Result<Link, String> {
        let addresses = self.resolve().await?;
        let socket = connect(&addresses, deadline).await?;
        // Without it a small request may wait for the acknowledgement of the one before.
        socket.set_nodelay(true).map_err(|error| chain(&error))?;
        let stream: Box<dyn Stream> = match &self.tls {
            None => Box::new(socket),
            Some((connector, name)) => {
                let connected = connector.connect(name.clone(), socket).await;
                Box::new(connected.map_err(|error| format!("TLS: {}", chain(&error)))?)
            }
        };
        Link::open(stream).await.map_err(|error| chain(&error))
    }

    /// The addresses of the host, all of which may be reached.
    async fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        let Target { host, port, .. } = &self.target;
        let found = tokio::net::lookup_host((host.as_str(), *port)).await;
        let addresses: Vec<SocketAddr> = found
            .map_err(|error| format!("{host} has no address: {}", chain(&error)))?
            .collect();
        let each = addresses.iter().map(SocketAddr::ip);
        self.guard
            .check_all(each.clone())
            .map_err(|closed| format!("{host}: {closed}"))?;
        if self.target.must_be_loopback && !each.clone().all(is_loopback) {
            return Err(format!(
                "{host} is not this machine, and http is not sent to others: use https, or set \
                 allow_http"
            ));
        }
        Ok(addresses)
    }
}

/// An exchange that brought no answer.
struct Broken {
    /// Not one byte of the request was sent.
    is_unsent: bool,
    /// The time was over.
    is_late: bool,
    /// The server sent some bytes.
    has_answer_bytes: bool,
    reason: String,
}

impl Target {
    fn new(endpoint: &Endpoint) -> Result<Target, EndpointError> {
        // `Uri` drops a fragment without a word.
        if endpoint.url.contains('#') {
            return Err(EndpointError::Url);
        }
        let url: Uri = endpoint.url.parse().map_err(|_| EndpointError::Url)?;
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(EndpointError::Url),
        };
        let authority = url.authority().ok_or(EndpointError::Url)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        // What is not the host is `:PORT`, and no user or password.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if is_tls => 443,
            Some("") => 80,
            Some(port) => port_number(port).ok_or(EndpointError::Url)?,
            None => return Err(EndpointError::Url),
        };
        if host.is_empty() {
            return Err(EndpointError::Url);
        }
        let must_be_loopback = !is_tls && !endpoint.allow_http;
        if must_be_loopback && !names_this_machine(&host) {
            return Err(EndpointError::Http(host));
        }
        let authority = HeaderValue::from_str(authority.as_str());
        Ok(Target {
            port,
            authority: authority.map_err(|_| EndpointError::Url)?,
            path: url
                .path_and_query()
                .cloned()
                .unwrap_or(PathAndQuery::from_static("/")),
            host,
            is_tls,
            must_be_loopback,
        })
    }

    fn name(&self) -> Result<ServerName<'static>, EndpointError> {
        let name = ServerName::try_from(self.host.clone());
        name.map_err(|_| EndpointError::Name(self.host.clone()))
    }
}

/// The number in `:443`.
fn port_number(text: &str) -> Option<u16> {
    let digits = text.strip_prefix(':')?;
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|port| is_number && *port > 0)
}

fn names_this_machine(host: &str) -> bool {
    match host.parse() {
        Ok(address) => is_loopback(address),
        // Its addresses are checked again when it is resolved.
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, EndpointError> {
    let mut config = tls::client(ca_file)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Connects to the first address that takes the connection. Each gets its share of the time, so
/// that one that says nothing does not keep the others from being tried.
async fn connect(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, String> {
    let mut reason = "the name has no address".to_owned();
    for (place, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let others = u32::try_from(addresses.len() - place).unwrap_or(u32::MAX);
        let share = Instant::now() + left / others;
        match timeout_at(share, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => reason = format!("{address}: {}", chain(&error)),
            Err(_) => reason = format!("{address} does not answer"),
        }
    }
    Err(reason)
}

/// An error with what caused it, fit for a log: some name what the server sent.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat their cause.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    harmless(text.as_bytes())
}

// === A connection ===

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection. Dropping it closes it.
struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// Whether the server has sent bytes since this was last unset.
    has_read: Arc<AtomicBool>,
    rested_at: Instant,
}

impl Link {
    async fn open(stream: Box<dyn Stream>) -> hyper::Result<Link> {
        let has_read = Arc::new(AtomicBool::new(false));
        let stream = Watched {
            stream,
            has_read: has_read.clone(),
        };
        let (sender, connection) = http1::Builder::new()
            .max_headers(ANSWER_FIELDS_MAX)
            .max_buf_size(ANSWER_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        // Ends when the sender is dropped or the server closes. Whoever waits for an answer gets
        // the error.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Link {
            sender,
            has_read,
            rested_at: Instant::now(),
        })
    }
}

/// A stream that notes when bytes arrive.
struct Watched {
    stream: Box<dyn Stream>,
    has_read: Arc<AtomicBool>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.has_read.store(true, Ordering::SeqCst);
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
