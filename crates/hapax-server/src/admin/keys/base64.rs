//! Base64 (RFC 4648 section 4): how bytes that are no text travel in JSON.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(group);
        // A group that is not full has as many digits as its bytes need, and is filled up.
        for digit in 0..4 {
            let index = bits >> (18 - 6 * digit) & 63;
            text.push(if digit <= chunk.len() {
                char::from(ALPHABET[index as usize])
            } else {
                '='
            });
        }
    }
    text
}

/// The bytes; `None` for anything that `encode` does not write.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in text.as_bytes().chunks(4) {
        let digits = group
            .iter()
            .position(|&byte| byte == b'=')
            .unwrap_or(group.len());
        let bits = group[..digits].iter().try_fold(0, |bits, byte| {
            let digit = ALPHABET.iter().position(|known| known == byte)?;
            Some(bits << 6 | u32::try_from(digit).ok()?)
        })?;
        let whole = (bits << (6 * (4 - digits))).to_be_bytes();
        bytes.extend_from_slice(whole.get(1..digits)?);
    }
    (encode(&bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_the_rfc_has_them() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in [
            "Z", "Zg", "Zg=", "Zh==", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm9_", "é",
        ] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
