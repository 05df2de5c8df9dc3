//! The name of a reader.

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The name of a reader, if it is one: it is also a label of metrics.
pub(crate) fn reader_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
        return Err(format!(
            "the name of a reader is 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`: write \"orders\", for example"
        ));
    }
    Ok(text.to_owned())
}
