//! The request id: correlates the logs of the client, Hapax and the service.

use std::fmt;
use std::sync::Arc;

/// The name of one request in every log. It is not a secret, and no decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(Arc<str>);

impl RequestId {
    /// The longest id that is taken from a client.
    pub const BYTES_MAX: usize = 128;

    /// An id of 1 to 128 letters, digits and `-_.:/+=`. `None` for any other text, because it could
    /// break log lines.
    pub fn new(id: &str) -> Option<RequestId> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
        ((1..=RequestId::BYTES_MAX).contains(&id.len()) && id.bytes().all(is_plain))
            .then(|| RequestId(id.into()))
    }

    /// The id as it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_plain_text_is_an_id() {
        for id in ["a", "0af7651916cd43dd-1f", "req_7:/+=.", &"x".repeat(128)] {
            assert_eq!(RequestId::new(id).unwrap().as_str(), id);
        }
        for id in ["", "a b", "a\nb", "ä", "a\"b", &"x".repeat(129)] {
            assert_eq!(RequestId::new(id), None, "{id:?}");
        }
    }
}
