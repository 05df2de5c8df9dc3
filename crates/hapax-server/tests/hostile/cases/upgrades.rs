//! Other protocols, and the methods for them.

use super::{Case, alone, passes, refused, request};

const GET: &str = "GET /first-{n} HTTP/1.1";
const POST: &str = "POST /first-{n} HTTP/1.1";

pub fn cases(all: &mut Vec<Case>) {
    let h2c = "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n";
    let websocket = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";
    for (name, fields) in [
        ("GET that upgrades to h2c", h2c),
        (
            "GET that upgrades to h2c, unnamed",
            "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        ),
        ("GET that upgrades to websocket", websocket),
        (
            "GET that upgrades to both",
            "Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
        ),
        (
            "GET that upgrades to both in two lines",
            "Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
        ),
        (
            "GET that upgrades to TLS",
            "Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n",
        ),
        (
            "GET that upgrades to HTTP/2.0",
            "Upgrade: HTTP/2.0\r\nConnection: Upgrade\r\n",
        ),
        (
            "GET that upgrades to nothing",
            "Upgrade:\r\nConnection: Upgrade\r\n",
        ),
    ] {
        all.push(passes(name, request(GET, fields, ""), "").arrives("GET", "/first-{n}"));
    }
    for (name, fields) in [
        ("POST that upgrades to h2c", h2c),
        ("POST that upgrades to websocket", websocket),
    ] {
        all.push(passes(
            name,
            request(POST, &format!("{fields}Content-Length: 5\r\n"), "hello"),
            "hello",
        ));
    }
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    for (name, fields) in [
        ("chunked POST that upgrades to h2c", h2c),
        ("chunked POST that upgrades to websocket", websocket),
    ] {
        all.push(passes(
            name,
            request(
                POST,
                &format!("{fields}Transfer-Encoding: chunked\r\n"),
                chunks,
            ),
            "hello",
        ));
    }
    all.extend([
        refused(
            "websocket with both lengths",
            request(
                GET,
                &format!("{websocket}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
                "0\r\n\r\n",
            ),
        ),
        alone(
            "HTTP/1.0 that upgrades",
            request("GET /first-{n} HTTP/1.0", websocket, ""),
            "",
        )
        .arrives("GET", "/first-{n}"),
        refused(
            "CONNECT to a host",
            request("CONNECT h:80 HTTP/1.1", "", ""),
        ),
        refused(
            "CONNECT to a path",
            request("CONNECT /first-{n} HTTP/1.1", "", ""),
        ),
        refused(
            "CONNECT with a length",
            request("CONNECT h:80 HTTP/1.1", "Content-Length: 5\r\n", "hello"),
        ),
        refused(
            "connect in small letters",
            request("connect /first-{n} HTTP/1.1", "", ""),
        ),
        passes("TRACE", request("TRACE /first-{n} HTTP/1.1", "", ""), "")
            .arrives("TRACE", "/first-{n}"),
        passes(
            "TRACE that may go no further",
            request("TRACE /first-{n} HTTP/1.1", "Max-Forwards: 0\r\n", ""),
            "",
        )
        .arrives("TRACE", "/first-{n}"),
        refused(
            "HTTP/2's preface, misspelt",
            request("PRI * HTTP/2.0", "", ""),
        ),
        refused(
            "HTTP/2's preface, then HTTP/1.1's line",
            "PRI * HTTP/2.0\r\n\r\nPOST /first-{n} HTTP/1.1\r\nHost: h\r\n{key}\r\n",
        ),
        refused(
            "HTTP/2's preface as HTTP/1.1",
            request("PRI * HTTP/1.1", "", ""),
        ),
    ]);
}
