//! A client: HTTP/1.1 on a connection that it keeps, with TLS or without.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// The certificate that was shown, if one was.
    pub(crate) certificate: Option<Vec<u8>>,
}

pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr, tls: Option<&Arc<ClientConfig>>) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let Some(tls) = tls else {
            return Connection {
                sender: speak(stream).await,
                certificate: None,
            };
        };
        let stream = TlsConnector::from(tls.clone())
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
            .unwrap();
        let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        Connection {
            sender: speak(stream).await,
            certificate: Some(certificate),
        }
    }

    /// Sends a request; `Err` says how its answer did not come.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Got, String> {
        self.sender
            .ready()
            .await
            .map_err(|error| format!("the connection is gone: {error}"))?;
        let response = self
            .sender
            .send_request(request)
            .await
            .map_err(|error| format!("no answer: {error}"))?;
        got(response).await
    }
}

async fn speak<S>(stream: S) -> http1::SendRequest<Full<Bytes>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn got(response: Response<hyper::body::Incoming>) -> Result<Got, String> {
    let (head, body) = response.into_parts();
    let body = body
        .collect()
        .await
        .map_err(|error| format!("its answer broke off: {error}"))?
        .to_bytes();
    Ok(Got {
        status: head.status.as_u16(),
        replayed: head.headers.contains_key("idempotent-replayed"),
        headers: head.headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// A POST with a key.
pub(crate) fn post(path: &str, key: &str) -> Request<Full<Bytes>> {
    let request = Request::post(path)
        .header("host", "localhost")
        .header("authorization", "Bearer ada")
        .header("idempotency-key", key);
    request
        .body(Full::new(Bytes::from("{\"amount\":5}")))
        .unwrap()
}

pub(crate) fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path)
        .header("host", "localhost")
        .body(Full::new(Bytes::new()))
        .unwrap()
}
