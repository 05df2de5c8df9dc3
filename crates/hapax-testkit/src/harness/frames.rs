//! HTTP/2 frames written by hand, including invalid ones that a library would never send.

use std::io::{self, Read};

/// The client's connection preface.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// The placeholder for the field with the key. Without a key, the field is left out.
const KEY: &str = "{key}";

/// A frame. Its payload may be a template of fields, which is filled in and encoded later.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Payload,
}

#[derive(Clone, Debug)]
pub enum Payload {
    Text(String),
    Fields(Vec<(String, String)>),
    /// Bytes that are not a frame.
    Raw(String),
}

impl Frame {
    pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Frame {
        let fields = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Frame {
            kind: HEADERS,
            flags,
            stream,
            payload: Payload::Fields(fields),
        }
    }

    pub fn of(kind: u8, flags: u8, stream: u32, payload: &str) -> Frame {
        Frame {
            kind,
            flags,
            stream,
            payload: Payload::Text(payload.to_owned()),
        }
    }

    /// Bytes that are not a frame.
    pub fn raw(text: &str) -> Frame {
        Frame {
            kind: 0,
            flags: 0,
            stream: 0,
            payload: Payload::Raw(text.to_owned()),
        }
    }

    pub fn takes_key(&self) -> bool {
        matches!(&self.payload, Payload::Fields(fields) if fields.iter().any(|(name, _)| name == KEY))
    }

    /// The bytes to send. `fill` turns a template into bytes; `key` is the key, if any.
    pub fn bytes(&self, fill: &dyn Fn(&str) -> Vec<u8>, key: Option<&str>) -> Vec<u8> {
        let payload = match &self.payload {
            Payload::Raw(text) => return fill(text),
            Payload::Text(text) => fill(text),
            Payload::Fields(fields) => {
                let mut block = Vec::new();
                for (name, value) in fields {
                    match (name.as_str(), key) {
                        (KEY, Some(key)) => literal(&mut block, b"idempotency-key", key.as_bytes()),
                        (KEY, None) => {}
                        _ => literal(&mut block, &fill(name), &fill(value)),
                    }
                }
                block
            }
        };
        frame(self.kind, self.flags, self.stream, &payload)
    }
}

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Encodes a field in HPACK as a literal without indexing.
pub fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        integer(block, text.len());
        block.extend(text);
    }
}

/// An integer after one unset bit (RFC 7541 section 5.1).
fn integer(block: &mut Vec<u8>, mut value: usize) {
    if value < 127 {
        return block.push(u8::try_from(value).unwrap());
    }
    block.push(127);
    value -= 127;
    while value >= 128 {
        block.push(u8::try_from(value % 128).unwrap() | 128);
        value /= 128;
    }
    block.push(u8::try_from(value).unwrap());
}

/// A received frame.
pub struct Received {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The next frame; `None` when the connection ends.
pub fn receive(stream: &mut impl Read) -> io::Result<Option<Received>> {
    let mut head = [0; 9];
    if let Err(error) = stream.read_exact(&mut head) {
        return if error.kind() == io::ErrorKind::UnexpectedEof {
            Ok(None)
        } else {
            Err(error)
        };
    }
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    Ok(Some(Received {
        kind: head[3],
        flags: head[4],
        stream: id,
        payload,
    }))
}
