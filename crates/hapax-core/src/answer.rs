//! The answer: what is sent again on a replay, and how it is stored.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::scope::RecordId;

/// A response as bytes: status, end-to-end headers in order, body, trailers.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Answer {
    /// The status code; callers without HTTP may use any small number.
    pub status: u16,
    /// Header fields in the order they are sent; same-named ones keep their order.
    pub headers: Vec<(String, Bytes)>,
    /// The body, undecoded.
    pub body: Bytes,
    /// Trailer fields, as gRPC sends them.
    pub trailers: Vec<(String, Bytes)>,
}

/// A stored answer that must not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The bytes are not those that were stored, or they belong to another record.
    #[error("the stored answer does not match its checksum")]
    Checksum,
    /// Written by a version this one cannot read.
    #[error("the stored answer has format {0}, which this version does not know")]
    Format(u8),
    /// The checksum is right, but the content is not valid: a bug in the writer.
    #[error("the stored answer is malformed")]
    Malformed,
}

/// The header field that carries the version of a stored answer. It is never sent.
pub const VERSION_FIELD: &str = "hapax-answer-version";

const FORMAT: u8 = 1;
const CHECKSUM_BYTES: usize = 16;

impl Answer {
    /// An answer without headers, for callers without HTTP.
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Answer {
            status,
            body: body.into(),
            ..Answer::default()
        }
    }

    /// The stored form: format, checksum, then each field preceded by its length.
    ///
    /// The checksum covers the record's id, so an answer that ended up in another record is not
    /// sent.
    pub fn encode(&self, id: &RecordId) -> Vec<u8> {
        let mut bytes = vec![0; 1 + CHECKSUM_BYTES];
        bytes[0] = FORMAT;
        bytes.extend(self.status.to_be_bytes());
        put_fields(&mut bytes, &self.headers);
        put_fields(&mut bytes, &self.trailers);
        bytes.extend(&self.body);
        let checksum = checksum(id, &bytes[1 + CHECKSUM_BYTES..]);
        bytes[1..=CHECKSUM_BYTES].copy_from_slice(&checksum);
        bytes
    }

    /// Reads the stored form of the answer of this record.
    pub fn decode(id: &RecordId, stored: &[u8]) -> Result<Answer, AnswerError> {
        match stored.first() {
            None => return Err(AnswerError::Checksum),
            Some(&FORMAT) => {}
            Some(&other) => return Err(AnswerError::Format(other)),
        }
        let (sum, content) = stored[1..]
            .split_at_checked(CHECKSUM_BYTES)
            .ok_or(AnswerError::Checksum)?;
        if sum != checksum(id, content) {
            return Err(AnswerError::Checksum);
        }
        let mut rest = content;
        let status = u16::from_be_bytes(take_array(&mut rest)?);
        let headers = take_fields(&mut rest)?;
        let trailers = take_fields(&mut rest)?;
        Ok(Answer {
            status,
            headers,
            trailers,
            body: Bytes::copy_from_slice(rest),
        })
    }

    /// The answer version it was kept under, if its route had one.
    pub fn version(&self) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(name, _)| name == VERSION_FIELD)
            .map(|(_, version)| &version[..])
    }

    /// Sets the answer version (see [`Policy::answer_version`](crate::Policy::answer_version)) to
    /// be stored, or removes it. The version is stored among the headers, because store layouts
    /// have no column for it. It is never sent.
    #[must_use]
    pub fn under(mut self, version: Option<&str>) -> Self {
        self.headers.retain(|(name, _)| name != VERSION_FIELD);
        self.headers.extend(version.map(|version| {
            (
                VERSION_FIELD.to_owned(),
                Bytes::copy_from_slice(version.as_bytes()),
            )
        }));
        self
    }

    /// The length of what [`encode`](Answer::encode) returns.
    pub fn encoded_len(&self) -> usize {
        let fields = |fields: &[(String, Bytes)]| {
            4 + fields
                .iter()
                .map(|(n, v)| 8 + n.len() + v.len())
                .sum::<usize>()
        };
        1 + CHECKSUM_BYTES + 2 + fields(&self.headers) + fields(&self.trailers) + self.body.len()
    }

    /// Roughly how much memory the answer takes.
    pub fn weight(&self) -> usize {
        let fields = |fields: &[(String, Bytes)]| {
            fields
                .iter()
                .map(|(n, v)| n.len() + v.len() + 64)
                .sum::<usize>()
        };
        self.body.len() + fields(&self.headers) + fields(&self.trailers)
    }
}

fn checksum(id: &RecordId, content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::new_with_prefix(id.as_bytes())
        .chain_update(content)
        .finalize();
    std::array::from_fn(|i| digest[i])
}

fn put_fields(bytes: &mut Vec<u8>, fields: &[(String, Bytes)]) {
    put_len(bytes, fields.len());
    for (name, value) in fields {
        put_len(bytes, name.len());
        bytes.extend(name.as_bytes());
        put_len(bytes, value.len());
        bytes.extend(value);
    }
}

fn put_len(bytes: &mut Vec<u8>, len: usize) {
    let len = u32::try_from(len).expect("answers are bounded far below 4 GiB");
    bytes.extend(len.to_be_bytes());
}

fn take_fields(rest: &mut &[u8]) -> Result<Vec<(String, Bytes)>, AnswerError> {
    let count = u32::from_be_bytes(take_array(rest)?);
    let mut fields = Vec::new();
    for _ in 0..count {
        let name =
            String::from_utf8(take_counted(rest)?.to_vec()).map_err(|_| AnswerError::Malformed)?;
        let value = Bytes::copy_from_slice(take_counted(rest)?);
        fields.push((name, value));
    }
    Ok(fields)
}

fn take_counted<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], AnswerError> {
    let len = u32::from_be_bytes(take_array(rest)?) as usize;
    let (taken, left) = rest.split_at_checked(len).ok_or(AnswerError::Malformed)?;
    *rest = left;
    Ok(taken)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], AnswerError> {
    let (taken, left) = rest.split_first_chunk().ok_or(AnswerError::Malformed)?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Answer {
        Answer {
            status: 201,
            headers: vec![
                ("link".into(), Bytes::from_static(b"<a>")),
                ("x".into(), Bytes::from_static(b"\xff")),
                ("link".into(), Bytes::from_static(b"<b>")),
            ],
            body: Bytes::from_static(b"{\"id\":1}"),
            trailers: vec![("grpc-status".into(), Bytes::from_static(b"0"))],
        }
    }

    #[test]
    fn answers_survive_storage() {
        let id = RecordId::from_bytes([1; 32]);
        for answer in [sample(), Answer::default(), Answer::new(204, "")] {
            let stored = answer.encode(&id);
            assert_eq!(stored.len(), answer.encoded_len());
            assert_eq!(Answer::decode(&id, &stored), Ok(answer));
        }
    }

    #[test]
    fn an_answer_has_the_version_it_was_last_kept_under() {
        let answer = sample().under(Some("1")).under(Some("2"));
        assert_eq!(answer.version(), Some(&b"2"[..]));
        assert_eq!(answer.under(None), sample());
        assert_eq!(sample().version(), None);
    }

    #[test]
    fn a_changed_bit_anywhere_is_noticed() {
        let id = RecordId::from_bytes([1; 32]);
        let stored = sample().encode(&id);
        for at in 0..stored.len() * 8 {
            let mut bad = stored.clone();
            bad[at / 8] ^= 1 << (at % 8);
            assert!(Answer::decode(&id, &bad).is_err(), "bit {at}");
        }
        for len in 0..stored.len() {
            assert!(Answer::decode(&id, &stored[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn an_answer_of_another_record_is_noticed() {
        let stored = sample().encode(&RecordId::from_bytes([1; 32]));
        assert_eq!(
            Answer::decode(&RecordId::from_bytes([2; 32]), &stored),
            Err(AnswerError::Checksum)
        );
    }
}
