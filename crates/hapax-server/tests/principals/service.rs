//! A service that is asked: for keys, or for who is asking. What it answers can be changed at any
//! time.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// What to answer to a request with these fields.
type Answers = dyn Fn(&HeaderMap) -> Response<String> + Send + Sync;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _accepting: AbortOnDropHandle<()>,
}

struct Shared {
    answers: Mutex<Arc<Answers>>,
    asked: Mutex<Vec<Question>>,
}

/// What it was asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) line: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Service {
    pub(crate) async fn start(
        answers: impl Fn(&HeaderMap) -> Response<String> + Send + Sync + 'static,
    ) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Service::on(listener, None, answers)
    }

    pub(crate) fn on(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        answers: impl Fn(&HeaderMap) -> Response<String> + Send + Sync + 'static,
    ) -> Service {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            answers: Mutex::new(Arc::new(answers)),
            asked: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, tls, shared.clone()));
        Service {
            address,
            shared,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// Answers so from now on.
    pub(crate) fn answer(
        &self,
        answers: impl Fn(&HeaderMap) -> Response<String> + Send + Sync + 'static,
    ) {
        *self.shared.answers.lock().unwrap() = Arc::new(answers);
    }

    pub(crate) fn asked(&self) -> Vec<Question> {
        self.shared.asked.lock().unwrap().clone()
    }

    pub(crate) fn url(&self, path: &str) -> http::Uri {
        format!("http://{}{path}", self.address).parse().unwrap()
    }
}

async fn accept(listener: TcpListener, tls: Option<Arc<ServerConfig>>, shared: Arc<Shared>) {
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (tls, shared) = (tls.clone(), shared.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(socket, shared).await,
                Some(tls) => {
                    // Who does not trust us leaves here.
                    if let Ok(stream) = TlsAcceptor::from(tls).accept(socket).await {
                        serve(stream, shared).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, shared: Arc<Shared>) {
    let service = service_fn(move |request| answer(request, shared.clone()));
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map(|body| body.to_bytes())
        .unwrap_or_default();
    let question = Question {
        line: format!("{} {}", parts.method, parts.uri),
        headers: parts.headers,
        body,
    };
    let answers = shared.answers.lock().unwrap().clone();
    let response = answers(&question.headers);
    shared.asked.lock().unwrap().push(question);
    Ok(response.map(Full::from))
}

/// An answer with this body.
pub(crate) fn says(text: impl Into<String>) -> Response<String> {
    Response::new(text.into())
}
