//! The inputs, and what must happen with each.
//!
//! Templates are text in which each character is a byte. `{n}` stands for a nonce that differs in
//! each run, and `{key}` for the key's field, or for nothing where the request is not to be
//! guarded.

mod chunks;
mod codings;
mod connection;
mod fields;
mod hosts;
mod http2;
mod lengths;
mod lines;
mod targets;
mod upgrades;

use hapax_testkit::harness::frames::Frame;

/// A request that no upstream may ever see: it is hidden in bodies and after ambiguous ends.
pub const SMUGGLED: &str = "GET /smuggled-{n} HTTP/1.1\r\nHost: h\r\n\r\n";
/// The request that follows each hostile one.
pub const SECOND: &str = "GET /second-{n} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
/// The length of the nonce that replaces `{n}`.
pub const NONCE_BYTES: usize = 8;

/// An input and its expected results.
pub struct Case {
    pub name: &'static str,
    pub input: Input,
    /// When sent with a key.
    pub guarded: Expect,
    /// When sent without a key.
    pub unguarded: Expect,
}

pub enum Input {
    Http1(String),
    Http2(Vec<Frame>),
}

/// What must happen with an input.
#[derive(Clone, Debug)]
pub enum Expect {
    /// Nothing of it reaches the upstream, and the connection ends with this answer. Over HTTP/2 a
    /// reset is also accepted.
    Refused(u16),
    /// The error is only in its body: it must not be answered as a valid request, but the beginning
    /// of an unguarded one may have arrived.
    BrokenOff(First),
    /// It arrives as exactly this or not at all.
    MayPass(First),
    /// It arrives as exactly this, and so does the second request.
    Passes(First),
    /// It arrives as exactly this, and the connection ends.
    Alone(First),
    /// It arrives as exactly this, and what follows is refused.
    ThenRefused(First, u16),
}

/// The first request as the upstream must see it.
#[derive(Clone, Debug)]
pub struct First {
    pub method: &'static str,
    pub target: String,
    pub body: String,
}

impl First {
    fn usual(body: &str) -> First {
        First {
            method: "POST",
            target: "/first-{n}".to_owned(),
            body: body.to_owned(),
        }
    }
}

impl Expect {
    fn first(&mut self) -> Option<&mut First> {
        match self {
            Expect::Refused(_) => None,
            Expect::BrokenOff(first)
            | Expect::MayPass(first)
            | Expect::Passes(first)
            | Expect::Alone(first) => Some(first),
            Expect::ThenRefused(first, _) => Some(first),
        }
    }
}

impl Case {
    fn new(name: &'static str, input: Input, expect: Expect) -> Case {
        Case {
            name,
            input,
            guarded: expect.clone(),
            unguarded: expect,
        }
    }

    /// Expects another method or target than the default at the upstream.
    fn arrives(mut self, method: &'static str, target: &str) -> Case {
        for expect in [&mut self.guarded, &mut self.unguarded] {
            if let Some(first) = expect.first() {
                (first.method, first.target) = (method, target.to_owned());
            }
        }
        self
    }

    /// Sets another expectation for the guarded request.
    fn guarded(mut self, expect: Expect) -> Case {
        self.guarded = expect;
        self
    }

    /// Whether its template has a place for a key.
    pub fn takes_key(&self) -> bool {
        match &self.input {
            Input::Http1(template) => template.contains("{key}"),
            Input::Http2(frames) => frames.iter().any(Frame::takes_key),
        }
    }
}

/// Every input.
pub fn all() -> Vec<Case> {
    let mut all = Vec::new();
    for add in [
        lengths::cases,
        codings::cases,
        chunks::cases,
        lines::cases,
        fields::cases,
        hosts::cases,
        targets::cases,
        upgrades::cases,
        connection::cases,
        http2::cases,
    ] {
        add(&mut all);
    }
    all
}

fn refused(name: &'static str, input: impl Into<String>) -> Case {
    Case::new(name, Input::Http1(input.into()), Expect::Refused(400))
}

fn too_large(name: &'static str, input: impl Into<String>) -> Case {
    Case::new(name, Input::Http1(input.into()), Expect::Refused(431))
}

fn broken_off(name: &'static str, input: impl Into<String>) -> Case {
    Case::new(
        name,
        Input::Http1(input.into()),
        Expect::BrokenOff(First::usual("")),
    )
}

fn passes(name: &'static str, input: impl Into<String>, body: &str) -> Case {
    Case::new(
        name,
        Input::Http1(input.into()),
        Expect::Passes(First::usual(body)),
    )
}

fn alone(name: &'static str, input: impl Into<String>, body: &str) -> Case {
    Case::new(
        name,
        Input::Http1(input.into()),
        Expect::Alone(First::usual(body)),
    )
}

fn then_refused(name: &'static str, input: impl Into<String>, body: &str) -> Case {
    Case::new(
        name,
        Input::Http1(input.into()),
        Expect::ThenRefused(First::usual(body), 400),
    )
}

/// A POST with these field lines, each including its line end, and `rest` after its head.
fn post(fields: &str, rest: &str) -> String {
    request("POST /first-{n} HTTP/1.1", fields, rest)
}

fn request(line: &str, fields: &str, rest: &str) -> String {
    format!("{line}\r\nHost: h\r\n{{key}}{fields}\r\n{rest}")
}

/// The length in bytes of a template once it is filled in.
fn len(template: &str) -> usize {
    let nonces = template.matches("{n}").count();
    template.chars().count() - nonces * "{n}".len() + nonces * NONCE_BYTES
}
