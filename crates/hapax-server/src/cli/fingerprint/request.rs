//! Parses a request that is written in a file.

use http::{HeaderName, Method, Uri};

/// A request from a file, with its body unframed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query as the gateway sees them.
    pub(super) target: String,
    pub(super) path: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

/// Parses a request. It accepts any line ends, because people write such files by hand, but is
/// strict otherwise.
pub(super) fn parse(file: &[u8]) -> Result<Request, String> {
    let mut lines = Lines {
        rest: file,
        number: 0,
    };
    let first = lines
        .next()
        .filter(|line| !line.is_empty())
        .ok_or("the file is empty")?;
    let (method, uri) = request_line(first)?;
    let mut headers = Vec::new();
    while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
        headers.push(field(line).map_err(|why| format!("line {}: {why}", lines.number))?);
    }
    let body = body(&headers, lines.rest)?;
    let target = uri
        .path_and_query()
        .map_or_else(|| uri.path().to_owned(), ToString::to_string);
    Ok(Request {
        method: method.as_str().to_owned(),
        target,
        path: uri.path().to_owned(),
        headers,
        body,
    })
}

fn request_line(line: &[u8]) -> Result<(Method, Uri), String> {
    let wrong = || {
        format!(
            "line 1: `{}` is not a request line such as POST /orders HTTP/1.1",
            line.escape_ascii()
        )
    };
    let parts: Vec<_> = line.split(|&byte| byte == b' ').collect();
    let [method, target, b"HTTP/1.1" | b"HTTP/1.0"] = parts[..] else {
        return Err(wrong());
    };
    let method = Method::from_bytes(method).map_err(|_| wrong())?;
    let uri = Uri::try_from(target).map_err(|_| wrong())?;
    if !uri.path().starts_with('/') && uri.path() != "*" {
        return Err(wrong());
    }
    Ok((method, uri))
}

fn field(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let colon = line
        .iter()
        .position(|&byte| byte == b':')
        .ok_or("a header line is written as Name: value")?;
    let name = HeaderName::from_bytes(&line[..colon])
        .map_err(|_| "a header line begins with the name of a field and a colon")?;
    Ok((
        name.as_str().to_owned(),
        line[colon + 1..].trim_ascii().to_vec(),
    ))
}

fn body(headers: &[(String, Vec<u8>)], rest: &[u8]) -> Result<Vec<u8>, String> {
    let values = |wanted: &str| {
        headers
            .iter()
            .filter(|(name, _)| name == wanted)
            .map(|(_, value)| &value[..])
            .collect::<Vec<_>>()
    };
    match (&values("transfer-encoding")[..], &values("content-length")[..]) {
        ([], []) => Ok(rest.to_vec()),
        ([], [length]) => {
            let length = str::from_utf8(length).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let length = length.and_then(|text| text.parse().ok()).ok_or("Content-Length is not a number")?;
            of_length(rest, length)
        }
        ([_], []) => Err("a body is written here as it is, without Transfer-Encoding: leave that line out".to_owned()),
        _ => Err("Content-Length and Transfer-Encoding are ambiguous: the gateway refuses such a request".to_owned()),
    }
}

/// If a length is given, the line end that an editor adds is not part of the body.
fn of_length(rest: &[u8], length: usize) -> Result<Vec<u8>, String> {
    match rest.split_at_checked(length) {
        Some((body, b"" | b"\n" | b"\r\n")) => Ok(body.to_vec()),
        _ => Err(format!(
            "Content-Length says {length}, the body has {} bytes: correct it or leave it out",
            rest.len()
        )),
    }
}

/// Lines that end with LF or CRLF.
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        self.number += 1;
        let end = memchr::memchr(b'\n', self.rest);
        let (line, rest) = end.map_or((self.rest, &b""[..]), |end| {
            (&self.rest[..end], &self.rest[end + 1..])
        });
        self.rest = rest;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_of_either_kind_are_taken() {
        let crlf = "POST /orders?x=1 HTTP/1.1\r\nHost: shop\r\nX-Tag:  a \r\n\r\n{\r\n}";
        let request = parse(crlf.as_bytes()).unwrap();
        assert_eq!(
            (&*request.method, &*request.target, &*request.path),
            ("POST", "/orders?x=1", "/orders")
        );
        assert_eq!(
            request.headers,
            [
                ("host".to_owned(), b"shop".to_vec()),
                ("x-tag".to_owned(), b"a".to_vec())
            ]
        );
        assert_eq!(request.body, b"{\r\n}");
        let lf = crlf.replace("\r\n", "\n").replace("{\n}", "{\r\n}");
        assert_eq!(parse(lf.as_bytes()).unwrap(), request);
        let absolute = crlf.replace("/orders", "http://shop/orders");
        assert_eq!(parse(absolute.as_bytes()).unwrap(), request);
    }

    #[test]
    fn bodies_are_read_as_they_are_framed() {
        let body = |head: &str, rest: &str| {
            parse(format!("POST / HTTP/1.1\n{head}\n\n{rest}").as_bytes())
                .map(|request| request.body)
        };
        assert_eq!(body("A: b", "x\n"), Ok(b"x\n".to_vec()));
        assert_eq!(body("Content-Length: 1", "x"), Ok(b"x".to_vec()));
        assert_eq!(body("Content-Length: 1", "x\n"), Ok(b"x".to_vec()));
        for (head, rest) in [
            ("Content-Length: 1", "xy"),
            ("Content-Length: 2", "x"),
            ("Content-Length: +1", "x"),
            ("Content-Length: 1\nContent-Length: 1", "x"),
            ("Content-Length: 1\nTransfer-Encoding: chunked", "x"),
            ("Transfer-Encoding: gzip", "x"),
            ("Transfer-Encoding: chunked", "1\na\n0\n\n"),
        ] {
            assert!(body(head, rest).is_err(), "{head:?} {rest:?}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_its_line() {
        for (file, why) in [
            ("", "empty"),
            ("\nPOST / HTTP/1.1", "empty"),
            ("POST /", "line 1"),
            ("POST / HTTP/2", "line 1"),
            ("POST  / HTTP/1.1", "line 1"),
            ("POST / HTTP/1.1\nA: b\nno colon", "line 3"),
            ("POST / HTTP/1.1\nA: b\n folded", "line 3"),
        ] {
            assert!(
                parse(file.as_bytes()).unwrap_err().contains(why),
                "{file:?}"
            );
        }
    }
}
