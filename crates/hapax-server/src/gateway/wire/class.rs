//! Which bytes may stand where.

const TOKEN: u8 = 1;
const PATH: u8 = 2;
const QUERY: u8 = 4;

static CLASSES: [u8; 256] = classes();

/// A token of RFC 9110: a method or the name of a field.
pub(super) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && all(bytes, TOKEN)
}

/// A path and a query as the HTTP library takes them: visible ASCII without `#` and what no address
/// has unencoded.
pub(super) fn is_path_and_query(bytes: &[u8]) -> bool {
    match memchr::memchr(b'?', bytes) {
        Some(at) => all(&bytes[..at], PATH) && all(&bytes[at..], QUERY),
        None => all(bytes, PATH),
    }
}

/// The value of a field: no control characters but the tab. Written without an early return, so
/// that it runs on many bytes at once.
pub(super) fn is_value(bytes: &[u8]) -> bool {
    !bytes.iter().fold(false, |bad, &byte| {
        bad | ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f)
    })
}

/// Visible ASCII, spaces and tabs.
pub(super) fn is_printable(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|&byte| matches!(byte, b'\t' | b' '..=b'~'))
}

/// Without the spaces and tabs around it.
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
