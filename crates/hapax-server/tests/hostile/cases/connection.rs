//! Fields that `Connection` names, to have a proxy remove them.

use super::{Case, alone, passes, post, refused};

pub fn cases(all: &mut Vec<Case>) {
    let with = |fields: &str| post(&format!("{fields}Content-Length: 5\r\n"), "hello");
    for (name, value) in [
        ("Connection: idempotency-key", "idempotency-key"),
        (
            "Connection: Idempotency-Key among others",
            "keep-alive, Idempotency-Key",
        ),
        ("Connection: authorization", "authorization"),
        ("Connection: cookie", "cookie"),
        ("Connection: hapax-fence", "hapax-fence"),
        ("Connection: hapax-operation", "hapax-operation"),
        ("Connection: content-length", "content-length"),
        ("Connection: content-type", "content-type"),
        ("Connection: transfer-encoding", "transfer-encoding"),
        ("Connection: host", "host"),
        ("Connection: forwarded", "forwarded"),
        ("Connection: x-forwarded-for", "x-forwarded-for"),
        ("Connection: x-request-id", "x-request-id"),
        ("Connection: traceparent", "traceparent"),
        ("Connection quoted", "\"idempotency-key\""),
        ("Connection with a space", "keep alive"),
        ("Connection with a slash", "a/b"),
    ] {
        all.push(refused(name, with(&format!("Connection: {value}\r\n"))));
    }
    all.extend([
        refused(
            "Connection: the key, in a second line",
            with("Connection: keep-alive\r\nConnection: idempotency-key\r\n"),
        ),
        passes(
            "Connection: something of no matter",
            with("Connection: x-hop\r\nX-Hop: 1\r\n"),
            "hello",
        ),
        passes("Connection of commas", with("Connection: ,,,\r\n"), "hello"),
        passes("Connection empty", with("Connection:\r\n"), "hello"),
        passes(
            "Connection: the key with an underscore",
            with("Connection: idempotency_key\r\n"),
            "hello",
        ),
        passes(
            "Proxy-Connection: idempotency-key",
            with("Proxy-Connection: idempotency-key\r\n"),
            "hello",
        ),
        passes(
            "Keep-Alive: idempotency-key",
            with("Keep-Alive: idempotency-key\r\n"),
            "hello",
        ),
        passes(
            "Trailer: idempotency-key",
            with("Trailer: idempotency-key\r\n"),
            "hello",
        ),
        alone("Connection: close", with("Connection: close\r\n"), "hello"),
        alone(
            "Connection: close, keep-alive",
            with("Connection: close, keep-alive\r\n"),
            "hello",
        ),
        alone(
            "Connection: keep-alive, then close",
            with("Connection: keep-alive\r\nConnection: close\r\n"),
            "hello",
        ),
    ]);
}
