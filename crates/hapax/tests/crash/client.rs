//! The parent's requests: one connection each, as clients that retry after a crash make them.

use std::net::SocketAddr;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;

/// An answer that arrived completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    pub is_replay: bool,
}

impl Answer {
    pub fn is_unknown(&self) -> bool {
        self.status == 409 && self.body.contains("\"code\":\"outcome-unknown\"")
    }
}

/// Sends one request; `None` if no complete answer came back.
pub async fn send(address: SocketAddr, path: &str, key: &str, hold: bool) -> Option<Answer> {
    let stream = tokio::net::TcpStream::connect(address).await.ok()?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .ok()?;
    tokio::spawn(connection);
    let mut request = Request::post(path)
        .header("host", "localhost")
        .header("idempotency-key", key);
    if hold {
        request = request.header("x-hold", "1");
    }
    let response = sender
        .send_request(request.body(Full::<Bytes>::from("charge")).unwrap())
        .await
        .ok()?;
    let is_replay = response.headers().contains_key("idempotent-replayed");
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.ok()?.to_bytes();
    Some(Answer {
        status,
        body: String::from_utf8_lossy(&body).into_owned(),
        is_replay,
    })
}
