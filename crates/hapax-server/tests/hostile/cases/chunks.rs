//! Chunks: sizes, extensions, ends, and bytes after the last chunk.

use super::{Case, SMUGGLED, broken_off, len, passes, post, then_refused};

pub fn cases(all: &mut Vec<Case>) {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(300));
    let many = format!(
        "{}0\r\n\r\n",
        format!("1;{}\r\na\r\n", "x".repeat(200)).repeat(30)
    );
    let smuggled = format!("0;\n{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", len(SMUGGLED));
    for (name, body) in [
        ("chunk extension too long", long.as_str()),
        ("chunk extensions too many", &many),
        (
            "chunk extension with a bare LF",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "chunk extension with a bare CR",
            "5;a\rb\r\nhello\r\n0\r\n\r\n",
        ),
        ("chunk extension with a NUL", "5;a\0b\r\nhello\r\n0\r\n\r\n"),
        ("chunk extension that ends in a bare LF", &smuggled),
        (
            "chunk extension without its semicolon",
            "5 a\r\nhello\r\n0\r\n\r\n",
        ),
        ("chunk size -5", "-5\r\nhello\r\n0\r\n\r\n"),
        ("chunk size +5", "+5\r\nhello\r\n0\r\n\r\n"),
        ("chunk size 0x5", "0x5\r\nhello\r\n0\r\n\r\n"),
        ("chunk size behind a space", " 5\r\nhello\r\n0\r\n\r\n"),
        ("chunk size before a space", "5 \r\nhello\r\n0\r\n\r\n"),
        ("chunk size before a tab", "5\t\r\nhello\r\n0\r\n\r\n"),
        ("chunk size empty", "\r\nhello\r\n0\r\n\r\n"),
        ("chunk size G", "G\r\nhello\r\n0\r\n\r\n"),
        ("chunk size 5_0", "5_0\r\nhello\r\n0\r\n\r\n"),
        (
            "chunk size past 64 bits",
            "10000000000000005\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "chunk size of all 64 bits",
            "ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        ),
        (
            "chunk size of 2000 digits",
            &format!("{}5\r\nhello\r\n0\r\n\r\n", "0".repeat(2_000)),
        ),
        ("chunk size before a bare LF", "5\nhello\r\n0\r\n\r\n"),
        ("chunk size before a bare CR", "5\rhello\r\n0\r\n\r\n"),
        ("chunk without its end", "5\r\nhello0\r\n\r\n"),
        ("chunk that ends in a bare LF", "5\r\nhello\n0\r\n\r\n"),
        ("chunk that ends in a bare CR", "5\r\nhello\r0\r\n\r\n"),
        ("chunk longer than its size", "4\r\nhello\r\n0\r\n\r\n"),
        ("chunk shorter than its size", "6\r\nhello\r\n0\r\n\r\n"),
        ("chunks without their last line", "5\r\nhello\r\n0\r\n"),
        ("last chunk before a bare LF", "5\r\nhello\r\n0\n\r\n"),
        ("chunks that end in a bare LF", "5\r\nhello\r\n0\r\n\n"),
        ("last chunk -0", "5\r\nhello\r\n-0\r\n\r\n"),
    ] {
        all.push(broken_off(
            name,
            post("Transfer-Encoding: chunked\r\n", body),
        ));
    }
    for (name, body) in [
        ("chunk extension", "5;a=b\r\nhello\r\n0;c=\"d\"\r\n\r\n"),
        (
            "chunk sizes with zeros before",
            "0005\r\nhello\r\n0000\r\n\r\n",
        ),
        (
            "chunks of a byte each",
            "1\r\nh\r\n1\r\ne\r\n1\r\nl\r\n1\r\nl\r\n1\r\no\r\n0\r\n\r\n",
        ),
    ] {
        all.push(passes(
            name,
            post("Transfer-Encoding: chunked\r\n", body),
            "hello",
        ));
    }
    all.push(passes(
        "chunk size A",
        post(
            "Transfer-Encoding: chunked\r\n",
            "A\r\nhellohello\r\n0\r\n\r\n",
        ),
        "hellohello",
    ));
    all.push(then_refused(
        "chunks that nobody announced",
        post("", "5\r\nhello\r\n0\r\n\r\n"),
        "",
    ));
    trailers(all);
}

fn trailers(all: &mut Vec<Case>) {
    let with = |trailers: &str| {
        post(
            "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n",
            &format!("5\r\nhello\r\n0\r\n{trailers}\r\n"),
        )
    };
    for (name, trailers) in [
        ("trailer Content-Length", "Content-Length: 50\r\n"),
        (
            "trailer Transfer-Encoding",
            "Transfer-Encoding: chunked\r\n",
        ),
        ("trailer Host", "Host: evil\r\n"),
        ("trailer Idempotency-Key", "Idempotency-Key: other\r\n"),
        ("trailer Authorization", "Authorization: Bearer other\r\n"),
        ("trailer Hapax-Fence", "Hapax-Fence: 1\r\n"),
        ("trailer Connection", "Connection: keep-alive\r\n"),
        ("trailer Cookie", "Cookie: a=b\r\n"),
        ("trailer X-Forwarded-For", "X-Forwarded-For: 1.2.3.4\r\n"),
        ("trailer folded", "X-Sum: 1\r\n 2\r\n"),
        ("trailer before a bare LF", "X-Sum: 1\n"),
        ("trailer without a colon", "X-Sum\r\n"),
        ("trailer with a space before the colon", "X-Sum : 1\r\n"),
        ("trailer with a NUL", "X-Sum: \0\r\n"),
        ("trailers too many", &"X-Sum: 1\r\n".repeat(101)),
        (
            "trailer too long",
            &format!("X-Sum: {}\r\n", "x".repeat(9_000)),
        ),
    ] {
        all.push(broken_off(name, with(trailers)));
    }
    all.push(passes("trailer", with("X-Sum: 1\r\n"), "hello"));
}
