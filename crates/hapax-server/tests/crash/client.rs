//! Requests, each on a connection of its own, as clients that retry make them.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::sockets;
use super::upstream::hold;

pub const BODY: &str = "a hundred for the hat, from the card that was shown at the counter";
const PATH: &str = "/v1/charges";

/// What HTTP/2 lets a peer send before it hears more, unless told otherwise (RFC 9113 section
/// 6.9.2).
pub const WINDOW_BYTES: usize = 65_535;

/// Only a broken gateway makes a test wait so long.
const GUARD: Duration = Duration::from_secs(60);

/// What must happen soon, so that a gateway that is broken makes a test fail instead of wait.
pub async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(GUARD, event)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {GUARD:?}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

/// A request for one effect, and what the upstream is to do with it.
#[derive(Clone, Debug)]
pub struct Charge {
    pub key: String,
    pub hold: &'static str,
    pub round: String,
    pub answer_bytes: usize,
    /// Waits for an attempt that is under way.
    pub waits: bool,
}

impl Charge {
    pub fn new(key: impl Into<String>) -> Charge {
        Charge {
            key: key.into(),
            hold: hold::NOT,
            round: String::new(),
            answer_bytes: 0,
            waits: false,
        }
    }

    /// A repeat, which waits if it must.
    pub fn again(&self) -> Charge {
        Charge {
            hold: hold::NOT,
            waits: true,
            ..self.clone()
        }
    }

    pub fn held(self, hold: &'static str, round: &str) -> Charge {
        Charge {
            hold,
            round: round.to_owned(),
            ..self
        }
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("idempotency-key", self.key.clone()),
            ("x-hold", self.hold.to_owned()),
            ("x-round", self.round.clone()),
            ("x-bytes", self.answer_bytes.to_string()),
        ];
        if self.waits {
            fields.push(("prefer", "wait=30".to_owned()));
        }
        fields
    }

    /// As it goes over the wire in HTTP/1.1, up to the end of its head.
    pub fn head_bytes(&self, more: &str) -> Vec<u8> {
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

    pub fn request<B>(&self, body: B) -> Request<B> {
        let mut request = Request::post(PATH).header("host", "localhost");
        for (name, value) in self.fields() {
            request = request.header(name, value);
        }
        request.body(body).unwrap()
    }

    pub fn request_http2<B>(&self, body: B) -> Request<B> {
        let mut request = self.request(body);
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

    async fn read(response: Response<Incoming>) -> Option<Answer> {
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

/// Sends a request; `None` if no whole answer came back.
pub async fn send(address: SocketAddr, version: Version, charge: &Charge) -> Option<Answer> {
    let socket = connect(address).await?;
    // Thousands of connections that the system remembers for a minute would make it slow to ask
    // about one.
    socket.set_zero_linger().ok()?;
    let io = TokioIo::new(socket);
    let body = Full::<Bytes>::from(BODY);
    let response = match version {
        Version::Http1 => {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
            tokio::spawn(connection);
            sender.send_request(charge.request(body)).await.ok()?
        }
        Version::Http2 => {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .ok()?;
            tokio::spawn(connection);
            sender.send_request(charge.request_http2(body)).await.ok()?
        }
    };
    Answer::read(response).await
}

pub async fn connect(address: SocketAddr) -> Option<TcpStream> {
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

/// Reads as much of a long answer as fits into the window, and says so; never makes room for the
/// rest.
pub async fn read_half_an_answer(
    address: SocketAddr,
    charge: Charge,
    landed: oneshot::Sender<()>,
) -> Option<Answer> {
    assert!(charge.answer_bytes > WINDOW_BYTES);
    let (sender, connection) = h2::client::handshake(connect(address).await?).await.ok()?;
    tokio::spawn(connection);
    let (response, mut stream) = sender
        .ready()
        .await
        .ok()?
        .send_request(charge.request_http2(()), false)
        .ok()?;
    stream.send_data(Bytes::from(BODY), true).ok()?;
    let mut body = response.await.ok()?.into_body();
    let mut read = 0;
    while read < WINDOW_BYTES {
        read += body.data().await?.ok()?.len();
    }
    landed.send(()).ok()?;
    if let Some(Ok(more)) = body.data().await {
        panic!("{} bytes came that there was no room for", more.len());
    }
    None
}
