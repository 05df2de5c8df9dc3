//! Transfer codings: `chunked`, and what only looks like it.

use super::{Case, SMUGGLED, alone, len, passes, post, refused, request};

const CHUNKS: &str = "5\r\nhello\r\n0\r\n\r\n";

pub fn cases(all: &mut Vec<Case>) {
    for (name, value) in [
        ("coding chunked, chunked", "chunked, chunked"),
        ("coding chunked, identity", "chunked, identity"),
        ("coding identity, chunked", "identity, chunked"),
        ("coding identity", "identity"),
        ("coding gzip, chunked", "gzip, chunked"),
        ("coding gzip", "gzip"),
        ("coding xchunked", "xchunked"),
        ("coding chunkedx", "chunkedx"),
        ("coding chunked;q=1", "chunked;q=1"),
        ("coding \"chunked\"", "\"chunked\""),
        ("coding ,chunked", ",chunked"),
        ("coding chunked,", "chunked,"),
        ("coding empty", ""),
        ("coding behind a vertical tab", "\u{b}chunked"),
        ("coding before a form feed", "chunked\u{c}"),
        ("coding before a NUL", "chunked\0"),
        ("coding with a long s", "chunke\u{c5}\u{bf}"),
    ] {
        all.push(refused(
            name,
            post(
                &format!("Transfer-Encoding: {value}\r\n"),
                &format!("0\r\n\r\n{SMUGGLED}"),
            ),
        ));
    }
    for (name, value) in [
        ("coding Chunked", " Chunked"),
        ("coding CHUNKED", " CHUNKED"),
        ("coding behind many spaces", "     chunked"),
        ("coding behind a tab, before spaces", "\tchunked  "),
        ("coding without a space", "chunked"),
    ] {
        all.push(passes(
            name,
            post(&format!("Transfer-Encoding:{value}\r\n"), CHUNKS),
            "hello",
        ));
    }
    spelt(all);
    old(all);
}

fn spelt(all: &mut Vec<Case>) {
    let rest = format!("0\r\n\r\n{SMUGGLED}");
    all.extend([
        refused(
            "coding in two lines",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                CHUNKS,
            ),
        ),
        refused(
            "coding in two lines, one identity",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
                &rest,
            ),
        ),
        refused(
            "coding in two lines, one unknown",
            post(
                "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
                &rest,
            ),
        ),
        refused(
            "coding, space before the colon",
            post("Transfer-Encoding : chunked\r\n", &rest),
        ),
        refused(
            "coding, NUL before the colon",
            post("Transfer-Encoding\0: chunked\r\n", &rest),
        ),
        refused(
            "coding folded",
            post("Transfer-Encoding:\r\n chunked\r\n", &rest),
        ),
        refused(
            "coding behind a bare CR",
            post("X: y\rTransfer-Encoding: chunked\r\n", &rest),
        ),
        refused(
            "coding behind a bare LF",
            post("X: y\nTransfer-Encoding: chunked\r\n", &rest),
        ),
        passes(
            "Transfer_Encoding beside a length",
            post(
                "Transfer_Encoding: chunked\r\nContent-Length: 5\r\n",
                "0\r\n\r\n",
            ),
            "0\r\n\r\n",
        ),
        passes(
            "TE: chunked beside a length",
            post("TE: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n"),
            "0\r\n\r\n",
        ),
        passes(
            "GET with chunks",
            request(
                "GET /first-{n} HTTP/1.1",
                "Transfer-Encoding: chunked\r\n",
                CHUNKS,
            ),
            "hello",
        )
        .arrives("GET", "/first-{n}"),
        passes(
            "chunks that are a request",
            post(
                "Transfer-Encoding: chunked\r\n",
                &format!("{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", len(SMUGGLED)),
            ),
            SMUGGLED,
        ),
    ]);
}

fn old(all: &mut Vec<Case>) {
    let line = "POST /first-{n} HTTP/1.0";
    all.extend([
        refused(
            "coding in HTTP/1.0",
            request(line, "Transfer-Encoding: chunked\r\n", CHUNKS),
        ),
        refused(
            "coding in HTTP/1.0, kept alive",
            request(
                line,
                "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n",
                CHUNKS,
            ),
        ),
        refused(
            "both lengths in HTTP/1.0",
            request(
                line,
                "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
                CHUNKS,
            ),
        ),
        alone(
            "a length in HTTP/1.0",
            request(line, "Content-Length: 5\r\n", "hello"),
            "hello",
        ),
        passes(
            "a length in HTTP/1.0, kept alive",
            request(
                line,
                "Connection: keep-alive\r\nContent-Length: 5\r\n",
                "hello",
            ),
            "hello",
        ),
    ]);
}
