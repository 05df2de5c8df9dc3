//! Requests on connections of their own.

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

/// An answer that arrived whole.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn is_problem(&self, code: &str) -> bool {
        self.status >= 400 && self.text().contains(&format!("\"code\":\"{code}\""))
    }

    pub fn is_replay(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The field of a JSON object.
    pub fn member(&self, name: &str) -> String {
        let value: serde_json::Value =
            serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        value[name]
            .as_str()
            .unwrap_or_else(|| panic!("{self:?} has no {name}"))
            .to_owned()
    }

    /// Whether this is the replay of that answer, byte for byte.
    #[track_caller]
    pub fn assert_replays(&self, first: &Answer) {
        assert!(self.is_replay(), "{self:?}");
        assert_eq!((self.status, &self.body), (first.status, &first.body));
        for name in ["content-type", "etag", "location"] {
            assert_eq!(self.headers.get(name), first.headers.get(name), "{name}");
        }
    }
}

/// An order that is placed under a key.
#[derive(Clone, Debug)]
pub struct Order {
    pub key: String,
    quantity: u32,
    mischief: Option<&'static str>,
}

impl Order {
    /// Of one. Its key is its item too, so that the table of orders tells how many there are of it.
    pub fn new(key: impl Into<String>) -> Order {
        Order {
            key: key.into(),
            quantity: 1,
            mischief: None,
        }
    }

    /// What the service refuses.
    pub fn of_none(self) -> Order {
        Order {
            quantity: 0,
            ..self
        }
    }

    /// What goes wrong with it in the service.
    pub fn with(self, mischief: &'static str) -> Order {
        Order {
            mischief: Some(mischief),
            ..self
        }
    }

    fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::post("/orders")
            .header("idempotency-key", &self.key)
            .header("content-type", "application/json");
        if let Some(mischief) = self.mischief {
            request = request.header("x-mischief", mischief);
        }
        request
            .body(
                format!(
                    "{{\"item\": \"{}\", \"quantity\": {}}}",
                    self.key, self.quantity
                )
                .into(),
            )
            .unwrap()
    }
}

/// Sends it once; `None` if no whole answer came back.
pub async fn try_place(address: SocketAddr, order: &Order) -> Option<Answer> {
    tokio::time::timeout(GUARD, send(address, order.request()))
        .await
        .unwrap_or_else(|_| panic!("{order:?}: no answer within {GUARD:?}"))
}

/// The same to somebody who is known to be there.
pub async fn place(address: SocketAddr, order: &Order) -> Answer {
    try_place(address, order)
        .await
        .unwrap_or_else(|| panic!("{order:?} got no answer"))
}

/// A POST without a body.
pub async fn post(address: SocketAddr, path: &str) -> Answer {
    send(address, Request::post(path).body(Full::default()).unwrap())
        .await
        .unwrap_or_else(|| panic!("{path} got no answer"))
}

pub async fn send(address: SocketAddr, mut request: Request<Full<Bytes>>) -> Option<Answer> {
    request
        .headers_mut()
        .insert("host", "localhost".parse().unwrap());
    let socket = TcpStream::connect(address).await.ok()?;
    socket.set_nodelay(true).ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.ok()?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.ok()?;
    let (parts, body) = response.into_parts();
    Some(Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.collect().await.ok()?.to_bytes(),
    })
}
