//! Requests over real connections, each on one of its own.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// What a request says.
pub(crate) type Asked = Request<BoxBody<Bytes, Infallible>>;

/// How a client speaks with the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) is_http2: bool,
    pub(crate) is_tls: bool,
}

/// All of them: the columns of the matrix.
pub(crate) const WAYS: [Way; 4] = [
    Way {
        is_http2: false,
        is_tls: false,
    },
    Way {
        is_http2: false,
        is_tls: true,
    },
    Way {
        is_http2: true,
        is_tls: false,
    },
    Way {
        is_http2: true,
        is_tls: true,
    },
];

impl Way {
    pub(crate) fn alpn(self) -> &'static [u8] {
        if self.is_http2 { b"h2" } else { b"http/1.1" }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_http2 { "HTTP/2" } else { "HTTP/1.1" })?;
        f.write_str(if self.is_tls { " TLS" } else { "" })
    }
}

/// Who asks. Each request has a connection of its own.
#[derive(Clone)]
pub(crate) struct Client {
    way: Way,
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

impl Client {
    pub(crate) fn new(way: Way, address: SocketAddr, tls: Option<Arc<ClientConfig>>) -> Client {
        Client { way, address, tls }
    }

    pub(crate) async fn send(&self, request: Asked) -> Got {
        let socket = TcpStream::connect(self.address).await.unwrap();
        match &self.tls {
            None => self.exchange(socket, request).await,
            Some(config) => {
                let name = ServerName::try_from("localhost").unwrap();
                let stream = TlsConnector::from(config.clone())
                    .connect(name, socket)
                    .await
                    .unwrap();
                assert_eq!(
                    stream.get_ref().1.alpn_protocol(),
                    Some(self.way.alpn()),
                    "the gateway speaks what it was asked for"
                );
                self.exchange(stream, request).await
            }
        }
    }

    /// Sends on a task of its own.
    pub(crate) fn spawn(&self, request: Asked) -> JoinHandle<Got> {
        let client = self.clone();
        tokio::spawn(async move { client.send(request).await })
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        request: Asked,
    ) -> Got {
        let io = TokioIo::new(stream);
        if self.way.is_http2 {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .unwrap();
            tokio::spawn(connection);
            Got::read(sender.send_request(self.for_http2(request)).await.unwrap()).await
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Got::read(sender.send_request(for_http1(request)).await.unwrap()).await
        }
    }

    fn for_http2(&self, mut request: Asked) -> Asked {
        let scheme = if self.way.is_tls { "https" } else { "http" };
        *request.uri_mut() = format!("{scheme}://localhost{}", request.uri())
            .parse::<Uri>()
            .unwrap();
        request
    }
}

fn for_http1(mut request: Asked) -> Asked {
    request
        .headers_mut()
        .insert(HOST, HeaderValue::from_static("localhost"));
    request
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Got {
    async fn read(response: Response<Incoming>) -> Got {
        let (parts, body) = response.into_parts();
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned();
        Got {
            status: parts.status,
            headers: parts.headers,
            body: collected.to_bytes(),
            trailers,
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The word of a problem, if this is one.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.header("content-type") != Some("application/problem+json") {
            return None;
        }
        let document: serde_json::Value =
            serde_json::from_slice(&self.body).expect("a problem is JSON");
        Some(
            document["code"]
                .as_str()
                .expect("a problem has a code")
                .to_owned(),
        )
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }
}

/// A guarded request. What the upstream does is what the body says.
pub(crate) fn post(key: &str, body: &'static str) -> Asked {
    without_key("/do", body).with("idempotency-key", key)
}

/// The same without a key.
pub(crate) fn without_key(target: &str, body: &'static str) -> Asked {
    Request::post(target)
        .body(Full::from(body).boxed())
        .unwrap()
}

/// Adds to a request.
pub(crate) trait With {
    fn with(self, name: &'static str, value: &str) -> Self;
}

impl With for Asked {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers_mut().append(
            HeaderName::from_static(name),
            HeaderValue::try_from(value).unwrap(),
        );
        self
    }
}

/// A body that begins and never goes on.
pub(crate) struct Stalled(Option<Bytes>);

impl Stalled {
    pub(crate) fn after(beginning: &'static str) -> BoxBody<Bytes, Infallible> {
        Stalled(Some(Bytes::from_static(beginning.as_bytes()))).boxed()
    }
}

impl http_body::Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(beginning) => Poll::Ready(Some(Ok(Frame::data(beginning)))),
            None => Poll::Pending,
        }
    }
}
