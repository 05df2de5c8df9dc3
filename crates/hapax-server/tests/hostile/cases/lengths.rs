//! Declared lengths of a body.

use super::{
    Case, Expect, First, SECOND, SMUGGLED, alone, broken_off, len, passes, post, refused, request,
    then_refused,
};

pub fn cases(all: &mut Vec<Case>) {
    both(all);
    repeated(all);
    odd(all);
    other(all);
}

fn both(all: &mut Vec<Case>) {
    let (length, chunked) = (len(SMUGGLED) + 5, format!("0\r\n\r\n{SMUGGLED}"));
    all.extend([
        refused(
            "both lengths, Content-Length first",
            post(
                &format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"),
                &chunked,
            ),
        ),
        refused(
            "both lengths, Transfer-Encoding first",
            post(
                &format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"),
                &chunked,
            ),
        ),
        refused(
            "both lengths, the length 0",
            post(
                "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
                &chunked,
            ),
        ),
        refused(
            "both lengths, far apart",
            post(
                &format!(
                    "Content-Length: {length}\r\nA: b\r\nC: d\r\ntransfer-encoding: chunked\r\n"
                ),
                &chunked,
            ),
        ),
    ]);
}

fn repeated(all: &mut Vec<Case>) {
    let length = len(SMUGGLED);
    all.extend([
        refused(
            "Content-Length twice, equal",
            post("Content-Length: 5\r\nContent-Length: 5\r\n", "hello"),
        ),
        refused(
            "Content-Length twice, 0 first",
            post(
                &format!("Content-Length: 0\r\nContent-Length: {length}\r\n"),
                SMUGGLED,
            ),
        ),
        refused(
            "Content-Length twice, 0 last",
            post(
                &format!("Content-Length: {length}\r\ncontent-length: 0\r\n"),
                SMUGGLED,
            ),
        ),
        refused(
            "Content-Length listed, equal",
            post("Content-Length: 5, 5\r\n", "hello"),
        ),
        refused(
            "Content-Length listed, different",
            post(&format!("Content-Length: 0, {length}\r\n"), SMUGGLED),
        ),
    ]);
}

fn odd(all: &mut Vec<Case>) {
    for (name, value) in [
        ("Content-Length +5", "+5"),
        ("Content-Length -1", "-1"),
        ("Content-Length 0x5", "0x5"),
        ("Content-Length 5 5", "5 5"),
        ("Content-Length empty", ""),
        ("Content-Length 5.0", "5.0"),
        ("Content-Length 5e0", "5e0"),
        ("Content-Length 5;x", "5;x"),
        ("Content-Length quoted", "\"5\""),
        ("Content-Length past 64 bits", "18446744073709551621"),
        ("Content-Length of 400 digits", &"9".repeat(400)),
        ("Content-Length in other digits", "\u{d9}\u{a5}"),
        ("Content-Length with a NUL", "5\0"),
        ("Content-Length behind a vertical tab", "\u{b}5"),
        ("Content-Length behind a no-break space", "\u{a0}5"),
    ] {
        all.push(refused(
            name,
            post(&format!("Content-Length: {value}\r\n"), "hello"),
        ));
    }
    all.extend([
        refused(
            "Content-Length, space before the colon",
            post("Content-Length : 5\r\n", "hello"),
        ),
        refused(
            "Content-Length, tab before the colon",
            post("Content-Length\t: 5\r\n", "hello"),
        ),
        refused(
            "Content-Length in the first line's fold",
            "POST /first-{n} HTTP/1.1\r\n Content-Length: 5\r\nHost: h\r\n{key}\r\nhello",
        ),
        passes(
            "Content-Length with spaces around",
            post("Content-Length: \t 5 \t\r\n", "hello"),
            "hello",
        ),
        passes(
            "Content-Length without a space",
            post("Content-Length:5\r\n", "hello"),
            "hello",
        ),
        passes(
            "Content-Length with zeros before",
            post("Content-Length: 0005\r\n", "hello"),
            "hello",
        ),
    ]);
}

fn other(all: &mut Vec<Case>) {
    let second = len(SECOND);
    all.extend([
        passes(
            "a request as a body",
            post(&format!("Content-Length: {}\r\n", len(SMUGGLED)), SMUGGLED),
            SMUGGLED,
        ),
        alone(
            "the length covers the second request",
            post(
                &format!("Content-Length: {second}\r\nConnection: close\r\n"),
                "",
            ),
            SECOND,
        ),
        broken_off(
            "the length covers more than is sent",
            post("Content-Length: 4000\r\n", ""),
        ),
        then_refused(
            "more bytes than the length",
            post("Content-Length: 5\r\n", "hello\u{1}\u{2}"),
            "hello",
        ),
        passes(
            "Content_Length beside none",
            post(&format!("Content_Length: {second}\r\n"), ""),
            "",
        ),
        passes(
            "Content_Length beside a shorter one",
            post("Content_Length: 50\r\nContent-Length: 5\r\n", "hello"),
            "hello",
        ),
        passes(
            "GET with a body",
            request("GET /first-{n} HTTP/1.1", "Content-Length: 5\r\n", "hello"),
            "hello",
        )
        .arrives("GET", "/first-{n}"),
        passes(
            "GET with a request as a body",
            request(
                "GET /first-{n} HTTP/1.1",
                &format!("Content-Length: {}\r\n", len(SMUGGLED)),
                SMUGGLED,
            ),
            SMUGGLED,
        )
        .arrives("GET", "/first-{n}"),
        over_the_limit(),
        early_answer(),
    ]);
}

/// A guarded body has a limit. The rest of this one follows the answer, and looks like requests.
fn over_the_limit() -> Case {
    let body = SMUGGLED.repeat(400);
    passes(
        "a body over the limit, of requests",
        post(&format!("Content-Length: {}\r\n", len(&body)), &body),
        &body,
    )
    .guarded(Expect::Refused(413))
}

/// The upstream answers without having read a body that looks like requests.
fn early_answer() -> Case {
    let body = SMUGGLED.repeat(80);
    let first = First {
        method: "POST",
        target: "/early-{n}".to_owned(),
        body: String::new(),
    };
    let mut case = passes(
        "answered before the body was read",
        request(
            "POST /early-{n} HTTP/1.1",
            &format!("Content-Length: {}\r\n", len(&body)),
            &body,
        ),
        "",
    );
    (case.guarded, case.unguarded) = (Expect::Passes(first.clone()), Expect::Passes(first));
    case
}
