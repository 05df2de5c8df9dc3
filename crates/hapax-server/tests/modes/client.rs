//! A caller: each request on a connection of its own.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Only a broken gateway makes a test wait so long.
const GUARD: Duration = Duration::from_secs(60);

/// What must happen, so that a test fails instead of waiting for ever.
pub(crate) async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(GUARD, event)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {GUARD:?}"))
}

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Got {
    pub(crate) fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Whether it is a rejection of this status and code, with the advice to repeat or not to.
    #[track_caller]
    pub(crate) fn assert_rejected(&self, status: u16, code: &str, again: bool) {
        let document: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let advice = self
            .headers
            .get("x-should-retry")
            .map(|advice| advice == "true");
        assert_eq!(
            (self.status, document["code"].as_str(), advice),
            (status, Some(code), Some(again)),
            "{self:?}"
        );
    }

    /// Whether it is this answer of the service, not sent before.
    #[track_caller]
    pub(crate) fn assert_first(&self, status: u16, body: &str) {
        assert_eq!(
            (self.status, &self.body[..], self.is_replay()),
            (status, body.as_bytes(), false),
            "{self:?}"
        );
    }

    /// Whether it is this answer of the service, sent again.
    #[track_caller]
    pub(crate) fn assert_replays(&self, status: u16, body: &str) {
        assert_eq!(
            (self.status, &self.body[..], self.is_replay()),
            (status, body.as_bytes(), true),
            "{self:?}"
        );
    }
}

/// Sends an order under this key, and tells the service what to do with it: repeats are the same
/// request whatever they tell it.
pub(crate) async fn order(to: SocketAddr, key: &str, told: &str) -> Got {
    let request = Request::post("/orders")
        .header("idempotency-key", key)
        .header("x-do", told);
    send(to, request.body(Full::from("a hat")).unwrap()).await
}

pub(crate) async fn send(to: SocketAddr, mut request: Request<Full<Bytes>>) -> Got {
    let exchange = async {
        let socket = TcpStream::connect(to).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        request
            .headers_mut()
            .insert("host", "localhost".parse().unwrap());
        let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        }
    };
    in_time("an answer", exchange).await
}
