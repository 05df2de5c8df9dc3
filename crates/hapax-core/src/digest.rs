//! SHA-256 over a list of parts with unambiguous boundaries.

use sha2::{Digest, Sha256};

/// Hashes a list of parts. A domain comes first and each part is preceded by its length, so no two
/// different lists have the same input.
pub(crate) struct Parts(Sha256);

impl Parts {
    pub(crate) fn new(domain: &str) -> Self {
        let mut parts = Parts(Sha256::new());
        parts.push(domain.as_bytes());
        parts
    }

    pub(crate) fn push(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part);
    }

    /// Adds the number of parts that follow, which separates two neighbouring lists.
    pub(crate) fn push_count(&mut self, count: usize) {
        self.0.update((count as u64).to_be_bytes());
    }

    pub(crate) fn finish(self) -> [u8; 32] {
        self.0.finalize().into()
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// The bytes that `hex` wrote; `None` for anything else.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}
