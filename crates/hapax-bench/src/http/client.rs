//! The client: as little as HTTP/1.1 allows, so that what is measured is the server.

use std::ops::Range;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::Error;
use crate::stats::Latencies;

pub(super) const BODY_BYTES: usize = 200;
const UUID_BYTES: usize = 36;
/// More than any response of the server has.
const RESPONSE_BYTES_MAX: usize = 8 << 10;
const CREATED: &[u8] = b"201";

/// Which keys to send.
pub(super) enum Keys {
    /// A new one each time.
    Fresh,
    /// These, over and over.
    Again(Vec<Uuid>),
    /// Each of these once.
    Once(Vec<Uuid>),
}

/// What was sent.
pub(super) struct Sent {
    pub(super) keys: Vec<Uuid>,
    pub(super) elapsed: Duration,
    pub(super) latencies: Latencies,
    /// Whether the last answer of every connection was a replay.
    pub(super) replayed: bool,
}

pub(super) struct Client {
    runtime: Runtime,
    connections: usize,
}

impl Client {
    pub(super) fn new(connections: usize, threads: usize) -> Result<Client, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        Ok(Client { runtime, connections })
    }

    /// Sends requests on all connections until time is up, or the keys are.
    pub(super) fn run(&self, address: &str, keys: &Keys, duration: Duration) -> Result<Sent, Error> {
        self.runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..self.connections {
                connections.push(Connection::open(address).await?);
            }
            let began = Instant::now();
            let shares = (0..self.connections).map(|at| self.share(keys, at));
            let tasks: Vec<_> = connections
                .into_iter()
                .zip(shares)
                .map(|(connection, keys)| tokio::spawn(connection.send(keys, began + duration)))
                .collect();
            let mut all = Sent { keys: Vec::new(), elapsed: Duration::ZERO, latencies: Latencies::default(), replayed: true };
            for task in tasks {
                let sent = task.await??;
                all.keys.extend(sent.keys);
                all.latencies.merge(sent.latencies);
                all.replayed &= sent.replayed;
            }
            all.elapsed = began.elapsed();
            Ok(all)
        })
    }

    /// The keys of one connection.
    fn share(&self, keys: &Keys, at: usize) -> Box<dyn Iterator<Item = Uuid> + Send> {
        let share = |keys: &[Uuid]| keys.iter().copied().skip(at).step_by(self.connections).collect::<Vec<_>>().into_iter();
        match keys {
            Keys::Fresh => Box::new(std::iter::repeat_with(Uuid::new_v4)),
            Keys::Again(keys) => Box::new(share(keys).cycle()),
            Keys::Once(keys) => Box::new(share(keys)),
        }
    }
}

struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// Where in the request its key is.
    key: Range<usize>,
    response: Vec<u8>,
    filled: usize,
}

impl Connection {
    async fn open(address: &str) -> Result<Connection, Error> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let before = "POST /v1/charges HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: ";
        let key = before.len()..before.len() + UUID_BYTES;
        let blank = "0".repeat(UUID_BYTES);
        let request = format!("{before}{blank}\r\ncontent-length: {BODY_BYTES}\r\n\r\n{}", body());
        Ok(Connection { stream, request: request.into_bytes(), key, response: vec![0; RESPONSE_BYTES_MAX], filled: 0 })
    }

    async fn send(mut self, keys: impl Iterator<Item = Uuid>, end: Instant) -> Result<Sent, Error> {
        let mut sent = Sent { keys: Vec::new(), elapsed: Duration::ZERO, latencies: Latencies::default(), replayed: true };
        for key in keys {
            let began = Instant::now();
            if began >= end {
                break;
            }
            key.hyphenated().encode_lower(&mut self.request[self.key.clone()]);
            self.stream.write_all(&self.request).await?;
            self.receive().await?;
            sent.latencies.push(began.elapsed());
            sent.keys.push(key);
        }
        sent.replayed = self.response[..self.filled].windows(19).any(|window| window == b"idempotent-replayed");
        Ok(sent)
    }

    /// One whole response.
    async fn receive(&mut self) -> Result<(), Error> {
        self.filled = 0;
        let mut whole = None;
        while whole.is_none_or(|whole| self.filled < whole) {
            let read = self.stream.read(&mut self.response[self.filled..]).await?;
            if read == 0 {
                return Err("the server hung up".into());
            }
            self.filled += read;
            whole = response_bytes(&self.response[..self.filled])?;
        }
        Ok(())
    }
}

/// How long the response is that begins here, once its head is whole. Any but a 201 ends the measurement.
fn response_bytes(response: &[u8]) -> Result<Option<usize>, Error> {
    let Some(head) = response.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(None) };
    if response.get(9..12) != Some(CREATED) {
        return Err(format!("the server answered {}", response.escape_ascii()).into());
    }
    const LENGTH: &[u8] = b"content-length: ";
    let length = response[..head].windows(LENGTH.len()).position(|window| window == LENGTH).ok_or("an answer without a length")?;
    let digits = response[length + LENGTH.len()..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    Ok(Some(head + 4 + length))
}

/// An order, padded to its length.
fn body() -> String {
    let order = r#"{"amount":4200,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","capture":true,"description":""#;
    format!("{order}{}\"}}", "x".repeat(BODY_BYTES - order.len() - 2))
}
