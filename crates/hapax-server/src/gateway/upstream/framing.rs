//! Derives from the head of an HTTP/1 answer where the answer ends, and whether its connection may
//! serve another request.

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::response::Parts;
use http::{Method, StatusCode, Version};

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// With its head: the answer to HEAD, a 204, a 304. Some servers send a body nevertheless.
    WithHead,
    /// After the declared number of bytes, or with the last chunk.
    Framed,
    /// When the connection closes. A missing byte cannot be detected.
    WithConnection,
}

/// What the head of an answer says about the answer's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framing {
    pub(crate) ends: Ends,
    /// Whether the head is unambiguous about where the answer ends. If it is not, bytes that follow
    /// may be taken for the answer to another caller's request.
    pub(crate) is_certain: bool,
}

/// The answer has a transfer coding that the gateway cannot decode.
#[derive(Debug, thiserror::Error)]
#[error(
    "the upstream answered with a Transfer-Encoding other than `chunked`, whose end cannot be known"
)]
pub(crate) struct UnknownCoding;

impl Framing {
    /// Reads the head of the answer to a request with this method.
    pub(crate) fn new(method: &Method, answer: &Parts) -> Result<Framing, UnknownCoding> {
        let Parts {
            status,
            version,
            headers,
            ..
        } = answer;
        let codings = headers.get_all(TRANSFER_ENCODING).iter().count();
        let is_chunked = codings == 1 && headers.get(TRANSFER_ENCODING).is_some_and(is_chunked);
        if codings > 0 && !is_chunked {
            return Err(UnknownCoding);
        }
        let lengths: Vec<_> = headers.get_all(CONTENT_LENGTH).iter().collect();
        if *method == Method::HEAD
            || matches!(*status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        {
            // The head declares a body that must not follow, but that some servers send.
            let declares_body =
                is_chunked || lengths.iter().any(|length| length.as_bytes() != b"0");
            return Ok(Framing {
                ends: Ends::WithHead,
                is_certain: !declares_body,
            });
        }
        let ends = if is_chunked || !lengths.is_empty() {
            Ends::Framed
        } else {
            Ends::WithConnection
        };
        // RFC 9112 section 6.3: a length and a coding together, or a coding in HTTP/1.0, may be an
        // attempt at request smuggling.
        let is_doubtful = is_chunked && (!lengths.is_empty() || *version == Version::HTTP_10)
            || lengths.len() > 1;
        Ok(Framing {
            ends,
            is_certain: ends == Ends::Framed && !is_doubtful,
        })
    }
}

fn is_chunked(value: &HeaderValue) -> bool {
    value
        .as_bytes()
        .trim_ascii()
        .eq_ignore_ascii_case(b"chunked")
}

#[cfg(test)]
mod tests {
    use http::Response;

    use super::*;

    fn framing(
        method: &Method,
        status: u16,
        version: Version,
        fields: &[(&'static str, &str)],
    ) -> Option<(Ends, bool)> {
        let mut response = Response::builder().status(status).version(version);
        for (name, value) in fields {
            response = response.header(*name, *value);
        }
        let framing = Framing::new(method, &response.body(()).unwrap().into_parts().0).ok()?;
        Some((framing.ends, framing.is_certain))
    }

    #[test]
    fn the_head_tells_where_an_answer_ends() {
        let (get, head, new, old) = (
            Method::GET,
            Method::HEAD,
            Version::HTTP_11,
            Version::HTTP_10,
        );
        let (length, chunked, gzip) = (
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("transfer-encoding", "gzip"),
        );
        for (method, status, version, fields, expected) in [
            (&get, 200, new, &[length][..], Some((Ends::Framed, true))),
            (
                &get,
                200,
                new,
                &[("content-length", "0")],
                Some((Ends::Framed, true)),
            ),
            (&get, 200, old, &[length], Some((Ends::Framed, true))),
            (&get, 200, new, &[chunked], Some((Ends::Framed, true))),
            (
                &get,
                200,
                new,
                &[("transfer-encoding", " Chunked ")],
                Some((Ends::Framed, true)),
            ),
            (&get, 200, new, &[], Some((Ends::WithConnection, false))),
            (
                &get,
                200,
                new,
                &[length, length],
                Some((Ends::Framed, false)),
            ),
            (
                &get,
                200,
                new,
                &[length, chunked],
                Some((Ends::Framed, false)),
            ),
            (&get, 200, old, &[chunked], Some((Ends::Framed, false))),
            (&get, 200, new, &[gzip], None),
            (
                &get,
                200,
                new,
                &[("transfer-encoding", "gzip, chunked")],
                None,
            ),
            (&get, 200, new, &[chunked, chunked], None),
            (&get, 200, new, &[("transfer-encoding", "identity")], None),
            (&get, 200, new, &[("transfer-encoding", "")], None),
            (&get, 204, new, &[], Some((Ends::WithHead, true))),
            (
                &get,
                204,
                new,
                &[("content-length", "0")],
                Some((Ends::WithHead, true)),
            ),
            (&get, 204, new, &[length], Some((Ends::WithHead, false))),
            (&get, 204, new, &[chunked], Some((Ends::WithHead, false))),
            (&get, 304, new, &[], Some((Ends::WithHead, true))),
            (&get, 304, new, &[length], Some((Ends::WithHead, false))),
            (&head, 200, new, &[length], Some((Ends::WithHead, false))),
            (&head, 200, new, &[], Some((Ends::WithHead, true))),
        ] {
            assert_eq!(
                framing(method, status, version, fields),
                expected,
                "{method} {status} {version:?} {fields:?}"
            );
        }
    }
}
