//! Requests over real connections, in HTTP/1.1 and HTTP/2, plain and over TLS.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::in_time;

type Body = BoxBody<Bytes, Infallible>;

/// A request that a client sends.
pub type ClientRequest = Request<Body>;

/// A body that is sent at once.
pub fn body(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed()
}

/// A GET without a body.
pub fn get(target: &str) -> ClientRequest {
    Request::get(target).body(body("")).expect("a target")
}

/// A POST without a key.
pub fn post(target: &str, bytes: impl Into<Bytes>) -> ClientRequest {
    Request::post(target).body(body(bytes)).expect("a target")
}

/// Adds header fields to a request.
pub trait With: Sized {
    /// Adds a field.
    fn with(self, name: &str, value: &str) -> Self;

    /// Adds this key.
    fn key(self, key: &str) -> Self {
        self.with("idempotency-key", key)
    }

    /// Adds this token as its credential.
    fn bearer(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }
}

impl With for ClientRequest {
    fn with(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::try_from(name).expect("a field's name");
        let value = HeaderValue::try_from(value).expect("a field's value");
        self.headers_mut().append(name, value);
        self
    }
}

/// How to connect to a server. Each request gets its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    is_http2: bool,
    from: IpAddr,
    resets: bool,
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    /// A client for HTTP/1.1 without TLS.
    pub fn new(address: SocketAddr) -> Client {
        Client {
            address,
            is_http2: false,
            from: Ipv4Addr::LOCALHOST.into(),
            resets: false,
            tls: None,
        }
    }

    /// Whether to use HTTP/2.
    pub fn http2(self, is_http2: bool) -> Client {
        Client { is_http2, ..self }
    }

    /// Whether to use TLS.
    pub fn tls(self, tls: Option<Arc<ClientConfig>>) -> Client {
        Client { tls, ..self }
    }

    /// Connects from another address of this machine.
    pub fn from(self, from: &str) -> Client {
        Client {
            from: from.parse().expect("an address"),
            ..self
        }
    }

    /// Resets its connections at the end. Otherwise the system would keep thousands of closed
    /// connections for a minute, which makes looking one up slow.
    pub fn resetting(self) -> Client {
        Client {
            resets: true,
            ..self
        }
    }

    /// Sends to a server that must be reachable.
    #[track_caller]
    pub fn send(&self, request: ClientRequest) -> impl Future<Output = Answer> + Send + use<> {
        let (client, caller) = (self.clone(), std::panic::Location::caller());
        async move {
            let sent = client.try_send(request).await;
            sent.unwrap_or_else(|why| panic!("{why}, sent at {caller}"))
        }
    }

    /// Sends a request. `Err` says why no complete answer came back.
    pub async fn try_send(&self, request: ClientRequest) -> Result<Answer, String> {
        let exchange = async { self.connect().await?.send(request).await };
        in_time("an answer", exchange).await
    }

    /// Sends on its own task.
    pub fn spawn(&self, request: ClientRequest) -> JoinHandle<Answer> {
        tokio::spawn(self.send(request))
    }

    /// Opens a connection for several requests.
    pub async fn connect(&self) -> Result<Connection, String> {
        let stream = self.open().await?;
        let Some(tls) = self.tls.clone() else {
            return self.shake_hands(stream, None).await;
        };
        let protocols = tls.alpn_protocols.clone();
        let name = ServerName::try_from("localhost").expect("a name");
        let stream = TlsConnector::from(tls)
            .connect(name, stream)
            .await
            .map_err(|error| format!("no TLS: {error}"))?;
        let session = stream.get_ref().1;
        assert_eq!(
            session.alpn_protocol(),
            protocols.first().map(Vec::as_slice),
            "the gateway speaks the protocol that it was asked for"
        );
        let certificate = session.peer_certificates().map(|shown| shown[0].to_vec());
        self.shake_hands(stream, certificate).await
    }

    async fn open(&self) -> Result<TcpStream, String> {
        let open = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((self.from, 0).into())?;
            let stream = socket.connect(self.address).await?;
            stream.set_nodelay(true)?;
            if self.resets {
                stream.set_zero_linger()?;
            }
            Ok(stream)
        };
        open.await
            .map_err(|error: std::io::Error| format!("no connection: {error}"))
    }

    async fn shake_hands(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        certificate: Option<Vec<u8>>,
    ) -> Result<Connection, String> {
        let io = TokioIo::new(stream);
        let refused = |error: hyper::Error| format!("no connection: {error}");
        let sender = if self.is_http2 {
            let shaken = http2::handshake(TokioExecutor::new(), io).await;
            let (sender, connection) = shaken.map_err(refused)?;
            tokio::spawn(connection);
            Sender::Http2(sender, self.tls.is_some())
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(refused)?;
            tokio::spawn(connection);
            Sender::Http1(sender)
        };
        Ok(Connection {
            sender,
            certificate,
        })
    }

    /// Sends these bytes and reads the whole reply.
    pub async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.open().await.expect("the gateway listens");
        // The server may refuse the request before all of it is sent.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = in_time("an answer", stream.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A persistent connection.
pub struct Connection {
    sender: Sender,
    /// The server's certificate, if it has one.
    pub certificate: Option<Vec<u8>>,
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    /// The flag says whether the connection uses TLS.
    Http2(http2::SendRequest<Body>, bool),
}

impl Connection {
    /// Sends a request. `Err` says why no answer came.
    pub async fn send(&mut self, mut request: ClientRequest) -> Result<Answer, String> {
        let gone = |error| format!("the connection is gone: {error}");
        let sent = match &mut self.sender {
            Sender::Http1(sender) => {
                let host = HeaderValue::from_static("localhost");
                request.headers_mut().entry(HOST).or_insert(host);
                sender.ready().await.map_err(gone)?;
                sender.send_request(request).await
            }
            Sender::Http2(sender, is_tls) => {
                let scheme = if *is_tls { "https" } else { "http" };
                let uri = format!("{scheme}://localhost{}", request.uri());
                *request.uri_mut() = uri.parse().expect("a URL");
                sender.ready().await.map_err(gone)?;
                sender.send_request(request).await
            }
        };
        Answer::read(sent.map_err(|error| format!("no answer: {error}"))?).await
    }
}

/// A complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: Option<HeaderMap>,
}

impl Answer {
    /// Reads the whole answer. `Err` says how it broke off.
    pub async fn read(response: Response<Incoming>) -> Result<Answer, String> {
        let (head, body) = response.into_parts();
        let body = body.collect().await;
        let body = body.map_err(|error| format!("its answer broke off: {error}"))?;
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            trailers: body.trailers().cloned(),
            body: body.to_bytes(),
        })
    }

    /// A header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        Some(value.to_str().expect("a field that is text"))
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("a body that is text")
    }

    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The code of the problem, if the answer is a problem document.
    pub fn problem(&self) -> Option<String> {
        if self.field("content-type") != Some("application/problem+json") {
            return None;
        }
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        Some(problem["code"].as_str().expect("a code").to_owned())
    }

    /// The code of the problem; empty if the answer is not a problem document.
    pub fn code(&self) -> String {
        self.problem().unwrap_or_default()
    }

    /// The status and the code of the problem. Panics if the answer is not a problem document.
    #[track_caller]
    pub fn refusal(&self) -> (u16, String) {
        let code = self.problem();
        (self.status, code.unwrap_or_else(|| panic!("{self:?}")))
    }

    /// Whether the answer is a problem with this code.
    pub fn is_problem(&self, code: &str) -> bool {
        self.problem().is_some_and(|problem| problem == code)
    }

    /// Whether the answer is a replay.
    pub fn is_replay(&self) -> bool {
        self.field("idempotent-replayed") == Some("true")
    }

    /// Asserts that this is a byte-for-byte replay of `first`.
    #[track_caller]
    pub fn assert_replays(&self, first: &Answer) {
        assert!(self.is_replay(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        for name in ["content-type", "etag", "location"] {
            assert_eq!(self.headers.get(name), first.headers.get(name), "{name}");
        }
    }

    /// Asserts that this is this answer of the service, and not a replay.
    #[track_caller]
    pub fn assert_first(&self, status: u16, text: &str) {
        assert_eq!(
            (self.status, self.text(), self.is_replay()),
            (status, text, false)
        );
    }

    /// Asserts that this is a replay of this answer of the service.
    #[track_caller]
    pub fn assert_replayed(&self, status: u16, text: &str) {
        assert_eq!(
            (self.status, self.text(), self.is_replay()),
            (status, text, true)
        );
    }

    /// Asserts that this is a rejection with this status and code, and with this advice about a
    /// repeat.
    #[track_caller]
    pub fn assert_rejected(&self, status: u16, code: &str, again: bool) {
        let advice = self.field("x-should-retry").map(|advice| advice == "true");
        assert_eq!(
            (self.status, self.problem().as_deref(), advice),
            (status, Some(code), Some(again)),
            "{self:?}"
        );
    }
}
