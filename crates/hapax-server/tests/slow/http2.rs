//! HTTP/2, which has more ways to keep a server busy.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::crowd::{Crowd, GONE_MAX};
use crate::{Target, wait_given_up};
use hapax_testkit::harness::frames::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM,
    SETTINGS, literal,
};

/// A peer that reads no byte for this long has stopped reading.
const DEAF: Duration = Duration::from_secs(1);

/// The preface and the first settings of a connection.
fn opening(settings: &[u8]) -> Vec<u8> {
    [PREFACE, &frames::frame(SETTINGS, 0, 0, settings)].concat()
}

fn block(method: &str, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in [
        (":method", method),
        (":scheme", "http"),
        (":authority", "h"),
        (":path", path),
    ] {
        literal(&mut block, name.as_bytes(), value.as_bytes());
    }
    block
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(GONE_MAX)).unwrap();
    socket.set_write_timeout(Some(GONE_MAX)).unwrap();
    socket
}

/// Sends for ever from another thread. Returns the reason with which the gateway closed the
/// connection.
fn until_closed(
    address: SocketAddr,
    opening: &[u8],
    mut next: impl FnMut() -> Vec<u8> + Send,
) -> String {
    let mut socket = connect(address);
    let mut sending = socket.try_clone().unwrap();
    socket.write_all(opening).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || while sending.write_all(&next()).is_ok() {});
        let word = last_word(&mut socket);
        let _ = socket.shutdown(std::net::Shutdown::Both);
        word
    })
}

/// The type of PING frames, which only ask for an acknowledgement.
const PING: u8 = 6;

/// Reads until the connection ends. Returns the reason.
fn last_word(socket: &mut TcpStream) -> String {
    let mut word = "closed".to_owned();
    loop {
        match frames::receive(socket) {
            Ok(Some(frame)) if frame.kind == GOAWAY => {
                let said = String::from_utf8_lossy(frame.payload.get(8..).unwrap_or_default())
                    .into_owned();
                word = format!("goaway {} {said}", frame.payload[7]);
            }
            Ok(Some(_)) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the connection stays open")
            }
            Ok(None) | Err(_) => return word,
        }
    }
}

pub fn rapid_reset(target: &Target<'_>) -> String {
    let (block, mut stream) = (block("POST", "/slow"), 1_u32);
    until_closed(target.gateway.clients, &opening(&[]), move || {
        let mut bytes = Vec::new();
        for _ in 0..100 {
            bytes.extend(frames::frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                &block,
            ));
            bytes.extend(frames::frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
            stream += 2;
        }
        bytes
    })
}

pub fn continuation_flood(target: &Target<'_>) -> String {
    let mut more = Vec::new();
    literal(&mut more, b"a", &[b'b'; 1_000]);
    let opening = [
        opening(&[]),
        frames::frame(HEADERS, END_STREAM, 1, &block("GET", "/slow")),
    ]
    .concat();
    until_closed(target.gateway.clients, &opening, move || {
        frames::frame(CONTINUATION, 0, 1, &more)
    })
}

/// One large field in the dynamic table, which is then referenced by single bytes as often as fits
/// into a head.
pub fn hpack_bomb(target: &Target<'_>) -> String {
    let (mut first, mut stream) = (true, 1_u32);
    until_closed(target.gateway.clients, &opening(&[]), move || {
        let mut fields = block("GET", "/slow");
        if std::mem::take(&mut first) {
            fields.push(0x40);
            fields.extend([1, b'a', 127, 0x81, 0x1e]);
            fields.extend([b'b'; 4_000]);
        }
        // 62 is the first index of the dynamic table.
        fields.extend([0x80 | 62; 12_000]);
        stream += 2;
        frames::frame(HEADERS, END_HEADERS | END_STREAM, stream - 2, &fields)
    })
}

pub fn settings_flood(target: &Target<'_>) -> String {
    borne(target, &frames::frame(SETTINGS, 0, 0, &[]))
}

pub fn ping_flood(target: &Target<'_>) -> String {
    borne(target, &frames::frame(PING, 0, 0, &[7; 8]))
}

/// Sends a frame that needs an answer, without reading any, until the gateway stops reading: it
/// must not buffer unread answers.
fn borne(target: &Target<'_>, frame: &[u8]) -> String {
    let mut socket = connect(target.gateway.clients);
    socket.set_write_timeout(Some(DEAF)).unwrap();
    socket.write_all(&opening(&[])).unwrap();
    let (many, mut sent) = (frame.repeat(1_000), 0);
    while socket.write_all(&many).is_ok() {
        sent += 1_000;
        assert!(
            sent < 10_000_000,
            "it takes everything and keeps it somewhere"
        );
    }
    format!("not listened to after {sent}")
}

pub fn empty_data(target: &Target<'_>) -> String {
    let opening = [
        opening(&[]),
        frames::frame(HEADERS, END_HEADERS, 1, &block("POST", "/slow")),
    ]
    .concat();
    let many = frames::frame(DATA, 0, 1, &[]).repeat(1_000);
    until_closed_or_reset(target.gateway.clients, &opening, move || many.clone())
}

/// Like `until_closed`, but a reset of the stream is also accepted.
fn until_closed_or_reset(
    address: SocketAddr,
    opening: &[u8],
    mut next: impl FnMut() -> Vec<u8> + Send,
) -> String {
    let mut socket = connect(address);
    let mut sending = socket.try_clone().unwrap();
    socket.write_all(opening).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || while sending.write_all(&next()).is_ok() {});
        let word = loop {
            match frames::receive(&mut socket) {
                Ok(Some(frame)) if frame.kind == GOAWAY => {
                    break format!("goaway {}", frame.payload[7]);
                }
                Ok(Some(frame)) if frame.kind == RST_STREAM => {
                    break format!("reset {}", frame.payload[3]);
                }
                Ok(Some(frame)) if frame.stream == 1 && frame.flags & END_STREAM != 0 => {
                    break "answered".to_owned();
                }
                Ok(Some(_)) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    panic!("the stream stays open")
                }
                Ok(None) | Err(_) => break "closed".to_owned(),
            }
        };
        let _ = socket.shutdown(std::net::Shutdown::Both);
        word
    })
}

/// Ten times as many streams as are allowed concurrently, each with a body that never comes.
pub fn many_streams(target: &Target<'_>) -> String {
    let mut socket = connect(target.gateway.clients);
    let block = block("POST", "/slow");
    let heads: Vec<u8> = (0..1_280)
        .flat_map(|stream| frames::frame(HEADERS, END_HEADERS, stream * 2 + 1, &block))
        .collect();
    socket.write_all(&[opening(&[]), heads].concat()).unwrap();
    let (mut refused, mut ended) = (0, 0);
    while refused + ended < 1_280 {
        match frames::receive(&mut socket) {
            Ok(Some(frame)) if frame.kind == RST_STREAM && frame.payload[3] == 7 => refused += 1,
            Ok(Some(frame)) if frame.kind == RST_STREAM => {}
            Ok(Some(frame))
                if frame.flags & END_STREAM != 0 && matches!(frame.kind, HEADERS | DATA) =>
            {
                ended += 1;
            }
            Ok(Some(frame)) if frame.kind == GOAWAY => {
                return format!("goaway {}, {refused} refused", frame.payload[7]);
            }
            Ok(Some(frame)) if frame.kind == SETTINGS && frame.flags & ACK == 0 => {
                // The connection may be closed already, which the next read shows.
                let _ = socket.write_all(&frames::frame(SETTINGS, ACK, 0, &[]));
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => panic!("{refused} refused, {ended} ended, and then nothing"),
        }
    }
    assert!(refused >= 1_280 - 128, "only {refused} were refused");
    format!("{refused} refused, {ended} timed out")
}

/// With `SETTINGS_INITIAL_WINDOW_SIZE` of 0.
pub fn no_window(target: &Target<'_>) -> String {
    not_taken(target, &[0, 4, 0, 0, 0, 0])
}

pub fn unread_answers(target: &Target<'_>) -> String {
    not_taken(target, &[])
}

fn not_taken(target: &Target<'_>, settings: &[u8]) -> String {
    let mut socket = connect(target.gateway.clients);
    let block = block("GET", "/endless");
    let asked: Vec<u8> = (0..100)
        .flat_map(|stream| frames::frame(HEADERS, END_HEADERS | END_STREAM, stream * 2 + 1, &block))
        .collect();
    socket
        .write_all(&[opening(settings), asked].concat())
        .unwrap();
    wait_given_up(target, 100, &mut || {});
    "100 given up".to_owned()
}

pub fn stopped_heads(target: &Target<'_>) -> String {
    let said = [
        opening(&[]),
        frames::frame(HEADERS, END_STREAM, 1, &block("GET", "/slow")),
    ]
    .concat();
    let crowd = Crowd::connect(target.gateway.clients, 1_000, &said).wait();
    format!("{} closed", crowd.last_words.len())
}

pub fn unused(target: &Target<'_>) -> String {
    let crowd = Crowd::connect(target.gateway.clients, 1_000, &opening(&[])).wait();
    format!("{} closed", crowd.last_words.len())
}
