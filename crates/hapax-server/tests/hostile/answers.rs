//! Strict parsing of what came back on a connection.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use hapax_testkit::harness::frames::{
    self, ACK, END_STREAM, GOAWAY, PREFACE, RST_STREAM, Received, SETTINGS,
};

/// A connection whose end is not seen within this time hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Answer {
    /// What the upstream reports to have seen, if this is the upstream's answer.
    pub fn saw(&self) -> Option<&str> {
        self.body.strip_prefix("saw ")?.strip_suffix('\n')
    }

    /// Whether this is an answer of the gateway itself.
    pub fn is_ours(&self) -> bool {
        self.body.starts_with("{\"type\":")
            && self.body.contains(&format!("\"status\":{}", self.status))
    }
}

/// Everything that came back.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The answers to the first and the second request, if there were any.
    pub answers: [Option<Answer>; 2],
    /// How else the first stream ended, over HTTP/2.
    pub ended: Option<String>,
    /// Bytes or answers that belong to no request.
    pub surplus: Option<String>,
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Sends bytes and reads everything that comes back until the gateway closes the connection.
pub fn http1(address: SocketAddr, bytes: &[u8]) -> Result<Outcome, String> {
    let mut socket = connect(address);
    // The gateway may close before it has read everything.
    let _ = socket.write_all(bytes);
    let mut received = Vec::new();
    if let Err(error) = socket.read_to_end(&mut received)
        && error.kind() == std::io::ErrorKind::WouldBlock
    {
        return Err(format!(
            "the connection stays open, after {:?}",
            String::from_utf8_lossy(&received)
        ));
    }
    let _ = socket.shutdown(Shutdown::Both);
    let mut outcome = Outcome::default();
    let mut rest = &received[..];
    for place in &mut outcome.answers {
        *place = next_answer(&mut rest);
    }
    outcome.surplus = (!rest.is_empty()).then(|| String::from_utf8_lossy(rest).into_owned());
    Ok(outcome)
}

/// The next final answer. Consumes nothing if there is no complete one.
fn next_answer(rest: &mut &[u8]) -> Option<Answer> {
    let mut left = *rest;
    loop {
        let end = left.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&left[..end]).to_ascii_lowercase();
        left = &left[end..];
        let status = head.strip_prefix("http/1.")?.get(2..5)?.parse().ok()?;
        if status < 200 {
            continue;
        }
        let body = if head.contains("\r\ntransfer-encoding: chunked\r\n") {
            chunks(&mut left)?
        } else {
            let length = head
                .split("\r\ncontent-length: ")
                .nth(1)?
                .split("\r\n")
                .next()?
                .parse()
                .ok()?;
            take(&mut left, length)?.to_vec()
        };
        *rest = left;
        return Some(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        });
    }
}

fn chunks(left: &mut &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = left.windows(2).position(|window| window == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(take(left, end)?).ok()?, 16).ok()?;
        take(left, 2)?;
        body.extend(take(left, size)?);
        take(left, 2)?;
        if size == 0 {
            return Some(body);
        }
    }
}

fn take<'a>(left: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = left.split_at_checked(length)?;
    *left = rest;
    Some(taken)
}

/// The streams of the first request and of the second.
const STREAMS: [u32; 2] = [1, 3];

/// Sends frames, and reads until both streams or the connection have ended. Streams may be answered
/// in any order.
pub fn http2(address: SocketAddr, bytes: &[u8]) -> Result<Outcome, String> {
    let mut socket = connect(address);
    let opening = [PREFACE, &frames::frame(SETTINGS, 0, 0, &[]), bytes].concat();
    let _ = socket.write_all(&opening);
    let (mut outcome, mut open) = (Outcome::default(), vec![1, 3]);
    while !open.is_empty() {
        let frame = match frames::receive(&mut socket) {
            Ok(Some(frame)) => frame,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(format!("no end comes of streams {open:?}"));
            }
            Ok(None) | Err(_) => {
                outcome.ended.get_or_insert("closed".to_owned());
                break;
            }
        };
        outcome.take(&frame, &mut open)?;
        if frame.kind == SETTINGS && frame.flags & ACK == 0 {
            let _ = socket.write_all(&frames::frame(SETTINGS, ACK, 0, &[]));
        }
    }
    Ok(outcome)
}

impl Outcome {
    fn take(&mut self, frame: &Received, open: &mut Vec<u32>) -> Result<(), String> {
        let Some(index) = STREAMS.iter().position(|id| *id == frame.stream) else {
            if frame.kind == GOAWAY {
                self.ended = Some(format!(
                    "goaway {}",
                    frame.payload.get(7).copied().unwrap_or_default()
                ));
            }
            return Ok(());
        };
        match frame.kind {
            frames::HEADERS if self.answers[index].is_none() => {
                self.answers[index] = Some(Answer {
                    status: status(&frame.payload),
                    body: String::new(),
                });
            }
            frames::DATA => {
                let answer = self.answers[index].as_mut().ok_or("data before its head")?;
                answer.body += &String::from_utf8_lossy(&frame.payload);
            }
            RST_STREAM => {
                self.ended = Some(format!(
                    "reset {}",
                    frame.payload.get(3).copied().unwrap_or_default()
                ));
                open.retain(|id| *id != frame.stream);
            }
            _ => {}
        }
        if matches!(frame.kind, frames::HEADERS | frames::DATA) && frame.flags & END_STREAM != 0 {
            open.retain(|id| *id != frame.stream);
        }
        Ok(())
    }
}

/// The status, if HPACK has an index for it; otherwise 0, and the body shows it.
fn status(block: &[u8]) -> u16 {
    match block.first() {
        Some(0x88) => 200,
        Some(0x8c) => 400,
        Some(0x8d) => 404,
        Some(0x8e) => 500,
        _ => 0,
    }
}
