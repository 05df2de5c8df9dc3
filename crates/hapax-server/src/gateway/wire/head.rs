//! Checks the head of a request, line by line as the lines arrive.

use std::ops::Range;

use hapax::middleware::fields;

use super::class::{is_path_and_query, is_token, is_value, trim};
use super::settings::Limits;
use super::{Refusal, host};

/// What the lines read so far say about framing.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// Whether an empty line came before the request line. RFC 9112 section 2.2 asks servers to
    /// ignore one.
    pub(super) blank: bool,
    version: Option<Version>,
    /// The position in the head of the authority of an absolute target.
    authority: Option<Range<usize>>,
    host: Option<Range<usize>>,
    fields: usize,
    length: Option<u64>,
    chunked: bool,
    expect: bool,
    pub(super) upgrade: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Old,
    Current,
}

/// The body that follows a head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Nothing,
    Sized(u64),
    Chunked,
}

impl Head {
    /// Checks the line at `line` in `head`, without its line end. Returns the framing if that line
    /// ends the head.
    pub(super) fn line(
        &mut self,
        head: &[u8],
        line: Range<usize>,
        limits: &Limits,
    ) -> Result<Option<Framing>, Refusal> {
        let start = line.start;
        let line = &head[line];
        match (self.version, line) {
            (None, []) if !self.blank => self.blank = true,
            (None, _) => self.request_line(line, start)?,
            (Some(_), []) => return self.end(head).map(Some),
            (Some(version), _) => self.field(version, line, start, limits)?,
        }
        Ok(None)
    }

    fn request_line(&mut self, line: &[u8], start: usize) -> Result<(), Refusal> {
        let space = memchr::memchr(b' ', line).ok_or(Refusal::RequestLine)?;
        let (method, rest) = (&line[..space], &line[space + 1..]);
        if !is_token(method) {
            return Err(Refusal::RequestLine);
        }
        let space = memchr::memchr(b' ', rest).ok_or(Refusal::RequestLine)?;
        let target = start + method.len() + 1..start + method.len() + 1 + space;
        self.version = Some(version(&rest[space + 1..])?);
        self.target(method, &rest[..space], &target)
    }

    fn target(&mut self, method: &[u8], target: &[u8], at: &Range<usize>) -> Result<(), Refusal> {
        if method == b"CONNECT" {
            return Err(Refusal::Connect);
        }
        let path = match target {
            [b'/', ..] => target,
            b"*" if method == b"OPTIONS" => return Ok(()),
            _ => {
                let scheme = scheme_length(target).ok_or(Refusal::Target)?;
                let length =
                    memchr::memchr(b'/', &target[scheme..]).unwrap_or(target.len() - scheme);
                let (authority, path) = target[scheme..].split_at(length);
                // Without a path, this would mean the same as `*`; a second spelling invites
                // misreading.
                if !host::is_plain(authority) || (path.is_empty() && method == b"OPTIONS") {
                    return Err(Refusal::Target);
                }
                self.authority = Some(at.start + scheme..at.start + scheme + length);
                path
            }
        };
        if is_path_and_query(path) {
            Ok(())
        } else {
            Err(Refusal::Target)
        }
    }

    fn field(
        &mut self,
        version: Version,
        line: &[u8],
        start: usize,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        self.fields += 1;
        if self.fields > limits.fields_max {
            return Err(Refusal::TooManyFields);
        }
        let (name, value) = split_field(line)?;
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host(line, value, start),
            6 if name.eq_ignore_ascii_case(b"expect") => self.expect(value),
            7 if name.eq_ignore_ascii_case(b"upgrade") => {
                // HTTP/1.0 has no upgrades, and the HTTP library ignores the field then.
                self.upgrade = version == Version::Current;
                Ok(())
            }
            10 if name.eq_ignore_ascii_case(b"connection") => connection(value, limits),
            14 if name.eq_ignore_ascii_case(b"content-length") => self.length(value),
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => self.encoding(version, value),
            _ => Ok(()),
        }
    }

    fn host(&mut self, line: &[u8], value: &[u8], start: usize) -> Result<(), Refusal> {
        if self.host.is_some() {
            return Err(Refusal::HostRepeated);
        }
        if !host::is_plain(value) {
            return Err(Refusal::HostNotPlain);
        }
        let end = start + line.trim_ascii_end().len();
        self.host = Some(end - value.len()..end);
        Ok(())
    }

    fn expect(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if std::mem::replace(&mut self.expect, true) || !value.eq_ignore_ascii_case(b"100-continue")
        {
            return Err(Refusal::Expect);
        }
        Ok(())
    }

    fn length(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.length.is_some() {
            return Err(Refusal::ContentLengthRepeated);
        }
        self.length = Some(digits(value).ok_or(Refusal::ContentLength)?);
        Ok(())
    }

    fn encoding(&mut self, version: Version, value: &[u8]) -> Result<(), Refusal> {
        if std::mem::replace(&mut self.chunked, true) {
            return Err(Refusal::TransferEncodingRepeated);
        }
        match version {
            Version::Old => Err(Refusal::TransferEncodingOld),
            Version::Current if !value.eq_ignore_ascii_case(b"chunked") => {
                Err(Refusal::TransferEncoding)
            }
            Version::Current => Ok(()),
        }
    }

    fn end(&self, head: &[u8]) -> Result<Framing, Refusal> {
        match (&self.host, &self.authority) {
            (None, _) if self.version == Some(Version::Current) => {
                return Err(Refusal::HostMissing);
            }
            (Some(host), Some(authority))
                if !head[host.clone()].eq_ignore_ascii_case(&head[authority.clone()]) =>
            {
                return Err(Refusal::AuthorityDiffers);
            }
            _ => {}
        }
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Refusal::BothLengths),
            (None, true) => Ok(Framing::Chunked),
            (Some(length), false) if length > 0 => Ok(Framing::Sized(length)),
            (_, false) => Ok(Framing::Nothing),
        }
    }
}

/// Checks a trailer field: it follows the rules of header fields, and must not be a field that had
/// to be known before the body.
pub(super) fn trailer(line: &[u8], limits: &Limits) -> Result<(), Refusal> {
    let (name, _) = split_field(line)?;
    let name = lower_case(name);
    if fields::is_hop_by_hop(&name) || is_protected(&name, limits) {
        return Err(Refusal::TrailerField);
    }
    Ok(())
}

/// Parses a number of 1 to 19 digits, which always fits a `u64`.
pub(super) fn digits(value: &[u8]) -> Option<u64> {
    if !(1..=19).contains(&value.len()) || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        value
            .iter()
            .fold(0, |number, digit| number * 10 + u64::from(digit - b'0')),
    )
}

fn version(bytes: &[u8]) -> Result<Version, Refusal> {
    match bytes {
        b"HTTP/1.1" => Ok(Version::Current),
        b"HTTP/1.0" => Ok(Version::Old),
        // A further space makes it a malformed line rather than an unknown version.
        _ if bytes.starts_with(b"HTTP/") && memchr::memchr(b' ', bytes).is_none() => {
            Err(Refusal::Version)
        }
        _ => Err(Refusal::RequestLine),
    }
}

fn scheme_length(target: &[u8]) -> Option<usize> {
    [&b"http://"[..], b"https://"]
        .iter()
        .find(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(|scheme| scheme.len())
}

fn split_field(line: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    if let [b' ' | b'\t', ..] = line {
        return Err(Refusal::Folded);
    }
    let colon = memchr::memchr(b':', line).ok_or(Refusal::FieldName)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) {
        return Err(Refusal::FieldName);
    }
    if !is_value(value) {
        return Err(Refusal::FieldValue);
    }
    Ok((name, trim(value)))
}

fn connection(value: &[u8], limits: &Limits) -> Result<(), Refusal> {
    for option in value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|option| !option.is_empty())
    {
        if !is_token(option) {
            return Err(Refusal::ConnectionOption);
        }
        if is_protected(&lower_case(option), limits) {
            return Err(Refusal::ConnectionNames);
        }
    }
    Ok(())
}

/// The lower case of a token, which is known to be ASCII.
fn lower_case(token: &[u8]) -> String {
    String::from_utf8_lossy(token).to_ascii_lowercase()
}

/// Whether a field must come in the head of the request and reach the service: because of its name,
/// or because the configuration uses it.
fn is_protected(name: &str, limits: &Limits) -> bool {
    let is_name = |given: &String| name.eq_ignore_ascii_case(given);
    fields::is_protected(name) || limits.never_hop_by_hop.iter().any(is_name)
}
