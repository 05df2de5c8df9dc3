//! HTTP/2: fields that would change their meaning when they are written as lines.

use super::{Case, Expect, First, Input, SMUGGLED};
use hapax_testkit::harness::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frame, PRIORITY, PUSH_PROMISE, Payload,
};

const BOTH: u8 = END_HEADERS | END_STREAM;
const GOOD: [(&str, &str); 5] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "h"),
    (":path", "/first-{n}"),
    ("{key}", ""),
];

pub fn cases(all: &mut Vec<Case>) {
    pseudo(all);
    paths(all);
    fields(all);
    lengths(all);
    frames(all);
}

fn refused(name: &'static str, frames: Vec<Frame>) -> Case {
    Case::new(name, Input::Http2(frames), Expect::Refused(400))
}

fn broken_off(name: &'static str, frames: Vec<Frame>) -> Case {
    Case::new(
        name,
        Input::Http2(frames),
        Expect::BrokenOff(First::usual("")),
    )
}

fn may_pass(name: &'static str, frames: Vec<Frame>) -> Case {
    Case::new(
        name,
        Input::Http2(frames),
        Expect::MayPass(First::usual("")),
    )
}

fn passes(name: &'static str, frames: Vec<Frame>, body: &str) -> Case {
    Case::new(
        name,
        Input::Http2(frames),
        Expect::Passes(First::usual(body)),
    )
}

/// The good request, with these fields at its end.
fn with(more: &[(&str, &str)]) -> Vec<Frame> {
    vec![Frame::headers(1, BOTH, &[&GOOD[..], more].concat())]
}

/// The good request, with one of its fields replaced by these.
fn instead(of: &str, these: &[(&str, &str)]) -> Vec<Frame> {
    let fields: Vec<_> = GOOD
        .iter()
        .flat_map(|field| {
            if field.0 == of {
                these.to_vec()
            } else {
                vec![*field]
            }
        })
        .collect();
    vec![Frame::headers(1, BOTH, &fields)]
}

/// The good request with these fields, and this body.
fn body(more: &[(&str, &str)], data: &str) -> Vec<Frame> {
    vec![
        Frame::headers(1, END_HEADERS, &[&GOOD[..], more].concat()),
        Frame::of(DATA, END_STREAM, 1, data),
    ]
}

fn pseudo(all: &mut Vec<Case>) {
    let late = [GOOD[0], GOOD[1], GOOD[2], ("a", "b"), GOOD[3], GOOD[4]];
    all.extend([
        passes("h2: a good request", body(&[], "hello"), "hello"),
        refused("h2: :path twice", with_pseudo((":path", "/smuggled-{n}"))),
        refused("h2: :method twice", with_pseudo((":method", "GET"))),
        refused("h2: :authority twice", with_pseudo((":authority", "evil"))),
        refused("h2: :scheme twice", with_pseudo((":scheme", "https"))),
        refused("h2: :status", with_pseudo((":status", "200"))),
        refused("h2: :unknown", with_pseudo((":unknown", "x"))),
        refused("h2: a lone colon for a name", with_pseudo((":", "x"))),
        refused(
            "h2: :path behind a field",
            vec![Frame::headers(1, BOTH, &late)],
        ),
        refused("h2: no :path", instead(":path", &[])),
        refused("h2: no :method", instead(":method", &[])),
        refused("h2: no :authority, no Host", instead(":authority", &[])),
        passes(
            "h2: Host for :authority",
            instead(":authority", &[])
                .into_iter()
                .map(|frame| add(frame, "host", "h"))
                .collect(),
            "",
        ),
        passes(
            "h2: Host beside :authority, equal",
            with(&[("host", "h")]),
            "",
        ),
        refused(
            "h2: Host beside :authority, different",
            with(&[("host", "evil")]),
        ),
        refused("h2: Host twice", with(&[("host", "h"), ("host", "h")])),
        refused(
            "h2: :authority empty",
            instead(":authority", &[(":authority", "")]),
        ),
        refused(
            "h2: :authority with a user",
            instead(":authority", &[(":authority", "u@h")]),
        ),
        refused(
            "h2: :authority with a path",
            instead(":authority", &[(":authority", "h/x")]),
        ),
        refused(
            "h2: :authority with a line",
            instead(":authority", &[(":authority", "h\r\nX: y")]),
        ),
        refused(
            "h2: :authority with a comma",
            instead(":authority", &[(":authority", "h,evil")]),
        ),
        refused(
            "h2: :scheme with a line",
            instead(":scheme", &[(":scheme", "http://evil/ HTTP/1.1\r\nX: y")]),
        ),
        refused(
            "h2: :method with a space",
            instead(":method", &[(":method", "GET /smuggled-{n} HTTP/1.1")]),
        ),
        refused(
            "h2: :method with a line",
            instead(":method", &[(":method", "GET / HTTP/1.1\r\nX: y")]),
        ),
        refused("h2: :method empty", instead(":method", &[(":method", "")])),
        refused("h2: CONNECT", instead(":method", &[(":method", "CONNECT")])),
        refused("h2: CONNECT of another protocol", extended_connect()),
        refused(
            "h2: a method in small letters",
            instead(":method", &[(":method", "post")]),
        ),
    ]);
}

fn with_pseudo(more: (&str, &str)) -> Vec<Frame> {
    vec![Frame::headers(1, BOTH, &[&[more], &GOOD[..]].concat())]
}

fn add(mut frame: Frame, name: &str, value: &str) -> Frame {
    if let Payload::Fields(fields) = &mut frame.payload {
        fields.push((name.to_owned(), value.to_owned()));
    }
    frame
}

fn extended_connect() -> Vec<Frame> {
    let mut fields = vec![(":protocol", "websocket")];
    fields.extend(
        GOOD.map(|(name, value)| (name, if name == ":method" { "CONNECT" } else { value })),
    );
    vec![Frame::headers(1, END_HEADERS, &fields)]
}

fn paths(all: &mut Vec<Case>) {
    for (name, path) in [
        ("h2: :path empty", ""),
        ("h2: :path without a slash", "first-{n}"),
        ("h2: :path with a space", "/first-{n} HTTP/1.1"),
        ("h2: :path with a line", "/first-{n}\r\nX: y"),
        (
            "h2: :path with a request",
            "/first-{n} HTTP/1.1\r\nHost: h\r\n\r\nGET /smuggled-{n} HTTP/1.1\r\nHost: h\r\n\r\n",
        ),
        ("h2: :path with a bare LF", "/first-{n}\nX: y"),
        ("h2: :path with a NUL", "/first-{n}\0"),
        ("h2: :path with a tab", "/first-{n}\tx"),
        ("h2: :path that is not ASCII", "/\u{fc}-{n}"),
        ("h2: :path *", "*"),
        ("h2: :path absolute", "http://evil/first-{n}"),
    ] {
        all.push(refused(name, instead(":path", &[(":path", path)])));
    }
    // The library drops the fragment before the gateway sees it.
    all.push(passes(
        "h2: :path with a fragment",
        instead(":path", &[(":path", "/first-{n}#x")]),
        "",
    ));
    for (name, path) in [
        ("h2: :path //x", "//x-{n}"),
        ("h2: :path /../x", "/../x-{n}"),
        ("h2: :path with %0d%0a", "/%0d%0aX:%20y-{n}"),
    ] {
        all.push(passes(name, instead(":path", &[(":path", path)]), "").arrives("POST", path));
    }
}

fn fields(all: &mut Vec<Case>) {
    for (name, field) in [
        ("h2: a name with a capital", ("X-Upper", "y")),
        ("h2: a name with a line", ("x\r\ny", "z")),
        ("h2: a name with a colon", ("x: y", "z")),
        ("h2: a name with a space", ("x y", "z")),
        ("h2: a name with a NUL", ("x\0", "z")),
        ("h2: a name of nothing", ("", "z")),
        (
            "h2: a value with a line",
            ("x", "y\r\ntransfer-encoding: chunked"),
        ),
        (
            "h2: a value with a request",
            (
                "x",
                "y\r\n\r\nGET /smuggled-{n} HTTP/1.1\r\nHost: h\r\n\r\n",
            ),
        ),
        ("h2: a value with a bare LF", ("x", "y\nz")),
        ("h2: a value with a bare CR", ("x", "y\rz")),
        ("h2: a value with a NUL", ("x", "y\0z")),
        ("h2: Connection", ("connection", "close")),
        (
            "h2: Connection that names the key",
            ("connection", "idempotency-key"),
        ),
        ("h2: Keep-Alive", ("keep-alive", "timeout=5")),
        ("h2: Proxy-Connection", ("proxy-connection", "keep-alive")),
        ("h2: Transfer-Encoding", ("transfer-encoding", "chunked")),
        ("h2: Upgrade", ("upgrade", "websocket")),
        ("h2: TE other than trailers", ("te", "gzip")),
        ("h2: TE of a list", ("te", "trailers, chunked")),
        ("h2: expects something else", ("expect", "200-ok")),
    ] {
        all.push(refused(name, with(&[field])));
    }
    let long = "x".repeat(15_000);
    all.extend([
        passes("h2: TE: trailers", with(&[("te", "trailers")]), ""),
        passes("h2: our fence", with(&[("hapax-fence", "1")]), ""),
        passes(
            "h2: our fence with an underscore",
            with(&[("hapax_fence", "1")]),
            "",
        ),
        passes(
            "h2: cookies in pieces",
            with(&[("cookie", "a=b"), ("cookie", "c=d")]),
            "",
        )
        .guarded(Expect::Refused(400)),
        refused(
            "h2: fields too large",
            [with(&[("a", &long)]), continued(&long)].concat(),
        ),
    ]);
    // The head ends with the last continuation frame.
    if let Some(Case {
        input: Input::Http2(frames),
        ..
    }) = all.last_mut()
    {
        frames[0].flags = END_STREAM;
    }
}

fn continued(long: &str) -> Vec<Frame> {
    let more = |flags| Frame {
        kind: CONTINUATION,
        ..Frame::headers(1, flags, &[("b", long)])
    };
    vec![more(0), more(0), more(END_HEADERS)]
}

fn lengths(all: &mut Vec<Case>) {
    all.extend([
        // By its head it is complete, and it is forwarded before the surplus data is seen.
        may_pass(
            "h2: data behind a Content-Length of 0",
            body(&[("content-length", "0")], SMUGGLED),
        ),
        broken_off(
            "h2: more data than Content-Length",
            body(&[("content-length", "3")], "hello"),
        ),
        broken_off(
            "h2: less data than Content-Length",
            body(&[("content-length", "50")], "hello"),
        ),
        broken_off(
            "h2: Content-Length and no data",
            with(&[("content-length", "5")]),
        ),
        passes(
            "h2: Content-Length of the data",
            body(&[("content-length", "5")], "hello"),
            "hello",
        ),
        refused(
            "h2: Content-Length twice, equal",
            body(&[("content-length", "5"), ("content-length", "5")], "hello"),
        ),
        refused(
            "h2: Content-Length twice, different",
            body(&[("content-length", "5"), ("content-length", "0")], "hello"),
        ),
        refused(
            "h2: Content-Length +5",
            body(&[("content-length", "+5")], "hello"),
        ),
        refused(
            "h2: Content-Length listed",
            body(&[("content-length", "5, 5")], "hello"),
        ),
        refused(
            "h2: Content-Length empty",
            body(&[("content-length", "")], "hello"),
        ),
        passes("h2: data that is a request", body(&[], SMUGGLED), SMUGGLED),
        passes(
            "h2: data that is a last chunk and a request",
            body(&[], &format!("0\r\n\r\n{SMUGGLED}")),
            &format!("0\r\n\r\n{SMUGGLED}"),
        ),
    ]);
}

fn frames(all: &mut Vec<Case>) {
    let open = Frame::headers(1, END_HEADERS, &GOOD);
    let trailers = |fields: &[(&str, &str)]| {
        vec![
            open.clone(),
            Frame::of(DATA, 0, 1, "hello"),
            Frame::headers(1, BOTH, fields),
        ]
    };
    all.extend([
        // The library drops the field, so that it never reaches the upstream.
        passes(
            "h2: trailers with :path",
            trailers(&[(":path", "/smuggled-{n}")]),
            "hello",
        ),
        broken_off(
            "h2: trailers with a line",
            trailers(&[(
                "x",
                "y\r\n\r\nGET /smuggled-{n} HTTP/1.1\r\nHost: h\r\n\r\n",
            )]),
        ),
        passes("h2: trailers", trailers(&[("x-sum", "1")]), "hello"),
        broken_off(
            "h2: trailers without an end",
            vec![
                open.clone(),
                Frame::of(DATA, 0, 1, "hello"),
                Frame::headers(1, END_HEADERS, &[("x", "y")]),
            ],
        ),
        refused("h2: an even stream", vec![Frame::headers(2, BOTH, &GOOD)]),
        refused(
            "h2: a head on no stream",
            vec![Frame::headers(0, BOTH, &GOOD)],
        ),
        refused(
            "h2: data on a stream not begun",
            vec![Frame::of(DATA, END_STREAM, 1, "hello")],
        ),
        refused(
            "h2: a head that something interrupts",
            vec![
                Frame::headers(1, END_STREAM, &GOOD),
                Frame::of(DATA, 0, 1, "hello"),
            ],
        ),
        refused(
            "h2: a continuation of nothing",
            vec![Frame {
                kind: CONTINUATION,
                ..Frame::headers(1, BOTH, &GOOD)
            }],
        ),
        refused(
            "h2: a promise by the client",
            vec![Frame::of(PUSH_PROMISE, END_HEADERS, 1, "\0\0\0\u{2}")],
        ),
        refused(
            "h2: a stream that waits for itself",
            vec![Frame::of(PRIORITY, 0, 1, "\0\0\0\u{1}\u{10}")],
        ),
        refused(
            "h2: padding longer than the frame",
            vec![Frame::of(
                hapax_testkit::harness::frames::HEADERS,
                BOTH | 8,
                1,
                "\u{ff}",
            )],
        ),
        refused(
            "h2: HPACK that is none",
            vec![Frame::of(
                hapax_testkit::harness::frames::HEADERS,
                BOTH,
                1,
                "\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}",
            )],
        ),
        refused(
            "h2: HTTP/1.1 behind the preface",
            vec![Frame::raw(SMUGGLED)],
        ),
    ]);
}
