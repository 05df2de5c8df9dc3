//! Ends of lines, and the request line.

use super::{Case, SMUGGLED, broken_off, passes, post, refused, request, then_refused};

pub fn cases(all: &mut Vec<Case>) {
    ends(all);
    request_lines(all);
    around(all);
}

fn ends(all: &mut Vec<Case>) {
    let whole = post("Content-Length: 5\r\n", "");
    all.extend([
        refused(
            "all lines end in a bare LF",
            whole.replace("\r\n", "\n") + "hello",
        ),
        refused(
            "all lines end in a bare CR",
            whole.replace("\r\n", "\r") + "hello",
        ),
        refused(
            "the request line ends in a bare LF",
            whole.replacen("\r\n", "\n", 1) + "hello",
        ),
        refused(
            "a field ends in a bare LF",
            post("A: b\nContent-Length: 5\r\n", "hello"),
        ),
        refused(
            "a field ends in a bare CR",
            post("A: b\rContent-Length: 5\r\n", "hello"),
        ),
        refused(
            "a field ends in CR CR LF",
            post("A: b\r\r\nContent-Length: 5\r\n", "hello"),
        ),
        refused(
            "a field ends in LF CR",
            post("A: b\n\rContent-Length: 5\r\n", "hello"),
        ),
        refused(
            "the head ends in CR LF LF",
            format!(
                "POST /first-{{n}} HTTP/1.1\r\nHost: h\r\n{{key}}Content-Length: 0\r\n\n{SMUGGLED}"
            ),
        ),
        refused(
            "the head ends in LF LF",
            format!(
                "POST /first-{{n}} HTTP/1.1\r\nHost: h\r\n{{key}}Content-Length: 0\n\n{SMUGGLED}"
            ),
        ),
        refused(
            "a field in another's bare CR LF CR",
            post("A: b\r\n\rContent-Length: 5\r\n", "hello"),
        ),
    ]);
}

fn request_lines(all: &mut Vec<Case>) {
    for (name, line) in [
        ("two spaces before the target", "POST  /first-{n} HTTP/1.1"),
        ("two spaces before the version", "POST /first-{n}  HTTP/1.1"),
        (
            "a space at the end of the line",
            "POST /first-{n} HTTP/1.1 ",
        ),
        (
            "a space at the beginning of the line",
            " POST /first-{n} HTTP/1.1",
        ),
        ("tabs for spaces", "POST\t/first-{n}\tHTTP/1.1"),
        ("a space in the target", "POST /first-{n} x HTTP/1.1"),
        (
            "a version in the target",
            "POST /first-{n} HTTP/1.1 HTTP/1.1",
        ),
        ("a vertical tab in the line", "POST\u{b}/first-{n} HTTP/1.1"),
        ("no version", "POST /first-{n}"),
        ("no target", "POST HTTP/1.1"),
        ("no method", "/first-{n} HTTP/1.1"),
        ("HTTP/1.2", "POST /first-{n} HTTP/1.2"),
        ("HTTP/2.0", "POST /first-{n} HTTP/2.0"),
        ("HTTP/0.9 spelt out", "POST /first-{n} HTTP/0.9"),
        ("HTTP/1.10", "POST /first-{n} HTTP/1.10"),
        ("HTTP/01.1", "POST /first-{n} HTTP/01.1"),
        ("HTTP/1,1", "POST /first-{n} HTTP/1,1"),
        ("HTTP/1.1x", "POST /first-{n} HTTP/1.1x"),
        ("http/1.1", "POST /first-{n} http/1.1"),
        ("HTTP /1.1", "POST /first-{n} HTTP /1.1"),
        ("ICY/1.1", "POST /first-{n} ICY/1.1"),
        ("a method with a colon", "PO:ST /first-{n} HTTP/1.1"),
        ("a method with a NUL", "POST\0 /first-{n} HTTP/1.1"),
        (
            "a method that is not ASCII",
            "P\u{d6}ST /first-{n} HTTP/1.1",
        ),
        ("an answer for a request", "HTTP/1.1 200 OK"),
    ] {
        all.push(refused(
            name,
            request(line, "Content-Length: 5\r\n", "hello"),
        ));
    }
    all.extend([
        refused("HTTP/0.9", "GET /first-{n}\r\n"),
        refused(
            "a method in small letters",
            request("post /first-{n} HTTP/1.1", "Content-Length: 0\r\n", ""),
        ),
        passes(
            "a method nobody knows",
            request("FROB /first-{n} HTTP/1.1", "Content-Length: 0\r\n", ""),
            "",
        )
        .arrives("FROB", "/first-{n}"),
    ]);
}

fn around(all: &mut Vec<Case>) {
    let good = post("Content-Length: 5\r\n", "hello");
    all.extend([
        passes("an empty line before", format!("\r\n{good}"), "hello"),
        refused("two empty lines before", format!("\r\n\r\n{good}")),
        refused("an empty line of a bare LF before", format!("\n{good}")),
        passes("an empty line between", format!("{good}\r\n"), "hello"),
        then_refused(
            "many empty lines between",
            format!("{good}\r\n\r\n\r\n"),
            "hello",
        ),
        then_refused("zeros between", format!("{good}\0\0\0\0"), "hello"),
        then_refused(
            "a handshake between",
            format!("{good}\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}\n"),
            "hello",
        ),
        then_refused(
            "an answer between",
            format!("{good}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
            "hello",
        ),
        then_refused(
            "HTTP/2's preface between",
            format!("{good}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            "hello",
        ),
        then_refused(
            "a line without end between",
            format!("{good}GET /smuggled-{{n}} HTTP/1.1\nHost: h\n\n"),
            "hello",
        ),
        broken_off(
            "a head in a body that never ends",
            post("Content-Length: 99999\r\n", SMUGGLED),
        ),
    ]);
}
