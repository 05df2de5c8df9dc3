//! Checks that the HTTP library sees exactly the requests that the scanner lets through.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::scan::Piece;
use super::super::{Refusal, Scanner, Wire};
use super::{limits, settings};

const CASES: usize = 4_000;

/// What the scanner or the library saw on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Request {
        method: String,
        target: String,
        /// `None` if the body broke off.
        body: Option<Vec<u8>>,
    },
    Refused(Refusal),
}

#[tokio::test]
async fn the_library_sees_the_requests_that_the_scanner_saw() {
    let seed = std::env::var("HAPAX_SEED").map_or(0x6861_7061_7821, |text| {
        text.parse().expect("HAPAX_SEED is a number")
    });
    println!("HAPAX_SEED={seed}");
    let mut seeds = Random(seed);
    let (mut requests, mut refused) = (0, 0);
    for case in 0..CASES {
        let mut random = Random(seeds.next());
        let input = connection(&mut random);
        let scanned = by_scanner(&input);
        let served = by_library(&input, &mut random).await;
        assert_eq!(
            served,
            scanned,
            "case {case} of seed {seed}: library (left), scanner (right)\n{:?}",
            String::from_utf8_lossy(&input)
        );
        requests += scanned
            .iter()
            .filter(|seen| matches!(seen, Seen::Request { body: Some(_), .. }))
            .count();
        refused += scanned
            .iter()
            .filter(|seen| matches!(seen, Seen::Refused(_)))
            .count();
    }
    println!("{requests} requests, {refused} connections refused");
    assert!(
        requests > CASES / 2 && refused > CASES / 10,
        "the inputs are too much alike: {requests} requests, {refused} refused"
    );
}

/// The scanner's view of a connection that ends after `input`.
fn by_scanner(input: &[u8]) -> Vec<Seen> {
    let (mut scanner, mut rest, mut seen) = (Scanner::new(limits()), input, Vec::new());
    let mut last = false;
    // The request whose body is being read.
    let mut open: Option<(String, String, Vec<u8>)> = None;
    loop {
        scanner.resume();
        if scanner.in_head() {
            seen.extend(open.take().map(|(method, target, body)| Seen::Request {
                method,
                target,
                body: Some(body),
            }));
            if last {
                return seen;
            }
        }
        match scanner.step(rest) {
            Ok(Some((piece, length))) => {
                let (bytes, behind) = rest.split_at(length);
                rest = behind;
                match (piece, &mut open) {
                    (Piece::Head, open) => {
                        let (method, target, closes) = read_head(bytes);
                        *open = Some((method, target, Vec::new()));
                        last = closes;
                    }
                    (Piece::Body, Some((_, _, body))) => body.extend_from_slice(bytes),
                    _ => {}
                }
            }
            stopped => {
                seen.extend(open.map(|(method, target, _)| Seen::Request {
                    method,
                    target,
                    body: None,
                }));
                seen.extend(
                    stopped
                        .err()
                        .filter(|_| scanner.in_head())
                        .map(Seen::Refused),
                );
                return seen;
            }
        }
    }
}

/// The method, the target, and whether the connection closes after the request.
fn read_head(head: &[u8]) -> (String, String, bool) {
    let head = String::from_utf8_lossy(head);
    let head = head.trim_start();
    let words: Vec<&str> = head.lines().next().unwrap().split(' ').collect();
    let options: Vec<String> = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| name.eq_ignore_ascii_case("connection"))
        .flat_map(|(_, value)| {
            value
                .split(',')
                .map(|option| option.trim().to_ascii_lowercase())
        })
        .collect();
    let has = |option: &str| options.iter().any(|given| given == option);
    (
        words[0].to_owned(),
        plain(words[1]),
        has("close") || (words[2] == "HTTP/1.0" && !has("keep-alive")),
    )
}

/// An absolute target as the library spells it.
fn plain(target: &str) -> String {
    match target.find("://") {
        Some(at) if !target.starts_with('/') => {
            let slash = if target[at + 3..].contains('/') {
                ""
            } else {
                "/"
            };
            format!("{}{slash}", target.to_ascii_lowercase())
        }
        _ => target.to_owned(),
    }
}

/// The library's view of the same connection, which it reads through a wire in pieces of random
/// size.
async fn by_library(input: &[u8], random: &mut Random) -> Vec<Seen> {
    let (client, server) = tokio::io::duplex(4 << 10);
    let (wire, handle) = Wire::new(server, BytesMut::new(), settings());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (log, (refusal, _)) = (log.clone(), handle.next_request());
        async move {
            let entry = match refusal {
                Some(refusal) => Seen::Refused(refusal),
                None => read_request(request).await,
            };
            log.lock().unwrap().push(entry);
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let serving = http1::Builder::new()
        .half_close(true)
        .serve_connection(wire, service);
    let (mut reader, mut writer) = tokio::io::split(client);
    let sending = async {
        let mut rest = input;
        while !rest.is_empty() {
            let (part, behind) = rest.split_at(random.between(1, rest.len().min(200)));
            rest = behind;
            // The server may have closed; the test compares what it saw until then.
            if writer.write_all(part).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = writer.shutdown().await;
    };
    let receiving = async {
        let _ = reader.read_to_end(&mut Vec::new()).await;
    };
    let (_, (), ()) = tokio::join!(serving, sending, receiving);
    Arc::try_unwrap(seen).map_or_else(
        |shared| shared.lock().unwrap().clone(),
        |seen| seen.into_inner().unwrap(),
    )
}

async fn read_request(request: Request<Incoming>) -> Seen {
    let (parts, body) = request.into_parts();
    let target = plain(&parts.uri.to_string());
    let body = body
        .collect()
        .await
        .ok()
        .map(|body| body.to_bytes().to_vec());
    Seen::Request {
        method: parts.method.to_string(),
        target,
        body,
    }
}

/// The bytes of a connection: a few requests, most of them good, some of them damaged.
fn connection(random: &mut Random) -> Vec<u8> {
    let mut input = Vec::new();
    for _ in 0..random.between(1, 4) {
        input.extend(request(random));
    }
    if random.one_in(2) {
        for _ in 0..random.between(1, 3) {
            damage(&mut input, random);
        }
    }
    input
}

fn request(random: &mut Random) -> Vec<u8> {
    let method = random.pick(&["GET", "POST", "PATCH", "DELETE", "x-odd", "OPTIONS"]);
    let target = random.pick(&[
        "/",
        "/a/b?c=d",
        "//x",
        "/%2e%2e/?q=\"",
        "http://h.example/x",
        "http://H.example/",
        "/a|b^c",
    ]);
    let target = if *method == "OPTIONS" && random.one_in(2) {
        "*"
    } else {
        target
    };
    let version = random.pick(&["1.1", "1.1", "1.1", "1.1", "1.1", "1.1", "1.0"]);
    let mut head = format!("{method} {target} HTTP/{version}\r\n");
    let mut fields = vec![
        random
            .pick(&["Host: h.example", "host:h.example\t", "HOST: h.example"])
            .to_string(),
    ];
    for _ in 0..random.between(0, 4) {
        fields.push((*random.pick(FIELDS)).to_string());
    }
    let body = body(random, &mut fields);
    if random.one_in(3) {
        fields.rotate_left(1);
    }
    head.push_str(&fields.join("\r\n"));
    head.push_str("\r\n\r\n");
    let blank: &[u8] = if random.one_in(12) { b"\r\n" } else { b"" };
    [blank, head.as_bytes(), &body].concat()
}

const FIELDS: &[&str] = &[
    "X-A: b",
    "X-A:",
    "X-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Connection: keep-alive",
    "Connection: x-a, Keep-Alive",
    "Accept: */*",
    "Idempotency-Key: \"k\"",
    "Expect: 100-continue",
    "TE: trailers",
    "Upgrade: odd",
    "X-Obs: caf\u{e9}",
    "Content-Type: text/plain",
];

fn body(random: &mut Random, fields: &mut Vec<String>) -> Vec<u8> {
    let bytes: Vec<u8> = (0..random.between(0, 300))
        .map(|_| *random.pick(b"GET / HTTP/1.1\r\n\r\n0:;\0\xff"))
        .collect();
    match random.between(0, 2) {
        0 => Vec::new(),
        1 => {
            fields.push(format!("Content-Length: {}", bytes.len()));
            bytes
        }
        _ => {
            fields.push(
                random
                    .pick(&["Transfer-Encoding: chunked", "transfer-encoding:CHUNKED "])
                    .to_string(),
            );
            chunked(&bytes, random)
        }
    }
}

fn chunked(mut bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut body = Vec::new();
    while !bytes.is_empty() {
        let (chunk, rest) = bytes.split_at(random.between(1, bytes.len()));
        bytes = rest;
        let extension = random.pick(&["", "", "", ";a", ";a=\"b c\""]);
        body.extend(format!("{:x}{extension}\r\n", chunk.len()).into_bytes());
        body.extend(chunk);
        body.extend(b"\r\n");
    }
    body.extend(
        random
            .pick(&[
                "0\r\n\r\n",
                "000\r\n\r\n",
                "0;x\r\n\r\n",
                "0\r\nX-Sum: 1\r\n\r\n",
            ])
            .bytes(),
    );
    body
}

fn damage(input: &mut Vec<u8>, random: &mut Random) {
    let at = random.between(0, input.len() - 1);
    let line = at + memchr::memchr(b'\n', &input[at..]).map_or(0, |feed| feed + 1);
    match random.between(0, 6) {
        0 => input[at] = *random.pick(b"\r\n\t \0:;,0a\x7f\x80"),
        1 => input.insert(at, *random.pick(b"\r\n\t \0:;,0a\x7f\x80")),
        2 => {
            input.remove(at);
        }
        3 => input.truncate(at.max(1)),
        4 | 5 => {
            let extra = random.pick(EXTRA);
            input.splice(line..line, extra.bytes());
        }
        _ => {
            // Leaves a bare line feed in place of a CRLF.
            if let Some(end) = memchr::memmem::find(&input[at..], b"\r\n") {
                input.remove(at + end);
            }
        }
    }
    if input.is_empty() {
        input.push(b'\n');
    }
}

const EXTRA: &[&str] = &[
    "Content-Length: 3\r\n",
    "Content-Length: +3\r\n",
    "Content-Length: 3, 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: identity, chunked\r\n",
    "Transfer-Encoding: chunked, x\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Host: h.example\r\n",
    "Host: other\r\n",
    "Connection: close\r\n",
    "Connection: idempotency-key\r\n",
    "Expect: tea\r\n",
    " folded\r\n",
    "\r\n",
    "0\r\n\r\n",
    "GET /inner HTTP/1.1\r\nHost: h.example\r\n\r\n",
];

/// The SplitMix64 generator: small, and the same on every platform.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn between(&mut self, least: usize, most: usize) -> usize {
        least
            + usize::try_from(self.next() % (most - least + 1) as u64)
                .expect("smaller than a usize")
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.between(1, many) == 1
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.between(0, from.len() - 1)]
    }
}
