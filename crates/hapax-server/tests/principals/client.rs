//! Requests over real connections, each on one of its own.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

pub(crate) type Asked = Request<BoxBody<Bytes, Infallible>>;

/// Only a broken test waits so long.
const GUARD: Duration = Duration::from_secs(30);

/// Who asks, and how.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    address: SocketAddr,
    is_http2: bool,
    from: IpAddr,
}

impl Client {
    pub(crate) fn new(address: SocketAddr, is_http2: bool) -> Client {
        Client {
            address,
            is_http2,
            from: "127.0.0.1".parse().unwrap(),
        }
    }

    /// The same from another address of this machine.
    pub(crate) fn from(self, from: &str) -> Client {
        Client {
            from: from.parse().unwrap(),
            ..self
        }
    }

    pub(crate) async fn send(&self, request: Asked) -> Got {
        tokio::time::timeout(GUARD, self.exchange(request))
            .await
            .expect("an answer")
    }

    async fn exchange(&self, mut request: Asked) -> Got {
        let io = TokioIo::new(self.connect().await);
        if self.is_http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .unwrap();
            tokio::spawn(connection);
            *request.uri_mut() = format!("http://localhost{}", request.uri())
                .parse::<Uri>()
                .unwrap();
            Got::read(sender.send_request(request).await.unwrap()).await
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            request
                .headers_mut()
                .insert(HOST, HeaderValue::from_static("localhost"));
            Got::read(sender.send_request(request).await.unwrap()).await
        }
    }

    async fn connect(&self) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((self.from, 0).into()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Sends bytes as they are, and reads whatever comes back.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        // It may have been refused before it was whole.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(GUARD, stream.read_to_end(&mut answer))
            .await
            .expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) async fn read(response: Response<Incoming>) -> Got {
        let (parts, body) = response.into_parts();
        Got {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// The word of a problem; empty if this is none.
    pub(crate) fn problem(&self) -> String {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        document["code"].as_str().unwrap_or_default().to_owned()
    }

    /// Whether anything of another answer is in this one.
    pub(crate) fn tells(&self, other: &Got) -> bool {
        let canary = other
            .header("x-canary")
            .expect("the upstream's own answers have one");
        self.text().contains(canary)
            || self
                .headers
                .values()
                .any(|value| value.as_bytes() == canary.as_bytes())
    }
}

pub(crate) fn empty() -> BoxBody<Bytes, Infallible> {
    Empty::new().boxed()
}

/// A guarded request.
pub(crate) fn post(key: &str) -> Asked {
    unguarded().with("idempotency-key", key)
}

/// The same without a key.
pub(crate) fn unguarded() -> Asked {
    Request::post("/charges?a=1")
        .body(Full::from("{\"amount\":5}").boxed())
        .unwrap()
}

/// Adds to a request.
pub(crate) trait With {
    fn with(self, name: &str, value: &str) -> Self;
}

impl With for Asked {
    fn with(mut self, name: &str, value: &str) -> Self {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
        self.headers_mut()
            .append(name, HeaderValue::try_from(value).unwrap());
        self
    }
}
