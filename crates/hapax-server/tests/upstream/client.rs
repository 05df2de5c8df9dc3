//! A client of the gateway by hand: one request, one connection, everything that comes back.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Without its framing.
    pub(crate) body: Vec<u8>,
    is_whole: bool,
}

/// Sends a POST whose body is the key too: an origin that cannot read fields counts by it.
pub(crate) async fn post(gateway: SocketAddr, key: &str) -> Answer {
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\nidempotency-key: {key}\r\ncontent-length: {}\r\n\r\n{key}",
        key.len()
    );
    send(gateway, request.as_bytes()).await
}

/// The same without a key: nothing guards it.
pub(crate) async fn post_unguarded(gateway: SocketAddr, body: &str) -> Answer {
    let request = format!(
        "POST /charges HTTP/1.1\r\nhost: shop\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(gateway, request.as_bytes()).await
}

pub(crate) async fn get(gateway: SocketAddr, path: &str) -> Answer {
    send(
        gateway,
        format!("GET {path} HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").as_bytes(),
    )
    .await
}

/// Sends bytes that make one request and ask for the connection's end, and reads until then.
pub(crate) async fn send(gateway: SocketAddr, request: &[u8]) -> Answer {
    let mut socket = TcpStream::connect(gateway)
        .await
        .expect("the gateway listens");
    socket.write_all(request).await.expect("the gateway reads");
    let mut bytes = Vec::new();
    // A connection that is cut is one of the things looked for.
    let _ = socket.read_to_end(&mut bytes).await;
    Answer::parse(&bytes)
}

/// Waits until so many of these connections were answered or cut, and takes them out. The others
/// stay open.
pub(crate) async fn take_answered(sockets: &mut Vec<TcpStream>, count: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    while answers.len() < count {
        let mut index = 0;
        while index < sockets.len() {
            let heard =
                tokio::time::timeout(Duration::from_millis(1), sockets[index].peek(&mut [0])).await;
            if heard.is_err() {
                index += 1;
                continue;
            }
            let (mut socket, mut bytes) = (sockets.swap_remove(index), Vec::new());
            let _ = socket.read_to_end(&mut bytes).await;
            answers.push(Answer::parse(&bytes));
        }
    }
    answers
}

impl Answer {
    pub(crate) fn parse(mut bytes: &[u8]) -> Answer {
        loop {
            let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
                return Answer {
                    status: 0,
                    head: String::new(),
                    body: bytes.to_vec(),
                    is_whole: false,
                };
            };
            let head = String::from_utf8_lossy(&bytes[..end + 4]).into_owned();
            bytes = &bytes[end + 4..];
            let status = head
                .split(' ')
                .nth(1)
                .and_then(|status| status.parse().ok())
                .unwrap_or(0);
            if !(100..200).contains(&status) || status == 101 {
                let (body, is_whole) = unframe(&head, bytes);
                return Answer {
                    status,
                    head,
                    body,
                    is_whole,
                };
            }
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// What the client was told, in as many words as it takes.
    pub(crate) fn told(&self) -> String {
        let mut told = if self.status == 0 {
            "nothing".to_owned()
        } else {
            self.status.to_string()
        };
        if self.field("content-type") == Some("application/problem+json") {
            let body = String::from_utf8_lossy(&self.body);
            let code = body
                .split("/.well-known/idempotency/problems/")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            told += &format!(" {}", code.unwrap_or("problem?"));
        }
        if self.field("idempotent-replayed").is_some() {
            told += " replayed";
        }
        if !self.is_whole {
            told += " cut";
        }
        told
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields
        .filter(|(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
        .next()
}

/// The body, and whether all of it came.
fn unframe(head: &str, bytes: &[u8]) -> (Vec<u8>, bool) {
    if field(head, "transfer-encoding").is_some() {
        return unchunk(bytes);
    }
    match field(head, "content-length").and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => (bytes.to_vec(), bytes.len() == length),
        None => (bytes.to_vec(), true),
    }
}

fn unchunk(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some(at) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..at])
            .ok()
            .and_then(|size| usize::from_str_radix(size, 16).ok())
            .expect("a chunk's size");
        bytes = &bytes[at + 2..];
        if size == 0 {
            return (body, bytes.ends_with(b"\r\n"));
        }
        if bytes.len() < size + 2 {
            body.extend(bytes);
            break;
        }
        body.extend(&bytes[..size]);
        bytes = &bytes[size + 2..];
    }
    (body, false)
}
