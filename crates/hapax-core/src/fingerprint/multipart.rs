//! Multipart bodies (RFC 2046 section 5.1) with the boundary's spelling left out.
//!
//! The body is cut at its delimiters. Each piece is hashed as it is, preamble and epilogue
//! included: two bodies are the same iff they differ only in the boundary. A boundary inside a
//! nested multipart counts like any other byte.

use memchr::memmem;
use sha2::{Digest, Sha256};

use super::BodyDigest;

/// A content type split into its boundary and the rest.
pub(super) struct Boundary {
    delimiter: Vec<u8>,
    content_type: Vec<u8>,
    content_type_without: Vec<u8>,
}

impl Boundary {
    /// The boundary of a `multipart/…` content type, if it has exactly one that RFC 2046 allows.
    pub(super) fn find(content_type: &[u8]) -> Option<Boundary> {
        let text = std::str::from_utf8(content_type).ok()?;
        let mut pieces = parameters(text).into_iter();
        let media_type = pieces.next()?.trim();
        if !media_type.get(..10)?.eq_ignore_ascii_case("multipart/") {
            return None;
        }
        let mut rest = media_type.to_ascii_lowercase();
        let mut found = None;
        for parameter in pieces {
            match parameter.split_once('=') {
                Some((name, value)) if name.trim().eq_ignore_ascii_case("boundary") => {
                    if found.replace(unquote(value.trim())?).is_some() {
                        return None;
                    }
                }
                _ => {
                    rest.push(';');
                    rest.push_str(parameter);
                }
            }
        }
        let boundary = found.filter(|boundary| (1..=70).contains(&boundary.len()))?;
        let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
        Some(Boundary {
            delimiter,
            content_type: content_type.to_vec(),
            content_type_without: rest.into_bytes(),
        })
    }
}

/// Splits at semicolons outside quotes.
fn parameters(text: &str) -> Vec<&str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(|c| {
        let is_quote = c == '"' && !escaped;
        escaped = c == '\\' && quoted && !escaped;
        quoted ^= is_quote;
        c == ';' && !quoted
    })
    .collect()
}

/// Removes the quotes of a quoted boundary. A boundary with escapes is refused.
fn unquote(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        None => (!value.contains('"')).then_some(value),
        Some(rest) => rest
            .strip_suffix('"')
            .filter(|inner| !inner.contains(['"', '\\'])),
    }
}

/// Reads a multipart body in chunks.
pub(super) struct Reader {
    raw: Sha256,
    cutter: Cutter<Digests>,
}

impl Reader {
    pub(super) fn new(boundary: Boundary) -> Self {
        Reader {
            raw: Sha256::new(),
            cutter: Cutter::new(boundary),
        }
    }

    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.raw.update(chunk);
        self.cutter.update(chunk);
    }

    /// The digest, and the content type that goes with it. If the body counts byte for byte, the
    /// content type keeps its boundary.
    pub(super) fn finish(self) -> (BodyDigest, Vec<u8>) {
        match self.cutter.finish() {
            Ok((pieces, content_type)) => (
                BodyDigest {
                    tag: "multipart",
                    digest: pieces.finish(),
                },
                content_type,
            ),
            Err(content_type) => (BodyDigest::raw(self.raw), content_type),
        }
    }
}

/// Receives the pieces between delimiters: as digests for the fingerprint, or as bytes to show to a
/// person.
pub(super) trait Pieces: Default {
    fn content(&mut self, bytes: &[u8]);
    fn end_piece(&mut self);
}

#[derive(Default)]
struct Digests {
    pieces: Sha256,
    piece: Sha256,
    count: u64,
}

impl Pieces for Digests {
    fn content(&mut self, bytes: &[u8]) {
        self.piece.update(bytes);
    }

    fn end_piece(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        self.pieces.update(piece.finalize());
        self.count += 1;
    }
}

impl Digests {
    fn finish(mut self) -> [u8; 32] {
        self.pieces.update(self.count.to_be_bytes());
        self.pieces.finalize().into()
    }
}

/// Cuts a body at its delimiters.
pub(super) struct Cutter<P> {
    boundary: Boundary,
    /// Bytes that may be the beginning of a delimiter.
    pending: Vec<u8>,
    pieces: P,
    follows: Follows,
}

/// What has been seen since the last delimiter. Only white space up to the end of the line, or two
/// dashes, may follow a delimiter. Anything else means that the boundary is a prefix of some other
/// text; such a body is odd, so that two of them are never taken for one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    Delimiter,
    Padding,
    Return,
    Dash,
    /// A part, or the preamble.
    Content,
    /// After the closing delimiter.
    Epilogue,
    Odd,
}

impl<P: Pieces> Cutter<P> {
    pub(super) fn new(boundary: Boundary) -> Self {
        // The initial line end lets the first delimiter stand at the very beginning of the body.
        Cutter {
            boundary,
            pending: b"\r\n".to_vec(),
            pieces: P::default(),
            follows: Follows::Content,
        }
    }

    pub(super) fn update(&mut self, chunk: &[u8]) {
        self.pending.extend_from_slice(chunk);
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while let Some(at) = memmem::find(rest, &self.boundary.delimiter) {
            self.content(&rest[..at]);
            self.pieces.end_piece();
            if self.follows != Follows::Content {
                self.follows = Follows::Odd;
            } else {
                self.follows = Follows::Delimiter;
            }
            rest = &rest[at + self.boundary.delimiter.len()..];
        }
        let keep = rest.len().min(self.boundary.delimiter.len() - 1);
        let (certain, uncertain) = rest.split_at(rest.len() - keep);
        self.content(certain);
        self.pending = uncertain.to_vec();
    }

    /// The pieces and the content type without its boundary. If the body is not well-formed, the
    /// error is the whole content type.
    pub(super) fn finish(mut self) -> Result<(P, Vec<u8>), Vec<u8>> {
        let pending = std::mem::take(&mut self.pending);
        self.content(&pending);
        self.pieces.end_piece();
        match self.follows {
            Follows::Epilogue => Ok((self.pieces, self.boundary.content_type_without)),
            _ => Err(self.boundary.content_type),
        }
    }

    fn content(&mut self, bytes: &[u8]) {
        self.pieces.content(bytes);
        for byte in bytes {
            self.follows = match (self.follows, byte) {
                (Follows::Content | Follows::Epilogue | Follows::Odd, _) => return,
                (Follows::Delimiter, b'-') => Follows::Dash,
                (Follows::Dash, b'-') => Follows::Epilogue,
                (Follows::Delimiter | Follows::Padding, b' ' | b'\t') => Follows::Padding,
                (Follows::Delimiter | Follows::Padding, b'\r') => Follows::Return,
                (Follows::Return, b'\n') => Follows::Content,
                _ => Follows::Odd,
            };
        }
    }
}
