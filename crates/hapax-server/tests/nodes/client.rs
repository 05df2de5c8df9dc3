//! Requests, as clients that retry make them.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::sockets;

const BODY: &str = "a hundred for the hat, from the card that was shown at the counter";
const PATH: &str = "/v1/charges";

/// Only a broken gateway makes a test wait so long.
const GUARD: Duration = Duration::from_secs(60);

/// What must happen soon, so that a gateway that is broken makes a test fail instead of wait.
pub async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(GUARD, event)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {GUARD:?}"))
}

/// A request for one effect, and what the upstream is to do with it.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: String,
    /// The gate at which the upstream holds it.
    hold: Option<String>,
    /// How many seconds it waits for an attempt that is under way.
    wait: u32,
}

impl Charge {
    pub fn new(key: impl Into<String>) -> Charge {
        Charge {
            key: key.into(),
            hold: None,
            wait: 0,
        }
    }

    pub fn held_at(self, gate: &str) -> Charge {
        Charge {
            hold: Some(gate.to_owned()),
            ..self
        }
    }

    pub fn waiting(self, seconds: u32) -> Charge {
        Charge {
            wait: seconds,
            ..self
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![("idempotency-key", self.key.clone())];
        fields.extend(self.hold.clone().map(|gate| ("x-hold", gate)));
        if self.wait > 0 {
            fields.push(("prefer", format!("wait={}", self.wait)));
        }
        fields
    }

    /// As it goes over the wire in HTTP/1.1, up to the end of its head.
    fn head_bytes(&self, more: &str) -> Vec<u8> {
        let fields: String = self
            .fields()
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        format!(
            "POST {PATH} HTTP/1.1\r\nhost: localhost\r\n{fields}{more}content-length: {}\r\n\r\n",
            BODY.len()
        )
        .into_bytes()
    }

    pub fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::post(PATH).header("host", "localhost");
        for (name, value) in self.fields() {
            request = request.header(name, value);
        }
        request.body(Full::from(BODY)).unwrap()
    }

    pub fn request_http2(&self) -> Request<Full<Bytes>> {
        let mut request = self.request();
        request.headers_mut().remove("host");
        *request.uri_mut() = format!("http://localhost{PATH}").parse().unwrap();
        request
    }
}

/// An answer that arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
    pub is_replay: bool,
}

impl Answer {
    pub fn is_charged(&self) -> bool {
        self.status == 201
    }

    pub fn is_unknown(&self) -> bool {
        self.is_problem("outcome-unknown")
    }

    pub fn is_problem(&self, code: &str) -> bool {
        self.status >= 400
            && String::from_utf8_lossy(&self.body).contains(&format!("\"code\":\"{code}\""))
    }

    /// Whether this is the replay of that answer, byte for byte.
    #[track_caller]
    pub fn assert_replays(&self, first: &Answer, key: &str) {
        assert_eq!(
            (self.status, &self.body, self.is_replay),
            (first.status, &first.body, true),
            "{key} was acknowledged"
        );
    }

    pub async fn read(response: Response<Incoming>) -> Option<Answer> {
        let is_replay = response.headers().contains_key("idempotent-replayed");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(Answer {
            status,
            body,
            is_replay,
        })
    }
}

/// Sends a request on a connection of its own; `None` if no whole answer came back.
pub async fn send(address: SocketAddr, charge: &Charge) -> Option<Answer> {
    let socket = connect(address).await?;
    // Thousands of connections that the system remembers for a minute would make it slow to ask
    // about one.
    socket.set_zero_linger().ok()?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.ok()?;
    tokio::spawn(connection);
    Answer::read(sender.send_request(charge.request()).await.ok()?).await
}

/// The same to somebody who is known to be there.
#[track_caller]
pub fn answer(address: SocketAddr, charge: &Charge) -> impl Future<Output = Answer> + Send + use<> {
    let (charge, caller) = (charge.clone(), std::panic::Location::caller());
    async move {
        let sent = in_time("an answer", send(address, &charge)).await;
        sent.unwrap_or_else(|| panic!("{} got no answer, sent at {caller}", charge.key))
    }
}

async fn connect(address: SocketAddr) -> Option<TcpStream> {
    let socket = TcpStream::connect(address).await.ok()?;
    socket.set_nodelay(true).ok()?;
    Some(socket)
}

/// Sends half a body and says so once the gateway has read it; never sends the rest.
pub async fn send_half_a_body(
    address: SocketAddr,
    charge: Charge,
    landed: oneshot::Sender<()>,
) -> Option<Answer> {
    let mut socket = connect(address).await?;
    socket
        .write_all(&charge.head_bytes("expect: 100-continue\r\n"))
        .await
        .ok()?;
    // Said when somebody asks for the body, and not before.
    let mut interim = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    socket.read_exact(&mut interim).await.ok()?;
    assert!(
        interim.starts_with(b"HTTP/1.1 100"),
        "{}",
        String::from_utf8_lossy(&interim)
    );
    socket
        .write_all(&BODY.as_bytes()[..BODY.len() / 2])
        .await
        .ok()?;
    sockets::wait_read(socket.local_addr().ok()?, socket.peer_addr().ok()?).await;
    landed.send(()).ok()?;
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    assert!(
        rest.is_empty(),
        "half a request was answered: {}",
        String::from_utf8_lossy(&rest)
    );
    None
}
