//! The client: a minimal HTTP/1.1 client, so that the server dominates the measurement.

use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::Error;
use crate::stats::Latencies;

pub(crate) const BODY_BYTES: usize = 200;
const UUID_BYTES: usize = 36;
/// Larger than any response of the servers.
const RESPONSE_BYTES_MAX: usize = 8 << 10;

/// Which keys to send.
pub(crate) enum Keys {
    /// A new key for each request.
    Fresh,
    /// These keys, repeatedly.
    Again(Vec<Uuid>),
    /// Each of these keys once.
    Once(Vec<Uuid>),
}

impl Keys {
    /// `count` new keys, each once.
    pub(crate) fn fresh(count: usize) -> Keys {
        Keys::Once(std::iter::repeat_with(Uuid::new_v4).take(count).collect())
    }

    /// The last `count` of these keys, repeatedly.
    pub(crate) fn last(keys: &[Uuid], count: usize) -> Keys {
        Keys::Again(keys[keys.len().saturating_sub(count)..].to_vec())
    }
}

/// The result of sending.
pub(crate) struct Sent {
    pub(crate) keys: Vec<Uuid>,
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Latencies,
    /// Whether the last answer of every connection was a replay.
    pub(crate) replayed: bool,
}

/// The bytes of a request, and the status that its answer must have.
#[derive(Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// The position of the key in the bytes.
    key: Option<Range<usize>>,
    status: u16,
}

impl Request {
    /// An order with a key, which is replaced for each request.
    pub(crate) fn order(path: &str, status: u16) -> Request {
        let before = format!("{}idempotency-key: ", head("POST", path));
        let key = before.len()..before.len() + UUID_BYTES;
        let blank = "0".repeat(UUID_BYTES);
        let bytes = format!(
            "{before}{blank}\r\ncontent-length: {BODY_BYTES}\r\n\r\n{}",
            order()
        )
        .into_bytes();
        Request {
            bytes,
            key: Some(key),
            status,
        }
    }

    /// Adds a field, given as a whole line of the head.
    pub(crate) fn with_field(mut self, line: &str) -> Request {
        let after_first_line = self
            .bytes
            .iter()
            .position(|&byte| byte == b'\n')
            .map_or(0, |end| end + 1);
        self.bytes
            .splice(after_first_line..after_first_line, line.bytes());
        self.key = self
            .key
            .map(|key| key.start + line.len()..key.end + line.len());
        self
    }

    /// An order without a key.
    pub(crate) fn order_without_key(path: &str, status: u16) -> Request {
        Request::post(path, &order(), status)
    }

    /// A request with the given JSON.
    pub(crate) fn post(path: &str, json: &str, status: u16) -> Request {
        let bytes = format!(
            "{}content-length: {}\r\n\r\n{json}",
            head("POST", path),
            json.len()
        );
        Request {
            bytes: bytes.into_bytes(),
            key: None,
            status,
        }
    }

    pub(crate) fn get(path: &str, status: u16) -> Request {
        Request {
            bytes: format!("{}\r\n", head("GET", path)).into_bytes(),
            key: None,
            status,
        }
    }
}

fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
}

/// An order, padded to `BODY_BYTES`.
fn order() -> String {
    let order = r#"{"amount":4200,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","capture":true,"description":""#;
    format!("{order}{}\"}}", "x".repeat(BODY_BYTES - order.len() - 2))
}

/// Sends requests on `connections` connections until the time is up or the keys are used up.
pub(crate) async fn send(
    address: &str,
    request: &Request,
    connections: usize,
    keys: &Keys,
    duration: Duration,
) -> Result<Sent, Error> {
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(Connection::open(address, request.clone()).await?);
    }
    let began = Instant::now();
    let shares = (0..connections).map(|at| share(keys, at, connections));
    let mut tasks = tokio::task::JoinSet::new();
    for (connection, keys) in opened.into_iter().zip(shares) {
        tasks.spawn(connection.send(keys, began + duration));
    }
    let mut all = Sent {
        keys: Vec::new(),
        elapsed: Duration::ZERO,
        latencies: Latencies::default(),
        replayed: true,
    };
    while let Some(ended) = tasks.join_next().await {
        let sent = ended??;
        all.keys.extend(sent.keys);
        all.latencies.merge(sent.latencies);
        all.replayed &= sent.replayed;
    }
    all.elapsed = began.elapsed();
    Ok(all)
}

/// The keys for one connection.
fn share(keys: &Keys, at: usize, connections: usize) -> Box<dyn Iterator<Item = Uuid> + Send> {
    let share = |keys: &[Uuid]| {
        keys.iter()
            .copied()
            .skip(at)
            .step_by(connections)
            .collect::<Vec<_>>()
            .into_iter()
    };
    match keys {
        Keys::Fresh => Box::new(std::iter::repeat_with(Uuid::new_v4)),
        Keys::Again(keys) => Box::new(share(keys).cycle()),
        Keys::Once(keys) => Box::new(share(keys)),
    }
}

/// A kept-alive connection with one request at a time.
pub(crate) struct Connection {
    stream: TcpStream,
    request: Request,
    response: Vec<u8>,
    filled: usize,
    /// Where the body of the last response begins.
    body: usize,
}

impl Connection {
    pub(crate) async fn open(address: &str, request: Request) -> Result<Connection, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            request,
            response: vec![0; RESPONSE_BYTES_MAX],
            filled: 0,
            body: 0,
        })
    }

    /// Sends the request, under this key if it has one, and reads the whole response. Returns its
    /// body.
    pub(crate) async fn exchange(&mut self, key: Uuid) -> Result<&[u8], Error> {
        if let Some(range) = self.request.key.clone() {
            key.hyphenated()
                .encode_lower(&mut self.request.bytes[range]);
        }
        self.stream.write_all(&self.request.bytes).await?;
        self.receive().await?;
        Ok(&self.response[self.body..self.filled])
    }

    /// The stream alone, for callers that send no further requests.
    pub(crate) fn into_stream(self) -> TcpStream {
        self.stream
    }

    async fn send(mut self, keys: impl Iterator<Item = Uuid>, end: Instant) -> Result<Sent, Error> {
        let mut sent = Sent {
            keys: Vec::new(),
            elapsed: Duration::ZERO,
            latencies: Latencies::default(),
            replayed: true,
        };
        for key in keys {
            let began = Instant::now();
            if began >= end {
                break;
            }
            self.exchange(key).await?;
            sent.latencies.push(began.elapsed());
            sent.keys.push(key);
        }
        sent.replayed = self.response[..self.filled]
            .windows(19)
            .any(|window| window == b"idempotent-replayed");
        Ok(sent)
    }

    async fn receive(&mut self) -> Result<(), Error> {
        self.filled = 0;
        let mut whole = None;
        while whole.is_none_or(|(_, end)| self.filled < end) {
            let read = self.stream.read(&mut self.response[self.filled..]).await?;
            if read == 0 {
                return Err(format!(
                    "the server hung up after {:?}",
                    self.response[..self.filled].escape_ascii().to_string()
                )
                .into());
            }
            self.filled += read;
            whole = whole.map_or_else(
                || bounds(&self.response[..self.filled], self.request.status),
                |known| Ok(Some(known)),
            )?;
        }
        self.body = whole.map_or(0, |(body, _)| body);
        Ok(())
    }
}

/// The start and the end of the response body, once the head is complete. Any status other than
/// `status` is an error and ends the measurement.
fn bounds(response: &[u8], status: u16) -> Result<Option<(usize, usize)>, Error> {
    let Some(head) = response.windows(4).position(|window| window == b"\r\n\r\n") else {
        return Ok(None);
    };
    let answered = response.get(9..12).and_then(number);
    if answered != Some(usize::from(status)) {
        return Err(format!("the server answered {}", response.escape_ascii()).into());
    }
    let length = response[..head]
        .split(|&byte| byte == b'\n')
        .find_map(length)
        .ok_or("an answer without a length")?;
    Ok(Some((head + 4, head + 4 + length)))
}

/// The length in this line of a head, if it is a content-length line.
pub(crate) fn length(line: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let (name, value) = line.split_at_checked(NAME.len())?;
    name.eq_ignore_ascii_case(NAME)
        .then(|| number(value.trim_ascii()))
        .flatten()
}

fn number(digits: &[u8]) -> Option<usize> {
    str::from_utf8(digits).ok()?.parse().ok()
}
