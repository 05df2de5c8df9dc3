//! Answers parsed by hand, from an HTTP/1.1 connection that may break off anywhere.

use std::net::SocketAddr;

use http::{HeaderMap, HeaderName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Answer;

/// The part of an answer that arrived.
#[derive(Debug)]
pub struct RawAnswer {
    /// 0 if no head arrived.
    pub status: u16,
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
    pub is_whole: bool,
}

impl From<RawAnswer> for Answer {
    fn from(raw: RawAnswer) -> Answer {
        let fields = raw.head.lines().filter_map(|line| line.split_once(": "));
        let field = |(name, value): (&str, &str)| {
            let name = HeaderName::try_from(name).expect("a field's name");
            (name, value.parse().expect("a field's value"))
        };
        Answer {
            status: raw.status,
            headers: HeaderMap::from_iter(fields.map(field)),
            body: raw.body.into(),
            trailers: None,
        }
    }
}

/// Sends the bytes of one request, which must ask to close the connection, and reads until it
/// closes.
pub async fn send_raw(to: SocketAddr, request: &[u8]) -> RawAnswer {
    let mut socket = TcpStream::connect(to).await.expect("somebody listens");
    // Errors are ignored: a server may refuse the request before all of it is sent, and a broken
    // connection is an expected result.
    let _ = socket.write_all(request).await;
    let mut bytes = Vec::new();
    let _ = socket.read_to_end(&mut bytes).await;
    RawAnswer::parse(&bytes)
}

impl RawAnswer {
    pub fn parse(mut bytes: &[u8]) -> RawAnswer {
        loop {
            let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
                return RawAnswer {
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
                return RawAnswer {
                    status,
                    head,
                    body,
                    is_whole,
                };
            }
        }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// A description of what the client received.
    pub fn told(&self) -> String {
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

/// The body, and whether all of it arrived.
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
