//! Names and values of fields, and forged Hapax fields.

use super::{Case, passes, post, refused, too_large};

pub fn cases(all: &mut Vec<Case>) {
    for (name, line) in [
        ("a folded field", "A: b\r\n c\r\n"),
        ("a field folded with a tab", "A: b\r\n\tc\r\n"),
        (
            "a key that is folded",
            "X-Key: a\r\n Idempotency-Key: other\r\n",
        ),
        ("a fold of nothing", "A: b\r\n \r\n"),
        ("a name with a space", "A B: c\r\n"),
        ("a name with a NUL", "A\0: c\r\n"),
        ("a name that is not ASCII", "\u{c4}: c\r\n"),
        ("a name with a slash", "A/B: c\r\n"),
        ("a name in brackets", "[A]: c\r\n"),
        ("a field without a name", ": c\r\n"),
        ("a field without a colon", "A\r\n"),
        ("a value with a NUL", "A: b\0c\r\n"),
        ("a value with a control character", "A: b\u{1}c\r\n"),
        ("a value with a backspace", "A: b\u{8}c\r\n"),
        ("a value with DEL", "A: b\u{7f}c\r\n"),
        ("a value with an escape", "A: \u{1b}[2J\r\n"),
    ] {
        all.push(refused(
            name,
            post(&format!("{line}Content-Length: 5\r\n"), "hello"),
        ));
    }
    for (name, line) in [
        ("a value that is not ASCII", "A: \u{ff}\u{fe}\r\n"),
        ("a value of nothing", "A:\r\n"),
        ("our fence", "Hapax-Fence: 1\r\n"),
        ("our fence with an underscore", "Hapax_Fence: 1\r\n"),
        ("our operation", "Hapax-Operation: 1\r\n"),
        ("our trace", "Hapax-Trace: 1\r\n"),
        (
            "another key with an underscore",
            "Idempotency_Key: other\r\n",
        ),
        ("a replay", "Idempotent-Replayed: true\r\n"),
        ("a hundred fields less four", "A: b\r\n".repeat(96).leak()),
    ] {
        all.push(passes(
            name,
            post(&format!("{line}Content-Length: 5\r\n"), "hello"),
            "hello",
        ));
    }
    all.push(too_large(
        "too many fields",
        post(&"A: b\r\n".repeat(120), ""),
    ));
    all.push(too_large(
        "a field too long",
        post(&format!("A: {}\r\n", "b".repeat(40_000)), ""),
    ));
    all.push(too_large(
        "a name too long",
        post(&format!("{}: b\r\n", "A".repeat(40_000)), ""),
    ));
    expectations(all);
}

fn expectations(all: &mut Vec<Case>) {
    for (name, line) in [
        ("expects something else", "Expect: 200-ok\r\n"),
        ("expects more", "Expect: 100-continue, x\r\n"),
        (
            "expects twice",
            "Expect: 100-continue\r\nExpect: 100-continue\r\n",
        ),
        ("expects nothing", "Expect:\r\n"),
        ("expects with parameters", "Expect: 100-continue;x=y\r\n"),
    ] {
        all.push(refused(
            name,
            post(&format!("{line}Content-Length: 5\r\n"), "hello"),
        ));
    }
    all.push(passes(
        "expects 100-continue",
        post("Expect: 100-continue\r\nContent-Length: 5\r\n", "hello"),
        "hello",
    ));
    all.push(passes(
        "expects 100-CONTINUE",
        post("Expect: 100-CONTINUE\r\nContent-Length: 5\r\n", "hello"),
        "hello",
    ));
    all.push(passes(
        "expects 100-continue before nothing",
        post("Expect: 100-continue\r\n", ""),
        "",
    ));
}
