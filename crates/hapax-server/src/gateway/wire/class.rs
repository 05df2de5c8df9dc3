//! Which bytes are allowed in which part of a head.

const TOKEN: u8 = 1;
const PATH: u8 = 2;
const QUERY: u8 = 4;

static CLASSES: [u8; 256] = classes();

/// Whether this is a token of RFC 9110: a method or the name of a field.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// Whether this is a path and query that the HTTP library accepts: visible ASCII without `#` and
/// without characters that must be percent-encoded.
pub(super) fn is_path_and_query(bytes: &[u8]) -> bool {
    match memchr::memchr(b'?', bytes) {
        Some(at) => all(&bytes[..at], PATH) && all(&bytes[at..], QUERY),
        None => all(bytes, PATH),
    }
}

/// Whether this is a field value: no control characters except the tab. There is no early return,
/// so that the compiler can vectorize the loop.
pub(super) fn is_value(bytes: &[u8]) -> bool {
    !bytes.iter().fold(false, |bad, &byte| {
        bad | ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f)
    })
}

/// Whether this is visible ASCII, spaces and tabs only.
pub(super) fn is_printable(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|&byte| matches!(byte, b'\t' | b' '..=b'~'))
}

/// Removes spaces and tabs at both ends.
pub(super) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

fn all(bytes: &[u8], class: u8) -> bool {
    bytes
        .iter()
        .all(|&byte| CLASSES[usize::from(byte)] & class != 0)
}

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte: u8 = b'!';
    while byte <= b'~' {
        let alphanumeric = byte.is_ascii_alphanumeric();
        let mut class = 0;
        if alphanumeric
            || matches!(
                byte,
                b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            )
        {
            class |= TOKEN;
        }
        if !matches!(byte, b'#' | b'<' | b'>' | b'?' | b'`') {
            class |= PATH;
        }
        if !matches!(byte, b'#' | b'<' | b'>' | b'"') {
            class |= QUERY;
        }
        classes[byte as usize] = class;
        byte += 1;
    }
    classes
}
