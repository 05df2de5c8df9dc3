//! Follows the messages on a connection byte by byte, without I/O and without a clock.

use std::sync::Arc;

use super::class::is_printable;
use super::head::{Framing, Head, trailer};
use super::{Limits, Refusal};

/// Limit on the hexadecimal digits of a chunk's size: 16 fit 64 bits.
const CHUNK_DIGITS_MAX: usize = 16;
/// Limits on chunk extensions. The specification requires accepting them, but they are practically
/// unused, so small limits suffice.
const EXTENSION_BYTES_MAX: usize = 256;
const EXTENSIONS_BYTES_MAX: usize = 4 << 10;
/// Less than the library accepts, so that the library never refuses trailers itself.
const TRAILER_BYTES_MAX: usize = 8 << 10;

/// Reads the bytes of a connection and says how many of them are good.
///
/// The caller presents all bytes that were not yet called good, and presents the rest again with
/// more bytes appended. The verdict does not depend on how the bytes are split.
#[derive(Debug)]
pub(crate) struct Scanner {
    limits: Arc<Limits>,
    state: State,
    refused: Option<Refusal>,
    requests: u64,
    ended: u64,
    head: Head,
    lines: Lines,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailers: usize,
}

/// How many bytes are good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scan {
    /// The number of bytes that may be passed on.
    pub(crate) good: usize,
    /// Why no byte after them may ever be passed on.
    pub(crate) refused: Option<Refusal>,
}

/// What a run of good bytes consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A whole head.
    Head,
    /// A part of a body.
    Body,
    /// What surrounds the data of a chunked body: sizes, line ends, trailers.
    Framing,
    /// Bytes of another protocol, after an upgrade.
    Open,
}

#[derive(Debug)]
enum State {
    Head,
    Sized(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    Trailers,
    /// After an upgrade request: whether a head follows depends on the answer.
    Paused,
    Open,
}

/// How far lines were found in the bytes; the caller presents those again each time.
#[derive(Debug, Default)]
struct Lines {
    start: usize,
    seen: usize,
}

impl Scanner {
    /// A scanner at the beginning of a connection.
    pub(crate) fn new(limits: Arc<Limits>) -> Scanner {
        Scanner {
            limits,
            state: State::Head,
            refused: None,
            requests: 0,
            ended: 0,
            head: Head::default(),
            lines: Lines::default(),
            extension_bytes: 0,
            trailer_bytes: 0,
            trailers: 0,
        }
    }

    /// Scans `input` and says how much of it is good.
    pub(crate) fn scan(&mut self, input: &[u8]) -> Scan {
        let mut good = 0;
        while self.refused.is_none() {
            match self.step(&input[good..]) {
                Ok(Some((_, length))) => good += length,
                Ok(None) => break,
                Err(refusal) => self.refused = Some(refusal),
            }
        }
        Scan {
            good,
            refused: self.refused,
        }
    }

    /// The next good bytes and what they are; `None` if more bytes are needed to decide.
    pub(crate) fn step(&mut self, input: &[u8]) -> Result<Option<(Piece, usize)>, Refusal> {
        if input.is_empty() {
            return Ok(None);
        }
        match self.state {
            State::Head => Ok(self.head(input)?.map(|length| (Piece::Head, length))),
            State::Sized(left) => {
                let (length, left) = split(input, left);
                self.state = State::Sized(left);
                if left == 0 {
                    self.end_message();
                }
                Ok(Some((Piece::Body, length)))
            }
            State::Chunk(left) => {
                let (length, left) = split(input, left);
                self.state = if left == 0 {
                    State::ChunkEnd
                } else {
                    State::Chunk(left)
                };
                Ok(Some((Piece::Body, length)))
            }
            State::ChunkSize => Ok(self
                .chunk_size(input)?
                .map(|length| (Piece::Framing, length))),
            State::ChunkEnd => Ok(self
                .chunk_end(input)?
                .map(|length| (Piece::Framing, length))),
            State::Trailers => Ok(self.trailer(input)?.map(|length| (Piece::Framing, length))),
            State::Paused => Ok(None),
            State::Open => Ok(Some((Piece::Open, input.len()))),
        }
    }

    /// The number of good heads so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// The number of requests that were good to their end.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// Whether a head comes next, or has begun.
    pub(crate) fn in_head(&self) -> bool {
        matches!(self.state, State::Head)
    }

    /// Whether everything passes, after an upgrade.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether the scanner is behind an upgrade request and needs to know the answer: the caller
    /// then calls [`Scanner::open`] or [`Scanner::resume`]. Until then no byte is good, because the
    /// answer decides whether the bytes are a request.
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused)
    }

    /// Says that the protocol was changed: from now on everything passes. Does nothing unless
    /// paused.
    pub(crate) fn open(&mut self) {
        if self.is_paused() {
            self.state = State::Open;
        }
    }

    /// Says that the protocol was not changed: a head follows. Does nothing unless paused.
    pub(crate) fn resume(&mut self) {
        if self.is_paused() {
            self.state = State::Head;
        }
    }

    fn head(&mut self, input: &[u8]) -> Result<Option<usize>, Refusal> {
        while let Some(line) =
            self.lines
                .next(input, self.limits.head_bytes_max, Refusal::HeadTooLarge)?
        {
            if let Some(framing) = self.head.line(input, line.clone(), &self.limits)? {
                self.begin_body(&framing);
                return Ok(Some(line.end + 2));
            }
        }
        Ok(None)
    }

    fn begin_body(&mut self, framing: &Framing) {
        self.requests += 1;
        self.lines = Lines::default();
        match framing {
            Framing::Nothing => self.end_message(),
            Framing::Sized(length) => self.state = State::Sized(*length),
            Framing::Chunked => {
                self.state = State::ChunkSize;
                (self.extension_bytes, self.trailer_bytes, self.trailers) = (0, 0, 0);
            }
        }
    }

    fn end_message(&mut self) {
        self.ended += 1;
        self.state = if self.head.upgrade {
            State::Paused
        } else {
            State::Head
        };
        self.head = Head::default();
    }

    fn chunk_size(&mut self, input: &[u8]) -> Result<Option<usize>, Refusal> {
        let max = CHUNK_DIGITS_MAX + EXTENSION_BYTES_MAX + 2;
        let Some(line) = self.lines.next(input, max, Refusal::ChunkExtension)? else {
            return Ok(None);
        };
        self.lines = Lines::default();
        let length = line.end + 2;
        let line = &input[line];
        let digits = line
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit())
            .count();
        let size = hexadecimal(&line[..digits]).ok_or(Refusal::ChunkSize)?;
        self.extension(&line[digits..])?;
        self.state = if size == 0 {
            State::Trailers
        } else {
            State::Chunk(size)
        };
        Ok(Some(length))
    }

    fn extension(&mut self, extension: &[u8]) -> Result<(), Refusal> {
        self.extension_bytes += extension.len();
        match extension {
            [] => Ok(()),
            [b';', ..]
                if extension.len() > EXTENSION_BYTES_MAX
                    || self.extension_bytes > EXTENSIONS_BYTES_MAX =>
            {
                Err(Refusal::ChunkExtension)
            }
            [b';', rest @ ..] if is_printable(rest) => Ok(()),
            [b';', ..] => Err(Refusal::ChunkExtension),
            _ => Err(Refusal::ChunkSize),
        }
    }

    fn chunk_end(&mut self, input: &[u8]) -> Result<Option<usize>, Refusal> {
        match input {
            [b'\r', b'\n', ..] => {
                self.state = State::ChunkSize;
                Ok(Some(2))
            }
            [b'\r'] => Ok(None),
            _ => Err(Refusal::ChunkEnd),
        }
    }

    fn trailer(&mut self, input: &[u8]) -> Result<Option<usize>, Refusal> {
        let max = TRAILER_BYTES_MAX - self.trailer_bytes;
        let Some(line) = self.lines.next(input, max, Refusal::TrailersTooLarge)? else {
            return Ok(None);
        };
        self.lines = Lines::default();
        let length = line.end + 2;
        if line.is_empty() {
            self.end_message();
            return Ok(Some(length));
        }
        self.trailer_bytes += length;
        self.trailers += 1;
        if self.trailers > self.limits.fields_max {
            return Err(Refusal::TrailersTooLarge);
        }
        trailer(&input[line], &self.limits)?;
        Ok(Some(length))
    }
}

impl Lines {
    /// The next whole line, without its line end. Fails with `too_long` as soon as it is certain
    /// that the line ends after `max`.
    fn next(
        &mut self,
        input: &[u8],
        max: usize,
        too_long: Refusal,
    ) -> Result<Option<std::ops::Range<usize>>, Refusal> {
        let found = memchr::memchr(b'\n', &input[self.seen..]).map(|at| self.seen + at);
        self.seen = found.map_or(input.len(), |feed| feed + 1);
        if self.seen > max {
            return Err(too_long);
        }
        let Some(feed) = found else { return Ok(None) };
        if feed == self.start || input[feed - 1] != b'\r' {
            return Err(Refusal::LineEnd);
        }
        let line = self.start..feed - 1;
        // A parser that takes a lone CR for a line end would see two lines.
        if memchr::memchr(b'\r', &input[line.clone()]).is_some() {
            return Err(Refusal::LineEnd);
        }
        self.start = feed + 1;
        Ok(Some(line))
    }
}

fn split(input: &[u8], left: u64) -> (usize, u64) {
    let length = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    (length, left - length as u64)
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if !(1..=CHUNK_DIGITS_MAX).contains(&digits.len()) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}
